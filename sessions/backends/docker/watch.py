"""Tells which containers have ended, from the engine's event stream.

The stream breaks when the engine restarts, and falls silent when the engine hangs; what ended meanwhile is found by
comparing with what still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import docker
import structlog
from urllib3.exceptions import ReadTimeoutError

from sessions.backends.docker.engine import BROKEN, connect
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.profile import INSTANCE_LABEL
from sessions.errors import BackendUnavailable
from sessions.tasks import going_on

log = structlog.get_logger()

EVENTS = ["die", "oom", "pause", "unpause"]
#: seconds before the stream is asked for again
RECONNECT = 1.0
#: seconds without an event after which it is asked for anew: what hangs looks like what has nothing to tell
SILENCE = 10.0


class Watch:
    """A thread that reads events, and tells the handles in the event loop."""

    def __init__(self, instance: str, handles: Mapping[str, DockerHandle], on_change: Callable[[], None]) -> None:
        """Begin to watch.

        Args:
            instance: the installation whose containers are watched.
            handles: those that are told, by container.
            on_change: called when the engine's events stop coming, and when they come again.
        """
        self._instance = instance
        self._handles = handles
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._following = True
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="docker-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._wake()

    def _wake(self) -> None:
        # This shuts the connection down, and no more; the thread then lets go of it, which it may be about to anyway.
        with suppress(AttributeError, OSError):
            self._stream.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with going_on("docker-events"):
                try:
                    self._follow()
                except ReadTimeoutError:
                    continue  # silence
                except (BackendUnavailable, ValueError, *BROKEN) as error:
                    self._interrupted(str(error)[:200])
                else:
                    self._interrupted("the stream has ended")
            self._stopped.wait(RECONNECT)

    def _interrupted(self, reason: str) -> None:
        if self._following and not self._stopped.is_set():
            log.warning("the engine's events are interrupted", error=reason)
            self._following = False
            self._tell(self._on_change)

    def _follow(self) -> None:
        api = connect(SILENCE)
        try:
            try:
                self._open(api)
            finally:
                self._compare(api)  # also when there is no stream to be had
            for event in self._stream:
                self._tell(lambda event=event: self._on_event(event))  # type: ignore[misc]
        finally:
            self._let_go()
            api.close()

    def _let_go(self) -> None:
        # By itself the client would keep the connection until its response is garbage.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream._response.close()  # noqa: SLF001 - it hands out nothing else that closes it

    def _open(self, api: docker.APIClient) -> None:
        filters = {"type": "container", "event": EVENTS, "label": f"{INSTANCE_LABEL}={self._instance}"}
        self._stream = api.events(decode=True, filters=filters)
        self._stream._response.raise_for_status()  # noqa: SLF001 - the client takes a refusal for an event
        if self._stopped.is_set():  # before there was a stream to close
            self._wake()
        if not self._following:
            self._following = True
            self._tell(self._on_change)

    def _compare(self, api: docker.APIClient) -> None:
        # Before the list: what starts from now on need not be in it. And after the stream was opened: what ends from
        # now on is told there.
        started = [handle for handle in list(self._handles.values()) if handle.was_running]
        found = api.containers(filters={"label": f"{INSTANCE_LABEL}={self._instance}"})
        running = {item["Id"]: item.get("State") for item in found}
        for handle in started:
            if handle.id not in running:
                self._tell(handle.ended)
            else:
                self._tell(handle.note_paused if running[handle.id] == "paused" else handle.note_resumed)

    def _tell(self, what: Callable[[], None]) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _on_event(self, event: dict[str, Any]) -> None:
        handle = self._handles.get(event.get("id", ""))
        if handle is None:
            return
        match event.get("Action", event.get("status")):
            case "oom":
                handle.note_out_of_memory()
            case "pause":
                handle.note_paused()
            case "unpause":
                handle.note_resumed()
            case _:
                handle.ended()
