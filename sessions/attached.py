"""A command that runs on its own in a sandbox: clients listen to it, leave it and come back, and write to its input."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from sessions.errors import ConnectionFailed, InvalidRequest, ProcessNotFound, SessionError
from sessions.guest.attached import CLOSE, Begun, Data, Ended, Program, attach, data_line, size_line
from sessions.guest.processes import ProcessResult
from sessions.guest.tools import ToolRunner
from sessions.tasks import spawn

#: pieces of output that a listener may be behind, and lines of input that may wait for the sandbox
QUEUE = 8
#: bytes of one line of input
INPUT_PIECE = 48 * 1024
#: seconds between two pieces of output that nobody listens to: a command's output is unlimited, its cost is not
UNHEARD_PAUSE = 0.01


class Listener:
    """One client of a command; iterate over it for the output from now on, and the end."""

    def __init__(self) -> None:
        self._events: deque[Data | Ended] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False

    async def put(self, event: Data | Ended) -> None:
        """Add an event as soon as there is room, or drop it if the client has left."""
        while len(self._events) >= QUEUE and not self._over:
            self._room.clear()
            await self._room.wait()
        if not self._over:
            self._events.append(event)
            self._news.set()

    def end(self) -> None:
        """Let the iteration end behind the last event; nobody waits for room any more."""
        self._over = True
        self._news.set()
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[Data | Ended]:
        """Yield the events until the command's end."""
        while True:
            while self._events:
                yield self._events.popleft()
                self._room.set()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()


class AttachedCommand:
    """One command."""

    def __init__(self, program: Program, tag: str | None) -> None:
        """Prepare a command; `run` runs it.

        Args:
            program: what to run.
            tag: the client's own name for it.
        """
        self.program = program
        self.tag = tag
        #: process id; 0: it has not begun
        self.pid = 0
        #: whether it has begun and not ended
        self.running = False
        #: done when it has begun
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: why it did not run to its own end
        self.failure: SessionError | None = None
        self._over = asyncio.Event()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self._listeners: list[Listener] = []

    # -- its life -------------------------------------------------------------------------------------------

    async def run(self, host: ToolRunner, env: Mapping[str, str], seconds: float) -> ProcessResult:
        """Run it to its end.

        Args:
            host: sandbox that runs it.
            env: the sandbox's own variables.
            seconds: timeout in seconds.

        Raises:
            SessionError: as in `attach`.
        """
        clock, passed_on = asyncio.get_running_loop().time, 0
        began = clock()
        async with aclosing(attach(host, self.program, env, seconds, self._input())) as happenings:
            async for happening in happenings:
                match happening:
                    case Begun(pid) if not self.pid:
                        self.pid, self.running = pid, True
                        self.begun.set_result(pid)
                    case Data(content=content):
                        passed_on += len(content)
                        await self._tell(happening)
                    case Ended(code, timed_out):
                        self.running = False  # before anybody hears of it
                        await self._tell(happening)
                        return ProcessResult(
                            code, "", "", timed_out, truncated=False, duration=clock() - began, passed_on=passed_on
                        )
        raise ConnectionFailed("the sandbox gave no valid answer")

    async def _tell(self, event: Data | Ended) -> None:
        """Hand an event to all listeners; the slowest one sets the pace."""
        if not self._listeners:
            await asyncio.sleep(UNHEARD_PAUSE)
        for listener in list(self._listeners):
            await listener.put(event)

    def end(self) -> None:
        """Release everybody: it has ended."""
        self._over.set()
        for listener in self._listeners:
            listener.end()

    async def _input(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._lines.get()

    # -- what clients do ------------------------------------------------------------------------------------

    def listen(self) -> Listener:
        """Return a new listener; `leave` removes it."""
        listener = Listener()
        self._listeners.append(listener)
        if self._over.is_set():
            listener.end()
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener, whose client has left or is too slow."""
        self._listeners.remove(listener)
        listener.end()

    async def write(self, content: bytes) -> None:
        """Give it input; wait while it does not read.

        Raises:
            InvalidRequest: when it takes no input.
            ProcessNotFound: when it has ended.
        """
        self._require_input()
        for start in range(0, len(content), INPUT_PIECE):
            await self._send(data_line(content[start : start + INPUT_PIECE]))

    async def close_input(self) -> None:
        """End its input; errors as in `write`."""
        self._require_input()
        await self._send(CLOSE)

    async def resize(self, size: tuple[int, int]) -> None:
        """Change the columns and rows of its terminal.

        Raises:
            InvalidRequest: when it has no terminal.
            ProcessNotFound: when it has ended.
        """
        if self.program.size is None:
            raise InvalidRequest("the command has no terminal", field="pty")
        await self._send(size_line(size))

    def _require_input(self) -> None:
        if not self.program.takes_input and self.program.size is None:
            raise InvalidRequest("the command was started without an input", field="stdin")

    async def _send(self, line: bytes) -> None:
        put = spawn(self._lines.put(line), "input of a command")
        over = spawn(self._over.wait(), "input of a command")
        try:
            await asyncio.wait({put, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                raise ProcessNotFound(f"command {self.pid} has ended")
        finally:
            put.cancel()
            over.cancel()
