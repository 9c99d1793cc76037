"""The relay to servers: with the real tool and real servers, and with tools that say what they must not say."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kernel_image.protocol import PORT_PIECE, PORT_WINDOW, PortFrame, port_frame
from sessions.backends.base import KERNEL_IMAGE
from sessions.model.errors import ConnectionFailed, PortNotOpen, PortsUnavailable
from sessions.model.tasks import spawn
from sessions.ports.relay import Relay
from tests.conftest import nothing_left  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("nothing_left")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Real:
    """Runs the real tool on this machine."""

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(KERNEL_IMAGE / f"{name}.py"), argument),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        assert stdin is not None
        feeding = spawn(feed(program.stdin, stdin), "input")
        try:
            while piece := await program.stdout.read(65536):
                yield piece
        finally:
            feeding.cancel()
            program.stdin.close()
            await program.stdout.read()
            await program.wait()


async def feed(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes]) -> None:
    async for piece in stdin:
        pipe.write(piece)
        await pipe.drain()


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


def frame(kind: PortFrame, number: int = 1, content: bytes = b"") -> bytes:
    return port_frame(kind, number, content)


@asynccontextmanager
async def server(serve: Serve, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server on a port of this machine; its connections are closed when `serve` returns."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, host)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


@asynccontextmanager
async def relay(tool: Real | Scripted) -> AsyncIterator[Relay]:
    made = Relay(tool)
    try:
        yield made
    finally:
        made.end()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.write(b" and the end")
    await writer.drain()


async def whole(read: Callable[[], Awaitable[bytes]]) -> bytes:
    found = bytearray()
    while piece := await read():
        found += piece
    return bytes(found)


# -- real servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])  # noqa: S104 - a server of code
async def test_bytes_pass_both_ways_and_each_side_may_end_first(host: str) -> None:
    async with server(echo, host) as port, relay(Real()) as ports:
        connection = await ports.connect(port)
        await connection.write(b"hello")
        assert await connection.read() == b"hello"
        connection.end()
        assert await whole(connection.read) == b" and the end"
        connection.close()


async def test_a_port_where_nothing_listens_is_refused_and_others_go_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = free.getsockname()[1]
    async with server(echo) as port, relay(Real()) as ports:
        connection = await ports.connect(port)
        with pytest.raises(PortNotOpen):
            await ports.connect(unused)
        await connection.write(b"still there")
        assert await connection.read() == b"still there"
        connection.close()


async def test_a_reader_that_is_slow_holds_one_window_and_delays_nobody() -> None:
    sent = 0

    async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            sent += 65536

    async with server(flood) as flooding, server(echo) as port, relay(Real()) as ports:
        slow, quick = await ports.connect(flooding), await ports.connect(port)
        for _ in range(50):
            await quick.write(b"x" * 1000)
            assert len(await quick.read()) == 1000
        assert sum(map(len, slow._pieces)) <= PORT_WINDOW
        stuck = sent
        for _ in range(200):  # reading lets the server go on
            assert await slow.read()
        assert sent > stuck
        slow.close()
        quick.close()


async def test_a_large_upload_waits_for_its_server() -> None:
    size, go = 20 * 1024**2, asyncio.Event()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(str(len(await reader.read())).encode())
        await writer.drain()

    async with server(count) as port, relay(Real()) as ports:
        connection = await ports.connect(port)
        writing = spawn(connection.write(bytes(size)), "upload")
        await asyncio.wait({writing}, timeout=0.2)
        assert not writing.done()
        go.set()
        await writing
        connection.end()
        assert await whole(connection.read) == str(size).encode()
        connection.close()


async def test_what_a_server_has_sent_arrives_although_it_reads_nothing() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"too large")
        await writer.drain()

    async with server(refuse) as port, relay(Real()) as ports:
        connection = await ports.connect(port)
        assert await connection.read() == b"too large"
        connection.close()


async def test_many_connections_share_one_tool() -> None:
    async with server(echo) as port, relay(Real()) as ports:
        connections = await asyncio.gather(*(ports.connect(port) for _ in range(40)))
        for number, connection in enumerate(connections):
            await connection.write(str(number).encode())
        assert [await each.read() for each in connections] == [str(number).encode() for number in range(40)]
        for connection in connections:
            connection.close()


async def test_a_relay_without_connections_ends() -> None:
    async with server(echo) as port:
        ports = Relay(Real(), linger=0.1)
        connection = await ports.connect(port)
        connection.close()
        ended = asyncio.Event()
        ports.when_ended(ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        assert ports.ended


# -- hostile tools ---------------------------------------------------------------------------------------------

OPEN = frame(PortFrame.ALIVE, 0) + frame(PortFrame.OPENED)
FULL = frame(PortFrame.DATA, content=bytes(PORT_PIECE)) * (PORT_WINDOW // PORT_PIECE)


async def test_a_tool_that_says_what_it_may_say_is_heard() -> None:
    said = OPEN + FULL + frame(PortFrame.END)
    pieces = [said[at : at + 1000] for at in range(0, len(said), 1000)]  # frames may be cut anywhere
    async with relay(Scripted(*pieces)) as ports:
        connection = await ports.connect(8000)
        assert len(await whole(connection.read)) == PORT_WINDOW
        connection.close()


@pytest.mark.parametrize(
    "said",
    [
        OPEN + frame(PortFrame.DATA, 7, b"x"),
        OPEN + frame(PortFrame.DATA, 0, b"x"),
        OPEN + FULL + frame(PortFrame.DATA, content=b"x"),
        OPEN + frame(PortFrame.DATA, content=bytes(PORT_PIECE + 1))[:100],
        OPEN + frame(PortFrame.OPENED),
        OPEN + frame(PortFrame.REFUSED),
        OPEN + frame(PortFrame.END) + frame(PortFrame.DATA, content=b"x"),
        OPEN + frame(PortFrame.END) * 2,
        OPEN + frame(PortFrame.DATA),
        OPEN + frame(PortFrame.MORE, content=struct.pack(">I", 1)),
        OPEN + frame(PortFrame.MORE, content=b"1"),
        OPEN + frame(PortFrame.BROKEN, content=b"x"),
        OPEN + frame(PortFrame.ALIVE, 1),
        OPEN + b"\x63" + frame(PortFrame.END)[1:],
        OPEN + b"Traceback (most recent call last)",
    ],
    ids=[
        *("unknown connection", "no connection", "over the window", "too long", "opened twice", "refused when open"),
        *("data after the end", "ended twice", "no data", "too much credit", "credit of one byte", "broken with data"),
        *("alive with a number", "unknown kind", "text"),
    ],
)
async def test_a_tool_that_says_what_it_must_not_say_is_ended(said: bytes) -> None:
    async with relay(Scripted(said)) as ports:
        connection = await ports.connect(8000)
        ended = asyncio.Event()
        ports.when_ended(ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        with pytest.raises(ConnectionFailed, match="no valid answer"):
            await connection.write(b"x")
        connection.close()


@pytest.mark.parametrize("kind", [PortFrame.DATA, PortFrame.END, PortFrame.MORE, PortFrame.BROKEN])
async def test_nothing_is_said_of_a_connection_that_is_not_open(kind: PortFrame) -> None:
    async with relay(Scripted(frame(kind, 1, b"xxxx"))) as ports:
        with pytest.raises(ConnectionFailed, match="no valid answer"):
            await ports.connect(8000)


async def test_what_a_tool_says_of_a_connection_that_was_just_closed_is_dropped() -> None:
    async with relay(Scripted(OPEN, frame(PortFrame.DATA, 1, b"late"), frame(PortFrame.OPENED, 2))) as ports:
        (await ports.connect(8000)).close()
        (await ports.connect(8000)).close()


async def test_an_image_without_the_tool_says_so() -> None:
    async with relay(Scripted(ends=True)) as ports:
        with pytest.raises(PortsUnavailable, match="older than this gateway"):
            await ports.connect(8000)


async def test_connections_break_when_the_sandbox_ends() -> None:
    async with relay(Scripted(OPEN, ends=True)) as ports:
        connection = await ports.connect(8000)
        with pytest.raises(ConnectionFailed):
            await connection.read()
        with pytest.raises(ConnectionFailed):
            await connection.write(b"x")
        connection.close()
