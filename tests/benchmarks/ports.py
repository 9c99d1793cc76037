"""Measures a server that code has started: a download, small requests, and a WebSocket's round trip.

The same server runs in gVisor and in a plain container (`runc`), each behind a gateway, and as a plain process, which
the same clients reach without a gateway: kernels without a sandbox have no ports. The ways take turns. Run by hand:

    .venv/bin/python -m tests.benchmarks.ports [--rounds N] [--isolation runc|runsc]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.benchmarks.figures import engine, hindrance, machine, percentile, say
from tests.benchmarks.serving import IMAGE, serving_on
from tests.benchmarks.ways import AUTHORIZATION
from tests.kernel_gateway.calls import until

MIB = 1024**2
PORT = 8000
#: bytes of a download, requests and messages of a round, and clients at a time
BIG, SMALL, CLIENTS = 64 * MIB, 100, 8
SERVER = f"""
import asyncio, sys
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

class Small(RequestHandler):
    def get(self):
        self.finish("small")

class Big(RequestHandler):
    async def get(self):
        self.set_header("Content-Length", "{BIG}")
        for _ in range({BIG // MIB}):
            self.write(bytes({MIB}))
            await self.flush()

class Echo(WebSocketHandler):
    def open(self):
        self.set_nodelay(True)

    def check_origin(self, _origin):
        return True

    def on_message(self, message):
        self.write_message(message)

async def main():
    Application([("/small", Small), ("/big", Big), ("/ws", Echo)]).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()

asyncio.run(main())
"""
CELL = f"import subprocess, sys; server = subprocess.Popen([sys.executable, '-c', {SERVER!r}, '{PORT}'])"
#: a port of this machine for the server that is a plain process
OWN_PORT = 18_765


@dataclass
class Figures:
    """What was measured of one way."""

    #: MiB per second, requests per second of one client and of several, and seconds of a message's round trip
    download: list[float] = field(default_factory=list)
    one: list[float] = field(default_factory=list)
    several: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)

    def row(self, way: str) -> str:
        """Return the line of a table."""
        rates = f"{median(self.download):,.0f} | {median(self.one):,.0f} | {median(self.several):,.0f}"
        times = f"{median(self.messages) * 1e3:.1f} | {percentile(self.messages, 0.95) * 1e3:.1f}"
        return f"| {way} | {rates} | {times} |"


def small(url: str, count: int) -> None:
    """Send small requests, one after the other over one connection."""
    with requests.Session() as http:
        for _ in range(count):
            assert http.get(f"{url}/small", headers=AUTHORIZATION, timeout=60).text == "small"


async def messages(url: str) -> list[float]:
    """Return the seconds of each message's round trip."""
    socket = await websocket_connect(HTTPRequest(f"ws{url.removeprefix('http')}/ws", headers=AUTHORIZATION))
    took = []
    for number in range(SMALL):
        begin = time.perf_counter()
        await socket.write_message(str(number))
        assert await socket.read_message() == str(number)
        took.append(time.perf_counter() - begin)
    socket.close()
    return took


def one_round(url: str, found: Figures) -> None:
    """Measure each figure once."""
    begin = time.perf_counter()
    with requests.get(f"{url}/big", headers=AUTHORIZATION, stream=True, timeout=60) as answer:
        assert sum(map(len, answer.iter_content(MIB))) == BIG
    found.download.append(BIG / MIB / (time.perf_counter() - begin))
    begin = time.perf_counter()
    small(url, SMALL)
    found.one.append(SMALL / (time.perf_counter() - begin))
    begin = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(partial(small, url), [SMALL // CLIENTS] * CLIENTS))
    found.several.append(SMALL // CLIENTS * CLIENTS / (time.perf_counter() - begin))
    found.messages += asyncio.run(messages(url))


@contextmanager
def as_process() -> Iterator[str]:
    """The server as a plain process of this machine: its address."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(OWN_PORT)]) as process:
        try:
            yield f"http://127.0.0.1:{OWN_PORT}"
        finally:
            process.terminate()


@contextmanager
def behind(isolation: str) -> Iterator[str]:
    """The server in a session of a gateway: its address."""
    with serving_on(isolation) as serving:
        serving.execute("served", CELL)
        yield f"{serving.url}/v1/sessions/served/ports/{PORT}"


def answers(url: str) -> bool:
    """Return whether the server serves."""
    try:
        return requests.get(f"{url}/small", headers=AUTHORIZATION, timeout=60).ok
    except requests.ConnectionError:
        return False


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isolation", action="append", choices=("runc", "runsc"), help="only this; may be repeated")
    flags = parser.parse_args()
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        urls = {"a plain process, without a gateway": stack.enter_context(as_process())}
        for isolation in flags.isolation or ("runc", "runsc"):
            if reason := hindrance(isolation, IMAGE):
                say(f"not measured on {isolation}: {reason}")
            else:
                urls[isolation] = stack.enter_context(behind(isolation))
        for url in urls.values():
            until(partial(answers, url))
            one_round(url, Figures())  # the first requests start a tool
        for number in range(flags.rounds):
            for way, url in urls.items():
                one_round(url, found.setdefault(way, Figures()))
            say(f"round {number + 1} of {flags.rounds}")
    print(f"{machine()}, {engine()}\n")
    print(f"| | download, MiB/s | requests/s, one client | {CLIENTS} clients | message and back p50, ms | p95 |")
    print("|---|---|---|---|---|---|")
    for way, figures in found.items():
        print(figures.row(way))


if __name__ == "__main__":
    main()
