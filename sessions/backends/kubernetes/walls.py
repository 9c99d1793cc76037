"""The proof that the runtime and the network policy isolate kernels. Pods run `kernel_image/probe.py`.

The proof tests behaviour: two Pods with the role of kernels and two others try to reach one another, the cluster's API
and their nodes. Each wall has a positive control: what a kernel must not reach, a Pod without the policy has just
reached, and what nobody may reach, the gateway has. An enforcer that learns of Pods late leaves their first moments
open, so two more kernels try to connect as soon as they start.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from sessions.backends.kubernetes.cluster import Cluster, Refused
from sessions.backends.kubernetes.profile import (
    FIRST_PORT,
    IMAGE_DIR,
    PYTHON,
    ROLE_LABEL,
    KubernetesSettings,
    pod,
)
from sessions.backends.kubernetes.states import state_of
from sessions.model.errors import ConnectionFailed, NotInitialized
from sessions.model.kernelspecs import Inventory
from sessions.model.tasks import shielded, spawn
from sessions.model.values import Limits

log = structlog.get_logger()

#: seconds for the Pods of a proof to run, and to end
TIMEOUT = 60.0
#: seconds between two looks at them, and for the first connection of the gateway
LOOK, CONNECT = 0.2, 10.0
#: role of Pods without the policy
WITNESS = "witness"
#: port of the kubelet on each node
KUBELET = 10250
NO_ANSWER = "a Pod of the proof gives no answer"
Target = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the probe has found in one Pod."""

    gvisor: bool
    #: targets that answered
    reached: set[Target]
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class Proven:
    """What the Pods of a proof have found."""

    gvisor: bool
    inventory: Inventory


async def prove(cluster: Cluster, settings: KubernetesSettings) -> Proven:
    """Run the Pods of the proof, and check what they could reach.

    Raises:
        NotInitialized: when they could not be run, or reached what a kernel must not reach.
        BackendUnavailable: when the API does not answer.
    """
    names = {role: [f"kernel-gateway-{role}-{uuid.uuid4().hex[:12]}" for _ in range(2)] for role in ("kernel", WITNESS)}
    early = [f"kernel-gateway-early-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    try:
        for role, pair in names.items():
            for name in pair:
                await cluster.create_pod(_probe(settings, name, role, listen=FIRST_PORT))
        pods = await _when(cluster, [*names["kernel"], *names[WITNESS]], _runs)
        at = {name: (str(each["status"]["podIP"]), FIRST_PORT) for name, each in pods.items()}
        proven = await _reach(cluster, settings, names, at, {each["status"]["hostIP"] for each in pods.values()})
        for name in early:
            targets = [at[each] for each in names[WITNESS]]
            await cluster.create_pod(_probe(settings, name, "kernel", targets=targets))
        await _when(cluster, early, _has_tried)
        await _prove_early(cluster, early)
    except Refused as error:
        raise NotInitialized(f"the cluster refuses a Pod or a policy of the proof: {error}") from error
    finally:
        await shielded(spawn(_remove(cluster, [*names["kernel"], *names[WITNESS], *early]), "end of a proof's Pods"))
    return proven


def _probe(
    settings: KubernetesSettings,
    name: str,
    role: str,
    *,
    listen: int | None = None,
    targets: list[Target] | None = None,
) -> dict[str, Any]:
    request = orjson.dumps({"listen": listen, "targets": targets or []}).decode()
    made = pod(settings, name, role, [PYTHON, "-I", "-S", f"{IMAGE_DIR}/probe.py", request], Limits())
    alike = {
        "labelSelector": {"matchLabels": {**settings.labels, ROLE_LABEL: role}},
        "topologyKey": "kubernetes.io/hostname",
    }
    # The two Pods of a role are on two nodes if there are two.
    made["spec"]["affinity"] = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": alike}]
        }
    }
    return made


async def _when(
    cluster: Cluster, names: list[str], ready: Callable[[dict[str, Any]], bool]
) -> Mapping[str, dict[str, Any]]:
    """Wait until all Pods are ready in this sense, and return their objects."""
    try:
        async with asyncio.timeout(TIMEOUT):
            while True:
                found = {each["metadata"]["name"]: each for each in (await cluster.pods())[0]}
                if all(name in found and ready(found[name]) for name in names):
                    return {name: found[name] for name in names}
                await asyncio.sleep(LOOK)
    except TimeoutError as error:
        raise NotInitialized(f"the Pods of the proof did not run, or did not end, within {TIMEOUT:g} s") from error


