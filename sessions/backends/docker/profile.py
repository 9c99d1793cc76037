"""The hardening profile of a kernel's container. Pure functions: limits in, the engine's arguments out.

Each line is a promise that a test checks. The differences between gVisor and a plain runtime are explained here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from docker.types import DriverConfig, LogConfig, Mount, Ulimit

from kernel_image.protocol import NETWORK, NO_NETWORK, TEMPORARY
from sessions.backends.handshake import private_places
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import Limits


@dataclass(frozen=True, slots=True)
class SleepSettings:
    """Settings of the checkpoints that contain the memory of sleeping kernels."""

    directory: Path
    #: returns the installation's key, with which they are encrypted
    key: Callable[[], bytes]


#: user id in the container: not root, and no user of the host
UID = 65532
#: paths in the image
IMAGE_DIR = "/opt/kernel"
PYTHON = "/opt/venv/bin/python"
#: the kernel's own directory, in memory: connection file, caches and settings of tools
PRIVATE = "/home/kernel"
#: the home directory of all processes, at the path that similar services use too
WORKSPACE = "/home/user"
WHEELS = "/opt/wheels"
FIRST_PORT = 50001

#: microseconds in which a kernel gets its share of the processors. One that has used it waits for the next period, so
#: the engine's default of 100 ms would make a short cell wait for nearly as long
_PERIOD = 10_000

INSTANCE_LABEL = "kernel-gateway.instance"
#: label of the helper that keeps workspaces on disk, and of its volume; kernels do not have it
DISKS_LABEL = "kernel-gateway.files"

_MIB = 1024**2
_OWNER = f"uid={UID},gid={UID}"
_PRIVATE_OPTIONS = f"nosuid,nodev,size=16m,{_OWNER},mode=0700"
_TEMPORARY_MODE = "1777"
_TEMPORARY_OPTIONS = f"nosuid,nodev,mode={_TEMPORARY_MODE}"
#: options of a file system on a loop device. `barrier=0`: what code syncs stays in the host's memory until Linux writes
#: it, so that no session makes the host's disk wait. `noinit_itable`: the tables of new disks need no writing.
_DISK_OPTIONS = "nosuid,nodev,noatime,barrier=0,noinit_itable"


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """Settings of the proxy through which some kernels reach listed hosts."""

    image: str
    #: exact host names, each with its port
    allow: tuple[tuple[str, int], ...]
    #: IPv4 addresses of the name servers that the proxy asks
    name_servers: tuple[str, ...]
    #: makes the sessions' passwords; the same after a restart, because kernels keep theirs
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Settings of the checkpoints from which kernels are restored."""

    directory: Path
    #: bytes on disk of all checkpoints together
    disk: int
    #: the usual limits of a kernel, which are the highest, too
    limits: Limits
    #: languages whose kernels are to be restored
    kernelspecs: tuple[KernelSpec, ...]


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of this backend in a deployment."""

    runtime: str
    image: str
    network: str
    #: id of this installation; containers of other installations are never touched
    instance: str
    #: directory of the engine's machine with wheels that pip may install; empty: none
    wheels: str = ""
    #: further images that sessions may ask for
    images: tuple[str, ...] = ()
    egress: EgressSettings | None = None
    #: None: all kernels are started plainly
    checkpoints: CheckpointSettings | None = None
    sleep: SleepSettings | None = None
    #: where workspaces are; those in memory go with the last container that uses them, and count as its memory
    files: Literal["disk", "memory"] = "disk"
    #: weight of all kernels together when processes of the host want the processors, too; 1: as one of these
    kernels_weight: float = 0.1
    #: bytes that files in `/tmp` may take, and as many those in `/dev/shm`; they count as the kernel's memory. The same
    #: for all kernels, whatever their memory, because a restored sandbox has the folders of its checkpoint.
    temporary: int = 64 * _MIB

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every container and volume that the gateway makes."""
        return {INSTANCE_LABEL: self.instance}


def environment(settings: DockerSettings, *, online: bool) -> dict[str, str]:
    """Return the variables of every process in a sandbox, which its client may override.

    Args:
        settings: settings of the deployment.
        online: True if its code may reach listed hosts.
    """
    return {
        **({} if online else {NETWORK: NO_NETWORK}),
        **private_places(PRIVATE),
        # pip shows why a connection failed only when it tries again.
        "PIP_RETRIES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # In the workspace, so that installed packages outlive a restart of the kernel.
        "PYTHONUSERBASE": f"{WORKSPACE}/.local",
        **({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS} if settings.wheels else {}),
    }


