"""Starts containers from images."""

from __future__ import annotations

import time
from pathlib import Path

from docker.errors import APIError

from sessions.backends.docker.checkpoint.runtime import INSTALL, CheckpointFailed, marked
from sessions.backends.docker.engine.breaker import short_cause
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.engine.stdio_channel import attached
from sessions.model.stopwatch import Stage, lap

#: seconds from a restored sandbox's start to its kernel's first answer; measured: 0.1 s
_PULSE_TIMEOUT = 10.0


def restore(engine: Engine, container: str, image: Path, hello: bytes) -> None:
    """Start a container from a golden image, and send the handshake to its kernel. Blocks until the kernel answers.

    Args:
        engine: engine that has made the container.
        container: full id of the container.
        image: directory of the golden image.
        hello: handshake of the kernel, with its keys, environment and limits.

    Raises:
        CheckpointFailed: when the kernel does not answer. The caller must remove the container.
    """
    with attached(engine, container, CheckpointFailed) as sandbox:
        restart(engine, container, image)
        sandbox.send(hello)
        sandbox.receive(_PULSE_TIMEOUT)


def restart(engine: Engine, container: str, image: Path) -> None:
    """Start a container from an image. Blocks until its processes run.

    Args:
        engine: engine that has made the container.
        container: full id of the container.
        image: directory of the image.

    Raises:
        CheckpointFailed: when the container was not restored. The caller must remove it.
    """
    with marked(container, image) as mark:
        try:
            engine.api.start(container)
        except APIError as error:
            raise CheckpointFailed(f"the runtime refused: {short_cause(error)}") from error
        begun = mark.used_at
    if begun is None:
        raise CheckpointFailed(f"the runtime has started the container and not restored it: {INSTALL}")
    lap(Stage.SANDBOX, time.time() - begun)
