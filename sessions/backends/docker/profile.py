"""The hardening profile of a kernel's container. Pure functions turn limits into arguments of the engine.

A test checks each line. Comments explain where gVisor and a plain runtime differ.
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
    """Settings of the images with the memory of sessions, which sleep or have checkpoints."""

    directory: Path
    #: returns the installation's key, with which images are encrypted
    key: Callable[[], bytes]


#: user id in the container: not root, and no user of the host
UID = 65532
#: paths in the image
IMAGE_DIR = "/opt/kernel"
PYTHON = "/opt/venv/bin/python"
#: the kernel's own directory, in memory, for its connection file and for caches and settings of tools
PRIVATE = "/home/kernel"
#: the workspace, which is the home directory of all processes; similar services use the same path
WORKSPACE = "/home/user"
WHEELS = "/opt/wheels"
FIRST_PORT = 50001

#: microseconds of a period, in which a kernel gets its share of the processors. A kernel that has used its share waits
#: for the next period. With the engine's default of 100 ms, a short cell would wait for nearly as long.
_PERIOD = 10_000

INSTANCE_LABEL = "kernel-gateway.instance"
#: label of the disks' helper and of its volume; kernels do not have it
DISKS_LABEL = "kernel-gateway.files"

_MIB = 1024**2
_OWNER = f"uid={UID},gid={UID}"
_PRIVATE_OPTIONS = f"nosuid,nodev,size=16m,{_OWNER},mode=0700"
_TEMPORARY_MODE = "1777"
_TEMPORARY_OPTIONS = f"nosuid,nodev,mode={_TEMPORARY_MODE}"
#: options of a file system on a loop device. With `barrier=0`, data that code syncs stays in the host's memory until
#: Linux writes it, so no session makes the host's disk busy. With `noinit_itable`, a new disk's tables are not written.
_DISK_OPTIONS = "nosuid,nodev,noatime,barrier=0,noinit_itable"


@dataclass(frozen=True, slots=True)
class EgressSettings:
    """Settings of the proxy through which some kernels reach listed hosts."""

    image: str
    #: exact host names, each with its port
    allow: tuple[tuple[str, int], ...]
    #: IPv4 addresses of the name servers that the proxy asks
    name_servers: tuple[str, ...]
    #: secret from which the sessions' passwords are made. It survives a restart, because kernels keep their passwords.
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GoldenSettings:
    """Settings of the golden images, from which new kernels are restored."""

    directory: Path
    #: bytes on disk that all golden images together may take
    disk: int
    #: default limits of a kernel, which are also the highest
    limits: Limits
    #: languages that get a golden image
    kernelspecs: tuple[KernelSpec, ...]


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Settings of this backend in a deployment."""

    runtime: str
    image: str
    network: str
    #: id of this installation; containers of other installations are never touched
    instance: str
    #: directory on the engine's machine with wheels that pip may install. Empty means none.
    wheels: str = ""
    #: further images that sessions may ask for
    images: tuple[str, ...] = ()
    egress: EgressSettings | None = None
    #: golden images. None means that all kernels are started plainly.
    golden: GoldenSettings | None = None
    sleep: SleepSettings | None = None
    #: where workspaces are. A workspace in memory ends with its last container, and counts as that container's memory.
    files: Literal["disk", "memory"] = "disk"
    #: weight of all kernels together, by which they share the processors with processes of the host, which have 1
    kernels_weight: float = 0.1
    #: bytes that files in `/tmp` may take, and also those in `/dev/shm`. They count as the kernel's memory. The size is
    #: the same for all kernels, because a restored sandbox has the folders of its golden image.
    temporary: int = 64 * _MIB

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every container and volume that the gateway makes."""
        return {INSTANCE_LABEL: self.instance}


def environment(settings: DockerSettings, *, online: bool) -> dict[str, str]:
    """Return the variables of every process in a sandbox. The session's own variables may override them.

    Args:
        settings: settings of the deployment.
        online: whether the sandbox's code may reach listed hosts.
    """
    return {
        **({} if online else {NETWORK: NO_NETWORK}),
        **private_places(PRIVATE),
        # pip shows the cause of a failed connection only if it tries again.
        "PIP_RETRIES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # This is in the workspace, so that installed packages outlive a restart of the kernel.
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
        gvisor: whether the runtime was proven to be gVisor.
        shared: whether other containers use the workspace too and share its `/tmp`.
        devices: devices of the workspace's disks, by name. None means that the workspace is in memory.
    """
    return {
        "runtime": settings.runtime,
        "network_mode": settings.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            # Programs may be run from /tmp, because code in a sandbox may compile and run them.
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
        # This is the container's own loopback, where no resolver answers. In some engine versions, the resolver of an
        # internal network forwards queries to the internet (CVE-2024-29018).
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
        # With a plain runtime, nproc counts a user's processes in all containers, so only the cgroup's limit is usable.
        return {"pids_limit": limits.processes, "ulimits": files}
    # In gVisor, nproc counts the processes of this container. The cgroup counts gVisor's own threads (27 at rest, about
    # 6 more per process), and gVisor ends when it meets the cgroup's limit. So that limit is well above nproc.
    return {
        "pids_limit": max(512, 128 + 6 * limits.processes),
        "ulimits": [*files, Ulimit(name="nproc", soft=limits.processes, hard=limits.processes)],
    }


@dataclass(frozen=True, slots=True)
class Disk:
    """One volume of a workspace, and the disk of the same name that it mounts."""

    name: str
    #: path in the sandbox
    target: str
    #: size in bytes
    size: int
    #: permissions of the root directory
    mode: str


def disks_of(settings: DockerSettings, limits: Limits, workspace: str, *, shared: bool) -> list[Disk]:
    """Return the volumes of a workspace: one for its files, and one for its `/tmp` if containers share it."""
    files, temporary = volume_names(workspace)
    disks = [Disk(files, WORKSPACE, limits.disk, "0700")]
    return [*disks, Disk(temporary, TEMPORARY, settings.temporary, _TEMPORARY_MODE)] if shared else disks


def workspace_mounts(settings: DockerSettings, disks: Sequence[Disk], devices: Mapping[str, str] | None) -> list[Mount]:
    """Return the mounts of a workspace, which have a limited size, on disk or in memory.

    A workspace in memory exists only as long as a running container uses it.
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
    """Return the names of a workspace's volumes: one for its files, and one for its `/tmp` if containers share it."""
    return f"kernel-gateway-{workspace}", f"kernel-gateway-{workspace}-tmp"
