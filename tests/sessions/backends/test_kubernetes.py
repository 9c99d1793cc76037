"""What a Pod of the Kubernetes backend is made with, and what its object says. No cluster is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sessions.backends.base import Launch
from sessions.backends.handshake import new_connection_info
from sessions.backends.kubernetes import KubernetesBackend, KubernetesSettings
from sessions.backends.kubernetes import handle as handles
from sessions.backends.kubernetes.handle import PodHandle
from sessions.backends.kubernetes.profile import kernel_pod, limits_of, network_policy
from sessions.backends.kubernetes.states import state_of
from sessions.model.errors import NotInitialized
from sessions.model.values import ExitReason, Limits
from tests.fakes import KERNELSPECS

SETTINGS = KubernetesSettings("kernels:1", "secret-instance")
LAUNCH = Launch(KERNELSPECS.find("python"), workspace="team-workspace", tenant="team", session="analysis")


def test_a_pod_is_restricted_and_names_nobody() -> None:
    made = kernel_pod(SETTINGS, "pod", LAUNCH, gvisor=True)
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert (spec["runtimeClassName"], spec["automountServiceAccountToken"]) == ("gvisor", False)
    assert (spec["enableServiceLinks"], spec["terminationGracePeriodSeconds"]) == (False, 1)
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["limits"]["memory"] == str(LAUNCH.limits.memory)
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"])
    for name in ("team", "analysis", "secret-instance"):
        assert name not in repr(made)


def test_the_policy_lets_in_only_the_gateway_and_nothing_out() -> None:
    spec = network_policy(SETTINGS)["spec"]
    assert (spec["policyTypes"], spec["egress"]) == (["Ingress", "Egress"], [])
    assert "podSelector" in spec["ingress"][0]["from"][0]
    outside = network_policy(KubernetesSettings("kernels:1", "i", gateway=("10.0.0.1/32",)))
    assert outside["spec"]["ingress"][0]["from"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


#: the sandbox is there, although its container has ended
SANDBOX_RUNS = {"type": "PodReadyToStartContainers", "status": "True"}


def pod(status: dict[str, Any], **metadata: str) -> dict[str, Any]:
    return {"metadata": metadata, "status": status}


def ended(code: int, **more: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": "Error", **more}}}]}


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (pod(ended(137)), ExitReason.OOM, "SIGKILL"),
        (pod(ended(137) | {"conditions": [SANDBOX_RUNS]}), ExitReason.EXITED, "SIGKILL"),
        (pod(ended(137, message="137")), ExitReason.EXITED, "SIGKILL"),
        (pod(ended(3, message="3")), ExitReason.EXITED, "exit code 3"),
        (pod({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}), ExitReason.EXITED, "low on disk"),
        (pod(ended(137), deletionTimestamp="now"), ExitReason.EXITED, "deleted from outside"),
        (
            pod({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}),
            ExitReason.EXITED,
            "its node does not answer",
        ),
        (
            pod({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}),
            ExitReason.EXITED,
            "higher priority",
        ),
    ],
)
def test_each_end_of_a_pod_has_its_words(seen: dict[str, Any], reason: ExitReason, words: str) -> None:
    end = state_of(seen).end
    assert end is not None
    assert end.reason is reason
    assert words in str(end)


#: how the container of a Pod ends at its memory limit, and when code kills its launcher
KILLED = ended(137)["containerStatuses"][0]["state"]
#: the kernel's container is still there, or the next one is starting or runs, and the kernel's is described or is not
STILL, STARTING, NEXT = (
    {"restartCount": 0, "state": KILLED},
    {"restartCount": 1, "state": {"running": {}}, "lastState": {}},
    {"restartCount": 1, "state": {"running": {}}, "lastState": KILLED},
)
OLD, NEW = "10.0.0.1", "10.0.0.2"


def reports(*seen: tuple[dict[str, Any], str, str]) -> list[dict[str, Any]]:
    """Return what the API reports of a Pod that stays: its container, its address, and whether it has a sandbox."""
    spec = kernel_pod(SETTINGS, "pod", LAUNCH, gvisor=True)["spec"]
    return [
        pod({"containerStatuses": [container], "podIP": address, "conditions": [SANDBOX_RUNS | {"status": sandbox}]})
        | {"spec": spec}
        for container, address, sandbox in seen
    ]


class Ends:
    """The handle of a Pod that stays, without a cluster, and how its kernel has ended."""

    def __init__(self) -> None:
        address = new_connection_info("tcp", OLD, first_port=1, encryption=False)
        nothing: Any = None  # no cluster is called for a Pod that stays
        self.handle = PodHandle(nothing, "pod", address, LAUNCH.limits, lambda _handle: None, gvisor=True)
        self.handle.take_files()

    def after(self, seen: list[dict[str, Any]]) -> ExitReason | None:
        """Return how the kernel has ended, after these reports."""
        for each in seen:
            self.handle.note(each)
        assert self.handle.alive or self.handle.stays
        return self.handle.gone.result().reason if self.handle.gone.done() else None


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ([(STILL, OLD, "False")], ExitReason.OOM),
        ([(STILL, OLD, "True")], None),
        ([(STILL, OLD, "True"), (STILL, OLD, "False")], ExitReason.OOM),
        ([(STILL, OLD, "True"), (NEXT, NEW, "True")], ExitReason.OOM),
        ([(STILL, OLD, "True"), (NEXT, OLD, "True")], ExitReason.EXITED),
        ([(STARTING, NEW, "True")], None),
        ([(STARTING, NEW, "True"), (NEXT, NEW, "True")], ExitReason.OOM),
    ],
)
async def test_the_memory_limit_is_told_from_code_that_kills_its_launcher(
    seen: list[tuple[dict[str, Any], str, str]], reason: ExitReason | None
) -> None:
    assert Ends().after(reports(*seen)) is reason


async def test_an_end_of_which_no_report_tells_more_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "UNSURE", 0.01)
    ends = Ends()
    assert ends.after(reports((STILL, OLD, "True"))) is None
    assert str(await ends.handle.wait()) == "The kernel was ended by the signal SIGKILL"


async def test_files_stay_when_a_kernel_is_killed_whose_end_is_not_clear_yet() -> None:
    ends = Ends()
    assert ends.after(reports((STILL, OLD, "True"))) is None
    await ends.handle.kill()
    assert ends.handle.stays
    assert ends.handle.gone.result().reason is ExitReason.KILLED


def test_a_pod_stays_when_only_its_container_has_ended() -> None:
    spec = kernel_pod(SETTINGS, "pod", LAUNCH, gvisor=True)["spec"]
    assert state_of(pod(ended(137)) | {"spec": spec}).stays
    shared = kernel_pod(SETTINGS, "pod", replace(LAUNCH, shared=True), gvisor=True)["spec"]
    assert not state_of(pod(ended(137)) | {"spec": shared}).stays
    assert not state_of(pod(ended(137), deletionTimestamp="now") | {"spec": spec}).stays
    assert not state_of(pod({"phase": "Failed", "reason": "Evicted"}) | {"spec": spec}).stays
    drained = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
    assert not state_of(pod(ended(137) | drained) | {"spec": spec}).stays


def test_the_containers_of_a_pod_are_told_apart() -> None:
    first = pod(ended(3, message="3"))
    assert str(state_of(first).end) == "The kernel has ended with exit code 3"
    assert state_of(first, 1).end is None
    [status] = ended(3, message="3")["containerStatuses"]
    restarted = {"restartCount": 1, "state": {"running": {}}, "lastState": status["state"]}
    second = pod({"containerStatuses": [restarted]})
    assert (state_of(second).running, state_of(second).end) == (False, state_of(first).end)
    assert (state_of(second, 1).running, state_of(second, 1).end) == (True, None)


def test_a_pod_that_will_never_run_says_why() -> None:
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImageNeverPull"}}}]}
    assert "image" in state_of(pod(waiting)).hopeless
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: memory"}
    assert "memory" in state_of(pod({"conditions": [condition]})).hopeless
    creating = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    assert not state_of(pod(creating)).hopeless


def test_the_next_gateway_reads_the_limits_from_the_pod() -> None:
    own = Limits(memory=2**28, cpus=0.5, processes=20, disk=2**20)
    assert limits_of(kernel_pod(SETTINGS, "pod", replace(LAUNCH, limits=own), gvisor=True)) == own


async def test_a_backend_without_a_proof_starts_no_kernel() -> None:
    with pytest.raises(NotInitialized):
        await KubernetesBackend(SETTINGS).start(LAUNCH)
