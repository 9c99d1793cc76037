"""The hardening profile: how a kernel's container is made. Pure: limits in, the engine's arguments out.

Each line is a promise that a test holds. What differs between gVisor and a plain runtime, and why, stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from docker.types import DriverConfig, LogConfig, Mount, Ulimit

from sessions.models import Limits

#: the sandbox's user: not root, and nobody on the host
UID = 65532
#: where things are in the image
IMAGE_DIR = "/opt/kernel"
PYTHON = "/opt/venv/bin/python"
HOME = "/home/kernel"
WORKSPACE = "/workspace"
FIRST_PORT = 50001

INSTANCE_LABEL = "kernel-gateway.instance"

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """What a deployment sets of this backend."""

    runtime: str
    image: str
    network: str
    #: this installation's id; containers of others are never touched
    instance: str

    @property
    def labels(self) -> dict[str, str]:
        """On everything that is made."""
        return {INSTANCE_LABEL: self.instance}


def host_config(settings: DockerSettings, limits: Limits, workspace: str, *, gvisor: bool) -> dict[str, Any]:
    """Arguments of the engine's host configuration for one kernel.

    Args:
        settings: of the deployment.
        limits: of the kernel.
        workspace: the volume of the session's files.
        gvisor: the runtime was seen to be gVisor.
    """
    owner = f"uid={UID},gid={UID},mode=0700"
    return {
        "runtime": settings.runtime,
        "network_mode": settings.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            # Code may be run from /tmp: compiling and running is what a sandbox is for.
            "/tmp": "rw,exec,nosuid,nodev,size=64m,mode=1777",  # noqa: S108
            HOME: f"rw,nosuid,nodev,size=16m,{owner}",
        },
        "mounts": [workspace_mount(settings, limits, workspace)],
        "shm_size": 16 * _MIB,
        "mem_limit": limits.memory,
        "memswap_limit": limits.memory,  # equal: no swap on top
        "nano_cpus": int(limits.cpus * 1e9),
        **_process_limits(limits, gvisor=gvisor),
        # What a kernel writes to its standard output would fill the host's disk.
        "log_config": LogConfig(type="none"),
        # Its own loopback, where nobody answers: an internal network's resolver forwards queries to the world
        # in some engine versions (CVE-2024-29018).
        "dns": ["127.0.0.1"],
        "ipc_mode": "private",
        "restart_policy": {"Name": "no"},
        "init": False,
    }


def _process_limits(limits: Limits, *, gvisor: bool) -> dict[str, Any]:
    files = [
        Ulimit(name="nofile", soft=1024, hard=1024),
        Ulimit(name="fsize", soft=limits.disk, hard=limits.disk),
        Ulimit(name="core", soft=0, hard=0),
    ]
    if not gvisor:
        # A plain runtime counts nproc per user over all containers of the host, so only the cgroup's count fits.
        return {"pids_limit": limits.processes, "ulimits": files}
    # gVisor counts nproc in the sandbox. The cgroup counts the sandbox's own threads (27 at rest, about 6 per
    # guest process), and the sandbox ends when that limit is met: it is only a backstop, well above the other.
    return {
        "pids_limit": max(512, 128 + 6 * limits.processes),
        "ulimits": [*files, Ulimit(name="nproc", soft=limits.processes, hard=limits.processes)],
    }


def workspace_mount(settings: DockerSettings, limits: Limits, workspace: str) -> Mount:
    """A session's files: memory of limited size, which lives as long as one of its kernels runs."""
    options = {
        "type": "tmpfs",
        "device": "tmpfs",
        "o": f"size={limits.disk},uid={UID},gid={UID},mode=0700,nosuid,nodev",
    }
    return Mount(
        target=WORKSPACE,
        source=volume_name(workspace),
        type="volume",
        no_copy=True,
        labels=settings.labels,
        driver_config=DriverConfig("local", options),
    )


def volume_name(workspace: str) -> str:
    """The volume of a workspace."""
    return f"kernel-gateway-{workspace}"
