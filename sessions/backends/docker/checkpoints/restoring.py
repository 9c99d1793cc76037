"""The conversation with a sandbox whose kernel waits: before its checkpoint is taken, and after each restore."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docker.errors import APIError

from sessions.backends.docker.breaker import short_cause
from sessions.backends.docker.checkpoints.runtime import INSTALL, CheckpointFailed, mark, unmark
from sessions.backends.docker.engine import Engine, take_over

#: seconds from a restored sandbox's start until its kernel serves; measured: 0.1 s
_PULSE_TIMEOUT = 10.0
#: bytes before each piece of an attached container's output: kind, three zeros, and length. Source: the engine's API,
#: "Attach to a container", stream format
_HEAD = 8
#: bytes of the longest line that a sandbox may say
_LINE_MAX = 64 * 1024


class Conversation:
    """The attached standard input and output of a container, one JSON line each."""

    def __init__(self, connection: socket.socket, early: bytes) -> None:
        self._connection = connection
        self._read = early
        self._said = b""

    def say(self, line: bytes) -> None:
        """Send a line.

        Raises:
            CheckpointFailed: when the container has ended.
        """
        try:
            self._connection.sendall(line)
        except OSError as error:
            raise CheckpointFailed("the sandbox ended") from error

    def hear(self, timeout: float) -> dict[str, Any]:
        """Return the container's next line.

        Raises:
            CheckpointFailed: when it ends, takes too long or says nonsense.
        """
        until = time.monotonic() + timeout
        try:
            while b"\n" not in self._said:
                head = self._exactly(_HEAD, until)
                self._said += self._exactly(min(int.from_bytes(head[4:], "big"), _LINE_MAX), until)
                if len(self._said) > _LINE_MAX:
                    raise CheckpointFailed("the sandbox says too much")
            line, _, self._said = self._said.partition(b"\n")
            return dict(json.loads(line))
        except TimeoutError as error:
            raise CheckpointFailed(f"the sandbox did not answer within {timeout:.0f} s") from error
        except OSError as error:
            raise CheckpointFailed("the sandbox ended") from error
        except (ValueError, TypeError) as error:
            raise CheckpointFailed("the sandbox did not answer with JSON") from error

    def _exactly(self, size: int, until: float) -> bytes:
        while len(self._read) < size:
            self._connection.settimeout(max(0.001, until - time.monotonic()))
            piece = self._connection.recv(65536)
            if not piece:
                raise CheckpointFailed("the sandbox ended")
            self._read += piece
        taken, self._read = self._read[:size], self._read[size:]
        return taken


@contextmanager
def attached(engine: Engine, container: str) -> Iterator[Conversation]:
    """Attach to a container that has not been started yet. When the context is left, its standard input ends."""
    connection, early = take_over(engine.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stream": 1}))
    with connection:
        yield Conversation(connection, early)


def restore(engine: Engine, container: str, image: Path, hello: bytes) -> None:
    """Start a container from a checkpoint, and give its kernel what is its own. Blocks until the kernel serves.

    Args:
        engine: has made the container.
        container: full id of the container.
        image: directory of the checkpoint.
        hello: handshake of the kernel.

    Raises:
        CheckpointFailed: when the kernel does not serve; the caller removes the container.
    """
    with attached(engine, container) as sandbox:
        restart(engine, container, image)
        sandbox.say(hello)
        sandbox.hear(_PULSE_TIMEOUT)


def restart(engine: Engine, container: str, image: Path) -> None:
    """Start a container from a checkpoint. Blocks until its processes run.

    Args:
        engine: has made the container.
        container: full id of the container.
        image: directory of the checkpoint.

    Raises:
        CheckpointFailed: when it was not restored; the caller removes the container.
    """
    mark(container, image)
    try:
        engine.api.start(container)
    except APIError as error:
        raise CheckpointFailed(f"the runtime refused: {short_cause(error)}") from error
    finally:
        unused = unmark(container)
    if unused:
        raise CheckpointFailed(f"the runtime has started the container and not restored it: {INSTALL}")
