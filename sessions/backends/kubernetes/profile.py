"""The settings, and what a Pod is made with. Pure functions turn limits into a Pod's manifest.

No key of a kernel is in a manifest: the launcher reads the keys from its standard input, as on Docker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from kernel_image.protocol import NETWORK, NO_NETWORK, TEMPORARY
from sessions.backends.base import Launch
from sessions.backends.handshake import private_places
from sessions.model.values import Limits

#: user id in the Pod: not root, and no user of the nodes
UID = 65532
#: paths in the image
IMAGE_DIR = "/opt/kernel"
PYTHON = "/opt/venv/bin/python"
#: the kernel's own directory, in memory, for its connection file and for caches and settings of tools
PRIVATE = "/home/kernel"
#: the workspace, which is the home directory of all processes
WORKSPACE = "/home/user"
#: where a kernel listens, until its Pod has an address
EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside the Pod
FIRST_PORT = 50001
#: ports of one kernel, one after the other from FIRST_PORT on
PORTS = 5
#: the most users of a Pod that share a workspace; each has its own ports
USERS_MAX = 32

#: labels of every Pod and policy that the gateway makes
INSTANCE_LABEL = "kernel-gateway/instance"
ROLE_LABEL = "kernel-gateway/role"
WORKSPACE_LABEL = "kernel-gateway/workspace"
#: annotation with the limits of a kernel, for the next gateway
LIMITS = "kernel-gateway/limits"
#: name of the container in a Pod
CONTAINER = "kernel"
#: seconds from SIGTERM to SIGKILL. With 0 the Pod's object would go before its container has ended.
GRACE = 1
#: where the launcher leaves a message when it ends on its own. An end without one came from outside the sandbox.
MESSAGE = "/dev/termination-log"

_MIB = 1024**2
#: Runs the launcher, and leaves its exit code as a message. Kubernetes shows the same exit code and reason when a
#: kernel sends itself SIGKILL and when the node's memory limit ends a gVisor sandbox; only the first leaves a message.
_LAUNCH = f"""
import runpy
try:
    runpy.run_path("{IMAGE_DIR}/launcher.py", run_name="__main__")
except SystemExit as end:
    with open("{MESSAGE}", "w") as message:
        message.write(str(end.code))
    raise
"""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Settings of this backend in a deployment."""

    image: str
    #: id of this installation; Pods of other installations are never touched
    instance: str
    namespace: str = "kernel-gateway"
    #: RuntimeClass of kernels. Empty means the nodes' default runtime.
    runtime_class: str = "gvisor"
    #: whether the proof requires gVisor. False only if the operator asks for a plain runtime by name.
    gvisor: bool = True
    #: file with the cluster's address and credentials. Empty means those that a Pod finds in its own container.
    kubeconfig: str = ""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    #: labels that a node must have
    node_selector: Mapping[str, str] = field(default_factory=dict)
    #: taints that kernels tolerate, in the API's form
    tolerations: tuple[Mapping[str, str | int], ...] = ()
    priority_class: str = ""
    #: seconds after which a kernel on a node that does not answer is given up
    node_lost: int = 20
    #: labels of a gateway that is a Pod itself. The policy lets it in.
    gateway_labels: Mapping[str, str] = field(default_factory=lambda: {"kernel-gateway/gateway": "true"})
    #: addresses, in CIDR form, from which a gateway outside the cluster connects. Empty means that it is such a Pod.
    gateway: tuple[str, ...] = ()
    #: where workspaces are, as on Docker
    files: Literal["disk", "memory"] = "disk"
    #: bytes that files in `/tmp` may take, and also those in `/dev/shm`. They count as the kernel's memory.
    temporary: int = 64 * _MIB

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object that the gateway makes."""
        return {INSTANCE_LABEL: digest(self.instance, "instance")}

    @property
    def selector(self) -> str:
        """Text that selects the objects of this installation."""
        return ",".join(f"{name}={value}" for name, value in self.labels.items())


def digest(instance: str, name: str) -> str:
    """Return a label value for a name, which does not show the name to those who may list Pods."""
    return hashlib.blake2b(name.encode(), key=instance.encode()[:64], digest_size=16).hexdigest()


def environment(private: str = PRIVATE) -> dict[str, str]:
    """Return the variables of every process in a sandbox. The session's own variables may override them.

    Args:
        private: directory for files of tools.
    """
    return {
        NETWORK: NO_NETWORK,
        **private_places(private),
        # pip shows the cause of a failed connection only if it tries again.
        "PIP_RETRIES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUSERBASE": f"{WORKSPACE}/.local",
    }


def bounded(limits: Limits, command: list[str], *, gvisor: bool) -> list[str]:
    """Return a command that runs another command with the limits that a Pod cannot name.

    Args:
        limits: limits of the kernel.
        command: the other command. It takes the place of the first one, also as process 1.
        gvisor: whether the runtime is gVisor. Elsewhere `nproc` would count the user's processes in all Pods of a node.
    """
    own = [f"--nofile={1024}", f"--fsize={limits.disk}", "--core=0"]
    return ["prlimit", *own, *([f"--nproc={limits.processes}"] if gvisor else []), "--", *command]


def kernel_pod(settings: KubernetesSettings, name: str, launch: Launch, *, gvisor: bool) -> dict[str, Any]:
    """Return the manifest of a Pod whose launcher waits for its handshake.

    Args:
        settings: settings of the deployment.
        name: name of the Pod.
        launch: order to start the kernel.
        gvisor: whether the runtime was proven to be gVisor.
    """
    command = bounded(launch.limits, [PYTHON, "-I", "-S", "-c", _LAUNCH], gvisor=gvisor)
    made = pod(settings, name, "kernel", command, launch.limits, image=launch.image)
    made["metadata"]["annotations"] = {LIMITS: orjson.dumps(launch.limits).decode()}
    if launch.workspace:
        made["metadata"]["labels"][WORKSPACE_LABEL] = digest(settings.instance, launch.workspace)
    if launch.workspace and not launch.shared:
        made["spec"]["restartPolicy"] = "Always"  # the next container keeps the files of a kernel that has ended
    # The first end of the attached input closes the launcher's input, so nobody can send a second handshake.
    made["spec"]["containers"][0] |= {"stdin": True, "stdinOnce": True}
    return made


def limits_of(made: dict[str, Any]) -> Limits:
    """Return the limits of a kernel's Pod, from its object in the cluster."""
    return Limits(**orjson.loads(made["metadata"]["annotations"][LIMITS]))