def _runs(pod: dict[str, Any]) -> bool:
    state = state_of(pod)
    if state.hopeless or state.end is not None:
        raise NotInitialized(f"a Pod of the proof does not run: {state.hopeless or state.end}")
    return state.running and bool(state.address)


def _has_tried(pod: dict[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


async def _reach(
    cluster: Cluster,
    settings: KubernetesSettings,
    names: Mapping[str, list[str]],
    at: Mapping[str, Target],
    nodes: set[str],
) -> Proven:
    kernels, witnesses = names["kernel"], names[WITNESS]
    outside = [cluster.address, *((node, KUBELET) for node in sorted(nodes))]
    for name in kernels:  # the very way in which kernels are used later
        if not await _connects(at[name]):
            raise NotInitialized(
                "the gateway cannot reach a kernel's Pod: its address must be among those of `gateway`, or its Pod "
                "must have the gateway's label"
            )
    for name in witnesses:
        if not await _connects(at[name]):
            raise NotInitialized("the control of the proof fails: the gateway does not reach a Pod without a policy")
    everything = [*at.values(), *outside]
    asked = [_asked(cluster, name, [target for target in everything if target != at[name]]) for name in at]
    answers = dict(zip(at, await asyncio.gather(*asked), strict=True))
    reached = {name: answer.reached for name, answer in answers.items()}
    _check(reached, {at[name] for name in witnesses} | {cluster.address}, {at[name] for name in kernels}, witnesses)
    gvisor = all(answers[name].gvisor for name in kernels)
    if settings.gvisor and not gvisor:
        raise NotInitialized(
            f"the runtime class {settings.runtime_class!r} is not gVisor; a plain runtime must be asked for by name"
        )
    return Proven(gvisor, answers[kernels[0]].inventory)


def _check(
    reached: Mapping[str, set[Target]], open_to_all: set[Target], shut: set[Target], witnesses: list[str]
) -> None:
    """Check that Pods without the policy reach one another but no kernel, and that kernels reach nobody."""
    for name, found in reached.items():
        if name not in witnesses:
            if found:
                told = f"a kernel reached {_named(found)}"
                raise NotInitialized(f"the cluster does not enforce network policies: {told}")
        elif through := found & shut:
            told = f"a Pod reached a kernel at {_named(through)}"
            raise NotInitialized(f"the cluster does not enforce network policies: {told}")
        elif len(missed := open_to_all - found) > 1:  # it does not ask itself
            told = f"a Pod without a policy does not reach {_named(missed)}"
            raise NotInitialized(f"the control of the proof fails: {told}")


def _named(targets: Iterable[Target]) -> str:
    """Return the addresses of targets, for the operator."""
    return ", ".join(f"{host}:{port}" for host, port in sorted(targets))


async def _asked(cluster: Cluster, name: str, targets: list[Target]) -> Answer:
    """Run the probe in a Pod, and return its answer."""
    request = orjson.dumps({"listen": None, "targets": targets}).decode()
    said = b""
    try:
        async with cluster.run(name, [PYTHON, "-I", "-S", f"{IMAGE_DIR}/probe.py", request]) as stream:
            while piece := await stream.read():
                said += piece
    except ConnectionFailed as error:
        raise NotInitialized(NO_ANSWER) from error
    return _answer(said)


def _answer(said: bytes) -> Answer:
    """Return what a probe has found, from what it has printed."""
    try:
        found = orjson.loads(said)
        reached = {(str(host), int(port)) for host, port in found["reached"]}
        return Answer(bool(found["gvisor"]), reached, Inventory(found["python"], found["packages"]))
    except (ValueError, KeyError) as error:
        raise NotInitialized(NO_ANSWER) from error


async def _connects(target: Target) -> bool:
    """Connect to a Pod that has just begun to run, and perhaps does not listen yet."""
    try:
        async with asyncio.timeout(CONNECT):
            while True:
                try:
                    _, writer = await asyncio.open_connection(*target)
                except ConnectionError:
                    await asyncio.sleep(LOOK)
                else:
                    writer.close()
                    return True
    except (OSError, TimeoutError):
        return False


async def _prove_early(cluster: Cluster, names: list[str]) -> None:
    """Check that kernels have reached nobody in their first moments."""
    for name in names:
        if reached := _answer(await cluster.log(name)).reached:
            told = f"a new kernel reached {_named(reached)}"
            raise NotInitialized(f"the cluster enforces network policies too late: {told}")


async def _remove(cluster: Cluster, names: list[str]) -> None:
    await asyncio.gather(*map(cluster.delete_pod, names), return_exceptions=True)
