"""What an execution costs through the gateway, beside a raw client on the same kernel.

One kernel, one run, interleaved rounds: read the ratios, not the milliseconds. Run by `make bench`, or

    .venv/bin/python tests/benchmarks/execute.py [--isolation docker|process] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from jupyter_client.asynchronous.client import AsyncKernelClient
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gateways import KEYS, Gateway, gateway

CODE = "1+1"
PER_ROUND = 20
WARM_UP = 20
STARTS = 5
SESSION = "bench"
AUTHORIZATION = {"Authorization": f"Bearer {KEYS['alice']}"}
#: what the kernel knows of itself; the address it listens on is the container's
FIND = """
import json, socket
from ipykernel.connect import get_connection_info
info = get_connection_info(unpack=True)
if info["transport"] == "tcp":
    info["ip"] = socket.gethostbyname(socket.gethostname())
print(json.dumps({k: v.decode() if isinstance(v, bytes) else v for k, v in info.items()}))
"""

Run = Callable[[], Awaitable[None]]


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


async def raw_client(serving: Gateway) -> AsyncKernelClient:
    """jupyter_client's own client, on the session's kernel."""
    info = json.loads(serving.text(SESSION, FIND))
    client = AsyncKernelClient()
    client.load_connection_info(info)
    client.start_channels(stdin=False, hb=False)
    await client.wait_for_ready(timeout=30)
    return client


def raw(client: AsyncKernelClient) -> Run:
    """Send a cell, wait for its reply and its idle."""

    async def run() -> None:
        msg_id = client.execute(CODE)
        while (await client.get_shell_msg(timeout=10))["parent_header"].get("msg_id") != msg_id:
            pass
        while True:
            message = await client.get_iopub_msg(timeout=10)
            if message["parent_header"].get("msg_id") == msg_id and message["content"].get("execution_state") == "idle":
                return

    return run


def over_http(serving: Gateway) -> Run:
    """One kept connection; the reply is parsed."""
    host, _, port = serving.url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    body = json.dumps({"code": CODE})

    async def run() -> None:
        connection.request("POST", f"/v1/sessions/{SESSION}/execute", body, AUTHORIZATION)
        reply = json.loads(connection.getresponse().read())
        assert reply["status"] == "ok"

    return run


def over_websocket(connection: WebSocketClientConnection) -> Run:
    """The stream, until the cell's result."""

    async def run() -> None:
        await connection.write_message(json.dumps({"code": CODE}))
        while True:
            frame = await connection.read_message()
            assert frame is not None
            if json.loads(frame)["type"] == "result":
                return

    return run


async def measure(ways: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, by way; the ways take turns."""
    for run in ways.values():
        for _ in range(WARM_UP):
            await run()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, run in ways.items():
            for _ in range(PER_ROUND):
                begin = time.perf_counter()
                await run()
                seconds[name].append(time.perf_counter() - begin)
        if number % 5 == 4:
            say(f"round {number + 1} of {rounds}")
    return seconds


async def executions(serving: Gateway, rounds: int) -> dict[str, list[float]]:
    """Measure all ways on one kernel."""
    client = await raw_client(serving)
    url = f"{serving.url.replace('http', 'ws', 1)}/v1/sessions/{SESSION}/stream"
    connection = await websocket_connect(HTTPRequest(url, headers=AUTHORIZATION))
    connection.protocol.set_nodelay(True)  # type: ignore[union-attr]
    try:
        return await measure(
            {"raw client": raw(client), "HTTP": over_http(serving), "WebSocket": over_websocket(connection)}, rounds
        )
    finally:
        connection.close()
        client.stop_channels()


def starts(serving: Gateway) -> list[float]:
    """Seconds from the first request for a session to its first result."""
    seconds = []
    for number in range(STARTS):
        begin = time.perf_counter()
        serving.execute(f"start-{number}", CODE)
        seconds.append(time.perf_counter() - begin)
        serving.call("DELETE", f"/v1/sessions/start-{number}")
    return seconds


def row(name: str, seconds: list[float], base: list[float]) -> str:
    """One line of the table."""
    p50, p99 = median(seconds), percentile(seconds, 0.99)
    return (
        f"| {name} | {p50 * 1e3:.2f} | {p99 * 1e3:.2f} | "
        f"{p50 / median(base):.2f} | {p99 / percentile(base, 0.99):.2f} |"
    )


def percentile(seconds: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    say("starting a gateway")
    with gateway(arguments.isolation, pool_size="0") as serving:
        say("executions")
        found = asyncio.run(executions(serving, arguments.rounds))
        say("cold starts")
        cold = starts(serving)
    say("starting a gateway with warm kernels")
    with gateway(arguments.isolation, pool_size="2") as serving:
        warm = pooled_starts(serving)
    print(f"`{CODE}` on one {arguments.isolation} kernel, {len(found['HTTP'])} runs each\n")
    print("| way | p50 ms | p99 ms | p50 to raw | p99 to raw |\n|---|---|---|---|---|")
    for name, seconds in found.items():
        print(row(name, seconds, found["raw client"]))
    print(f"\nfirst result of a new session: cold {spread(cold)}, from the pool {spread(warm)}")


def pooled_starts(serving: Gateway) -> list[float]:
    """As `starts`, each when the pool is full again."""
    seconds = []
    for number in range(STARTS):
        until_warm(serving)
        begin = time.perf_counter()
        serving.execute(f"pooled-{number}", CODE)
        seconds.append(time.perf_counter() - begin)
        serving.call("DELETE", f"/v1/sessions/pooled-{number}")
    return seconds


def until_warm(serving: Gateway) -> None:
    """Wait until two kernels wait."""
    deadline = time.monotonic() + 60
    while "kernel_gateway_warm_kernels 2.0" not in serving.call("GET", "/metrics", tenant=None).text:
        assert time.monotonic() < deadline, "the pool does not fill"
        time.sleep(0.1)


def spread(seconds: list[float]) -> str:
    """Median, least and most."""
    return f"{median(seconds):.3f} s ({min(seconds):.3f}-{max(seconds):.3f})"


if __name__ == "__main__":
    main()
