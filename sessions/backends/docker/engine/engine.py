"""Calls to the Docker engine that never block the event loop.

The engine's client is synchronous, so calls run in threads. Each kind of call has a lane, which is a limited number of
threads. So hanging calls of one kind do not delay other kinds. Tenants take turns within a lane, and one tenant may
have only half of its threads. So hanging calls of one tenant do not delay other tenants. No request to the engine
outlives its call, so no thread stays blocked.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import docker
import requests
import structlog
import urllib3
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from sessions.backends.docker.engine.breaker import unavailable
from sessions.model.errors import BackendUnavailable, SessionError
from sessions.model.tasks import log_failure, spawn
from sessions.tenants.admission import Admission
from sessions.tenants.shares import NOBODY
from sessions.tenants.waiting import wait_for_turn

log = structlog.get_logger()
T = TypeVar("T")

#: seconds for a request that belongs to no call
REQUEST_TIMEOUT = 30.0
#: seconds between the first two attempts of `Engine.insist`; the pause doubles up to `RETRY_MAX`
RETRY = 1.0
RETRY_MAX = 5.0
#: errors of the connection to the engine
CONNECTION_ERRORS = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True, slots=True)
class Lane:
    """Threads and time limits for calls of one kind."""

    #: lanes of one name have the same threads
    name: str
    threads: int
    #: seconds for one request to the engine
    request: float
    #: seconds for a whole call, including its wait for a thread
    call: float


START = Lane("start", threads=8, request=20.0, call=60.0)
END = Lane("end", threads=4, request=15.0, call=60.0)
SIGNAL = Lane("signal", threads=4, request=10.0, call=15.0)
TOOL = Lane("tool", threads=8, request=10.0, call=15.0)
PREPARE = Lane("prepare", threads=1, request=15.0, call=180.0)
GOLDEN = Lane("golden", threads=1, request=20.0, call=180.0)
SLEEP = Lane("sleep", threads=2, request=20.0, call=120.0)
LANES = (START, END, SIGNAL, TOOL, PREPARE, GOLDEN, SLEEP)

#: time limits of a thread's current call: `until` is its deadline, `request` are the seconds for one request
_call_limits = threading.local()


class _Client(docker.APIClient):
    """The engine's client. Each request ends within the time limits of its call."""

    def __init__(self, timeout: float) -> None:
        super().__init__(version="auto", timeout=int(timeout), **kwargs_from_env())

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request with a timeout, even if the base class sets none."""
        longest = getattr(_call_limits, "request", float(self.timeout))
        left = getattr(_call_limits, "until", float("inf")) - time.monotonic()
        if left <= 0:
            raise requests.Timeout("no time is left for this request")
        return super().send(request, **options | {"timeout": min(longest, left)})


def connect(timeout: float = REQUEST_TIMEOUT) -> _Client:
    """Return a client for the engine that the Docker command line would use.

    Args:
        timeout: seconds for each request, and seconds after which a silent stream ends.

    Raises:
        BackendUnavailable: when the engine does not answer.
    """
    try:
        return _Client(timeout)
    except CONNECTION_ERRORS as error:
        raise unavailable("the Docker engine does not answer; is it running?") from error


def engine_answers() -> bool:
    """Return whether an engine answers."""
    try:
        connect(timeout=3).close()
    except BackendUnavailable:
        return False
    return True


def take_over(stream: Any) -> tuple[socket.socket, bytes]:
    """Take the connection of a stream out of the engine's client. The caller must close it.

    The client hides the connection in a file object, and would keep it until its response is garbage-collected.

    Returns:
        the connection, and the first bytes of the stream, which the client has read with the head of the response.
    """
    response = stream._response  # noqa: SLF001 - here and below: the client has no public access
    file = response.raw._fp.fp  # noqa: SLF001
    connection: socket.socket = file.raw._sock  # noqa: SLF001
    own = connection.dup()
    connection.settimeout(0)
    early = bytes(file.peek())
    own.settimeout(own.gettimeout())  # both share one flag for blocking
    response.close()
    return own, early


def _within(lane: Lane, until: float, work: Callable[..., T], *args: Any) -> T:
    _call_limits.request, _call_limits.until = lane.request, until
    return work(*args)


class _Threads:
    """The threads of a lane. Owners take turns, and one owner may have half of the threads."""

    def __init__(self, lane: Lane) -> None:
        self.pool = ThreadPoolExecutor(lane.threads, thread_name_prefix=f"docker-{lane.name}")
        self._turns = Admission(max(1, lane.threads // 2), lane.threads)

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Run work in a thread when its owner's turn has come."""
        await wait_for_turn(self._turns, owner, None)
        running = self.pool.submit(contextvars.copy_context().run, work)
        # The turn ends with the work in the thread, which may outlast a caller that was cancelled.
        running.add_done_callback(partial(self._pass_on, asyncio.get_running_loop(), owner))
        return await asyncio.wrap_future(running)

    def _pass_on(self, loop: asyncio.AbstractEventLoop, owner: str, _: Future[Any]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._turns.leave, owner)


