"""Serves the files of the pages. The files are public, because they contain no data.

The pages' scripts request the data from the API, with the key that the user has typed in; see `web/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_gateway.errors import NoSuchRoute
from kernel_gateway.gateway import Gateway, Route
from kernel_gateway.http.handlers import BaseHandler

_WEB = Path(__file__).parents[2] / "web"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: allows only the gateway's own scripts and styles; forbids text that becomes markup, and that others frame the page
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; {more}form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
#: The document that shows the HTML of an output. It runs its own script and nothing else, and loads nothing. Its
#: styles may be the output's, which is why it is no part of the page: `sandbox` gives it an origin of its own.
_FRAME_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers check each time for a new version, because another release has other files. Tornado adds the ETag.
    "Cache-Control": "no-cache",
}
#: the frame's document has an origin of its own, and must still load its script
_FRAME_SCRIPT = {"Cross-Origin-Resource-Policy": "cross-origin"}


@dataclass(frozen=True, slots=True)
class File:
    """A file of a page."""

    media_type: str
    content: bytes
    #: headers beyond `_HEADERS`
    headers: dict[str, str]


def _page(folder: str, policy: str) -> dict[str, File]:
    """Return the files of a page by their names below its path. Only these files can be served."""
    paths = {path.name: path for path in (_WEB / folder).glob("*.*")}
    paths |= {"": _WEB / f"{folder}.html", f"{folder}.css": _WEB / f"{folder}.css"}
    return {name: _file(path, {"Content-Security-Policy": policy}) for name, path in paths.items()}


def _file(path: Path, headers: dict[str, str]) -> File:
    return File(_MEDIA_TYPES[path.suffix], path.read_bytes(), headers)


_ADMIN_POLICY = _POLICY.format(more="img-src 'self'; ")
#: the session page shows pictures of outputs, which its script has as base64, and HTML of outputs in frames
_UI_POLICY = _POLICY.format(more="img-src 'self' data:; frame-src 'self'; ")
_ICON = _file(_WEB / "icon.svg", {"Content-Security-Policy": _ADMIN_POLICY})
#: the files by page and name
PAGES = {
    "admin": _page("admin", _ADMIN_POLICY) | {"icon.svg": _ICON},
    "ui": _page("ui", _UI_POLICY)
    | {
        "frame.html": _file(_WEB / "ui/frame.html", {"Content-Security-Policy": _FRAME_POLICY}),
        "frame.js": _file(_WEB / "ui/frame.js", {"Content-Security-Policy": _FRAME_POLICY} | _FRAME_SCRIPT),
    },
}


class FileHandler(BaseHandler):
    """`/admin/` and `/ui/` with the files of the pages."""

    public = True

    def get(self, page: str, name: str) -> None:
        """Send a file."""
        if name not in PAGES[page]:
            raise NoSuchRoute
        file = PAGES[page][name]
        for header, value in (_HEADERS | file.headers).items():
            self.set_header(header, value)
        self.set_header("Content-Type", file.media_type)
        self.finish(file.content)

    def head(self, page: str, name: str) -> None:
        """Send the headers of a file; tornado leaves out the content."""
        self.get(page, name)


class EntryHandler(BaseHandler):
    """`/admin` and `/ui`: redirects to the folder, because the page's links are relative to it."""

    public = True

    def get(self, page: str) -> None:
        """Redirect to the folder. The URL is relative, so it is also correct behind a proxy."""
        self.redirect(f"{page}/")

    def head(self, page: str) -> None:
        """Redirect to the folder."""
        self.get(page)


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the files."""
    return [
        ("/(admin|ui)", EntryHandler, {"gateway": gateway}),
        ("/(admin|ui)/([^/]*)", FileHandler, {"gateway": gateway}),
    ]
