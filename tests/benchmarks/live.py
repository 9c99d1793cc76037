"""Sessions whose cells depend on their earlier cells and show a word that only this session has, and their clients."""

from __future__ import annotations

import itertools
import queue
import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

from sessions.backends.docker.engine.cgroup import ControlGroup
from tests.gateways import KEYS, Gateway, text_of

TENANTS = list(KEYS)
#: cells of the hostile sessions, in turn; each harms only its own session
HOSTILE = (
    "while True: pass",
    "x = []\nwhile True: x.append(bytearray(1 << 23))",
    "import os\nos._exit(3)",
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "while True: print('x' * 10_000)",
)
#: timeouts in seconds for a cell, and for a hostile one
PATIENT, SHORT = 120.0, 2.0


@dataclass
class Live:
    """One session, and the state that it must keep."""

    number: int
    word: str = field(default_factory=lambda: secrets.token_hex(8))
    count: int = 0

    @property
    def name(self) -> str:
        return f"load-{self.number}"

    @property
    def tenant(self) -> str:
        return TENANTS[self.number % len(TENANTS)]

    @property
    def hostile(self) -> bool:
        return self.number % 100 == 99


class Caller:
    """One client with its own connection."""

    def __init__(self, serving: Gateway) -> None:
        self._serving = serving
        self._http = requests.Session()

    def execute(self, live: Live, code: str, seconds: float = PATIENT) -> dict[str, Any]:
        """Run a cell and return its reply."""
        response = self._http.post(
            f"{self._serving.url}/v1/sessions/{live.name}/execute",
            json={"code": code, "timeout": seconds},
            headers={"Authorization": f"Bearer {KEYS[live.tenant]}"},
            timeout=PATIENT + 60,
        )
        assert response.status_code == 200, (live.name, response.text)
        reply: dict[str, Any] = response.json()
        return reply

    def begin(self, live: Live) -> float:
        """Make a session and set its word; return the seconds."""
        began = time.perf_counter()
        reply = self.execute(live, f"n = 0; word = {live.word!r}")
        assert (reply["status"], reply["state"]) == ("ok", "new"), reply
        return time.perf_counter() - began

    def step(self, live: Live) -> float:
        """Run a cell that proves the session's identity and state; return the seconds."""
        began = time.perf_counter()
        reply = self.execute(live, "n += 1; print(n, word)")
        took = time.perf_counter() - began
        live.count += 1
        assert (text_of(reply), reply["state"]) == (f"{live.count} {live.word}\n", "preserved"), (live, reply)
        return took

    def attack(self, live: Live) -> float:
        """Run a cell that must not harm other sessions."""
        self.execute(live, HOSTILE[live.count % len(HOSTILE)], SHORT)
        live.count += 1
        return 0.0

    def end(self, live: Live) -> float:
        """End a session; return the seconds."""
        began = time.perf_counter()
        url = f"{self._serving.url}/v1/sessions/{live.name}"
        response = self._http.delete(url, headers={"Authorization": f"Bearer {KEYS[live.tenant]}"}, timeout=PATIENT)
        assert response.status_code == 204, (live.name, response.text)
        return time.perf_counter() - began

    def close(self) -> None:
        self._http.close()


def for_each(
    serving: Gateway, work: Iterable[Live], what: Callable[[Caller, Live], float], clients: int
) -> list[float]:
    """Apply `what` to all sessions with a few parallel clients; return the seconds of each call."""
    waiting: queue.SimpleQueue[Live] = queue.SimpleQueue()
    for live in work:
        waiting.put(live)

    def run(_number: int) -> list[float]:
        caller = Caller(serving)
        took: list[float] = []
        try:
            while True:
                try:
                    live = waiting.get_nowait()
                except queue.Empty:
                    return took
                took.append(what(caller, live))
        finally:
            caller.close()

    with ThreadPoolExecutor(clients) as threads:
        return list(itertools.chain.from_iterable(threads.map(run, range(clients))))


def control_groups(serving: Gateway) -> list[ControlGroup]:
    """Return the control groups of all containers of a gateway; processes have none."""
    if serving.isolation == "process":
        return []
    return [ControlGroup(container["Id"]) for container in serving.containers()]
