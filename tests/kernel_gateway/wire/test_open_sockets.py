"""What a tenant's WebSockets may hold: their number, the bytes of incomplete messages, and the time of a message."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from socket import create_connection
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from kernel_gateway.wire.incoming import Incoming, MessageWatch
from tests import gateways
from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import failure, metric, until
from tests.kernel_gateway.sockets import Socket, connected

MIB = 1024**2
TEXT, MORE, PING, LAST = 0x01, 0x00, 0x09, 0x80


@pytest.fixture(scope="module")
def small() -> Iterator[Gateway]:
    """A gateway with low limits; a message may take a second."""
    with gateways.gateway(
        "process",
        max_sockets="4",
        max_sockets_per_tenant="3",
        max_sockets_per_session="2",
        max_share_per_tenant="1",
        message_timeout="1",
    ) as serving:
        yield serving


@pytest.fixture(scope="module")
def patient() -> Iterator[Gateway]:
    """A gateway where a tenant's messages may have 8 MiB, and all the time in the world."""
    with gateways.gateway("process", max_incoming_bytes_per_tenant="8m", message_timeout="600") as serving:
        yield serving


def begin(announced: int, arrived: int, first: int = TEXT | LAST) -> bytes:
    """Return the beginning of a frame: a mask of zeros leaves the payload as it is. Source: RFC 6455, 5.2."""
    return struct.pack(">BBQ4x", first, 0x80 | 127, announced) + b" " * arrived


async def refusal(gateway: Gateway, session: str, tenant: str = "alice") -> int:
    with pytest.raises(HTTPClientError) as refused:
        async with connected(gateway, session, tenant):
            pass
    return refused.value.code


def open_sockets(gateway: Gateway) -> float:
    return metric(gateway, "kernel_gateway_websockets")


def refused(gateway: Gateway, reason: str) -> float:
    return metric(gateway, "kernel_gateway_websockets_refused_total", reason=reason)


# -- their number ----------------------------------------------------------------------------------------------


async def test_sockets_are_limited_by_session_by_tenant_and_in_all(small: Gateway) -> None:
    before = {reason: refused(small, reason) for reason in ("session", "tenant", "total")}
    async with AsyncExitStack() as stack:
        for session in ("one", "one", "two"):
            await stack.enter_async_context(connected(small, session))
        assert await refusal(small, "one") == 429  # the session's limit is met before the tenant's
        assert await refusal(small, "three") == 429
        assert small.call("GET", "/v1/sessions/three").status_code == 404  # nothing was started for it
        await stack.enter_async_context(connected(small, "one", "bob"))
        assert await refusal(small, "one", "bob") == 429
        assert open_sockets(small) == 4
    assert {reason: refused(small, reason) - count for reason, count in before.items()} == dict.fromkeys(before, 1)
    await asyncio.to_thread(until, lambda: open_sockets(small) == 0)
    async with connected(small, "one") as socket:
        assert await socket.text("1") == "1"


