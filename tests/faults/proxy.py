"""A proxy in front of the Docker engine's socket that fails on demand. The engine itself is never touched.

One request per connection: after its head all bytes are passed on in both directions until one side ends. So attached
streams and endless answers need no special code.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = Path("/var/run/docker.sock")
_PIECE = 65536
_ERROR = b'{"message": "a fault was injected"}'


class Fault(enum.Enum):
    """The way in which a call fails."""

    #: the engine never gets the call, and the client gets no answer
    HANG = "hang"
    #: the engine executes the call, and the client gets no answer
    MUTE = "mute"
    #: the engine never gets the call; the answer is 500
    ERROR = "error"
    #: the engine executes the call; the answer ends in its middle
    CUT = "cut"
    #: the connection is closed without an answer
    REFUSE = "refuse"


@dataclass
class Rule:
    """The calls that fail, and their fault."""

    fault: Fault
    #: regular expression for `METHOD /path`, without the API's version and the query
    calls: str = ".*"
    #: number of the match that fails, from 1; 0: all
    nth: int = 0
    #: seconds after the n-th match for which all further ones fail, too
    lasts: float = 0
    matches: int = 0
    #: number of calls that have failed
    struck: int = 0
    _until: float = 0

    def strikes(self, call: str) -> bool:
        """Return whether this call fails, and count it."""
        if not re.fullmatch(self.calls, call):
            return False
        self.matches += 1
        if self.matches == self.nth:
            self._until = time.monotonic() + self.lasts
        hit = self.nth in {0, self.matches} or time.monotonic() < self._until
        self.struck += hit
        return hit


@dataclass
class Proxy:
    """A running proxy; its event loop has a separate thread."""

    path: Path
    engine: Path
    loop: asyncio.AbstractEventLoop
    rule: Rule | None = None
    #: all calls that have arrived, as `METHOD /path`
    calls: list[str] = field(default_factory=list)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _stuck: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The value for DOCKER_HOST."""
        return f"unix://{self.path}"

    def fail(self, fault: Fault, calls: str = ".*", nth: int = 0, lasts: float = 0) -> Rule:
        """Let calls fail from now on."""
        self.rule = Rule(fault, calls, nth, lasts)
        return self.rule

    def heal(self) -> None:
        """Pass on all calls; close those that hang, as a restarted engine does."""
        self.rule = None
        self.loop.call_soon_threadsafe(self._free)

    def cut_all(self) -> None:
        """Close every open connection, as a restarted engine does."""
        self.loop.call_soon_threadsafe(self._cancel)

    def _free(self) -> None:
        for writer in self._stuck:
            writer.transport.abort()

    def _cancel(self) -> None:
        for task in self._serving:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            # The client and the engine may close the connection at any moment.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        call = f"{method} {re.sub(r'^/v[0-9.]+(?=/)', '', target.partition('?')[0])}"
        self.calls.append(call)
        rule = self.rule
        fault = rule.fault if rule is not None and rule.strikes(call) else None
        if fault is Fault.REFUSE:
            return
        if fault is Fault.HANG:
            await self._hang(reader, writer)
        elif fault is Fault.ERROR:
            await _refuse(head, reader, writer)
        else:
            await self._pass_on(head, reader, writer, fault)

    async def _hang(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._stuck.add(writer)
        try:
            while await reader.read(_PIECE):  # until the client gives up, or `heal` closes the connection
                pass
        finally:
            self._stuck.discard(writer)

    async def _pass_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None
    ) -> None:
        answers, engine = await asyncio.open_unix_connection(str(self.engine))
        try:
            engine.write(head if b"\r\nUpgrade:" in head else _once(head))
            sending = asyncio.create_task(_copy(reader, engine))  # noqa: TID251 - kept, and awaited
            try:
                if fault is Fault.CUT:
                    piece = await answers.read(_PIECE)
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
                elif fault is Fault.MUTE:
                    self._stuck.add(writer)
                    await answers.read(_PIECE)
                    await sending
                else:
                    await _copy(answers, writer)
            finally:
                self._stuck.discard(writer)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            engine.transport.abort()


async def _refuse(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length is not None:
        await reader.readexactly(int(length[1]))
    writer.write(
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(_ERROR), _ERROR)
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def _once(head: bytes) -> bytes:
    """Change a request's head so that the connection is closed after the answer."""
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close", b"", b""])


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE):
        to.write(piece)
        await to.drain()
    if to.can_write_eof():
        to.write_eof()


@contextlib.contextmanager
def proxy(engine: Path = ENGINE) -> Iterator[Proxy]:
    """A proxy in front of an engine."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(prefix="kgw-proxy-") as directory:
        made = Proxy(Path(directory, "docker.sock"), engine, loop)

        async def listen() -> None:
            server = await asyncio.start_unix_server(made.serve, str(made.path))
            started.set()
            try:
                await server.serve_forever()
            finally:
                server.close()
                # Includes the tasks of new connections that are not served yet.
                while others := asyncio.all_tasks() - {listening}:
                    for task in others:
                        task.cancel()
                    await asyncio.wait(others)

        listening = loop.create_task(listen())

        def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(listening)
            loop.close()

        thread = threading.Thread(target=run, name="docker-proxy")
        thread.start()
        try:
            assert started.wait(10)
            yield made
        finally:
            loop.call_soon_threadsafe(listening.cancel)
            thread.join(10)
