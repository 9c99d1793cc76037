"""The two ways to a gateway: one waits in place, the other in an event loop. Both have the same calls."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import httpx

from kernel_gateway.client.blocking import finished

#: seconds in which a gateway accepts a connection
CONNECT_TIMEOUT = 20.0
#: functions of the caller that run at a time in threads; as many calls of tools wait in one cell
THREADS_MAX = 64
Content = bytes | Iterable[bytes]
Verify = ssl.SSLContext | str | bool
#: work beside a stream: makes a coroutine over the transport
Work = Callable[[], Coroutine[Any, Any, None]]
#: work that was begun
Begun = Future[None] | asyncio.Task[None]


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

    def begin(self, work: Work) -> Begun:
        """Begin work that goes on while the caller waits for something else."""

    async def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a function of the caller, or a coroutine function, in such work."""

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
        self._threads = _threads()

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

    def begin(self, work: Work) -> Begun:
        """Begin work in a thread."""
        return self._threads.submit(lambda: finished(work()))

    async def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a function in place: each work has a thread. A coroutine gets an event loop of its own."""
        value = function(**arguments)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._http.close()


class LoopTransport:
    """Waits in an event loop."""

    def __init__(self, url: str, key: str, verify: Verify) -> None:
        self._http = httpx.AsyncClient(**_options(url, key, verify))
        self._threads = _threads()

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

    def begin(self, work: Work) -> Begun:
        """Begin work in the loop."""
        return asyncio.create_task(work())  # noqa: TID251 - the cell keeps it, and raises its failure

    async def call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a function in a thread, and a coroutine function in the loop."""
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(self._threads, partial(function, **arguments))
        return await value if inspect.isawaitable(value) else value

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._http.aclose()


def _threads() -> ThreadPoolExecutor:
    """Return threads for functions of the caller. None is started before it is needed."""
    return ThreadPoolExecutor(THREADS_MAX, "tool")


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


async def _in_thread(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces that may take long to read, such as those of a file."""
    rest: Iterator[bytes] = iter(pieces)
    while (piece := await asyncio.to_thread(next, rest, None)) is not None:
        yield piece
