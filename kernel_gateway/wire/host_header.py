"""Remove the scheme from a Host header before tornado reads the header.

Clients of Alibaba Cloud's OpenAPI speak https to their control plane, unless its endpoint is configured as
`http://http://host:port`. Then they speak http, but send `Host: http://host:port`, which tornado refuses since 6.5.
The client's signature covers the original header; `signatures.py` therefore checks both forms.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from kernel_gateway.wire.forwarding import Forwarding

_SCHEME = "http://"


class PlainHosts(HTTPServerConnectionDelegate):
    """Wraps the application: removes the scheme from Host headers and passes requests on."""

    def __init__(self, application: HTTPServerConnectionDelegate) -> None:
        self._application = application

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wrap a request. Tornado calls this for each request."""
        return _PlainHost(self._application.start_request(server_conn, request_conn))

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _PlainHost(Forwarding):
    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        host = headers.get("Host", "")
        if host.startswith(_SCHEME):
            headers["Host"] = host.removeprefix(_SCHEME)
        return super().headers_received(start_line, headers)
