"""Calls to the Docker engine that never block the event loop.

The engine's client is synchronous, so calls run in threads. Each kind of call has its lane, a bounded number of
threads, so that calls of one kind which hang hold up no others; and no request to the engine outlives the call that
it is part of, so that no thread stays behind.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import docker
import requests
import structlog
import urllib3
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from sessions.backends.docker.breaker import unavailable
from sessions.errors import BackendUnavailable
from sessions.tasks import going_on, spawn

log = structlog.get_logger()
T = TypeVar("T")

#: seconds one request may take that is part of no call
REQUEST_TIMEOUT = 30.0
#: seconds between two attempts at what must be done in the end; the pause doubles up to the second
RETRY = 1.0
RETRY_MAX = 5.0
#: what goes wrong between here and the engine
BROKEN = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Lane:
    """Calls of one kind."""

    name: str
    threads: int
    #: seconds one request to the engine may take
    request: float
    #: seconds for a whole call, its wait for a thread included
    call: float


START = Lane("start", threads=8, request=20.0, call=60.0)
END = Lane("end", threads=4, request=15.0, call=60.0)
TOOL = Lane("tool", threads=8, request=10.0, call=15.0)
PREPARE = Lane("prepare", threads=1, request=15.0, call=180.0)
LANES = (START, END, TOOL, PREPARE)

#: of the call that a thread is at: until when it may go on, and seconds for one request of it
_bounds = threading.local()


class _Client(docker.APIClient):
    """The engine's client; its requests keep to the time of the call they are part of."""

    def __init__(self, timeout: float) -> None:
        super().__init__(version="auto", timeout=int(timeout), **kwargs_from_env())

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request; also those that the client itself gives endless time."""
        longest = getattr(_bounds, "request", float(self.timeout))
        left = getattr(_bounds, "until", float("inf")) - time.monotonic()
        if left <= 0:
            raise requests.Timeout("no time is left for this request")
        return super().send(request, **options | {"timeout": min(longest, left)})


def connect(timeout: float = REQUEST_TIMEOUT) -> _Client:
    """A client for the engine that the Docker command line would use.

    Args:
        timeout: seconds for each of its requests, and without a byte on its streams.

    Raises:
        BackendUnavailable: it does not answer.
    """
    try:
        return _Client(timeout)
    except BROKEN as error:
        raise unavailable("the Docker engine does not answer; is it running?") from error


def engine_answers() -> bool:
    """Whether there is an engine."""
    try:
        connect(timeout=3).close()
    except BackendUnavailable:
        return False
    return True


def take_over(stream: Any) -> tuple[socket.socket, bytes]:
    """The connection behind a stream that the engine's client hands out, for the caller to close.

    The client hides it in a file object, and would keep the connection until its response is garbage.

    Returns:
        the connection, and what the client has read of the stream together with the head of the response.
    """
    response = stream._response  # noqa: SLF001 - this and what follows: the client hands out nothing else
    file = response.raw._fp.fp  # noqa: SLF001
    connection: socket.socket = file.raw._sock  # noqa: SLF001
    own = connection.dup()
    connection.settimeout(0)
    early = bytes(file.peek())
    own.settimeout(own.gettimeout())  # whether it blocks is one flag for both
    response.close()
    return own, early


def _within(lane: Lane, until: float, work: Callable[..., T], *args: Any) -> T:
    _bounds.request, _bounds.until = lane.request, until
    return work(*args)


class Engine:
    """The engine, for a program with an event loop."""

    def __init__(self) -> None:
        self._api: _Client | None = None
        self._threads = {
            lane: ThreadPoolExecutor(lane.threads, thread_name_prefix=f"docker-{lane.name}") for lane in LANES
        }
        #: what must be done in the end
        self._insisting: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def api(self) -> docker.APIClient:
        """The synchronous client; for use in the threads of `call`. It renews connections that were broken."""
        if self._api is None:
            self._api = connect(PREPARE.request)
        return self._api

    async def call(self, work: Callable[..., T], *args: Any, lane: Lane = START) -> T:
        """Run `work(*args)` in a thread.

        Raises:
            BackendUnavailable: the engine did not answer, or not in the lane's time.
            APIError: it refused.
        """
        if self._closed:
            raise unavailable("the gateway is shutting down")
        until = time.monotonic() + lane.call
        try:
            async with asyncio.timeout(lane.call):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads[lane], _within, lane, until, work, *args
                )
        except APIError:
            raise
        except BROKEN as error:
            raise unavailable() from error

    def insist(self, work: Callable[..., T], *args: Any, name: str) -> asyncio.Task[T]:
        """Run `work(*args)` in a thread until it succeeds, however long the engine does not answer or refuses."""
        task = spawn(self._until_done(work, *args, name=name), name)
        self._insisting.add(task)
        task.add_done_callback(self._insisting.discard)
        return task

    async def _until_done(self, work: Callable[..., T], *args: Any, name: str) -> T:
        pause = RETRY
        while True:
            with going_on(name):
                try:
                    return await self.call(work, *args, lane=END)
                except (APIError, BackendUnavailable) as error:
                    if pause == RETRY:  # once is enough
                        log.warning("not done yet, and tried again", what=name, error=str(error)[:200])
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX)

    async def close(self) -> None:
        """End the threads and the client. What was insisted on and is not done is left to the next start."""
        self._closed = True
        insisting = list(self._insisting)
        for task in insisting:
            task.cancel()
        await asyncio.gather(*insisting, return_exceptions=True)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()