def pod(
    settings: KubernetesSettings, name: str, role: str, command: list[str], limits: Limits, *, image: str = ""
) -> dict[str, Any]:
    """Return the manifest of a Pod of this installation.

    Args:
        settings: settings of the deployment.
        name: name of the Pod.
        role: what the Pod is for. The network policy is about Pods with the role `kernel`.
        command: first process of the Pod.
        limits: limits of the Pod.
        image: image of the Pod. Empty means the usual one.
    """
    volumes = _volumes(settings, limits)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**settings.labels, ROLE_LABEL: role}},
        "spec": {
            **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
            **({"nodeSelector": dict(settings.node_selector)} if settings.node_selector else {}),
            **({"priorityClassName": settings.priority_class} if settings.priority_class else {}),
            "tolerations": [*map(dict, settings.tolerations), *_lost_nodes(settings.node_lost)],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "sandbox",
            # The Pod's own loopback, where no name server answers.
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": UID,
                "runAsGroup": UID,
                "fsGroup": UID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image or settings.image,
                    "imagePullPolicy": settings.pull_policy,
                    "command": command,
                    "workingDir": WORKSPACE,
                    "env": [{"name": name, "value": value} for name, value in environment().items()],
                    "resources": _resources(settings, limits),
                    "terminationMessagePath": MESSAGE,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                    "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
                }
            ],
            "volumes": [{"name": name, "emptyDir": made} for name, (_, made) in volumes.items()],
        },
    }


def _volumes(settings: KubernetesSettings, limits: Limits) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the path and the kind of each volume. One on disk is bounded by the node, which evicts the Pod."""

    def memory(size: int) -> dict[str, str]:
        return {"medium": "Memory", "sizeLimit": str(size)}

    workspace = memory(limits.disk) if settings.files == "memory" else {"sizeLimit": str(limits.disk)}
    return {
        "workspace": (WORKSPACE, workspace),
        "private": (PRIVATE, memory(16 * _MIB)),
        "temporary": (TEMPORARY, memory(settings.temporary)),
        "shared-memory": ("/dev/shm", memory(settings.temporary)),  # noqa: S108 - in the sandbox
    }


def _resources(settings: KubernetesSettings, limits: Limits) -> dict[str, dict[str, str]]:
    """Return what the Pod may use, and what the scheduler reserves: all of its memory, a part of its processors."""
    most = {"memory": str(limits.memory), "cpu": f"{round(limits.cpus * 1000)}m"}
    disk = {} if settings.files == "memory" else {"ephemeral-storage": str(limits.disk + 16 * _MIB)}
    asked = {"memory": most["memory"], "cpu": f"{max(1, round(limits.cpus * 100))}m"}
    return {"limits": most | disk, "requests": asked | disk}


def _lost_nodes(seconds: int) -> list[dict[str, Any]]:
    """Return the tolerations that bound the wait for a node that does not answer. The default is five minutes.

    When the API was away for long, the cluster calls each node lost until the node has reported itself, which takes up
    to ten seconds by the lease that it renews. A shorter wait would give its kernels up, though they run.
    """
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds} for taint in taints
    ]


def policy_name(settings: KubernetesSettings) -> str:
    """Return the name of the network policy of this installation's kernels."""
    return f"kernel-gateway-{digest(settings.instance, 'policy')[:12]}"


def network_policy(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the policy of all kernels: only the gateway may connect to them, and they connect to nobody."""
    blocks = [{"ipBlock": {"cidr": block}} for block in settings.gateway]
    last = FIRST_PORT + PORTS * (USERS_MAX + 1) - 1
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": policy_name(settings), "labels": settings.labels},
        "spec": {
            "podSelector": {"matchLabels": {**settings.labels, ROLE_LABEL: "kernel"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {
                    "from": blocks or [{"podSelector": {"matchLabels": dict(settings.gateway_labels)}}],
                    "ports": [{"protocol": "TCP", "port": FIRST_PORT, "endPort": last}],
                }
            ],
            "egress": [],
        },
    }
