"""An HTTP transport for one conversation with a server that may send too much, or for ever."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

import httpx2

#: bytes of all answers of one conversation. A tool's answer is at most 1 MiB for the cell, but a server may send it
#: twice, as a text and as a value, with escapes
BYTES_MAX = 4 * 1024**2
#: requests of one conversation. Each question that a server asks its client costs one, for the refusal
REQUESTS_MAX = 64


class Bounded(httpx2.AsyncBaseTransport):
    """Passes requests on to a transport until the server has sent too much.

    Answers are never unpacked, because few packed bytes can be many. The gateway does not listen to what a server wants
    to say unasked, so requests with GET go nowhere.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        """Begin a conversation over a transport, which stays open at its end."""
        self._inner = inner
        self._bytes = 0
        self._requests = 0
        #: what the server has done wrong. None means nothing.
        self.problem: str | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the answer, whose content is counted while it is read."""
        if request.method == "GET":
            return httpx2.Response(405, request=request)
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            self._refuse(f"it made the gateway send more than {REQUESTS_MAX} requests")
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self._refuse("it packs its answers, although it was asked not to")
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            raise TypeError("the answer cannot be read in pieces")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Counted(self, response.stream),
            extensions=response.extensions,
        )

    def count(self, size: int) -> None:
        """Count bytes of an answer.

        Raises:
            httpx2.StreamError: when they are too many.
        """
        self._bytes += size
        if self._bytes > BYTES_MAX:
            self._refuse(f"it sent more than {BYTES_MAX} bytes")

    def _refuse(self, problem: str) -> NoReturn:
        self.problem = problem
        raise httpx2.StreamError(problem)


class _Counted(httpx2.AsyncByteStream):
    """The content of an answer."""

    def __init__(self, bounded: Bounded, content: httpx2.AsyncByteStream) -> None:
        self._bounded = bounded
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._content:
            self._bounded.count(len(piece))
            yield piece

    async def aclose(self) -> None:
        await self._content.aclose()
