"""One call of the API: it is sent, sent again where that is safe, and its answer is read or its error raised."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from kernel_gateway.client.errors import GatewayError, Unreachable
from kernel_gateway.client.transport import Content, Transport

#: methods whose second call does what the first did
REPEATABLE = {"GET", "PUT", "DELETE"}
#: seconds before a connection is made again: first and most
PAUSES = (0.1, 2.0)


class Gateway:
    """A gateway, by one of the two transports."""

    def __init__(self, url: str, transport: Transport, retry_for: float) -> None:
        """Connect to nothing yet.

        Args:
            url: the gateway's address.
            transport: the way to it.
            retry_for: seconds during which a connection that broke off is made again.
        """
        self.url = url
        self.transport = transport
        self._retry_for = retry_for
        #: whether it has answered: an address at which nothing has ever answered is wrong at once
        self._known = False

    async def json(self, method: str, path: str, value: object = None, *, repeatable: bool = False) -> dict[str, Any]:
        """Make a call with a JSON value, or without a body.

        Args:
            method: method of HTTP.
            path: path of the call.
            value: its body. None means no body.
            repeatable: a second call does what the first did, although the method does not say so.

        Returns:
            the answer's JSON object; {} when the answer has no content.

        Raises:
            GatewayError: when the gateway refuses the call.
            Unreachable: when no gateway answers.
        """
        body = None if value is None else encoded(value)
        headers = {} if value is None else {"Content-Type": "application/json"}
        patience = self.patience()
        while True:
            try:
                async with self.answer(method, path, body, headers) as response:
                    return self.object_of(b"".join([piece async for piece in self.transport.pieces(response)]))
            except httpx.TransportError as error:
                if not patience.repeats(error, safe=repeatable or method in REPEATABLE):
                    raise self.unreachable(error) from error
                await self.transport.sleep(patience.pause())

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        content: Content | None = None,
        headers: dict[str, str] | None = None,
        read: float | None = None,
    ) -> AsyncGenerator[httpx.Response, None]:
        """Make a call once, and yield its answer, whose content is not read yet.

        Raises:
            GatewayError: when the gateway refuses the call.
            httpx.TransportError: when the connection cannot be made, or breaks off.
            Unreachable: when something else answers.
        """
        try:
            request = self.transport.request(method, path, content, headers or {}, read)
        except (httpx.InvalidURL, ValueError) as error:
            raise self.unreachable(error) from error
        try:
            response = await self.transport.send(request)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise self.unreachable("an address looks like http://127.0.0.1:8888") from error
        try:
            if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
                content_of = b"".join([piece async for piece in self.transport.pieces(response)])
                reason = f"HTTP {response.status_code}: {response.reason_phrase}"
                raise GatewayError.of_answer(content_of, response.status_code) or self.unreachable(reason)
            if "X-Request-Id" not in response.headers:
                raise self.unreachable("the answer is not a gateway's")
            self._known = True
            yield response
        finally:
            await self.transport.leave(response)

    async def content(
        self, method: str, path: str, content: Content | None = None, headers: dict[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Make a call once, and yield the pieces of its answer as they come.

        Raises:
            GatewayError: when the gateway refuses the call.
            Unreachable: when no gateway answers, or the connection breaks off; then the content is not complete.
        """
        begun = False
        try:
            async with self.answer(method, path, content, headers) as response:
                begun = True
                async for piece in self.transport.pieces(response):
                    yield piece
        except httpx.TransportError as error:
            if not begun:
                raise self.unreachable(error) from error
            text = f"the connection to {self.url} broke off, the content is not complete: {error}"
            raise Unreachable(text) from error

    def object_of(self, content: bytes) -> dict[str, Any]:
        """Return the JSON object of an answer.

        Raises:
            Unreachable: when it is none; then a gateway did not make it.
        """
        try:
            value = json.loads(content) if content else {}
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.unreachable("the answer is not a gateway's")
        return value

    def patience(self) -> Patience:
        """Return how long one call is tried; without an answer until now, not a second time."""
        return Patience(self._retry_for if self._known else 0.0, time.monotonic)

    def unreachable(self, reason: object) -> Unreachable:
        """Return the error of a call that no gateway has answered."""
        hint = ""
        if "CERTIFICATE_VERIFY_FAILED" in str(reason):
            hint = (
                " - SSL_CERT_FILE names the certificate to trust: a gateway's own is `tls.pem` in its state directory"
            )
        elif self.url.startswith("http:") and str(reason).startswith(f"HTTP {HTTPStatus.BAD_REQUEST:d}"):
            hint = " - the address of a gateway with `tls` begins with https://"
        return Unreachable(f"no gateway at {self.url}: {reason}{hint}")


class Patience:
    """Whether and when one call is tried again."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._next = PAUSES[0]

    def repeats(self, error: httpx.TransportError, *, safe: bool) -> bool:
        """Return whether to try again after an error; unless that is `safe`, only if nothing was sent."""
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        return (safe or unsent) and self._clock() < self._end

    def pause(self) -> float:
        """Return the seconds to wait before the next try."""
        now, self._next = self._next, min(2 * self._next, PAUSES[1])
        return now


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream, each when its end has come."""
    rest: list[bytes] = []
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for other in others:
            yield b"".join(rest)
            rest = [other]


def encoded(value: object, *, exact: bool = False) -> bytes:
    """Return a value as JSON; with `exact`, only one that JSON has: no NaN.

    Raises:
        UnicodeEncodeError: when a text in it is none.
        TypeError: when it has a value that JSON cannot have.
        ValueError: when it has a cycle, or with `exact` a number that JSON does not have.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=not exact).encode()


def quoted(name: str) -> str:
    """Return a name as a part of a path; also one whose bytes are no text."""
    return quote(name.encode(errors="surrogateescape"), safe="")
