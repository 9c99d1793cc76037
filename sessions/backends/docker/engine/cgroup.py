"""A container's control group on the host: its memory, processor time, threads and weight.

The values are read and written as files, because the engine would start a process for each. A gateway that runs in a
container itself sees only its own control group, and reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
#: the group that contains the groups of all kernels' containers. systemd calls such a group a slice.
SLICE = "kernels.slice"
#: paths of a container's group with the drivers `systemd` and `cgroupfs`
_GROUPS = (f"{SLICE}/docker-{{id}}.scope", f"{SLICE}/{{id}}")
#: name of each value's file in version 2 of control groups; controller and name in version 1, where each controller has
#: a tree of its own. Sources: Linux's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/
_MEMORY = ("memory.current", "memory/", "memory.usage_in_bytes")
_TIME = ("cpu.stat", "cpuacct/", "cpuacct.usage")
_WEIGHT = ("cpu.weight", "cpu/", "cpu.shares")
_THREADS = ("cgroup.threads", "cpuacct/", "tasks")
_IDLE = ("cpu.idle", "cpu/", "cpu.idle")
#: default weight of a group, the lowest weight, and the weight of a kernel whose tenant does nothing, by the
#: name of the file. The last weight is as high as it can be, because the files have whole numbers
_USUAL = {"cpu.weight": 100, "cpu.shares": 1024}
_LEAST = {"cpu.weight": 1, "cpu.shares": 2}
_KERNEL = {"cpu.weight": 10_000, "cpu.shares": 102_400}


class ControlGroup:
    """The control group of one container."""

    def __init__(self, container: str, root: Path = ROOT) -> None:
        """Set the paths to try. No file is read yet.

        Args:
            container: full id of the container.
            root: folder of the control groups.
        """

        def files(figure: tuple[str, str, str]) -> list[Path]:
            return _files(figure, [group.format(id=container) for group in _GROUPS], root)

        self._memory, self._time, self._weight = files(_MEMORY), files(_TIME), files(_WEIGHT)
        self._threads, self._idle = files(_THREADS), files(_IDLE)

    def memory(self) -> int | None:
        """Return the memory in use, in bytes. None if the container has ended, or is not visible from here."""
        found = _read(self._memory)
        return None if found is None else int(found)

    def seconds(self) -> float | None:
        """Return the processor time used so far, in seconds. None as in `memory`."""
        found = _read(self._time)
        if found is None:
            return None
        if found.startswith("usage_usec "):
            return int(found.split(maxsplit=2)[1]) / 1e6
        return int(found) / 1e9

    def threads(self) -> set[int]:
        """Return the ids of the container's threads. Empty if it has ended, or is not visible from here."""
        return set(map(int, (_read(self._threads) or "").split()))

    def give_way(self, *, always: bool) -> bool:
        """Set whether every other container goes before this one, at once and whatever their weights.

        Args:
            always: True if the others go before this container; it cannot have a weight meanwhile. False for weights.

        Returns:
            Whether this is set. False with a Linux before 5.15, which does not know this: weigh the container there.

        Raises:
            OSError: when this user may not set it, or the container has just ended (ENODEV).
        """
        return _write(self._idle, lambda _file: int(always))

    def weigh(self, weight: float) -> None:
        """Set the container's weight, by which busy containers share the processors.

        Args:
            weight: weight of the container. A kernel whose tenant does nothing has 1, a new container 0.01.

        Raises:
            OSError: when this user may not set the weight, or the container has just ended (ENODEV).
        """
        _set_weight(self._weight, weight, _KERNEL)


def parent_for(driver: str) -> str:
    """Return the name of the group of all kernels, in the form that the engine's driver of control groups accepts.

    Args:
        driver: `systemd` or `cgroupfs`. For `cgroupfs`, a name without `/` would be a group inside the engine's group.
    """
    return SLICE if driver == "systemd" else f"/{SLICE}"


def weigh_all(weight: float, root: Path = ROOT) -> None:
    """Set the weight of all kernels together, by which they share the processors with other processes of the host.

    Args:
        weight: weight of all kernels. A process of the host has 1.
        root: folder of the control groups.

    Raises:
        OSError: when this user may not set the weight.
    """
    _set_weight(_files(_WEIGHT, [SLICE], root), weight, _USUAL)


def _files(figure: tuple[str, str, str], groups: list[str], root: Path) -> list[Path]:
    new, tree, old = figure
    return [root / group / new for group in groups] + [root / tree / group / old for group in groups]


def _set_weight(files: list[Path], weight: float, whole: Mapping[str, int]) -> None:
    _write(files, lambda file: max(_LEAST[file], round(weight * whole[file])))


def _write(files: list[Path], value: Callable[[str], int]) -> bool:
    """Write a value into the first file that exists, and return whether one does.

    Args:
        files: paths to try. The others are forgotten once one is found, because it exists as long as the group.
        value: returns the value for a file of this name.
    """
    for file in files:
        with suppress(FileNotFoundError):
            wanted = str(value(file.name))
            # The present value is read each time, because systemd resets it when it reloads its own files.
            if file.read_text().strip() != wanted:
                file.write_text(wanted)
            files[:] = [file]
            return True
    return False


def _read(files: list[Path]) -> str | None:
    for file in files:
        with suppress(OSError):
            found = file.read_text()
            files[:] = [file]  # this file exists as long as the container
            return found
    return None
