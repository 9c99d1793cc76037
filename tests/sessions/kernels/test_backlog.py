"""A kernel with its own ZMTP implementation that sends one message of endless small frames, or does not read."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sessions.backends.handshake import new_connection_info
from sessions.kernels import connection, transport
from sessions.kernels.backlog import Backlog
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.tenants.traffic import NO_CHARGE
from tests.fakes import Listener, connect
from tests.figures import hold

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00"
MORE_TO_COME = b"\x01\x01a"
WHOLE = b"\x00\xff" + b"a" * 255
MAX = 500_000
MIB = 1024**2
#: maximum bytes that an attack sends
ENOUGH = 12 * MIB
#: bytes of memory that libzmq is expected to use for each of them
PER_BYTE = 3
KINDS = (b"ROUTER", b"PUB", b"ROUTER", b"ROUTER")  # shell, iopub, stdin, control


class Attacker:
    """Four ports that greet like a kernel's, and send a frame again and again on iopub."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self.sent = 0

    async def serve(self, kind: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = READY + bytes([len(kind)]) + kind
        writer.write(GREETING + b"\x04" + bytes([len(ready)]) + ready)
        try:
            await reader.readexactly(len(GREETING))
            while kind == b"PUB" and self.sent < ENOUGH:
                writer.write(self._frame * 20_000)
                await writer.drain()
                self.sent += 20_000 * len(self._frame)
                await asyncio.sleep(0.01)  # else all bytes would have arrived before the first check
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway has closed the connection
        finally:
            writer.transport.abort()


async def listening(attacker: Attacker) -> tuple[list[asyncio.Server], ConnectionInfo]:
    """Listen on free ports in a row, which can only be found by trying."""
    for first in range(30_000 + os.getpid() % 10_000, 60_000, 10):
        servers: list[asyncio.Server] = []
        try:
            for number, kind in enumerate(KINDS):
                servers.append(await asyncio.start_server(partial(attacker.serve, kind), "127.0.0.1", first + number))
        except OSError:
            close(servers)
        else:
            return servers, new_connection_info("tcp", "127.0.0.1", first_port=first, encryption=False)
    raise AssertionError("no free ports")


def close(servers: list[asyncio.Server]) -> None:
    for server in servers:
        server.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def outcome(frame: bytes) -> tuple[bool, int]:
    """Return whether the connection reported the kernel as broken, and the memory that it used until then."""
    attacker = Attacker(frame)
    servers, info = await listening(attacker)
    before = peak = resident()
    listener = Listener()
    line = connect(info, listener, most=MAX)
    try:
        async with asyncio.timeout(60):
            while not listener.broken.is_set() and attacker.sent < ENOUGH:
                peak = max(peak, resident())
                await asyncio.sleep(0.02)
    finally:
        line.close()
        close(servers)
    return listener.broken.is_set(), peak - before


@pytest.mark.usefixtures("nothing_left")
class TestBytesWithoutAMessage:
    async def test_a_message_without_end_costs_its_kernel_the_connection(self) -> None:
        given_up, _ = await outcome(MORE_TO_COME)
        assert given_up

    @pytest.mark.full
    async def test_a_message_without_end_uses_little_memory(self) -> None:
        _, grown = await outcome(MORE_TO_COME)
        hold("memory for a message without end", grown, PER_BYTE * ENOUGH, "MiB")

    async def test_as_many_bytes_in_whole_messages_do_not_break_the_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "MALFORMED_MAX", 10**9)
        given_up, _ = await outcome(WHOLE)
        assert not given_up


def test_a_reused_descriptor_number_counts_no_bytes_and_leaks_nothing() -> None:
    """libzmq may close its descriptor at any time, and the next open file gets the number."""
    backlog = Backlog("127.0.0.1", 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as stranger, open(os.devnull, "rb") as file:  # noqa: PTH123 - its number is what matters
        for descriptor in (stranger.fileno(), file.fileno(), os.eventfd(0)):
            backlog.connected(descriptor)
            assert [backlog.size() for _ in range(10)] == [0] * 10
    os.close(descriptor)
    assert backlog.size() == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_sends_to_a_kernel_that_does_not_read_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "UNSENT_MAX", 8 * MIB)
    attacker = Attacker(b"")
    servers, info = await listening(attacker)
    line = connect(info, most=MAX)
    await asyncio.sleep(0.3)
    sent = 0
    while sent < 100:  # the send is refused long before
        try:
            line.send("shell", "comm_msg", {"data": "x" * MIB})
        except ConnectionFailed:
            break
        sent += 1
    assert 8 <= sent < 30  # the limit, and TCP's own buffers
    line.close()
    close(servers)


class Tenant:
    """Counts what waits for its kernels, up to a bound."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def hold(self, count: int) -> bool:
        if count > 0 and self.held + count > self.most:
            return False
        self.held += count
        return True


async def sent_to(line: connection.Connection, most: int) -> int:
    """Send messages of 1 MiB until one is refused; return how many were taken."""
    for sent in range(most):
        try:
            line.send("shell", "comm_msg", {"data": "x" * MIB})
        except ConnectionFailed:
            return sent
    return most


async def test_kernels_of_one_tenant_that_do_not_read_share_its_bytes() -> None:
    tenant, loose = Tenant(8 * MIB), Tenant(1000 * MIB)
    found = list[int]()
    lines, opened = [], []
    for owner in (tenant, tenant, loose, loose):
        servers, info = await listening(Attacker(b""))
        line = connect(info, most=MAX)
        line.charge(replace(NO_CHARGE, hold=owner.hold))
        lines.append(line)
        opened.append(servers)
    await asyncio.sleep(0.3)
    for line in lines:
        found.append(await sent_to(line, 30))
    assert 8 <= found[0] < 20  # the limit, and TCP's own buffers
    assert found[1] < 12  # what TCP takes; none of it is the gateway's
    assert tenant.held <= tenant.most
    assert found[2:] == [30, 30], "the control: another tenant's kernels take what one channel may hold"
    lines[1].send("control", "interrupt_request", {})  # what the gateway itself says is no matter of the share
    for line, servers in zip(lines, opened, strict=True):
        line.close()
        close(servers)
    await asyncio.sleep(0.1)  # for the other ends of the connections
    assert (tenant.held, loose.held) == (0, 0)


async def test_what_a_kernel_has_read_counts_no_more() -> None:
    reads = asyncio.Event()

    class Slow(Attacker):
        async def serve(self, kind: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ready = READY + bytes([len(kind)]) + kind
            writer.write(GREETING + b"\x04" + bytes([len(ready)]) + ready)
            await reads.wait()
            with suppress(ConnectionError):
                while await reader.read(MIB):
                    pass
            writer.transport.abort()

    tenant = Tenant(100 * MIB)
    servers, info = await listening(Slow(b""))
    line = connect(info, most=MAX)
    line.charge(replace(NO_CHARGE, hold=tenant.hold))
    await asyncio.sleep(0.3)
    await sent_to(line, 30)
    assert tenant.held > 10 * MIB
    reads.set()
    async with asyncio.timeout(30):
        while tenant.held:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    line.close()
    close(servers)
    await asyncio.sleep(0.1)  # for the other ends of the connections
