"""Containers for tests of relays: one runs the real programs on this machine, one says what a test wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterable
from pathlib import Path

from kernel_image.protocol import RelayFrame, relay_frame
from sessions.backends.base import KERNEL_IMAGE
from sessions.model.tasks import spawn


class Real:
    """Runs the real programs on this machine, in a directory."""

    def __init__(self, directory: Path | None = None, change: str = "") -> None:
        """Start nothing yet.

        Args:
            directory: working directory of the programs. None means that of the tests.
            change: statements that change the program before it begins.
        """
        self.directory = directory
        self.change = change
        #: names of the programs that were started, and those that run
        self.started: list[str] = []
        self.running: list[asyncio.subprocess.Process] = []

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        changed = (
            f"import sys; sys.path.append({str(KERNEL_IMAGE.parent)!r}); from kernel_image import {name}\n"
            f"{self.change}\n{name}.main(sys.stdin.buffer, sys.stdout.buffer)"
        )
        started = ["-c", changed] if self.change else [str(KERNEL_IMAGE / f"{name}.py"), argument]
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", *started),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=self.directory,
        )
        self.started.append(name)
        self.running.append(program)
        assert program.stdin is not None
        assert program.stdout is not None
        feeding = spawn(feed(program.stdin, stdin), "input")
        try:
            while piece := await program.stdout.read(65536):
                yield piece
        finally:
            feeding.cancel()
            program.stdin.close()
            await program.stdout.read()
            await program.wait()
            self.running.remove(program)


async def feed(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    if stdin is not None:
        async for piece in stdin:
            pipe.write(piece)
            await pipe.drain()
    pipe.close()


class Scripted:
    """A tool that says what a test wants, and then nothing more."""

    def __init__(self, *said: bytes, ends: bool = False) -> None:
        self.said = said
        self.ends = ends

    async def run_tool(
        self,
        name: str,  # noqa: ARG002 - the signature of all runners
        argument: str,  # noqa: ARG002
        stdin: AsyncIterable[bytes] | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[bytes, None]:
        for piece in self.said:
            yield piece
        if not self.ends:
            await asyncio.Event().wait()


class Puppet:
    """A tool that takes no input, and says at any time what a test wants."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[bytes] = asyncio.Queue()

    def say(self, said: bytes) -> None:
        self._said.put_nowait(said)

    async def run_tool(
        self,
        name: str,  # noqa: ARG002 - the signature of all runners
        argument: str,  # noqa: ARG002
        stdin: AsyncIterable[bytes] | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[bytes, None]:
        while True:
            yield await self._said.get()


def frame(kind: RelayFrame, number: int = 1, content: bytes = b"") -> bytes:
    return relay_frame(kind, number, content)
