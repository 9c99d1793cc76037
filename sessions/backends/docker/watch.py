"""Tells which containers have ended, from the engine's event stream.

The stream breaks when the engine restarts; what ended meanwhile is found by comparing with what still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import docker
import requests
import structlog
from docker.errors import DockerException

from sessions.backends.docker.engine import connect
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.profile import INSTANCE_LABEL
from sessions.errors import BackendUnavailable

log = structlog.get_logger()

#: seconds before the stream is asked for again
RECONNECT = 1.0


class Watch:
    """A thread that reads events, and tells the handles in the event loop."""

    def __init__(self, instance: str, handles: Mapping[str, DockerHandle]) -> None:
        self._instance = instance
        self._handles = handles
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._api: docker.APIClient | None = None
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="docker-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except (BackendUnavailable, DockerException, requests.RequestException, OSError, ValueError) as error:
                if not self._stopped.is_set():
                    log.warning("the engine's events are interrupted", error=str(error)[:200])
            self._stopped.wait(RECONNECT)

    def _follow(self) -> None:
        api = connect()
        try:
            filters = {"type": "container", "event": ["die", "oom"], "label": f"{INSTANCE_LABEL}={self._instance}"}
            self._stream = api.events(decode=True, filters=filters)
            if self._stopped.is_set():  # before there was a stream to close
                self._stream.close()
            # After the stream is open: what ends from now on is in it, what has ended before is not in the list.
            running = {item["Id"] for item in api.containers(filters={"label": f"{INSTANCE_LABEL}={self._instance}"})}
            self._tell(lambda: self._compare(running))
            for event in self._stream:
                self._tell(lambda event=event: self._on_event(event))  # type: ignore[misc]
        finally:
            api.close()

    def _tell(self, what: Callable[[], None]) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _compare(self, running: set[str]) -> None:
        for container, handle in list(self._handles.items()):
            if handle.was_running and container not in running:
                handle.ended()

    def _on_event(self, event: dict[str, Any]) -> None:
        handle = self._handles.get(event.get("id", ""))
        if handle is None:
            return
        if event.get("Action", event.get("status")) == "oom":
            handle.note_out_of_memory()
        else:
            handle.ended()
