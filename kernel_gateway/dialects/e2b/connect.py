"""Base handlers for Connect RPC with JSON, as E2B's clients use it: calls with one answer, and calls with a stream.

Source: the Connect protocol, "Unary-Request", "Streaming-Request" and "Error codes". E2B's clients never send binary or
compressed messages.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import orjson

from kernel_gateway.dialects.e2b.base import EnvdHandler
from kernel_gateway.errors import NotSupported
from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.request_body import Model, validated
from kernel_gateway.http.transfers import STALL_TIMEOUT
from kernel_gateway.wire.connections import connection_of
from sessions.model import bounded_json
from sessions.model.errors import ExecutionTimeout, InvalidRequest, SandboxNotFound, SessionError

#: Connect's code of a failure, by HTTP status
CODES = {
    HTTPStatus.BAD_REQUEST: "invalid_argument",
    HTTPStatus.UNAUTHORIZED: "unauthenticated",
    HTTPStatus.FORBIDDEN: "permission_denied",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.CONFLICT: "already_exists",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "resource_exhausted",
    HTTPStatus.TOO_MANY_REQUESTS: "resource_exhausted",
    HTTPStatus.INSUFFICIENT_STORAGE: "resource_exhausted",
    HTTPStatus.NOT_IMPLEMENTED: "unimplemented",
    HTTPStatus.BAD_GATEWAY: "unavailable",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}


def error_of(failure: SessionError, status: HTTPStatus) -> dict[str, Any]:
    """Return a failure in Connect's format."""
    code = "deadline_exceeded" if isinstance(failure, ExecutionTimeout) else CODES.get(status, "internal")
    return {"code": code, "message": failure_text(failure)}


class UnaryHandler(EnvdHandler, JsonHandler):
    """A call with one answer."""

    async def prepare(self) -> None:
        """Check the request and its user."""
        await super().prepare()
        if hasattr(self, "sandbox"):  # not so for a preflight
            self.check_user()

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Use Connect's error format, except for a missing sandbox, which has its own format."""
        if isinstance(failure, SandboxNotFound):
            return super().render_failure(failure)
        return error_of(failure, HTTPStatus(self.get_status()))


#: flags and length before each message of a stream, and the flag of the last message
_ENVELOPE = struct.Struct(">BI")
_LAST = 2
#: maximum bytes of a message that a client streams
MESSAGE_MAX = 1024**2
STREAM = "application/connect+json"
#: seconds between two keep-alive messages of a silent stream, and the header in which a client asks for another number
KEEPALIVE = 50.0
KEEPALIVE_HEADER = "Keepalive-Ping-Interval"
#: header with the client's timeout in milliseconds. Source: the Connect protocol, "Timeouts"
TIMEOUT_HEADER = "Connect-Timeout-Ms"


def envelope(value: dict[str, Any], *, last: bool = False) -> bytes:
    """Serialize a message of a stream. `last` is True for the message that ends the stream."""
    body = orjson.dumps(value)
    return _ENVELOPE.pack(_LAST if last else 0, len(body)) + body


class Envelopes:
    """Splits the body of a client's stream into messages while the body arrives."""

    def __init__(self) -> None:
        self._received = bytearray()

    def read(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete with this chunk.

        Raises:
            InvalidRequest: when a message is compressed or too large.
        """
        self._received += chunk
        while len(self._received) >= _ENVELOPE.size:
            flags, size = _ENVELOPE.unpack_from(self._received)
            if flags or size > MESSAGE_MAX:
                raise InvalidRequest(f"a message must be plain JSON of at most {MESSAGE_MAX} bytes", field="body")
            if len(self._received) < _ENVELOPE.size + size:
                return
            message = bytes(self._received[_ENVELOPE.size : _ENVELOPE.size + size])
            del self._received[: _ENVELOPE.size + size]
            yield message

    @property
    def complete(self) -> bool:
        """True if all messages so far have arrived completely."""
        return not self._received


class StreamHandler(EnvdHandler):
    """A call whose answer is a stream. A failure is sent in the last message of the stream."""

    async def prepare(self) -> None:
        """Check the request and its user."""
        await super().prepare()
        if hasattr(self, "sandbox"):  # not so for a preflight
            self.check_user()

    def finish_failure(self, failure: SessionError) -> None:
        """Send the failure as a stream of one message. Only a missing sandbox is shown by the HTTP status instead."""
        if isinstance(failure, SandboxNotFound):
            super().finish_failure(failure)
            return
        told = error_of(failure, HTTPStatus(self.get_status()))
        self.set_status(HTTPStatus.OK)
        self.set_header("Content-Type", STREAM)
        self.finish(envelope({"error": told}, last=True))

    async def send(self, *values: dict[str, Any]) -> None:
        """Send messages.

        Raises:
            StreamClosedError: when the client has left.
            TimeoutError: when the client reads nothing.
        """
        self.write(b"".join(map(envelope, values)))
        async with asyncio.timeout(STALL_TIMEOUT):
            await self.flush()

    def finish_stream(self, failure: SessionError | None = None) -> None:
        """Send the end of the stream. If the sandbox has ended, reset the connection instead: clients accept only that.

        They take a reset for a sandbox that may be gone, and ask. Python's takes a plain end for a broken answer.

        Args:
            failure: the error that ends the stream. None means success.
        """
        if self.sandbox.closed:
            connection_of(self.http.stream).reset()
            return
        error = {"error": error_of(failure, self.status_of(failure))} if failure is not None else {}
        self.finish(envelope(error, last=True))


class ServerStreamHandler(StreamHandler, JsonHandler):
    """A call whose request is one message and whose answer is a stream."""

    def message(self) -> bytes:
        """Return the message of the request.

        Raises:
            InvalidRequest: when the request does not have exactly one message.
        """
        envelopes = Envelopes()
        message = next(envelopes.read(bytes(self._received)), None)
        if message is None or not envelopes.complete:
            raise InvalidRequest("the request must have exactly one message", field="body")
        return message

    def pause(self) -> float:
        """Return the seconds after which a silent stream sends a keep-alive message."""
        asked = self.request.headers.get(KEEPALIVE_HEADER, "")
        return float(asked) if re.fullmatch("[1-9][0-9]{0,3}", asked) else KEEPALIVE

    def timeout(self) -> float | None:
        """Return the client's timeout in seconds, or None if the client has no timeout.

        Raises:
            InvalidRequest: when the header is not a positive number.
        """
        asked = self.request.headers.get(TIMEOUT_HEADER)
        if asked is None:
            return None
        if not re.fullmatch("[0-9]{1,10}", asked) or not int(asked):
            raise InvalidRequest(f"{TIMEOUT_HEADER} must be a number of milliseconds from 1 on", field=TIMEOUT_HEADER)
        return int(asked) / 1000


def message_of(model: type[Model], body: bytes) -> Model:
    """Return a message as `model`.

    Raises:
        InvalidRequest: when the message is not JSON, or does not fit the model.
    """
    try:
        return validated(model, bounded_json.loads(body or b"{}"))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the message is no valid JSON: {error.msg}", field="body") from None


class UnsupportedMethod(UnaryHandler):
    """A call that this gateway does not support."""

    def post(self, method: str) -> None:
        """Refuse the call with an HTTP status, which is also a valid answer to calls with a stream."""
        raise NotSupported(f"{method[:64]}: sandboxes have no such call here")
