"""What a Pod's object says about its kernel: whether it runs, why it never will, and how it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sessions.model.values import SIGNALLED, ExitReason, KernelExit

#: reasons of a container that waits, with which it will never run, in the user's words
_NEVER = {
    "ErrImageNeverPull": "no node of the cluster has the image, and the setting `pull_policy` forbids to pull it",
    "ErrImagePull": "the cluster cannot pull the image",
    "ImagePullBackOff": "the cluster cannot pull the image",
    "InvalidImageName": "the cluster does not accept the image's name",
    "CreateContainerConfigError": "the cluster cannot make the container",
    "CreateContainerError": "the cluster cannot make the container",
    "RunContainerError": "the cluster cannot run the container",
}
#: reasons of the condition DisruptionTarget, in the user's words
_DISRUPTED = {
    "DeletionByTaintManager": "its node does not answer, or is being emptied",
    "EvictionByEvictionAPI": "its node is being emptied",
    "PreemptionByScheduler": "a Pod of a higher priority needed its place",
    "TerminationByKubelet": "its node ended it, because the node lacks memory or disk or is shut down",
    "DeletionByPodGC": "its node is gone",
}
_KILLED = SIGNALLED + 9


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a Pod."""

    running: bool
    address: str
    #: why the Pod will not run, in the user's words. Empty while it may.
    hopeless: str
    end: KernelExit | None
    #: whether a later report of this Pod will tell more about the end
    unsure: bool
    #: whether the Pod outlives the end of a container, with its volumes and with a next container
    stays: bool


def state_of(pod: dict[str, Any], number: int = 0, address: str = "") -> State:
    """Return what a Pod's object says.

    Args:
        pod: the object.
        number: number of the container that is meant. A Pod that stays has one after the other.
        address: the Pod's address while that container ran. Empty means that it is not known.
    """
    status = pod.get("status", {})
    containers: list[dict[str, Any]] = status.get("containerStatuses") or [{}]
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    container, is_over = _container(containers[0], number), containers[0].get("restartCount", 0) > number
    end, stays = _end(pod, container, conditions), _stays(pod, conditions)
    unsure = is_over and end is None  # the first report of the next container may say nothing about this one
    if unsure:
        end = KernelExit(ExitReason.EXITED)
    elif end == KernelExit(ExitReason.EXITED, _KILLED) and not container["terminated"].get("message"):
        if _sandbox_has_ended(status, conditions, address if is_over else ""):
            end = KernelExit(ExitReason.OOM, _KILLED)
        else:
            unsure = stays and not is_over
    hopeless = _hopeless(container, conditions)
    return State("running" in container, str(status.get("podIP", "")), hopeless, end, unsure, stays)


def _container(status: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the state of one of a Pod's containers. Nothing is known of one that comes later."""
    present = status.get("restartCount", 0)
    if present == number:
        return dict(status.get("state", {}))
    return dict(status.get("lastState", {})) if present > number else {}


def _stays(pod: dict[str, Any], conditions: dict[str, Any]) -> bool:
    ends = "deletionTimestamp" in pod["metadata"] or conditions.get("DisruptionTarget", {}).get("status") == "True"
    over = pod.get("status", {}).get("phase") in {"Failed", "Succeeded"}
    return pod.get("spec", {}).get("restartPolicy") == "Always" and not ends and not over


def _hopeless(container: dict[str, Any], conditions: dict[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("reason") == "Unschedulable":
        return f"no node of the cluster has room for the kernel: {_short(scheduled.get('message', ''))}"
    return _NEVER.get(container.get("waiting", {}).get("reason", ""), "")


def _end(pod: dict[str, Any], container: dict[str, Any], conditions: dict[str, Any]) -> KernelExit | None:
    status, ended = pod.get("status", {}), container.get("terminated")
    code = None if ended is None else ended.get("exitCode")
    if status.get("reason") == "Evicted":
        return KernelExit(ExitReason.EXITED, why=f"its node evicted it: {_short(status.get('message', ''))}")
    disrupted = conditions.get("DisruptionTarget", {})
    if disrupted.get("status") == "True":
        return KernelExit(ExitReason.EXITED, why=_DISRUPTED.get(disrupted.get("reason"), "the cluster ended it"))
    if ended is None:
        return KernelExit(ExitReason.EXITED, code) if status.get("phase") in {"Failed", "Succeeded"} else None
    if "deletionTimestamp" in pod["metadata"]:
        return KernelExit(ExitReason.EXITED, why="its Pod was deleted from outside of the gateway")
    return KernelExit(ExitReason.OOM if ended.get("reason") == "OOMKilled" else ExitReason.EXITED, code)


def _sandbox_has_ended(status: dict[str, Any], conditions: dict[str, Any], address: str) -> bool:
    """Return whether a container that was killed has ended together with its whole sandbox.

    The memory limit ends a whole gVisor sandbox, for which Kubernetes gives no reason. When only the kernel is killed,
    the launcher leaves a message. When code kills the launcher, too, the next container starts in the same sandbox.

    Args:
        status: status of the Pod.
        conditions: conditions of the Pod.
        address: the Pod's address in this sandbox, if the next container has started. A new sandbox has another one,
            and its Pod may never have been reported without a sandbox.
    """
    if conditions.get("PodReadyToStartContainers", {}).get("status") != "True":
        return True
    return bool(address) and address != status.get("podIP")


def _short(message: str) -> str:
    """Return the cluster's own words without their end, which repeats them."""
    return message.partition(" preemption:")[0].strip()[:200]
