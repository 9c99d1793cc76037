"""The hardening profile: how a kernel's container is made. Pure: limits in, the engine's arguments out.

Each line is a promise that a test holds. What differs between gVisor and a plain runtime, and why, stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from docker.types import DriverConfig, LogConfig, Mount, Ulimit

from kernel_image.files import TEMPORARY
from sessions.models import Limits

#: the sandbox's user: not root, and nobody on the host
UID = 65532
#: where things are in the image
IMAGE_DIR = "/opt/kernel"
PYTHON = "/opt/venv/bin/python"
HOME = "/home/kernel"
#: where other services of this kind have it too
WORKSPACE = "/home/user"
FIRST_PORT = 50001
#: the engine takes less for no limit at all, or for none that it knows
CPUS_MIN = 0.01

INSTANCE_LABEL = "kernel-gateway.instance"
#: the processor that a kernel is bound to
PROCESSOR_LABEL = "kernel-gateway.processor"

_MIB = 1024**2
_OWNER = f"uid={UID},gid={UID},mode=0700"
_TEMPORARY_OPTIONS = "nosuid,nodev,size=64m,mode=1777"


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


def host_config(
    settings: DockerSettings,
    limits: Limits,
    workspace: str,
    *,
    gvisor: bool,
    processor: int | None = None,
    shared: bool = False,
) -> dict[str, Any]:
    """Arguments of the engine's host configuration for one kernel.

    Args:
        settings: of the deployment.
        limits: of the kernel.
        workspace: the session's files.
        gvisor: the runtime was seen to be gVisor.
        processor: the only one that it may run on; None: any.
        shared: others use the workspace too, and have `/tmp` in common.
    """
    return {
        "runtime": settings.runtime,
        "network_mode": settings.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            # Code may be run from /tmp: compiling and running is what a sandbox is for.
            **({} if shared else {TEMPORARY: f"rw,exec,{_TEMPORARY_OPTIONS}"}),
            HOME: f"rw,nosuid,nodev,size=16m,{_OWNER}",
        },
        "mounts": workspace_mounts(settings, limits, workspace, shared=shared),
        "shm_size": 16 * _MIB,
        "mem_limit": limits.memory,
        "memswap_limit": limits.memory,  # equal: no swap on top
        "nano_cpus": int(max(limits.cpus, CPUS_MIN) * 1e9),
        **({} if processor is None else {"cpuset_cpus": str(processor)}),
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


def workspace_mounts(settings: DockerSettings, limits: Limits, workspace: str, *, shared: bool = False) -> list[Mount]:
    """A session's files: memory of limited size, which lives as long as a container that has it runs."""
    files, temporary = volume_names(workspace)
    mounts = [_volume(settings, files, WORKSPACE, f"size={limits.disk},{_OWNER},nosuid,nodev")]
    return [*mounts, _volume(settings, temporary, TEMPORARY, _TEMPORARY_OPTIONS)] if shared else mounts


def _volume(settings: DockerSettings, name: str, target: str, options: str) -> Mount:
    return Mount(
        target=target,
        source=name,
        type="volume",
        no_copy=True,
        labels=settings.labels,
        driver_config=DriverConfig("local", {"type": "tmpfs", "device": "tmpfs", "o": options}),
    )


def volume_names(workspace: str) -> tuple[str, str]:
    """The volumes of a workspace: its files, and its `/tmp` when that is shared."""
    return f"kernel-gateway-{workspace}", f"kernel-gateway-{workspace}-tmp"
