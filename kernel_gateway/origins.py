"""Which web pages of other origins may use the gateway: none, unless the operator names theirs.

A page can send nothing in a user's name, because a key never comes by itself as a cookie does. So to name an origin
is to let its pages use keys that they have, not to let them borrow one.

Source: the CORS protocol of the Fetch standard.
"""

from __future__ import annotations

from collections.abc import Iterable

from tornado.httputil import HTTPServerRequest

#: stands for all origins
ANY = "*"
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_HEADERS = "Accept, Authorization, Content-Type, Last-Event-ID, X-API-Key, X-Request-Id, X-XSRFToken"
#: what a page may read besides the body
_EXPOSED = "Location, Retry-After, X-Request-Id"
#: seconds for which a browser need not ask again
_MAX_AGE = "600"


class Origins:
    """The origins whose pages may use the gateway."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Keep them.

        Args:
            allowed: as browsers write them, `https://notebooks.example`; `*` for all.
        """
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def allow(self, origin: str | None) -> bool:
        """Whether a page of this origin may."""
        return origin is not None and (ANY in self._allowed or origin.lower() in self._allowed)

    def headers(self, request: HTTPServerRequest) -> dict[str, str]:
        """What to answer, so that the browser lets the page have it; nothing for other requests."""
        origin = request.headers.get("Origin")
        if origin is None or not self.allow(origin):
            return {}
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Expose-Headers": _EXPOSED}
        if self.asks(request):
            headers |= {
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": _HEADERS,
                "Access-Control-Max-Age": _MAX_AGE,
            }
        return headers

    def asks(self, request: HTTPServerRequest) -> bool:
        """Whether a browser asks for an allowed page what it may send. It does so without a key."""
        return (
            request.method == "OPTIONS"
            and "Access-Control-Request-Method" in request.headers
            and self.allow(request.headers.get("Origin"))
        )
