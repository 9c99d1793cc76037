"""The relay to servers: with the real tool and real servers, and with tools that say what they must not say."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kernel_image.protocol import RELAY_PIECE, RELAY_WINDOW, RelayFrame
from sessions.backends.relay import CLOSED_MAX, Relay
from sessions.model.errors import ConnectionFailed, PortNotOpen, PortsUnavailable
from sessions.model.tasks import spawn
from sessions.ports.ports import connect, relay_to_ports
from tests.conftest import nothing_left  # noqa: F401 - a fixture
from tests.sessions.backends.relays import Puppet, Real, Scripted, frame

pytestmark = pytest.mark.usefixtures("nothing_left")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


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
async def relay(tool: Real | Scripted | Puppet) -> AsyncIterator[Relay]:
    made = relay_to_ports(tool)
    try:
        yield made
    finally:
        made.leave()


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
        connection = await connect(ports, port)
        await connection.write(b"hello")
        assert await connection.read() == b"hello"
        connection.end()
        assert await whole(connection.read) == b" and the end"
        connection.close()


async def test_a_port_where_nothing_listens_is_refused_and_others_go_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = free.getsockname()[1]
    async with server(echo) as port, relay(Real()) as ports:
        connection = await connect(ports, port)
        with pytest.raises(PortNotOpen):
            await connect(ports, unused)
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
        slow, quick = await connect(ports, flooding), await connect(ports, port)
        for _ in range(50):
            await quick.write(b"x" * 1000)
            assert len(await quick.read()) == 1000
        assert len(slow._arrived) <= RELAY_WINDOW
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
        connection = await connect(ports, port)
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
        connection = await connect(ports, port)
        assert await connection.read() == b"too large"
        connection.close()


async def test_many_connections_share_one_tool() -> None:
    async with server(echo) as port, relay(Real()) as ports:
        connections = await asyncio.gather(*(connect(ports, port) for _ in range(40)))
        for number, connection in enumerate(connections):
            await connection.write(str(number).encode())
        assert [await each.read() for each in connections] == [str(number).encode() for number in range(40)]
        for connection in connections:
            connection.close()


#: a system without IPv6, and one where each server has closed a connection before the tool asks for its name
NO_IPV6 = """
real = ports.socket.socket
def make(family, kind):
    if family == ports.socket.AF_INET6:
        raise OSError(97, "Address family not supported by protocol")
    return real(family, kind)
ports.socket.socket = make
"""
CLOSED = """
import itertools
calls = itertools.count()
class Socket(ports.socket.socket):
    def getpeername(self):
        if next(calls) == 0:
            raise OSError(107, "Transport endpoint is not connected")
        return super().getpeername()
