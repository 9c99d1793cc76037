"""Exchanges JSON lines with a container over its standard input and output."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sessions.backends.docker.engine.engine import Engine, take_over

#: bytes before each piece of an attached container's output: stream, three zeros, and length. Source: the engine's API,
#: "Attach to a container", stream format
_HEAD = 8
#: maximum bytes of a line that a sandbox sends
LINE_MAX = 64 * 1024


class StdioChannel:
    """The attached standard input and output of a container, as JSON lines."""

    def __init__(
        self, connection: socket.socket, early: bytes, failure: type[Exception], longest: int = LINE_MAX
    ) -> None:
        """Keep the arguments. Nothing is sent or read yet.

        Args:
            connection: the attached connection.
            early: bytes that were already read from the connection.
            failure: class of the errors that are raised when the container does not answer correctly.
            longest: maximum bytes of a line that the container sends.
        """
        self._connection = connection
        self.failure = failure
        self._longest = longest
        self._read = early
        self._said = b""

    def send(self, line: bytes) -> None:
        """Send a line.

        Raises:
            Exception: of the class `failure`, when the container has ended.
        """
        try:
            self._connection.sendall(line)
        except OSError as error:
            raise self.failure("the container ended") from error

    def end(self) -> None:
        """End the connection. All present and later calls of `receive` and `send` raise the error."""
        with suppress(OSError):  # the connection has ended already
            self._connection.shutdown(socket.SHUT_RDWR)

    def receive(self, timeout: float | None) -> dict[str, Any]:
        """Return the container's next line.

        Args:
            timeout: seconds to wait for the line. None means until the connection ends.

        Raises:
            Exception: of the class `failure`, when the container ends, takes too long, or sends no valid JSON.
        """
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while b"\n" not in self._said:
                head = self._exactly(_HEAD, until)
                self._said += self._exactly(min(int.from_bytes(head[4:], "big"), self._longest), until)
                if len(self._said) > self._longest:
                    raise self.failure("the container says too much")
            line, _, self._said = self._said.partition(b"\n")
            return dict(json.loads(line))
        except TimeoutError as error:
            raise self.failure(f"the container did not answer within {timeout:.0f} s") from error
        except OSError as error:
            raise self.failure("the container ended") from error
        except (ValueError, TypeError) as error:
            raise self.failure("the container did not answer with JSON") from error

    def _exactly(self, size: int, until: float | None) -> bytes:
        while len(self._read) < size:
            self._connection.settimeout(None if until is None else max(0.001, until - time.monotonic()))
            piece = self._connection.recv(65536)
            if not piece:
                raise self.failure("the container ended")
            self._read += piece
        taken, self._read = self._read[:size], self._read[size:]
        return taken


@contextmanager
def attached(
    engine: Engine, container: str, failure: type[Exception], longest: int = LINE_MAX
) -> Iterator[StdioChannel]:
    """Attach to a container that has not been started yet. At the end of the `with` block, its standard input ends.

    Args:
        engine: engine that has made the container.
        container: id or name of the container.
        failure: as in `StdioChannel`.
        longest: as in `StdioChannel`.
    """
    connection, early = take_over(engine.api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stream": 1}))
    with connection:
        yield StdioChannel(connection, early, failure, longest)
