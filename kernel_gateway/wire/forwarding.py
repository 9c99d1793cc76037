"""Base class for classes between tornado's parser and the application, which look at each request."""

from __future__ import annotations

from collections.abc import Awaitable

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine


class Forwarding(HTTPMessageDelegate):
    """Passes all parts of a request on. Subclasses override the methods for the parts that they look at."""

    def __init__(self, request: HTTPMessageDelegate) -> None:
        self._request = request

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        """Pass on the head. Tornado calls this once, before the other methods."""
        return self._request.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Pass on a part of the body."""
        return self._request.data_received(chunk)

    def finish(self) -> None:
        """Pass on that the request is complete."""
        self._request.finish()

    def on_connection_close(self) -> None:
        """Pass on that the connection was closed before the end of the request."""
        self._request.on_connection_close()
