"""Kernels as plain processes of this machine, for development. They are not isolated.

Each kernel has its own process group, working directory and environment. Its sockets are in a directory that only this
user can enter. A kernel that supports only TCP uses loopback ports, which any user of the machine can reach. Memory,
processors, disk and network are not limited.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from kernel_image.inventory import interpreters, packages
from kernel_image.procfs import pids
from kernel_image.protocol import MARK
from sessions.backends.abilities import Ability
from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.handshake import handshake, new_connection_info, private_places
from sessions.backends.no_sleep import NoSleep
from sessions.backends.process.handle import ProcessHandle
from sessions.model.checkpoint import SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import NetworkNotAllowed, StartFailed
from sessions.model.kernelspecs import Inventory
from sessions.model.tasks import gather_all, spawn

#: attempts to find free ports
_PORT_ATTEMPTS = 20
#: ports of kernels; from 32768 on, the system assigns ports to connections at any moment
_PORTS = range(16384, 32768)
#: consecutive ports of one kernel: one for each channel and the heartbeat
_ROW = 5
#: where kernels look for programs. As in the image, a kernel may be a program that is installed beside the interpreter
_PATH = f"{Path(sys.executable).parent}:{os.defpath}"


def _free_ports() -> int:
    """Return the first of five consecutive free ports on loopback."""
    for _ in range(_PORT_ATTEMPTS):
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - _ROW)
        with ExitStack() as taken, suppress(OSError):
            for place in range(_ROW):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", first + place))
            return first
    raise StartFailed("there are no free ports for the kernel")


def _clear(workspace: Path) -> None:
    # Programs that a tool has started may still run. In a container they would end with the container.
    mark = f"{MARK}={workspace.resolve()}".encode()
    for pid in pids():
        with suppress(OSError):  # ended meanwhile, or a process of another user
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(workspace, ignore_errors=True)


class ProcessBackend:
    """Starts kernels with the interpreter of the gateway."""

    name = "process"
    isolation = "none: kernels are plain processes of this machine (development only, no sandbox)"

    def __init__(self, workspaces: Path | None = None) -> None:
        """Begin without kernels.

        Args:
            workspaces: directory of the sessions' files, which outlive the gateway. None means a temporary directory.
        """
        # A short path, because a socket path may have at most 107 bytes.
        self._root = Path(tempfile.mkdtemp(prefix="kernel-gateway-"))
        self._workspaces = workspaces or self._root / "workspaces"
        self._kernels: set[ProcessHandle] = set()
        self.sleep = NoSleep("plain processes cannot sleep")
        self.inventory = Inventory(platform.python_version(), packages(sys.path) | interpreters(_PATH))

    @property
    def refusal(self) -> None:
        """None, because processes can always be started."""

    @property
    def keeps_files(self) -> bool:
        """True, because a workspace is a directory."""
        return True

    @property
    def keeps_kernels(self) -> bool:
        """False, because kernels are children of the gateway."""
        return False

    @property
    def room(self) -> int:
        """0, because workspaces are directories without a limit."""
        return 0

    @property
    def pauses(self) -> Ability:
        """On, because processes can be stopped by a signal."""
        return Ability(on=True, detail="kernels are stopped by a signal")

    @property
    def golden_images(self) -> Ability:
        """Off, because plain processes cannot be restored."""
        return Ability(on=False, detail="plain processes have none")

    @property
    def leftovers(self) -> int:
        """0, because the gateway waits for processes until they have ended."""
        return 0

    def report_doubts(self, _listener: Callable[[], None]) -> None:
        """Do nothing, because processes can always be started."""

    def report_restores(self, _listener: Callable[[bool], None]) -> None:
        """Do nothing, because plain processes are never restored."""

    async def prepare(self) -> None:
        """Do nothing, because processes have no requirements."""

    async def settled(self) -> None:
        """Do nothing, because processes are never restored and never sleep."""

    async def adopt(
        self, _kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], _asleep: Collection[SleepImage] = ()
    ) -> dict[str, ProcessHandle]:
        """Return no handles, because the kernels of a gateway end with it, and delete all other workspaces."""
        there = self._workspaces.iterdir() if self._workspaces.exists() else ()
        await gather_all(*(self.delete_workspace(file.name) for file in there if file.name not in workspaces))
        return {}

    async def start(self, launch: Launch) -> ProcessHandle:
        """Start a kernel's process.

        Raises:
            StartFailed: when the process could not be created, or the launch names an image.
            NetworkNotAllowed: when the launch allows only listed hosts: a process can reach all others, too.
        """
        if launch.image:
            raise StartFailed("kernels are plain processes here and have no image")
        if launch.egress is not None:
            raise NetworkNotAllowed("isolation `process` cannot keep a kernel from any host, so it has no `allowlist`")
        private = self._root / uuid.uuid4().hex[:16]
        spec = launch.kernelspec
        transport, ip, first_port = ("ipc", str(private / "k"), 1) if spec.ipc else ("tcp", "127.0.0.1", _free_ports())
        private.mkdir(mode=0o700)
        workspace = self._workspace(launch.workspace or uuid.uuid4().hex)
        workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = new_connection_info(
            transport, ip, first_port=first_port, encryption=spec.encryption, signature=spec.signature
        )
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(KERNEL_IMAGE / "launcher.py"),
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env={"PATH": _PATH},
            )
        except OSError as error:
            shutil.rmtree(private, ignore_errors=True)
            raise StartFailed(f"the kernel's process could not be made: {error.strerror}") from error
        handle = ProcessHandle(process, info, private, workspace)
        self._kernels.add(handle)
        spawn(self._forget(handle), "forget kernel")
        hello = handshake(
            launch,
            info,
            python=sys.executable,
            image=str(KERNEL_IMAGE),
            workspace=str(workspace),
            private=str(private),
            env=private_places(str(private)),
        )
        if process.stdin is not None:
            # No wait for the pipe, which has room for a handshake: if the caller were cancelled while it waits, nobody
            # would have the kernel's handle.
            process.stdin.write(hello)
            process.stdin.close()
        return handle

    async def _forget(self, handle: ProcessHandle) -> None:
        await handle.wait()
        self._kernels.discard(handle)

    def _workspace(self, workspace: str) -> Path:
        return self._workspaces / workspace

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a session's directory, and end the programs that still run in it."""
        await asyncio.to_thread(_clear, self._workspace(workspace))

    async def release(self) -> None:
        """End all kernels, because they cannot outlive their gateway. The files stay for the next gateway."""
        try:
            await gather_all(*(handle.kill() for handle in list(self._kernels)))
        finally:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def close(self) -> None:
        """End all kernels and delete all files."""
        try:
            await self.release()
        finally:
            await asyncio.to_thread(shutil.rmtree, self._workspaces, ignore_errors=True)