def host_config(
    settings: DockerSettings,
    limits: Limits,
    workspace: str,
    *,
    gvisor: bool,
    shared: bool = False,
    devices: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the arguments of the engine's host configuration for one kernel.

    Args:
        settings: settings of the deployment.
        limits: limits of the kernel.
        workspace: name of the workspace with the session's files.
        gvisor: True if the runtime was proven to be gVisor.
        shared: True if other containers use the workspace too and share its `/tmp`.
        devices: devices of the workspace's disks, by name; None: the workspace is in memory.
    """
    return {
        "runtime": settings.runtime,
        "network_mode": settings.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            # Code may be run from /tmp: compiling and running is what a sandbox is for.
            **({} if shared else {TEMPORARY: f"rw,exec,size={settings.temporary},{_TEMPORARY_OPTIONS}"}),
            PRIVATE: f"rw,{_PRIVATE_OPTIONS}",
        },
        "mounts": [
            *workspace_mounts(settings, disks_of(settings, limits, workspace, shared=shared), devices),
            *wheels_mounts(settings),
        ],
        "shm_size": settings.temporary,
        "mem_limit": limits.memory,
        "memswap_limit": limits.memory,  # equal to the memory limit: no additional swap
        "cpu_period": _PERIOD,
        "cpu_quota": round(limits.cpus * _PERIOD),
        **_process_limits(limits, gvisor=gvisor),
        # The log of a kernel's standard output would fill the host's disk.
        "log_config": LogConfig(type="none"),
        # The container's own loopback, where no resolver answers: an internal network's resolver forwards queries to
        # the internet in some engine versions (CVE-2024-29018).
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
        # A plain runtime counts nproc per user over all containers of the host, so only the cgroup's limit is usable.
        return {"pids_limit": limits.processes, "ulimits": files}
    # gVisor counts nproc inside the container. The cgroup counts gVisor's own threads (27 at rest, about 6 per guest
    # process), and gVisor ends when it meets that limit, so the cgroup's limit is only a backstop well above nproc.
    return {
        "pids_limit": max(512, 128 + 6 * limits.processes),
        "ulimits": [*files, Ulimit(name="nproc", soft=limits.processes, hard=limits.processes)],
    }


@dataclass(frozen=True, slots=True)
class Disk:
    """One volume of a workspace, and the disk of the same name that it shows."""

    name: str
    #: path in the sandbox
    target: str
    #: bytes
    size: int
    #: mode of its root directory
    mode: str


def disks_of(settings: DockerSettings, limits: Limits, workspace: str, *, shared: bool) -> list[Disk]:
    """Return the volumes of a workspace: its files, and its `/tmp` if that is shared."""
    files, temporary = volume_names(workspace)
    disks = [Disk(files, WORKSPACE, limits.disk, "0700")]
    return [*disks, Disk(temporary, TEMPORARY, settings.temporary, _TEMPORARY_MODE)] if shared else disks


def workspace_mounts(settings: DockerSettings, disks: Sequence[Disk], devices: Mapping[str, str] | None) -> list[Mount]:
    """Return the mounts of a workspace: of limited size, on disk or in memory.

    In memory it lives as long as a running container uses it.
    """
    if devices is None:
        return [_volume(settings, disk, "tmpfs", "tmpfs", _memory_options(disk)) for disk in disks]
    return [_volume(settings, disk, "ext4", devices[disk.name], _DISK_OPTIONS) for disk in disks]


def _memory_options(disk: Disk) -> str:
    return f"nosuid,nodev,size={disk.size},{_OWNER},mode={disk.mode}"


def wheels_mounts(settings: DockerSettings) -> list[Mount]:
    """Return the mount of the operator's wheels, if there are any."""
    if not settings.wheels:
        return []
    wheels = Mount(target=WHEELS, source=settings.wheels, type="bind", read_only=True)
    return [wheels]


def _volume(settings: DockerSettings, disk: Disk, kind: str, device: str, options: str) -> Mount:
    return Mount(
        target=disk.target,
        source=disk.name,
        type="volume",
        no_copy=True,
        labels=settings.labels,
        driver_config=DriverConfig("local", {"type": kind, "device": device, "o": options}),
    )


def volume_names(workspace: str) -> tuple[str, str]:
    """Return the names of a workspace's volumes: its files, and its `/tmp` when that is shared."""
    return f"kernel-gateway-{workspace}", f"kernel-gateway-{workspace}-tmp"
