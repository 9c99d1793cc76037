"""The tools of one container, which one program runs: `kernel_image/toolbox.py`.

The engine takes a tenth of a second and more to start a program in a container, and Python takes as long again in
gVisor. So the first tool starts the program, and it runs those that follow within some time, too. An image that is
older than the program runs each tool as a program of its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing, suppress
from functools import partial

from kernel_image.protocol import FRAME_FORMAT, PORTS_TOOL, TOOLBOX
from sessions.backends.relay import Relay, RelayConnection, Words
from sessions.model.errors import ConnectionFailed, QuotaExceeded, SessionError
from sessions.model.tasks import spawn

#: maximum tools of a container at a time
TOOLS_MAX = 16
#: seconds for which the program waits for the next tool. It needs 10 MB of the container's memory.
LINGER = 20.0
#: seconds that a tool may run without output
TIMEOUT = 60.0
#: seconds for the start of a tool, also of the first one. After that, the next tool starts another program.
STARTS = 30.0
_LENGTH = struct.Struct(FRAME_FORMAT)


class _Missing(Exception):
    """The container's image has no such program."""


_WORDS = Words(
    missing=_Missing,
    refused=partial(ConnectionFailed, "the sandbox cannot run a file operation now"),
    ended="the sandbox ended during a file operation",
    broken="the sandbox ended during a file operation",
)


class Running:
    """Counts the tools or the programs of a container that have begun and not ended."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.number = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """Count one more."""
        self.number += 1
        self._none.clear()

    def end(self) -> None:
        """Count one less."""
        self.number -= 1
        if self.number == 0:
            self._none.set()

    async def none(self) -> None:
        """Wait until nothing runs."""
        while self.number:  # more may have begun before the waiter goes on
            await self._none.wait()


class Toolbox:
    """Runs the tools of one container."""

    def __init__(
        self, run_program: Callable[[str, str, AsyncIterable[bytes] | None], AsyncGenerator[bytes, None]]
    ) -> None:
        """Start nothing yet.

        Args:
            run_program: does the same as `run_tool`, with a program for this tool alone.
        """
        self._run_program = run_program
        #: tools whose caller has not got all of the answer
        self.tools = Running()
        #: runs the next tool
        self._relay: Relay | None = None
        #: all that have not ended: one that has started no tool for too long still runs those that it has started
        self._relays: set[Relay] = set()
        self._missing = False

    async def end(self) -> None:
        """End the program, with all tools that run. The next tool starts it again."""
        relays = list(self._relays)
        for relay in relays:
            relay.leave()
        for relay in relays:
            await relay.ended()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run a tool, as in `KernelHandle.run_tool`."""
        if self.tools.number >= TOOLS_MAX:
            raise QuotaExceeded(f"at most {TOOLS_MAX} file operations of a session at a time", max=TOOLS_MAX)
        self.tools.begin()
        try:
            async with aclosing(self._by_any_program(name, argument, stdin)) as output:
                async for piece in output:
                    yield piece
        finally:
            self.tools.end()

    async def _by_any_program(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None
    ) -> AsyncGenerator[bytes, None]:
        if not self._missing and name != PORTS_TOOL:  # that one is a relay, too, and runs as long as its connections
            try:
                async with aclosing(self._run(name, argument, stdin)) as output:
                    async for piece in output:
                        yield piece
            except _Missing:
                self._missing = True
            else:
                return
        async with aclosing(self._run_program(name, argument, stdin)) as output:
            async for piece in output:
                yield piece

    async def _run(self, name: str, argument: str, stdin: AsyncIterable[bytes] | None) -> AsyncGenerator[bytes, None]:
        relay = self._program()
        connection = relay.begin(name.encode())
        feeding: asyncio.Task[None] | None = None
        try:
            await self._start(relay, connection, argument.encode())
            feeding = spawn(_feed(connection, stdin), f"input of {name}")
            while piece := await _read(connection):
                yield piece
        finally:
            if feeding is not None:
                feeding.cancel()
            connection.close()

    def _program(self) -> Relay:
        if self._relay is None or self._relay.leaving:
            relay = self._relay = Relay(partial(self._run_program, TOOLBOX, ""), _WORDS, linger=LINGER)
            self._relays.add(relay)
            relay.when_ended(lambda: self._relays.discard(relay))
        return self._relay

    async def _start(self, relay: Relay, connection: RelayConnection, argument: bytes) -> None:
        """Send a tool its argument, and wait until it has started.

        Raises:
            SessionError: when it has not.
        """
        try:
            async with asyncio.timeout(STARTS):
                await connection.write(_LENGTH.pack(len(argument)) + argument)  # together with the order to start it
                await connection.opened
        except TimeoutError as error:  # user code has stopped the program, or the engine hangs
            if self._relay is relay:
                self._relay = None
            raise ConnectionFailed("the sandbox makes no progress with a file operation") from error


async def _read(connection: RelayConnection) -> bytes:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await connection.read()
    except TimeoutError as error:
        raise ConnectionFailed("the sandbox makes no progress with a file operation") from error


async def _feed(connection: RelayConnection, stdin: AsyncIterable[bytes] | None) -> None:
    """Send a tool its whole input, and then the end of its input."""
    with suppress(SessionError):  # the connection is broken, of which the reader learns
        if stdin is not None:
            async for piece in stdin:
                await connection.write(piece)
        connection.end()
