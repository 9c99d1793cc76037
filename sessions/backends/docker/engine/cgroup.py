"""A container's control group on the host: memory, processor time, threads, and weight beside other containers.

All of it is read and written as files and not through the engine, which would need a process for each. A gateway that
runs in a container itself sees only its own control group, and then reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
#: the group that the groups of all kernels' containers are in. With systemd a group of groups is a slice
SLICE = "kernels.slice"
#: paths of a container's group, by driver of the control groups
_GROUPS = (f"{SLICE}/docker-{{id}}.scope", f"{SLICE}/{{id}}")
#: names of a figure's file in version 2, and controller and name in version 1, where each controller has a tree.
#: Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/
_MEMORY = ("memory.current", "memory/", "memory.usage_in_bytes")
_TIME = ("cpu.stat", "cpuacct/", "cpuacct.usage")
_WEIGHT = ("cpu.weight", "cpu/", "cpu.shares")
_THREADS = ("cgroup.threads", "cpuacct/", "tasks")
#: weight of a group that nothing was set for, the least weight, and the weight of a kernel that does nothing, by the
#: name of the file. The last one is as high as it can be, because the weights in the files are whole numbers
_USUAL = {"cpu.weight": 100, "cpu.shares": 1024}
_LEAST = {"cpu.weight": 1, "cpu.shares": 2}
_KERNEL = {"cpu.weight": 10_000, "cpu.shares": 102_400}


class ControlGroup:
    """The control group of one container."""

    def __init__(self, container: str, root: Path = ROOT) -> None:
        """Set the paths to try; no file is read yet.

        Args:
            container: full id of the container.
            root: folder of the control groups.
        """

        def files(figure: tuple[str, str, str]) -> list[Path]:
            return _files(figure, [group.format(id=container) for group in _GROUPS], root)

        self._memory, self._time, self._weight = files(_MEMORY), files(_TIME), files(_WEIGHT)
        self._threads = files(_THREADS)

    def memory(self) -> int | None:
        """Return the bytes in use now; None: the container is gone, or not visible from here."""
        found = _read(self._memory)
        return None if found is None else int(found)

    def seconds(self) -> float | None:
        """Return the processor time that the container has used; None: it is gone, or not visible from here."""
        found = _read(self._time)
        if found is None:
            return None
        if found.startswith("usage_usec "):
            return int(found.split(maxsplit=2)[1]) / 1e6
        return int(found) / 1e9

    def threads(self) -> set[int]:
        """Return the ids of the container's threads; empty: it is gone, or not visible from here."""
        return set(map(int, (_read(self._threads) or "").split()))

    def weigh(self, weight: float) -> None:
        """Set the share of the processors that the container gets when others want them too.

        Args:
            weight: 1: as much as a kernel that does nothing, less: less. A new container has 0.01.

        Raises:
            OSError: when this user may not set it, or the container has just ended (ENODEV).
        """
        _set_weight(self._weight, weight, _KERNEL)


def parent_for(driver: str) -> str:
    """Return the group of all kernels, as an engine with this driver of control groups must be told it.

    Args:
        driver: `systemd` or `cgroupfs`, which takes a name without `/` for a group within the engine's own.
    """
    return SLICE if driver == "systemd" else f"/{SLICE}"


def weigh_all(weight: float, root: Path = ROOT) -> None:
    """Set the share of the processors that all kernels together get when other processes of the host want them too.

    Args:
        weight: 1: as much as any process of the host, less: less.
        root: folder of the control groups.

    Raises:
        OSError: when this user may not set it.
    """
    _set_weight(_files(_WEIGHT, [SLICE], root), weight, _USUAL)


def _files(figure: tuple[str, str, str], groups: list[str], root: Path) -> list[Path]:
    new, tree, old = figure
    return [root / group / new for group in groups] + [root / tree / group / old for group in groups]


def _set_weight(files: list[Path], weight: float, whole: Mapping[str, int]) -> None:
    for file in files:
        value = str(max(_LEAST[file.name], round(weight * whole[file.name])))
        with suppress(FileNotFoundError):
            # The file is asked: systemd sets its own value when it is told to read its files again.
            if file.read_text().strip() != value:
                file.write_text(value)
            files[:] = [file]  # it exists as long as the group
            return


def _read(files: list[Path]) -> str | None:
    for file in files:
        with suppress(OSError):
            found = file.read_text()
            files[:] = [file]  # it exists as long as the container
            return found
    return None
