"""Connections to servers of sessions: their limits, and what they count for. The tool and the servers are real."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from sessions.model.errors import InvalidRequest, PortNotOpen, PortsUnavailable, QuotaExceeded
from sessions.model.tasks import spawn
from sessions.ports import ports as room
from sessions.ports.limits import PortLimits
from sessions.ports.ports import Ports
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.traffic import NO_CHARGE
from tests.fakes import World


def new(refusal: str = "", limits: PortLimits | None = None, share: float = 1.0) -> Ports:
    return Ports(lambda _tenant: NO_CHARGE, limits or PortLimits(), share, refusal)


async def ready(world: World, name: str = "demo", tenant: str = "alice") -> Session:
    return await world.session(name, tenant)


async def test_a_connection_counts_as_use_and_is_closed_with_its_context(world: World) -> None:
    session, ports = await ready(world), new()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)  # noqa: FBT003 - its own signature
        async with ports.open(session, server.getsockname()[1]) as connection:
            assert session.in_use
            assert ports.used == 1
            await connection.write(b"x")
            accepted, _ = await loop.sock_accept(server)
        with accepted:
            assert await loop.sock_recv(accepted, 10) == b"x"
            assert await loop.sock_recv(accepted, 10) == b""
    assert not session.in_use
    assert ports.used == 0
    ports.close()


async def test_a_sleeping_session_wakes(world: World) -> None:
    session, ports = await ready(world), new()
    assert await session.fall_asleep() == ""
    states = [session.state]
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with ports.open(session, server.getsockname()[1]):
            states.append(session.state)
    assert states == [State.ASLEEP, State.IDLE]
    ports.close()


async def test_a_server_that_is_about_to_listen_is_waited_for(world: World) -> None:
    session, ports = await ready(world), new()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        async def listen() -> None:
            await asyncio.sleep(0.2)
            server.listen()

        listening = spawn(listen(), "slow server")
        async with ports.open(session, server.getsockname()[1]):
            assert listening.done()
    ports.close()


async def test_a_port_where_nothing_listens_is_not_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAUSES", (0.01,))
    session, ports = await ready(world), new()
    with socket.create_server(("127.0.0.1", 0)) as free:
        unused = free.getsockname()[1]
    with pytest.raises(PortNotOpen):
        async with ports.open(session, unused):
            pass
    ports.close()


async def test_the_kernels_own_ports_are_refused(world: World) -> None:
    session, ports = await ready(world), new()
    info = (await session.ensure_container()).connection_info
    for port in info.ports:
        with pytest.raises(InvalidRequest, match="one of the kernel's own"):
            async with ports.open(session, port):
                pass
    for port in 0, -1, 65536:
        with pytest.raises(InvalidRequest, match="1 to 65535"):
            async with ports.open(session, port):
                pass
    ports.close()


async def test_where_there_is_no_wall_no_server_is_reached(world: World) -> None:
    with pytest.raises(PortsUnavailable, match="no wall"):
        async with new("there is no wall").open(await ready(world), 8000):
            pass


async def test_connections_are_limited_for_each_session_and_tenant_and_in_all(world: World) -> None:
    one, two, other = await ready(world), await ready(world, "two"), await ready(world, tenant="bob")
    ports = new(limits=PortLimits(2, 3, 5))
    with socket.create_server(("127.0.0.1", 0), backlog=10) as server:
        port = server.getsockname()[1]
        async with AsyncExitStack() as stack:
            for session in one, one, two:
                await stack.enter_async_context(ports.open(session, port))
            for session, who in ((one, "the session has 2"), (two, "the tenant has 3")):
                with pytest.raises(QuotaExceeded, match=who):
                    await stack.enter_async_context(ports.open(session, port))
            for _ in range(2):
                await stack.enter_async_context(ports.open(other, port))
            with pytest.raises(QuotaExceeded, match="the gateway has 5"):
                await stack.enter_async_context(ports.open(await ready(world, tenant="carol"), port))
        async with ports.open(one, port):  # the places are free again
            pass
    ports.close()


async def test_a_tenant_leaves_connections_to_others(world: World) -> None:
    evil, other = await ready(world, tenant="evil"), await ready(world, tenant="bob")
    ports = new(limits=PortLimits(in_all=4), share=0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=10) as server:
        port = server.getsockname()[1]
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(ports.open(evil, port))
            with pytest.raises(QuotaExceeded, match="the tenant has 2"):
                await stack.enter_async_context(ports.open(evil, port))
            await stack.enter_async_context(ports.open(other, port))
    ports.close()
