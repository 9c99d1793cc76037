"""One tenant's worst second: what a tenant and `/healthz` notice of another tenant's attacks.

A canary of one tenant runs `1+1` in its session again and again, while another tenant attacks, and a second client
asks for `/healthz`. Each attack lasts the same time. Run by hand, alone on the machine:

    .venv/bin/python tests/benchmarks/neighbour.py [--seconds N] [--only WORD] [--isolation docker|process]
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import engine, machine, percentile, say
from tests.gateways import KEYS, Gateway, gateway

ATTACKER, CANARY = KEYS
#: seconds between two calls of the canary, and of the client that asks for `/healthz`
BEAT = 0.05
#: seconds for a call that an attack delays
PATIENT = 180.0
#: bytes of the file that clients read slowly
BIG = 64 * 1024**2


class Client:
    """A tenant's client with its own connection."""

    def __init__(self, serving: Gateway, tenant: str) -> None:
        self._url = serving.url
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {KEYS[tenant]}"

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request; return the answer, whatever its status."""
        return self._http.request(method, f"{self._url}{path}", timeout=PATIENT, **options)

    def execute(self, session: str, code: str, seconds: float = PATIENT) -> requests.Response:
        """Run a cell that may take this long."""
        return self.call("POST", f"/v1/sessions/{session}/execute", json={"code": code, "timeout": seconds})


@dataclass
class Calls:
    """How long the calls of one kind took, in seconds."""

    took: list[float] = field(default_factory=list)

    def repeat(self, call: Callable[[], requests.Response], over: threading.Event) -> None:
        """Repeat a call until the time is over."""
        while not over.is_set():
            began = time.perf_counter()
            answer = call()
            self.took.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            over.wait(BEAT)


@dataclass(frozen=True)
class Seen:
    """What was measured during one attack."""

    canary: list[float]
    health: list[float]
    #: seconds until a new session of the canary's tenant had run its first cell
    new: float

    def row(self, name: str, rest: Seen) -> str:
        """Return a row of the table, with the ratio to the measurement at rest."""
        share = partial(percentile, self.canary)
        ratio = share(0.95) / percentile(rest.canary, 0.95)
        times = " | ".join(f"{1000 * share(each):.0f}" for each in (0.5, 0.95, 0.99))
        return (
            f"| {name} | {len(self.canary)} | {times} | {ratio:.1f} | {1000 * max(self.health):.0f} | {self.new:.1f} |"
        )


Attack = Callable[[Gateway, float], Iterable[Callable[[], object]]]


def nothing(_serving: Gateway, _seconds: float) -> Iterable[Callable[[], object]]:
    """Attack not at all: the control."""
    return ()


def cells(count: int, code: str, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Run one cell in each of `count` sessions, all at once."""
    for number in range(count):
        client = Client(serving, ATTACKER)
        assert client.execute(f"evil-{number}", "1").status_code == 200
        yield partial(client.execute, f"evil-{number}", code, seconds)


def creates(count: int, limits: dict[str, float], serving: Gateway, _seconds: float) -> Iterable[Callable[[], object]]:
    """Make `count` sessions at once."""
    for number in range(count):
        body = {"name": f"slow-{number}", "limits": limits}
        yield partial(Client(serving, ATTACKER).call, "POST", "/v1/sessions", json=body)


