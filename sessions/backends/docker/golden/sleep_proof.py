"""Proves that sleeping kernels can be continued here, in each way in which the gateway does it later.

The ways are: a trial has an overlay over the session's files; a waking kernel has its own files; a session that returns
to a checkpoint, or a branch, has a copy of the files. Each way may fail with other engines and releases of gVisor. The
proof uses the same functions as the gateway, on a kernel that belongs to nobody.
"""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint import trials
from sessions.backends.docker.checkpoint.images import Image
from sessions.backends.docker.checkpoint.restore import restore
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.container import containers
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import DockerSettings, volume_names
from sessions.model.checkpoint import CannotWake
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import StartFailed

#: attempts for each way, as many as for a session that wakes
ATTEMPTS_MAX = 3
#: seconds for a continued kernel to answer
_ANSWER = 10.0
#: first byte that each end of a ZeroMQ connection sends. Source: ZMTP 3.1, 3.3 "Greeting"
_GREETING = b"\xff"

#: makes a container for a launch, with a trial's files or the workspace, and removes the container afterwards
Container = Callable[[Launch, "trials.Trial | None"], AbstractContextManager[str]]


class SleepProof:
    """Proves each way to continue a sleeping kernel. All methods block."""

    def __init__(
        self, engine: Engine, disks: Disks, settings: DockerSettings, sleep_images: SleepImages, container: Container
    ) -> None:
        """Keep the arguments. Nothing is started yet."""
        self._engine = engine
        self._disks = disks
        self._settings = settings
        self._sleep_images = sleep_images
        self._container = container

    def prove(self, image: Image, launch: Launch) -> None:
        """Let a kernel sleep, and continue it in each way.

        Args:
            image: golden image from which the kernel is restored first.
            launch: launch of the golden image's sandbox.

        Raises:
            CheckpointFailed: when a continued kernel does not answer.
            APIError, SessionError: when the engine or the disks refused.
        """
        own, copied = (replace(launch, image=image.source, workspace=uuid.uuid4().hex) for _ in range(2))
        info = containers.new_connection(launch.kernelspec)
        with ExitStack() as ending:
            for workspace in (own.workspace, copied.workspace):
                for name in volume_names(str(workspace)):
                    ending.callback(self._disks.delete, name)
            with self._container(own, None) as first:
                restore(self._engine, first, image.path, containers.handshake_for(self._settings, own, info))
                slept = self._written(first, info, own, ending, copy=False)
                try:
                    with self._trial(own) as trial:
                        self._continued("in a trial", slept, own, info, trial)
                finally:
                    self._sleep_images.release(first)  # otherwise the engine could not end the container
            copy = self._continued("when it wakes", slept, own, info, ending=ending)
            self._sleep_images.unpack(copy, copied)
            self._continued("from a checkpoint", copy, copied, info)

    def _continued(
        self,
        way: str,
        image: str,
        launch: Launch,
        info: ConnectionInfo,
        trial: trials.Trial | None = None,
        *,
        ending: ExitStack | None = None,
    ) -> str:
        """Continue a kernel, in several attempts. With `ending`, a copy of the continued kernel is written.

        Returns:
            id of the copy. Empty without `ending`.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with self._container(launch, trial) as container:
                    self._sleep_images.continue_in(container, image)
                    _await_answer(containers.address(self._engine, self._settings.network, container), info)
                    if ending is None:
                        return ""
                    return self._written(container, info, launch, ending, copy=True)
            except (CheckpointFailed, CannotWake, StartFailed) as error:
                if attempt == ATTEMPTS_MAX:
                    raise CheckpointFailed(f"a sleeping kernel is not continued {way}: {error}") from error
        raise AssertionError

    def _written(self, container: str, info: ConnectionInfo, launch: Launch, ending: ExitStack, *, copy: bool) -> str:
        """Write a kernel, and return the image's id. A copy also has its files. `ending` removes the image."""
        at = replace(info, ip=containers.address(self._engine, self._settings.network, container))
        image, on_resumed = (uuid.uuid4().hex, lambda: None) if copy else (container, None)
        written = self._sleep_images.write(container, at, launch, image, on_resumed).id
        if (images := self._sleep_images.images) is not None:
            ending.callback(images.remove, written)
        return written

    @contextmanager
    def _trial(self, launch: Launch) -> Iterator[trials.Trial]:
        trial = trials.prepare(self._engine, self._settings, str(launch.workspace))
        try:
            yield trial
        finally:
            trials.clear(self._engine, trial)


def _await_answer(address: str, info: ConnectionInfo) -> None:
    """Wait until a kernel sends ZeroMQ's greeting to a new connection.

    Raises:
        CheckpointFailed: when it sends none in time.
    """
    until = time.monotonic() + _ANSWER
    while time.monotonic() < until:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address, info.shell_port), _ANSWER / 5) as connection,
        ):
            if connection.recv(1) == _GREETING:
                return
        time.sleep(0.05)
    raise CheckpointFailed(f"its kernel does not answer within {_ANSWER:.0f} s")
