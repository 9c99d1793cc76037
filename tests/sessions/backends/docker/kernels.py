"""Kernels of the Docker backend whose control groups and threads are files, for tests of what looks at all kernels."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.engine.cgroup import ROOT, SLICE, ControlGroup
from sessions.backends.docker.engine.timer_slack import TimerSlack
from sessions.backends.handshake import new_connection_info


def weight_file(container: str) -> Path:
    """Return the file with a container's weight, in either version of control groups."""
    groups = {ROOT: "cpu.weight", ROOT / "cpu": "cpu.shares"}
    (file,) = (file for root, name in groups.items() for file in root.glob(f"{SLICE}/*{container}*/{name}"))
    return file


class Kernels:
    """Kernels whose control groups are files."""

    def __init__(self, root: Path) -> None:
        #: folder of the control groups
        self.root = root
        #: folder of the processes
        self.proc = root / "proc"
        self.handles: dict[str, DockerHandle] = {}
        #: what the kernels call
        self.engine = Mock()

    def add(self, tenant: str) -> DockerHandle:
        """Add a kernel of a tenant."""
        name = f"{len(self.handles):064}"
        info = new_connection_info("tcp", "127.0.0.1", first_port=1, encryption=False)
        handle = self.handles[name] = DockerHandle(self.engine, name, info, tenant)
        handle.cgroup = ControlGroup(name, self.root)
        handle.timer_slack = TimerSlack(handle.cgroup, self.proc)
        (self.root / SLICE / name).mkdir(parents=True)
        (self.root / SLICE / name / "cpu.weight").write_text("100\n")
        (self.root / SLICE / name / "cpu.idle").write_text("0\n")
        self.uses(handle, 0)
        self.has_threads(handle)
        return handle

    def has_threads(self, handle: DockerHandle, *threads: int) -> None:
        """Let a kernel have these threads, with Linux's own timer slack."""
        (self.root / SLICE / handle.id / "cgroup.threads").write_text("".join(f"{thread}\n" for thread in threads))
        for thread in threads:
            directory = self.proc / str(thread)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "timerslack_ns").write_text("50000")

    def slack(self, thread: int) -> int:
        """Return the timer slack of a thread, in nanoseconds."""
        return int((self.proc / str(thread) / "timerslack_ns").read_text())

    def gives_way(self, handle: DockerHandle) -> bool:
        """Return whether all other kernels go before a kernel."""
        return (self.root / SLICE / handle.id / "cpu.idle").read_text().strip() == "1"

    def used(self, handle: DockerHandle) -> float:
        """Return the processor time that a kernel has used since its start, in seconds."""
        return handle.cgroup.seconds() or 0.0

    def uses(self, handle: DockerHandle, seconds: float) -> None:
        """Let a kernel have used this processor time since its start."""
        (self.root / SLICE / handle.id / "cpu.stat").write_text(f"usage_usec {round(seconds * 1e6)}\n")

    def weight(self, handle: DockerHandle) -> int:
        """Return the weight that was set for a kernel."""
        return int((self.root / SLICE / handle.id / "cpu.weight").read_text())
