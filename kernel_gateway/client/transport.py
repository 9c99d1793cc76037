"""The two ways to a gateway: one waits in place, the other in an event loop. Both have the same calls."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol

import httpx

#: seconds in which a gateway accepts a connection
CONNECT_TIMEOUT = 20.0
Content = bytes | Iterable[bytes]
Verify = ssl.SSLContext | str | bool


class Transport(Protocol):
    """Sends requests. A blocking transport never suspends."""

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the head of its answer."""

    def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield an answer's content as it comes."""

    async def leave(self, response: httpx.Response) -> None:
        """Give up the rest of an answer."""

    def request(
        self, method: str, path: str, content: Content | None, headers: dict[str, str], read: float | None
    ) -> httpx.Request:
        """Make a request; `read` is the most seconds between two pieces of its answer."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self) -> None:
        """Close all connections."""


def _options(url: str, key: str, verify: Verify) -> dict[str, Any]:
    """Return the options of httpx. It reads no environment: OpenSSL itself honours SSL_CERT_FILE."""
    if isinstance(verify, str):
        verify = ssl.create_default_context(cafile=verify)
    elif verify is True:
        verify = ssl.create_default_context() if url.startswith("https:") else False
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"base_url": url, "headers": headers, "verify": verify, "trust_env": False}


def _timeouts(read: float | None) -> dict[str, Any]:
    return {"timeout": httpx.Timeout(None, connect=CONNECT_TIMEOUT, read=read)}


class BlockingTransport:
    """Waits in place."""

    def __init__(self, url: str, key: str, verify: Verify) -> None:
        self._http = httpx.Client(**_options(url, key, verify))

    def request(
        self, method: str, path: str, content: Content | None, headers: dict[str, str], read: float | None
    ) -> httpx.Request:
        """Make a request."""
        return self._http.build_request(method, path, content=content, headers=headers, **_timeouts(read))

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send it."""
        return self._http.send(request, stream=True)

    async def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the content."""
        for piece in response.iter_bytes():
            yield piece

    async def leave(self, response: httpx.Response) -> None:
        """Give up the rest."""
        response.close()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 - this transport waits in place

    async def close(self) -> None:
        """Close all connections."""
        self._http.close()


class LoopTransport:
    """Waits in an event loop."""

    def __init__(self, url: str, key: str, verify: Verify) -> None:
        self._http = httpx.AsyncClient(**_options(url, key, verify))

    def request(
        self, method: str, path: str, content: Content | None, headers: dict[str, str], read: float | None
    ) -> httpx.Request:
        """Make a request."""
        body = content if content is None or isinstance(content, bytes) else _in_thread(content)
        return self._http.build_request(method, path, content=body, headers=headers, **_timeouts(read))

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send it."""
        return await self._http.send(request, stream=True)

    async def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the content."""
        async for piece in response.aiter_bytes():
            yield piece

    async def leave(self, response: httpx.Response) -> None:
        """Give up the rest."""
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


async def _in_thread(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces that may take long to read, such as those of a file."""
    rest: Iterator[bytes] = iter(pieces)
    while (piece := await asyncio.to_thread(next, rest, None)) is not None:
        yield piece
