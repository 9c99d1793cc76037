"""One exchange with a server that answers as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from kernel_gateway.errors import ServerFailed
from kernel_gateway.ports.upstream import HEAD_MAX, INFORMATIONAL_MAX, Upstream
from sessions.backends.relay import RelayConnection
from sessions.model.errors import ConnectionFailed, InvalidRequest
from sessions.model.tasks import spawn

OK = b"HTTP/1.1 200 OK\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


class Server:
    """A connection whose server has said all its pieces, and then says nothing more, or ends."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self._pieces = list(pieces)
        self._ends = ends
        self.got = b""

    async def read(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        if not self._ends:
            await asyncio.Event().wait()
        return b""

    async def write(self, content: bytes) -> None:
        self.got += content


async def begun(server: Server, method: str = "GET", idle: float = 60.0, *headers: tuple[str, str]) -> Upstream:
    upstream = Upstream(cast("RelayConnection", server), idle)
    await upstream.begin(method, "/x?y=1", [("Host", "h"), ("Connection", "close"), *headers])
    return upstream


async def whole(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_a_request_and_its_answer_pass_in_pieces() -> None:
    said = OK + b"Transfer-Encoding: chunked\r\nX-A: 1\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    server = Server(*(said[at : at + 7] for at in range(0, len(said), 7)))
    upstream = await begun(server, "POST", 60.0, ("Transfer-Encoding", "chunked"))
    await upstream.send(b"hello")
    await upstream.finish()
    assert server.got.startswith(b"POST /x?y=1 HTTP/1.1\r\n")
    assert server.got.endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    head = await upstream.head()
    assert (head.status, ("X-A", "1") in head.headers) == (200, True)
    assert await whole(upstream.body()) == b"abcde"


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    upstream = await begun(Server(b"HTTP/1.0 200 OK\r\n\r\n", b"abc", b"de"))
    assert (await upstream.head()).status == 200
    assert await whole(upstream.body()) == b"abcde"


async def test_preliminary_answers_are_dropped_as_long_as_they_are_few() -> None:
    upstream = await begun(Server(EARLY * 3 + OK + b"Content-Length: 0\r\n\r\n"))
    assert (await upstream.head()).status == 200
    with pytest.raises(ServerFailed, match="preliminary"):
        await (await begun(Server(EARLY * INFORMATIONAL_MAX + OK + b"\r\n"))).head()


async def test_a_websocket_begins_where_the_head_ends() -> None:
    asked = ("Upgrade", "websocket"), ("Connection", "Upgrade")
    said = b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nframes"
    upstream = Upstream(cast("RelayConnection", Server(said)))
    await upstream.begin("GET", "/", [("Host", "h"), *asked])
    await upstream.finish()
    assert (await upstream.head()).status == 101
    assert upstream.rest == b"frames"
    with pytest.raises(ServerFailed, match="no valid HTTP"):  # nobody has asked for it
        await (await begun(Server(said))).head()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00\x01\x02garbage\r\n\r\n",
        b"<html>\r\n\r\n",
        OK + b"X: " + b"a" * (HEAD_MAX + 1),
        OK + b"X: a\r\n" * (HEAD_MAX // 6 + 1),
        OK + b"X: a\x00b\r\n\r\n",
        OK + b"X\r\nY: a\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 99 No\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=[
        *("nothing", "garbage", "html", "endless header", "endless headers", "NUL", "no colon", "two lengths"),
        *("length below 0", "unknown coding", "status 99", "only preliminary"),
    ],
)
async def test_a_head_that_is_no_http_is_a_failure_of_the_server(said: bytes) -> None:
    with pytest.raises(ServerFailed):
        await (await begun(Server(said))).head()


@pytest.mark.parametrize(
    "said",
    [
        b"Content-Length: 5\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffffffff\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n3;" + b"x" * (HEAD_MAX + 10),
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: " + b"a" * (HEAD_MAX + 1),
    ],
    ids=["too short", "chunk too short", "huge chunk size", "chunk below 0", "endless extension", "endless trailer"],
)
async def test_a_body_that_is_not_complete_is_a_failure_of_the_server(said: bytes) -> None:
    upstream = await begun(Server(OK + said))
    assert (await upstream.head()).status == 200
    with pytest.raises(ServerFailed):
        await whole(upstream.body())


async def test_a_silent_server_is_given_up() -> None:
    upstream = await begun(Server(ends=False), idle=0.05)
    with pytest.raises(ServerFailed, match="neither client nor server"):
        await upstream.head()


async def test_an_upload_that_goes_on_counts_as_progress() -> None:
    upstream = await begun(Server(ends=False), "POST", 0.3, ("Transfer-Encoding", "chunked"))
    answer = spawn(upstream.head(), "head")
    for _ in range(6):
        await asyncio.sleep(0.1)
        await upstream.send(b"x")
        assert not answer.done()
    with pytest.raises(ServerFailed):
        await answer


async def test_characters_that_http_does_not_allow_are_refused() -> None:
    upstream = Upstream(cast("RelayConnection", Server()))
    with pytest.raises(InvalidRequest):
        await upstream.begin("GET", "/a b", [("Host", "h")])


async def test_a_broken_connection_is_told() -> None:
    class Broken(Server):
        async def read(self) -> bytes:
            raise ConnectionFailed

    with pytest.raises(ConnectionFailed):
        await (await begun(Broken())).head()
