"""Decides which web pages of other origins may use the gateway: only those whose origin the operator allows.

A browser sends cookies by itself, but never a key. So pages of an allowed origin can use only keys that they know; they
cannot use a key of the browser's user.

Source: the CORS protocol of the Fetch standard.
"""

from __future__ import annotations

from collections.abc import Iterable

from tornado.httputil import HTTPServerRequest

#: matches all origins
ANY = "*"
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_HEADERS = (
    "Accept, Authorization, Content-Type, If-Range, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    "Mcp-Param-Session, Mcp-Session-Id, Range, X-API-Key, X-Request-Id, X-Session-Id, X-XSRFToken"
)
#: headers of an answer that a page may read besides the body
_EXPOSED = "Accept-Ranges, Content-Range, ETag, Location, Mcp-Session-Id, Retry-After, X-Request-Id"
#: seconds for which a browser may cache the answer to a preflight
_MAX_AGE = "600"


class Origins:
    """The origins whose pages may use the gateway."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Store the origins.

        Args:
            allowed: origins as browsers write them, for example `https://notebooks.example`. `*` allows all origins.
        """
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def allow(self, origin: str | None) -> bool:
        """Return True if a page of this origin may use the gateway."""
        return origin is not None and (ANY in self._allowed or origin.lower() in self._allowed)

    def headers(self, request: HTTPServerRequest) -> dict[str, str]:
        """Return the headers that let a browser give the answer to a page. Other origins get no headers."""
        origin = request.headers.get("Origin")
        if origin is None or not self.allow(origin):
            return {}
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Expose-Headers": _EXPOSED}
        if self.is_preflight(request):
            headers |= {
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": _HEADERS,
                "Access-Control-Max-Age": _MAX_AGE,
            }
        return headers

    def is_preflight(self, request: HTTPServerRequest) -> bool:
        """Return True for a preflight: a browser's request without a key that asks what an allowed page may send."""
        return (
            request.method == "OPTIONS"
            and "Access-Control-Request-Method" in request.headers
            and self.allow(request.headers.get("Origin"))
        )
