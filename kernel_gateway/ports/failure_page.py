"""The page that a person sees in a browser when the gateway cannot pass a request on to a server. Pure functions."""

from __future__ import annotations

from html import escape
from http import HTTPStatus

from tornado.httputil import HTTPHeaders

from sessions.model.errors import SessionError

#: headers of the page: it has no scripts, and may load nothing
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{status} {phrase}</title>
<style>
:root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }}
main {{ max-width: 40rem; margin: 15vh auto; padding: 0 1rem }}
</style>
<main>
<h1>{status} {phrase}</h1>
<p>{message}</p>
<p>{resolution}</p>
<p><small>{code} · request {request_id}</small></p>
</main>
</html>
"""


def wants_page(method: str | None, headers: HTTPHeaders) -> bool:
    """Return whether a browser asks for a page: it shows the answer to a person, and no program reads it."""
    accepted = headers.get("Accept", "").lower()
    return method == "GET" and "text/html" in accepted and "application/json" not in accepted


def failure_page(failure: SessionError, status: HTTPStatus, request_id: str) -> str:
    """Return the page that tells of a failure: what happened, and what to do."""
    told = {
        "message": failure.message,
        "resolution": failure.resolution,
        "code": failure.code,
        "request_id": request_id,
        "phrase": status.phrase,
    }
    return _PAGE.format(status=int(status), **{name: escape(text) for name, text in told.items()})