class Engine:
    """The engine, called from an event loop."""

    def __init__(self) -> None:
        self._api: _Client | None = None
        self._connecting = threading.Lock()
        self._threads = {lane.name: _Threads(lane) for lane in LANES}
        #: tasks that retry until they succeed
        self._insisting: set[asyncio.Task[Any]] = set()
        #: number of these tasks that have failed at least once
        self.failing = 0
        self._closed = False
        #: name of the control group of all kernels, as this engine accepts it. Empty before the engine was asked.
        self.kernels_group = ""

    def use_kernels_group(self, group: str) -> bool:
        """Set the name of the control group for later kernels. Return whether it differs from the name before."""
        before, self.kernels_group = self.kernels_group, group
        return group != before

    @property
    def api(self) -> docker.APIClient:
        """The synchronous client, for use in the threads of `call`. It renews broken connections."""
        with self._connecting:  # several threads may ask at the same time
            if self._api is None:
                self._api = connect(PREPARE.request)
            return self._api

    async def call(self, work: Callable[..., T], *args: Any, lane: Lane = START, owner: str = NOBODY) -> T:
        """Run `work(*args)` in a thread.

        Args:
            work: function that uses `api`.
            *args: its arguments.
            lane: kind of the call.
            owner: tenant that the call is for. Tenants take turns.

        Raises:
            BackendUnavailable: when the engine did not answer in the lane's time.
            APIError: when the engine refused.
        """
        if self._closed:
            raise unavailable("the gateway is shutting down")
        until = time.monotonic() + lane.call
        try:
            async with asyncio.timeout(lane.call):
                return await self._threads[lane.name].run(owner, partial(_within, lane, until, work, *args))
        except APIError:
            raise
        except CONNECTION_ERRORS as error:
            raise unavailable() from error

    def insist(self, work: Callable[..., T], *args: Any, name: str, owner: str = NOBODY) -> asyncio.Task[T]:
        """Run `work(*args)` in a thread, and retry it without a time limit until it succeeds."""
        task = spawn(self._until_done(work, *args, name=name, owner=owner), name)
        self._insisting.add(task)
        task.add_done_callback(self._insisting.discard)
        return task

    async def _until_done(self, work: Callable[..., T], *args: Any, name: str, owner: str) -> T:
        pause, failed = RETRY, 0
        try:
            while not self._closed:
                with log_failure(name):
                    try:
                        return await self.call(work, *args, lane=END, owner=owner)
                    except (APIError, SessionError) as error:
                        if not failed:  # only the first failure is logged
                            log.warning(
                                "failed; it is tried again until it succeeds", what=name, error=str(error)[:200]
                            )
                if not failed:
                    failed = 1
                    self.failing += 1
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX)
            raise unavailable("the gateway is shutting down")
        finally:
            self.failing -= failed

    async def close(self) -> None:
        """End the threads and the client. The next gateway must do the unfinished work of `insist`."""
        self._closed = True
        insisting = list(self._insisting)
        for task in insisting:
            task.cancel()
        await asyncio.gather(*insisting, return_exceptions=True)
        for threads in self._threads.values():
            threads.pool.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()
