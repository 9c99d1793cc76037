"""Tenants of the soak: each has a key, clients of the gateway's dialects, and sessions that last."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.gateways import Gateway, text_of

#: seconds for an answer on a busy machine
PATIENCE = 120.0


class Surprise(Exception):
    """The gateway did what it promises not to do."""


@dataclass
class Tenant:
    """One tenant's client. It is used by one thread."""

    gateway: Gateway
    name: str
    key: str
    random: random.Random
    #: value of the counter in each lasting session
    counts: dict[str, int] = field(default_factory=dict)
    #: sessions that the culler ends, and the time from which they must be gone
    left: dict[str, float] = field(default_factory=dict)
    _made: int = 0

    def __post_init__(self) -> None:
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"Bearer {self.key}"

    def new(self, kind: str) -> str:
        """Return the name of a session that does not exist."""
        self._made += 1
        return f"{kind}-{self._made}"

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request; return the answer, whatever its status."""
        options.setdefault("timeout", PATIENCE)
        return self.http.request(method, f"{self.gateway.url}{path}", **options)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request that must succeed."""
        answer = self.ask(method, path, **options)
        if not answer.ok:
            raise Surprise(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer

    def execute(self, session: str, code: str, **fields: Any) -> dict[str, Any]:
        """Run a cell that must succeed; return its reply."""
        reply: dict[str, Any] = self.call(
            "POST", f"/v1/sessions/{session}/execute", json={"code": code} | fields
        ).json()
        if reply["status"] != "ok":
            raise Surprise(f"a cell ended as {reply['status']}: {reply['error']} {text_of(reply)[-300:]}")
        return reply

    def end(self, session: str) -> None:
        """End a session, which may have ended already."""
        answer = self.ask("DELETE", f"/v1/sessions/{session}")
        expect(answer.status_code in {204, 404}, answer.text)

    def socket(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work with a WebSocket client."""

        async def run() -> None:
            async with asyncio.timeout(PATIENCE):
                await work()

        asyncio.run(run())


def expect(truth: object, what: object) -> None:
    """Check a promise; `what` describes what is seen instead.

    Raises:
        Surprise: when it is broken.
    """
    if not truth:
        raise Surprise(str(what)[:500])
