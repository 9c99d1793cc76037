"""Reports the ends and pauses of containers, from the engine's event stream.

The stream breaks when the engine restarts, and is silent when the engine hangs. So each time that the stream is opened,
the list of running containers is read, too. It shows which containers have ended meanwhile.
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

from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.engine.engine import CONNECTION_ERRORS, connect
from sessions.backends.docker.profile import INSTANCE_LABEL
from sessions.model.errors import BackendUnavailable
from sessions.model.tasks import log_failure

log = structlog.get_logger()

EVENTS = ["die", "kill", "oom", "pause", "unpause"]
#: signals that end a container: SIGKILL, SIGTERM
DEADLY = {"9", "15"}
#: seconds before the stream is opened again
RECONNECT = 1.0
#: seconds without an event after which the stream is opened again, because a silent stream may be a hanging one
SILENCE = 10.0


class Watch:
    """A thread that reads events, and notifies the handles in the event loop."""

    def __init__(self, instance: str, handles: Mapping[str, DockerHandle], on_change: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            instance: id of the installation whose containers are watched.
            handles: handles to notify, by the id of their container.
            on_change: called when the engine's event stream is lost, and when it is open again.
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
        # This only shuts the connection down. The thread releases it, and may be doing so already.
        with suppress(AttributeError, OSError):
            self._stream.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with log_failure("docker-events"):
                try:
                    self._follow()
                except ReadTimeoutError:
                    continue  # silence
                except (BackendUnavailable, ValueError, *CONNECTION_ERRORS) as error:
                    self._interrupted(str(error)[:200])
                else:
                    self._interrupted("the stream has ended")
            self._stopped.wait(RECONNECT)

    def _interrupted(self, reason: str) -> None:
        if self._following and not self._stopped.is_set():
            log.warning("the engine's event stream is interrupted", error=reason)
            self._following = False
            self._notify(self._on_change)

    def _follow(self) -> None:
        api = connect(SILENCE)
        try:
            try:
                self._open(api)
            finally:
                self._compare(api)  # also when the stream cannot be opened
            for event in self._stream:
                self._notify(lambda event=event: self._on_event(event))  # type: ignore[misc]
        finally:
            self._close_stream()
            api.close()

    def _close_stream(self) -> None:
        # Without this call the client would keep the connection until its response is garbage-collected.
        stream, self._stream = self._stream, None
        if stream is not None:
            stream._response.close()  # noqa: SLF001 - no public method closes it

    def _open(self, api: docker.APIClient) -> None:
        filters = {"type": "container", "event": EVENTS, "label": f"{INSTANCE_LABEL}={self._instance}"}
        self._stream = api.events(decode=True, filters=filters)
        self._stream._response.raise_for_status()  # noqa: SLF001 - the client parses a refusal as an event
        if self._stopped.is_set():  # stopped before the stream was open
            self._wake()
        if not self._following:
            self._following = True
            self._notify(self._on_change)

    def _compare(self, api: docker.APIClient) -> None:
        # The handles are read before the list, which may lack containers that start from now on, and after the stream
        # was opened, which reports containers that end from now on.
        started = [handle for handle in list(self._handles.values()) if handle.was_running]
        found = api.containers(filters={"label": f"{INSTANCE_LABEL}={self._instance}"})
        running = {item["Id"]: item.get("State") for item in found}
        for handle in started:
            if handle.id not in running:
                self._notify(handle.ended)
            else:
                self._notify(handle.note_paused if running[handle.id] == "paused" else handle.note_resumed)

    def _notify(self, what: Callable[[], None]) -> None:
        if not self._stopped.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _on_event(self, event: dict[str, Any]) -> None:
        handle = self._handles.get(event.get("id", ""))
        if handle is None:
            return
        match event.get("Action", event.get("status")):
            case "oom":
                handle.note_out_of_memory()
            case "kill":
                if event["Actor"]["Attributes"].get("signal") in DEADLY:
                    handle.note_killed()
            case "pause":
                handle.note_paused()
            case "unpause":
                handle.note_resumed()
            case _:
                handle.ended()
