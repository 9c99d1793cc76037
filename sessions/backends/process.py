"""Kernels as plain processes of this machine: for development, and no sandbox.

What is real here: a process group, a working directory and an environment of its own, connections over
sockets in a directory only this user can enter (loopback's ports, for a kernel that knows no others: any user of the
machine can listen there). What is not: memory, processor, disk and network limits.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from kernel_image.processes import MARK, pids, status
from sessions.backends.base import KERNEL_IMAGE, Launch, handshake, new_connection_info, nobody_cares
from sessions.errors import ConnectionFailed, StartFailed
from sessions.models import ConnectionInfo, ExitReason, KernelExit
from sessions.tasks import spawn, together

_PIECE = 256 * 1024
#: places in a process's status
_PARENT, _SESSION, _STARTED = 1, 3, 19
#: seconds a tool has for its end when nobody wants its answer any more
_TOOL_END = 1.0
#: how often free ports are looked for
_PORT_ATTEMPTS = 20
#: where: below those that the system gives to connections (from 32768 on), which would be taken any moment
_PORTS = range(16384, 32768)
#: and how many in a row: one for each channel and the heartbeat
_ROW = 5


class ProcessHandle:
    """One kernel's processes."""

    def __init__(self, process: asyncio.subprocess.Process, info: ConnectionInfo, home: Path, workspace: Path) -> None:
        self.id = home.name
        self.connection_info = info
        self.on_out_of_memory = nobody_cares
        self._process = process
        self._home = home
        self._workspace = workspace
        self._killed = False
        self._gone = spawn(self._bury(), f"kernel process {self.id}")

    async def _bury(self) -> KernelExit:
        code = await self._process.wait()
        self._kill_all()  # what the kernel has started goes with it
        shutil.rmtree(self._home, ignore_errors=True)
        return KernelExit(ExitReason.KILLED if self._killed else ExitReason.EXITED, code)

    def _kill_all(self) -> None:
        """Kill the session that the launcher leads: the kernel has a process group of its own in it."""
        for pid, _ in self._processes():
            with suppress(ProcessLookupError, PermissionError):  # gone meanwhile, or another user's by now
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        for pid in pids():
            with suppress(OSError):  # gone meanwhile
                fields = status(pid)
                if int(fields[_SESSION]) == self._process.pid:
                    yield pid, fields

    async def wait(self) -> KernelExit:
        """Wait until the kernel is gone."""
        return await asyncio.shield(self._gone)

    async def interrupt(self) -> None:
        """Send SIGINT to the kernel's group. The launcher would pass it on, but tell nobody when it has."""
        children = [
            (int(fields[_STARTED]), pid)
            for pid, fields in self._processes()
            if int(fields[_PARENT]) == self._process.pid
        ]
        if children:  # the launcher's first; others are what the kernel has left behind
            with suppress(ProcessLookupError):  # gone meanwhile
                os.killpg(min(children)[1], signal.SIGINT)

    def memory(self) -> int | None:
        """Nobody counts what the kernel's processes use together."""
        return None

    async def kill(self) -> None:
        """End the processes."""
        if not self._gone.done():
            self._killed = True
            self._kill_all()
        await self.wait()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in the workspace."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(KERNEL_IMAGE / f"{name}.py"),
            argument,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self._workspace,
            env={},
        )
        if process.stdin is None or process.stdout is None:
            raise ConnectionFailed("the tool has no pipes")
        feeder = spawn(_feed(process.stdin, stdin), f"input of {name}")
        try:
            while piece := await process.stdout.read(_PIECE):
                yield piece
        finally:
            feeder.cancel()
            process.stdin.close()
            # Without input it ends by itself, and takes an unfinished file along.
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOOL_END):
                    await process.wait()
            with suppress(ProcessLookupError):
                process.kill()
            await process.stdout.read()  # what nobody has read would keep its end of the pipe open
            await process.wait()


async def _feed(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the tool has its answer ready before it has read all
        if stdin is not None:
            async for piece in stdin:
                pipe.write(piece)
                await pipe.drain()
        pipe.close()


def _free_ports() -> int:
    """The first of five ports in a row on loopback where nobody listens."""
    for _ in range(_PORT_ATTEMPTS):
        first = _PORTS.start + secrets.randbelow(len(_PORTS) - _ROW)
        with ExitStack() as taken, suppress(OSError):
            for place in range(_ROW):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", first + place))
            return first
    raise StartFailed("there are no free ports for the kernel")


def _clear(workspace: Path) -> None:
    # In a container they would go with it.
    mark = f"{MARK}={workspace.resolve()}".encode()
    for pid in pids():
        with suppress(OSError):  # gone meanwhile, or another user's
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(workspace, ignore_errors=True)


class ProcessBackend:
    """Starts kernels with this interpreter."""

    name = "process"
    isolation = "none: kernels are plain processes of this machine (development only, no sandbox)"

    def __init__(self) -> None:
        # Short, because the path of a socket may have 107 bytes.
        self._root = Path(tempfile.mkdtemp(prefix="kernel-gateway-"))
        self._kernels: set[ProcessHandle] = set()
        self.on_doubt = nobody_cares

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def adopt(self, _kernels: Mapping[str, ConnectionInfo]) -> dict[str, ProcessHandle]:
        """There is nothing to take over: these kernels end with their gateway, however that ends."""
        return {}

    async def start(self, launch: Launch) -> ProcessHandle:
        """Start a kernel's process.

        Raises:
            StartFailed: the process could not be made.
        """
        home = self._root / uuid.uuid4().hex[:16]
        spec = launch.kernelspec
        transport, ip, first_port = ("ipc", str(home / "k"), 1) if spec.ipc else ("tcp", "127.0.0.1", _free_ports())
        home.mkdir(mode=0o700)
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
                # As in the image: a kernel may be a program of its own that was installed beside the interpreter.
                env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}"},
            )
        except OSError as error:
            shutil.rmtree(home, ignore_errors=True)
            raise StartFailed(f"the kernel's process could not be made: {error.strerror}") from error
        handle = ProcessHandle(process, info, home, workspace)
        self._kernels.add(handle)
        spawn(self._forget(handle), "forget kernel")
        hello = handshake(
            launch, info, python=sys.executable, image=str(KERNEL_IMAGE), workspace=str(workspace), home=str(home)
        )
        if process.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; whoever waits for it will see
                process.stdin.write(hello)
                await process.stdin.drain()
                process.stdin.close()
        return handle

    async def _forget(self, handle: ProcessHandle) -> None:
        await handle.wait()
        self._kernels.discard(handle)

    def _workspace(self, workspace: str) -> Path:
        return self._root / "workspaces" / workspace

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a session's directory, and end the programs that a tool has left running in it."""
        await asyncio.to_thread(_clear, self._workspace(workspace))

    async def release(self) -> None:
        """As `close`: these kernels cannot outlive their gateway."""
        await self.close()

    async def close(self) -> None:
        """End all kernels and delete all files."""
        try:
            await together(*(handle.kill() for handle in list(self._kernels)))
        finally:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
