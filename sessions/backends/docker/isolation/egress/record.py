"""Reads the proxy's log of requests from the engine, and reports each request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from docker.errors import NotFound
from urllib3.exceptions import ReadTimeoutError

from sessions.backends.docker.engine.engine import CONNECTION_ERRORS, connect
from sessions.backends.docker.isolation.egress.networks import inner_name
from sessions.backends.docker.isolation.egress.proof import PROOF
from sessions.backends.docker.isolation.egress.squid import request_of
from sessions.backends.docker.profile import DockerSettings
from sessions.model.egress import EgressRequest
from sessions.model.errors import BackendUnavailable
from sessions.model.tasks import log_failure

#: seconds without a line after which the stream is opened again, because a silent stream may be a hanging one
SILENCE = 10.0
#: seconds before the stream is opened again
RECONNECT = 1.0
#: maximum bytes of an incomplete line
_LINE_MAX = 64 * 1024


class RequestRecord:
    """A thread that follows the proxy's output, even if the proxy or the engine is restarted."""

    def __init__(self, settings: DockerSettings, on_request: Callable[[EgressRequest], None]) -> None:
        """Start the thread.

        Args:
            settings: settings of the deployment.
            on_request: called in the event loop with each request of a session.
        """
        self._container = inner_name(settings)
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        #: time of the last reported request, in seconds since 1970. None before the output was followed.
        self._last: float | None = None
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="docker-egress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        with suppress(AttributeError, OSError):
            self._stream.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with (
                log_failure("docker-egress"),
                suppress(
                    NotFound, ReadTimeoutError, BackendUnavailable, ValueError, AttributeError, *CONNECTION_ERRORS
                ),
            ):
                self._follow()
            self._stopped.wait(RECONNECT)

    def _follow(self) -> None:
        with closing(connect(SILENCE)) as api:
            # At first only new lines are read, because an earlier gateway has reported the others. Later, all lines
            # since the last reported request are read.
            known, self._last = self._last, self._last or 0.0
            self._stream = api.logs(
                self._container,
                stdout=True,
                stderr=False,
                stream=True,
                tail=0 if known is None else "all",
                since=int(known) if known else None,
            )
            rest = b""
            for piece in self._stream:
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-_LINE_MAX:]
                for line in lines:
                    self._take(line.decode(errors="replace"), known or 0.0)

    def _take(self, line: str, since: float) -> None:
        request = request_of(line)
        if request is None or request.at <= since or (request.tenant, request.session) == (PROOF.tenant, PROOF.name):
            return
        self._last = max(self._last or 0.0, request.at)
        self._notify(lambda: self._on_request(request))

    def _notify(self, what: Callable[[], None]) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)


def ignore(_: EgressRequest) -> None:
    """Do nothing. This is the default callback."""