def test_a_socket_that_is_not_opened_takes_no_place(small: Gateway) -> None:
    """Also if its connection stays open, for other requests."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    for _ in range(5):
        refused = small.call("GET", "/v1/sessions/one/stream", headers=upgrade | {"Origin": "http://evil.example"})
        assert refused.status_code == 403
    assert open_sockets(small) == 0


# -- bytes -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(gateway: Gateway, count: int) -> AsyncIterator[list[Socket]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(gateway, "held")) for _ in range(count)]


async def test_incomplete_messages_of_a_tenant_are_limited_together(patient: Gateway) -> None:
    half = 3 * MIB
    async with opened(patient, 4) as (first, second, third, other):
        for socket in (first, second, third):
            socket.write(begin(half + 1, half))
        assert await asyncio.wait_for(first_end(first, second, third), 60) == 4413
        async with connected(patient, "of-bob", "bob") as bob:
            assert await bob.text("1") == "1"
        assert await other.text("1") == "1"
    await asyncio.to_thread(until, lambda: open_sockets(patient) == 0)
    async with opened(patient, 2) as sockets:  # the control: what others held is free again
        for socket in sockets:
            socket.write(begin(half + 1, half))
        for socket in sockets:
            socket.write(b" ")
            assert (await socket.event())["error"]["code"] == "SB002"  # not JSON, but complete
            assert await socket.text("1") == "1"


async def first_end(*sockets: Socket) -> int | None:
    """Return the close code of the first socket that ends."""
    ends = [asyncio.ensure_future(socket.end()) for socket in sockets]  # noqa: TID251 - awaited or cancelled below
    done, left = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in left:
        end.cancel()
    return done.pop().result()


async def test_parts_of_a_message_are_counted_also_between_control_frames(patient: Gateway) -> None:
    part = begin(MIB, MIB, MORE)
    async with opened(patient, 1) as (socket,):
        socket.write(
            begin(MIB, MIB, TEXT) + begin(4, 4, PING | LAST)[:2].replace(b"\xff", b"\x84") + bytes(4) + b"ping"
        )
        socket.write(part * 2)  # 3 MiB of the message, whose limit is 4 MiB
        async with opened(patient, 2) as (second, third):
            second.write(begin(3 * MIB, 3 * MIB - 1))
            third.write(begin(3 * MIB, 3 * MIB - 1))
            assert await asyncio.wait_for(first_end(second, third, socket), 60) == 4413


async def test_cells_that_wait_count_as_well(patient: Gateway) -> None:
    async with opened(patient, 1) as (socket,):
        await socket.send(code="input()")
        await socket.until("input_request")
        for number in range(5):
            await socket.send(code="#" * (2 * MIB - 1), id=number)
        event = await socket.event()
        assert (event["type"], event["error"]["code"]) == ("error", "SB008")
        await socket.send(input="")
        ended = [(await socket.until("result"))[-1] for _ in range(event["id"] + 1)]
        assert {event["status"] for event in ended} == {"ok"}


def test_bodies_that_arrive_count_as_well(patient: Gateway) -> None:
    where = urlsplit(patient.url)
    key = f"Authorization: Bearer {KEYS['alice']}"
    lines = ("POST /v1/sessions HTTP/1.1", "Host: localhost", key, f"Content-Length: {3 * MIB}", "Expect: 100-continue")
    with ExitStack() as stack:
        for _ in range(2):
            peer = stack.enter_context(create_connection((where.hostname, where.port or 0), timeout=20))
            peer.sendall("\r\n".join((*lines, "", "")).encode())
            assert peer.recv(4096).startswith(b"HTTP/1.1 100 ")
        large = {"name": "x" * 3 * MIB}
        assert failure(patient.call("POST", "/v1/sessions", json=large)) == (429, "SB008")
        assert failure(patient.call("POST", "/v1/sessions", json=large, tenant="bob")) == (400, "SB002")
        assert patient.call("GET", "/v1/sessions").status_code == 200
    until(lambda: failure(patient.call("POST", "/v1/sessions", json=large)) == (400, "SB002"))


@pytest.mark.full
async def test_unfinished_frames_cost_no_more_than_the_tenants_share() -> None:
    with gateways.gateway("process", max_incoming_bytes_per_tenant="64m") as gateway:
        kernel = gateway.call("POST", "/api/kernels").json()["id"]
        url = f"{gateway.url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?token={KEYS['alice']}"
        with gateway.growth() as growth:
            sockets = [Socket(await websocket_connect(url)) for _ in range(12)]
            writes = [socket.write(begin(63 * MIB, 62 * MIB)) for socket in sockets]
            await asyncio.gather(*writes, return_exceptions=True)  # also to the sockets that the gateway closes
        assert refused(gateway, "bytes") >= 11
        hold("memory for unfinished frames", growth.bytes, 64 * MIB, "MiB")
        for socket in sockets:
            await socket.close()


# -- time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [TEXT | LAST, TEXT], ids=["one frame", "in parts"])
async def test_a_message_that_takes_too_long_closes_its_socket(small: Gateway, first: int) -> None:
    async with connected(small, "slow") as socket, connected(small, "slow") as idle:
        socket.write(begin(1000 if first & LAST else 4, 4, first))

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.2)
                socket.write(b" " if first & LAST else begin(1, 1, MORE))

        dripping = asyncio.ensure_future(drip())  # noqa: TID251 - cancelled below
        assert await socket.end() == 4408
        dripping.cancel()
        assert socket.reason == "a message was not complete after 1 s"
        assert await idle.text("1") == "1"  # the time between messages is not limited
    assert refused(small, "slow") >= 1


async def test_the_time_of_a_message_does_not_include_the_gateways() -> None:
    """A message behind one that is handled slowly waits for the gateway, and not for its client."""
    slow = asyncio.Event()
    watch = MessageWatch(Incoming(MIB).account("acme"), 0.05, Mock(), slow.set)
    watch.arrived(10)
    watch.completed()
    watch.arrived(5)  # the beginning of the next one
    await asyncio.sleep(0.2)
    assert not slow.is_set()
    watch.handled(5)
    async with asyncio.timeout(60):
        await slow.wait()


# -- compression -----------------------------------------------------------------------------------------------


async def test_compression_is_never_agreed_to(small: Gateway) -> None:
    """A small compressed message could be a large one in memory."""
    address = f"{small.url.replace('http', 'ws', 1)}/v1/sessions/plain/stream"
    asked = HTTPRequest(address, headers={"Authorization": f"Bearer {KEYS['alice']}"})
    connection = await websocket_connect(asked, compression_options={})
    assert connection.headers is not None
    assert "Sec-WebSocket-Extensions" not in connection.headers
    socket = Socket(connection)
    assert await socket.text("1") == "1"
    socket.write(bytes([0xC1, 0x80]) + bytes(4))  # a frame that claims to be compressed
    assert await socket.end() in {1002, 1006, None}
    await socket.close()


# -- masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [0x81, 0x01, 0x89], ids=["message", "part of a message", "ping"])
async def test_a_frame_without_a_mask_ends_the_connection(small: Gateway, head: int) -> None:
    """Source: RFC 6455, 5.1."""
    content = b'{"code": "1"}'
    async with connected(small, "masks") as socket:
        socket.write(bytes([0x81, 0x80 | len(content)]) + bytes(4) + content)  # the control: a mask of zeros
        assert (await socket.until("result"))[-1]["status"] == "ok"
        socket.write(bytes([head, len(content)]) + content)
        assert await socket.end() == 1002