ports.socket.socket = Socket
"""


@pytest.mark.parametrize(("change", "listens"), [(NO_IPV6, False), (CLOSED, True)], ids=["no IPv6", "closed at once"])
async def test_an_error_of_one_connection_leaves_the_others_alone(change: str, *, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = free.getsockname()[1]
    async with server(echo) as port, relay(Real(change=change)) as ports:
        with pytest.raises(PortNotOpen):
            await connect(ports, port if listens else unused)
        connection = await connect(ports, port)
        await connection.write(b"x")
        assert await connection.read() == b"x"
        connection.close()


async def test_a_relay_without_connections_ends() -> None:
    async with server(echo) as port:
        ports = relay_to_ports(Real(), linger=0.1)
        connection = await connect(ports, port)
        connection.close()
        ended = asyncio.Event()
        ports.when_ended(ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        assert ports.leaving


# -- hostile tools ---------------------------------------------------------------------------------------------

TO = struct.pack(">H", 8000)
OPEN = frame(RelayFrame.ALIVE, 0) + frame(RelayFrame.OPENED)
FULL = frame(RelayFrame.DATA, content=bytes(RELAY_PIECE)) * (RELAY_WINDOW // RELAY_PIECE)


async def test_a_tool_that_says_what_it_may_say_is_heard() -> None:
    said = OPEN + FULL + frame(RelayFrame.END)
    pieces = [said[at : at + 1000] for at in range(0, len(said), 1000)]  # frames may be cut anywhere
    async with relay(Scripted(*pieces)) as ports:
        connection = await connect(ports, 8000)
        assert len(await whole(connection.read)) == RELAY_WINDOW
        connection.close()


async def test_many_small_pieces_are_kept_as_one() -> None:
    async with relay(Scripted(OPEN + frame(RelayFrame.DATA, content=b"ab") * 1000)) as ports:
        connection = await connect(ports, 8000)
        assert await connection.read() == b"ab" * 1000
        connection.close()


@pytest.mark.parametrize(
    "said",
    [
        OPEN + frame(RelayFrame.DATA, 7, b"x"),
        OPEN + frame(RelayFrame.DATA, 0, b"x"),
        OPEN + FULL + frame(RelayFrame.DATA, content=b"x"),
        OPEN + frame(RelayFrame.DATA, content=bytes(RELAY_PIECE + 1))[:100],
        OPEN + frame(RelayFrame.OPENED),
        OPEN + frame(RelayFrame.REFUSED),
        OPEN + frame(RelayFrame.END) + frame(RelayFrame.DATA, content=b"x"),
        OPEN + frame(RelayFrame.END) * 2,
        OPEN + frame(RelayFrame.DATA),
        OPEN + frame(RelayFrame.MORE, content=struct.pack(">I", 1)),
        OPEN + frame(RelayFrame.MORE, content=b"1"),
        OPEN + frame(RelayFrame.BROKEN, content=b"x"),
        OPEN + frame(RelayFrame.ALIVE, 1),
        OPEN + b"\x63" + frame(RelayFrame.END)[1:],
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
        connection = await connect(ports, 8000)
        ended = asyncio.Event()
        ports.when_ended(ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        with pytest.raises(ConnectionFailed, match="no valid answer"):
            await connection.write(b"x")
        connection.close()


@pytest.mark.parametrize("kind", [RelayFrame.DATA, RelayFrame.END, RelayFrame.MORE, RelayFrame.BROKEN])
async def test_nothing_is_said_of_a_connection_that_is_not_open(kind: RelayFrame) -> None:
    async with relay(Scripted(frame(kind, 1, b"xxxx"))) as ports:
        with pytest.raises(ConnectionFailed, match="no valid answer"):
            await connect(ports, 8000)


async def test_what_a_tool_says_of_a_connection_that_was_just_closed_is_dropped() -> None:
    async with relay(Scripted(OPEN, frame(RelayFrame.DATA, 1, b"late"), frame(RelayFrame.OPENED, 2))) as ports:
        (await connect(ports, 8000)).close()
        (await connect(ports, 8000)).close()


async def test_a_tool_that_takes_nothing_gets_no_more_although_it_asks_for_more() -> None:
    sent, tool = 0, Puppet()

    async def upload() -> None:
        nonlocal sent
        while True:
            await connection.write(bytes(RELAY_PIECE))
            sent += RELAY_PIECE

    async with relay(tool) as ports:
        tool.say(OPEN)
        connection = await connect(ports, 8000)
        uploading = spawn(upload(), "upload")
        for _ in range(1000):
            if not connection._credit:
                tool.say(frame(RelayFrame.MORE, content=struct.pack(">I", RELAY_WINDOW)))
            await asyncio.sleep(0)
        assert 0 < sent <= RELAY_WINDOW
        assert not ports.leaving
        uploading.cancel()
        connection.close()


async def test_a_tool_that_takes_nothing_of_closed_connections_is_ended() -> None:
    async def leave_data() -> None:
        connection = ports.begin(TO)
        await connection.write(bytes(RELAY_PIECE))
        connection.close()

    async with relay(Scripted(OPEN)) as ports:
        connection = ports.begin(TO)
        await connection.opened
        for _ in range(CLOSED_MAX - 2):  # a tool may be slow
            await leave_data()
        assert not ports.leaving
        for _ in range(3):
            await leave_data()
        assert ports.leaving
        with pytest.raises(ConnectionFailed, match="takes nothing"):
            await connection.read()
        connection.close()


async def test_any_number_of_open_connections_may_wait_for_a_tool_that_takes_nothing() -> None:
    async with relay(Scripted()) as ports:
        connections = [ports.begin(TO) for _ in range(3 * CLOSED_MAX)]
        for connection in connections:
            await connection.write(bytes(RELAY_PIECE))
        assert not ports.leaving
        for connection in connections:
            connection.close()


async def test_an_image_without_the_tool_says_so() -> None:
    async with relay(Scripted(ends=True)) as ports:
        with pytest.raises(PortsUnavailable, match="older than this gateway"):
            await connect(ports, 8000)


async def test_connections_break_when_the_sandbox_ends() -> None:
    async with relay(Scripted(OPEN, ends=True)) as ports:
        connection = await connect(ports, 8000)
        with pytest.raises(ConnectionFailed):
            await connection.read()
        with pytest.raises(ConnectionFailed):
            await connection.write(b"x")
        connection.close()
