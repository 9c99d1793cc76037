"""Serves the files of the admin page. The files are public, because they contain no data.

The page's scripts request the data from the API, with the admin's key that the user has typed in; see `web/admin`.
"""

from __future__ import annotations

from pathlib import Path

from kernel_gateway.errors import NoSuchRoute
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import BaseHandler

_WEB = Path(__file__).parents[1] / "web"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: allows only the gateway's own scripts, styles and pictures; forbids text that becomes markup, and frames
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers check each time for a new version, because another release has other files. Tornado adds the ETag.
    "Cache-Control": "no-cache",
}


def _files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and content of each file, by its name below `/admin/`. Only these files can be served."""
    paths = {path.name: path for path in (_WEB / "admin").glob("*.js")} | {"": _WEB / "admin.html"}
    paths |= {path.name: path for path in (_WEB / "admin.css", _WEB / "icon.svg")}
    return {name: (_MEDIA_TYPES[path.suffix], path.read_bytes()) for name, path in paths.items()}


FILES = _files()


class FileHandler(BaseHandler):
    """`/admin/` and the files of the page."""

    public = True

    def get(self, name: str) -> None:
        """Send a file."""
        if name not in FILES:
            raise NoSuchRoute
        media_type, content = FILES[name]
        for header, value in _HEADERS.items():
            self.set_header(header, value)
        self.set_header("Content-Type", media_type)
        self.finish(content)

    def head(self, name: str) -> None:
        """Send the headers of a file; tornado leaves out the content."""
        self.get(name)


class EntryHandler(BaseHandler):
    """`/admin`: redirects to the folder, because the page's links are relative to it."""

    public = True

    def get(self) -> None:
        """Redirect to the folder. The URL is relative, so it is also correct behind a proxy."""
        self.redirect("admin/")

    def head(self) -> None:
        """Redirect to the folder."""
        self.get()


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the page."""
    return [("/admin", EntryHandler, {"gateway": gateway}), ("/admin/([^/]*)", FileHandler, {"gateway": gateway})]


DIALECT = Dialect("web", routes)
