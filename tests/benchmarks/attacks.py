"""Attacks on other tenants by load: on processors, the engine, connections and memory. See `neighbour.py`.

An attack prepares something, and returns what is then done all at once, each in a thread of another process.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests

from tests.gateways import KEYS, Gateway

ATTACKER, CANARY = KEYS
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


def connected(serving: Gateway) -> socket.socket:
    """Return a connection on which nothing was sent."""
    where = urlsplit(serving.url)
    return socket.create_connection((where.hostname, where.port), timeout=PATIENT)


BY_LOAD: dict[str, Attack] = {
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
}
