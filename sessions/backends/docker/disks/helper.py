"""The helper that makes and attaches the disks of workspaces: its container, and the requests to it.

The helper is `kernel_image/disks.py`. It serves several requests at the same time, so that the start of one session
does not wait for the disk of another session.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount

from sessions.backends.docker.engine.breaker import unavailable
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.engine.stdio_channel import StdioChannel, attached
from sessions.backends.docker.profile import DISKS_LABEL, IMAGE_DIR, PYTHON, DockerSettings
from sessions.model.errors import StartFailed

#: seconds for an answer of the helper, which makes a disk in 0.1 s
_ANSWER = 15.0
#: maximum bytes of an answer; the longest one lists all disks, with 50 bytes each
_ANSWER_MAX = 16 * 1024**2
#: attempts of a request; a failed helper is replaced before the next attempt
_ATTEMPTS = 2
#: the engine's status code for a container that is already being removed. Source: Docker Engine API, ContainerDelete
_BEING_REMOVED = 409
#: paths in the helper's container of the host's devices and of the image files
_DEVICES, _IMAGES = "/devices", "/images"

Answer = dict[str, Any]


class HelperFailed(Exception):
    """The helper does not answer correctly, or has ended."""


class Requests:
    """Requests to a running helper. Several threads may ask at the same time."""

    def __init__(self, channel: StdioChannel) -> None:
        """Start a thread that reads the helper's answers until the channel ends."""
        self._channel = channel
        #: held while a request is sent, and while the fields below change
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        #: requests without an answer, by their number
        self._open: dict[int, Future[Answer]] = {}
        self._failure: HelperFailed | None = None
        self._listening = threading.Thread(target=self._listen, name="answers of the disks' helper", daemon=True)
        self._listening.start()

    def ask(self, request: Answer, timeout: float) -> Answer:
        """Send a request, and return its answer.

        Raises:
            HelperFailed: when there is no answer within `timeout` seconds.
        """
        answer: Future[Answer] = Future()
        with self._lock:
            if self._failure is not None:
                raise HelperFailed(str(self._failure))
            number = next(self._numbers)
            self._channel.send(json.dumps(request | {"id": number}).encode() + b"\n")
            self._open[number] = answer
        try:
            return answer.result(timeout)
        except TimeoutError as error:
            raise HelperFailed(f"no answer within {timeout:.0f} s") from error
        finally:
            with self._lock:
                self._open.pop(number, None)

    def _listen(self) -> None:
        try:
            while True:
                self._answered(self._channel.receive(None))
        except HelperFailed as error:
            with self._lock:
                self._failure = error
                for answer in self._open.values():
                    answer.set_exception(error)
                self._open.clear()

    def _answered(self, said: Answer) -> None:
        if "id" not in said:
            raise HelperFailed("the image is older than the gateway: build it again (make image)")
        with self._lock:
            asked = self._open.pop(said.pop("id"), None)
        if asked is not None:
            asked.set_result(said)

    def end(self) -> None:
        """End the channel. Requests without an answer raise `HelperFailed`."""
        self._channel.end()
        self._listening.join()


class Helper:
    """The helper of an installation, started by the first request. All methods block; several threads may call them."""

    def __init__(self, engine: Engine, settings: DockerSettings, volume: str) -> None:
        """Keep the arguments. Nothing is started yet.

        Args:
            engine: engine that runs the helper's container.
            settings: settings of the backend.
            volume: name of the volume with the image files.
        """
        self._engine = engine
        self._settings = settings
        self._volume = volume
        self._name = f"kernel-gateway-files-{uuid.uuid4().hex}"
        #: held while the helper is started or ended
        self._changing = threading.Lock()
        self._requests: Requests | None = None
        self._closed = False
        #: closes the connection to the helper
        self._open = ExitStack()

    @property
    def asked(self) -> bool:
        """Whether the helper runs, because it was asked something and has not failed since."""
        return self._requests is not None

    def ask(self, **request: Any) -> Answer:
        """Return the answer to a request. A helper that has ended, perhaps with the engine, is started again.

        Raises:
            StartFailed: when the helper reports an error.
            BackendUnavailable: when the helper does not answer.
            APIError: when the engine refused to start the helper.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            requests = self._running()
            try:
                answer = requests.ask(request, _ANSWER)
                break
            except HelperFailed as error:
                self._end(requests)
                if attempt == _ATTEMPTS:
                    raise unavailable(f"the disks of sessions cannot be reached: {error}") from error
        if problem := answer.get("error"):
            raise StartFailed(f"the session's files cannot be kept: {problem}")
        return answer

    def close(self) -> None:
        """End the helper. It is not started again."""
        with self._changing:
            self._closed = True
        if self._requests is not None:
            self._end(self._requests)

    def _running(self) -> Requests:
        with self._changing:
            if self._closed:
                raise unavailable("the gateway is shutting down")
            if self._requests is None:
                self._requests = self._start()
            return self._requests

    def _start(self) -> Requests:
        api, settings = self._engine.api, self._settings
        self._remove()  # an earlier attempt may have made the container without an answer of the engine
        api.create_container(
            settings.image,
            [PYTHON, "-I", "-S", f"{IMAGE_DIR}/disks.py"],
            name=self._name,
            user="0:0",
            working_dir=_IMAGES,
            stdin_open=True,
            labels={DISKS_LABEL: settings.instance},
            use_config_proxy=False,
            host_config=api.create_host_config(**helper_config(self._volume, settings)),
        )
        try:
            channel = self._open.enter_context(attached(self._engine, self._name, HelperFailed, _ANSWER_MAX))
            api.start(self._name)
        except BaseException:
            self._open.close()
            self._remove()
            raise
        return Requests(channel)

    def _end(self, requests: Requests) -> None:
        """End a helper, unless another thread has ended it already."""
        with self._changing:
            if self._requests is not requests:
                return
            self._requests = None
            requests.end()
            self._open.close()
            self._remove()

    def _remove(self) -> None:
        api = self._engine.api
        with suppress(NotFound):
            try:
                api.remove_container(self._name, force=True)
            except APIError as error:
                if error.status_code != _BEING_REMOVED:
                    raise
                # The helper has ended, and the engine is removing it.
                api.wait(self._name, timeout=round(_ANSWER), condition="removed")

    def reap(self) -> None:
        """Remove the helpers of earlier gateways that have not ended on their own."""
        label = f"{DISKS_LABEL}={self._settings.instance}"
        for container in self._engine.api.containers(all=True, filters={"label": label}):
            if f"/{self._name}" not in container["Names"]:
                with suppress(APIError):  # the container is being removed already
                    self._engine.api.remove_container(container["Id"], force=True)


def helper_config(volume: str, settings: DockerSettings) -> dict[str, Any]:
    """Return the arguments of the engine's host configuration for the helper.

    Args:
        volume: name of the volume with the image files.
        settings: settings of the deployment.
    """
    return {
        "runtime": "runc",  # gVisor has no loop devices
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        # Loop devices, and the device that returns a free one. Source: Linux's Documentation/admin-guide/devices.txt
        "device_cgroup_rules": ["b 7:* rw", "c 10:237 rw"],
        "mounts": [
            Mount(target=_DEVICES, source="/dev", type="bind", read_only=True),
            Mount(target=_IMAGES, source=volume, type="volume", labels={DISKS_LABEL: settings.instance}),
        ],
        "mem_limit": "128m",
        "memswap_limit": "128m",
        "pids_limit": 32,
        "log_config": LogConfig(type="none"),
        "auto_remove": True,
    }
