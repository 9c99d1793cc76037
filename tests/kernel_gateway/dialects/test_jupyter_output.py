"""Large output over the channels arrives whole and in order, and a client that does not read costs little memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kernel_gateway.dialects.jupyter.framing import V1
from tests import gateways
from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import metric, process_only
from tests.kernel_gateway.jupyter import LEGACY, Client, connected, upgraded

MIB = 1024**2
#: code that prints 50 MB in lines of a hundred bytes, each with its number
MUCH = "for i in range(500_000): print(f'{i:099}')"


async def lines(client: Client, code: str) -> tuple[int, bool]:
    """Return how many lines a cell prints, and whether every line has the right number."""
    seen, right, rest = 0, True, ""
    async for text in _texts(client, code):
        *whole, rest = (rest + text).split("\n")
        right &= all(int(line) == number for number, line in enumerate(whole, seen))
        seen += len(whole)
    return seen, right and not rest


async def _texts(client: Client, code: str) -> AsyncIterator[str]:
    msg_id = await client.send("shell", "execute_request", {"code": code})
    left = {"ok", "idle"}
    while left:
        message = await client.next()
        content = message["content"]
        if message["parent"].get("msg_id") == msg_id:
            left.discard(content.get("status", content.get("execution_state")))
            if message["header"]["msg_type"] == "stream":
                yield content["text"]


@pytest.mark.parametrize("way", [V1, LEGACY])
async def test_ten_thousand_lines_arrive_in_order(gateway: Gateway, kernel: str, way: str | None) -> None:
    async with connected(gateway, kernel, way) as client:
        assert await lines(client, "for i in range(10_000): print(i)") == (10_000, True)


@pytest.mark.full
@process_only
async def test_ten_thousand_flushed_lines_arrive_in_order(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        assert await lines(client, "for i in range(10_000): print(i, flush=True)") == (10_000, True)


async def peak(gateway: Gateway, ended: asyncio.Event) -> int:
    """Return the gateway's peak memory until `ended` is set."""
    most = 0
    while not ended.is_set():
        most = max(most, gateway.memory())
        await asyncio.sleep(0.01)
    return most


async def most_memory(gateway: Gateway, client: Client) -> int:
    """Return the gateway's peak memory during large output, which must arrive whole."""
    ended = asyncio.Event()
    watching = asyncio.create_task(peak(gateway, ended))  # noqa: TID251 - a test's own
    try:
        assert await lines(client, MUCH) == (500_000, True)
    finally:
        ended.set()
    return await watching


async def most_memory_beside_a_reader(gateway: Gateway, client: Client, kernel: str) -> int:
    """Return the same peak beside a client that has stopped reading."""
    with upgraded(gateway, kernel):
        most = await most_memory(gateway, client)
        assert gateway.call("GET", f"/api/kernels/{kernel}").json()["connections"] == 2
    return most


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_client_that_stops_reading_costs_little_memory_and_no_output_of_others() -> None:
    # The outputs kept in the transcript are not measured here.
    with gateways.gateway("process", max_output_bytes="1m") as gateway:
        kernel = gateway.call("POST", "/api/kernels").json()["id"]
        async with connected(gateway, kernel) as client:
            before = gateway.memory()
            alone = max([await most_memory(gateway, client) for _ in range(2)])
            # A peak varies by some MiB at random; the cost of a client that does not read is part of every measurement.
            more = min([await most_memory_beside_a_reader(gateway, client, kernel) - alone for _ in range(3)])
    hold("memory for one who has stopped reading", more, alone - before, "MiB")


@pytest.mark.full
async def test_fifty_megabytes_arrive_whole(gateway: Gateway, kernel: str) -> None:
    async with connected(gateway, kernel) as client:
        assert await lines(client, MUCH) == (500_000, True)


#: code that prints 16 MB, of which the sockets of a client that does not read hold a part and its queue 4 MiB
FLOOD = "for i in range(320): print('x' * 50_000)"
#: code that prints what waits in sockets
LITTLE = "for i in range(5_000): print(f'{i:099}')"


def is_connected(connection: socket.socket) -> bool:
    """Read what was sent to a client, and return whether it is still connected after that."""
    connection.settimeout(1)
    try:
        while connection.recv(2**20):
            pass
    except TimeoutError:
        return True
    except ConnectionResetError:
        pass
    return False


@pytest.mark.parametrize(("most", "leaves"), [("6m", "some"), ("128m", "none")])
async def test_clients_that_do_not_read_are_disconnected_and_none_of_another_tenant(most: str, leaves: str) -> None:
    """The larger bound is the control: within it, all clients stay connected."""
    with gateways.gateway("process", max_unread_bytes_per_tenant=most) as gateway:
        kernels = [gateway.call("POST", "/api/kernels").json()["id"] for _ in range(3)]
        other = gateway.call("POST", "/api/kernels", tenant="bob").json()["id"]
        async with AsyncExitStack() as clients:
            silent = [clients.enter_context(upgraded(gateway, kernel)) for kernel in kernels]
            client = await clients.enter_async_context(connected(gateway, other, key=KEYS["bob"]))
            asked = await client.send("shell", "execute_request", {"code": LITTLE})  # bob reads it only later
            await asyncio.gather(*(asyncio.to_thread(gateway.execute, kernel, FLOOD) for kernel in kernels))
            disconnected = metric(gateway, "kernel_gateway_websockets_refused_total", reason="unread")
            assert (disconnected >= 1) == (leaves == "some")
            stay = await asyncio.gather(*(asyncio.to_thread(is_connected, connection) for connection in silent))
            assert stay.count(False) == disconnected
            texts = [message["content"].get("text", "") for message in await client.of(asked)]
            assert "".join(texts) == "".join(f"{i:099}\n" for i in range(5_000))
            assert await client.text("print(1)") == "1\n", "bob is still connected"
            assert await asyncio.to_thread(gateway.text, kernels[0], "1") == "1", "alice's cells still run"
