"""Calls to the Docker engine that never block the event loop.

The engine's client is synchronous, so calls run in a bounded number of threads, each with a deadline.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException

from sessions.errors import BackendUnavailable

T = TypeVar("T")

#: seconds one call may take, and how many may be under way
CALL_TIMEOUT = 30
THREADS = 8


def connect(timeout: float = CALL_TIMEOUT) -> docker.APIClient:
    """A client for the engine that the Docker command line would use.

    Raises:
        BackendUnavailable: it does not answer.
    """
    try:
        return docker.from_env(timeout=int(timeout), version="auto").api
    except (DockerException, requests.RequestException) as error:
        raise BackendUnavailable("the Docker engine does not answer; is it running?") from error


def engine_answers() -> bool:
    """Whether there is an engine."""
    try:
        connect(timeout=3).close()
    except BackendUnavailable:
        return False
    return True


def take_over(stream: Any) -> socket.socket:
    """The socket behind a stream that the engine's client hands out, for the caller to close.

    The client hides it in a file object, and would keep the connection until its response is garbage.
    """
    own: socket.socket = getattr(stream, "_sock", stream).dup()
    getattr(stream, "_response", stream).close()
    return own


class Engine:
    """The engine, for a program with an event loop."""

    def __init__(self) -> None:
        self._api: docker.APIClient | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")

    @property
    def api(self) -> docker.APIClient:
        """The synchronous client; for use in the threads of `call`."""
        if self._api is None:
            self._api = connect()
        return self._api

    async def call(self, work: Callable[..., T], *args: Any, deadline: float = 2 * CALL_TIMEOUT) -> T:
        """Run `work(*args)` in a thread.

        Raises:
            BackendUnavailable: the engine did not answer, or not in `deadline` seconds.
            APIError: it refused.
        """
        try:
            async with asyncio.timeout(deadline):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        except TimeoutError as error:
            raise BackendUnavailable from error
        except APIError:
            raise
        except (DockerException, requests.RequestException) as error:
            raise BackendUnavailable from error

    def close(self) -> None:
        """End the threads and the client."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._api is not None:
            self._api.close()