def listings(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """List a directory again and again, with `count` clients of one session that has little processor time."""
    made = Client(serving, ATTACKER).call("POST", "/v1/sessions", json={"name": "files", "limits": {"cpus": 0.2}})
    assert made.status_code == 201, made.text

    def repeat(client: Client) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            client.call("GET", "/v1/sessions/files/files/?list")

    return [partial(repeat, Client(serving, ATTACKER)) for _ in range(count)]


def unread(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Ask for a large file with `count` clients that do not read it, and end the session meanwhile."""
    owner = Client(serving, ATTACKER)
    assert owner.execute("big", f"open('big', 'wb').write(bytes({BIG}))").status_code == 200

    def ask() -> None:
        with owner.call("GET", "/v1/sessions/big/files/big", stream=True):
            time.sleep(seconds)

    def end() -> None:
        time.sleep(seconds / 3)
        Client(serving, ATTACKER).call("DELETE", "/v1/sessions/big")

    return [*[ask] * count, end]


def half_open(count: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Begin `count` requests without a key, and send a byte of each head per second."""

    def hold() -> None:
        until = time.monotonic() + seconds
        with ExitStack() as stack:
            held = [stack.enter_context(connected(serving)) for _ in range(count)]
            while time.monotonic() < until:
                for each in held:
                    with suppress(OSError):  # the gateway has ended it
                        each.sendall(b"x")
                time.sleep(1)

    return [hold]


def unfinished(count: int, size: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Send `size` bytes of a larger message on each of `count` WebSockets, and never its end."""
    kernel = Client(serving, ATTACKER).call("POST", "/api/kernels", json={}).json()["id"]
    path = f"/api/kernels/{kernel}/channels?token={KEYS[ATTACKER]}"
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bm9uY2Vub25jZW5vbmNlIQ==\r\n\r\n"

    def send() -> None:
        with connected(serving) as client, suppress(OSError):  # the gateway may end it
            client.sendall(head.encode())
            assert client.recv(12) == b"HTTP/1.1 101"
            client.sendall(struct.pack("!BBQ4x", 0x82, 0xFF, size + 1) + bytes(size))
            time.sleep(seconds)

    return [send] * count


def exports(count: int, outputs: int, serving: Gateway, seconds: float) -> Iterable[Callable[[], object]]:
    """Export a notebook with very many outputs again and again, with `count` clients."""
    owner = Client(serving, ATTACKER)
    code = f"for number in range({outputs}): display({{'text/plain': str(number)}}, raw=True)"
    assert owner.execute("book", code).json()["status"] == "ok"

    def repeat(client: Client) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with client.call("GET", "/v1/sessions/book/notebook", stream=True) as answer:
                answer.raw.read(decode_content=False)  # in few steps, which leave this process to the canary

    return [partial(repeat, Client(serving, ATTACKER)) for _ in range(count)]


def connected(serving: Gateway) -> socket.socket:
    """Return a connection on which nothing was sent."""
    where = urlsplit(serving.url)
    return socket.create_connection((where.hostname, where.port), timeout=PATIENT)


ATTACKS: dict[str, Attack] = {
    "nothing": nothing,
    "nine kernels compute": partial(cells, 9, "while True: pass"),
    "nine kernels compute in 30 processes each": partial(
        cells, 9, "import os\nfor _ in range(30):\n    if not os.fork(): break\nwhile True: pass"
    ),
    "four kernels print without end": partial(cells, 4, "while True: print('x' * 10_000)"),
    "four kernels fork": partial(cells, 4, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    "twelve new sessions with little processor time": partial(creates, 12, {"cpus": 0.1}),
    "sixteen clients list files of a slow session": partial(listings, 16),
    "three unread downloads of a session that ends": partial(unread, 3),
    "400 requests without a key that are never complete": partial(half_open, 400),
    "twelve incomplete WebSocket messages of 10 MiB": partial(unfinished, 12, 10 * 1024**2),
    "two clients export a notebook of 10,000 outputs": partial(exports, 2, 10_000),
}


def measure(serving: Gateway, attack: Attack, seconds: float) -> Seen:
    """Attack for some seconds, and measure meanwhile what the others notice."""
    canary = Client(serving, CANARY)
    for _ in range(20):
        assert canary.execute("canary", "1+1").status_code == 200
    over, ones, health = threading.Event(), Calls(), Calls()
    with ExitStack() as stack:
        evil = list(attack(serving, seconds))
        threads = stack.enter_context(ThreadPoolExecutor(len(evil) + 3))
        stack.callback(over.set)
        attacking = [threads.submit(each) for each in evil]
        time.sleep(0.5)
        watching: list[Future[Any]] = [
            threads.submit(ones.repeat, partial(canary.execute, "canary", "1+1"), over),
            threads.submit(health.repeat, partial(Client(serving, CANARY).call, "GET", "/healthz"), over),
        ]
        began = time.perf_counter()
        assert Client(serving, CANARY).execute("new", "1+1").status_code == 200
        new = time.perf_counter() - began
        time.sleep(max(0.0, seconds - 1.0 - new))
        over.set()
        for each in watching:
            each.result()
        for done in attacking:
            done.result()
    clean(serving)
    return Seen(ones.took, health.took, new)


def clean(serving: Gateway) -> None:
    """End all sessions."""
    for tenant in KEYS:
        client = Client(serving, tenant)
        for session in client.call("GET", "/v1/sessions").json()["sessions"]:
            client.call("DELETE", f"/v1/sessions/{session['name']}")


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", default="docker")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each attack")
    parser.add_argument("--only", default="", help="part of an attack's name")
    arguments = parser.parse_args()
    print(f"{machine()}, {engine()}\n")
    print("| attack | cells | canary p50 ms | p95 | p99 | p95 / at rest | healthz max ms | new session s |")
    print("|---|---|---|---|---|---|---|---|")
    with gateway(arguments.isolation, memory="256m") as serving:
        rest: Seen | None = None
        for name, attack in ATTACKS.items():
            if attack is nothing or arguments.only in name:
                say(name)
                seen = measure(serving, attack, arguments.seconds)
                rest = rest or seen
                print(seen.row(name, rest), flush=True)


if __name__ == "__main__":
    main()
