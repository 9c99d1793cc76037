"""The admin page's files, for everybody to load: they name no tenant and hold no data.

All that the page shows it asks for itself, with an admin's key that somebody has typed in; see `web/admin`.
"""

from __future__ import annotations

from pathlib import Path

from kernel_gateway.errors import NoSuchRoute
from kernel_gateway.handlers import BaseHandler, Dialect, Gateway, Route

_WEB = Path(__file__).parents[1] / "web"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: No script, style or picture but the gateway's own files, no text that becomes markup, nobody who frames the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Asked for again each time: a gateway of another release has other files. Tornado adds the ETag.
    "Cache-Control": "no-cache",
}


def _files() -> dict[str, tuple[str, bytes]]:
    """Media type and content of each file, by its name below `/admin/`. There are no others, whatever is asked for."""
    paths = {path.name: path for path in (_WEB / "admin").glob("*.js")} | {"": _WEB / "admin.html"}
    paths |= {path.name: path for path in (_WEB / "admin.css", _WEB / "icon.svg")}
    return {name: (_MEDIA_TYPES[path.suffix], path.read_bytes()) for name, path in paths.items()}


FILES = _files()


class FileHandler(BaseHandler):
    """`/admin/` and the files it is made of."""

    public = True

    def get(self, name: str) -> None:
        """Send one."""
        if name not in FILES:
            raise NoSuchRoute
        media_type, content = FILES[name]
        for header, value in _HEADERS.items():
            self.set_header(header, value)
        self.set_header("Content-Type", media_type)
        self.finish(content)

    def head(self, name: str) -> None:
        """Tell of one; tornado leaves the content out."""
        self.get(name)


class EntryHandler(BaseHandler):
    """`/admin`: files are found from the folder."""

    public = True

    def get(self) -> None:
        """Show the way; it is relative, so that it is right behind a proxy too."""
        self.redirect("admin/")

    def head(self) -> None:
        """Show the way."""
        self.get()


def routes(gateway: Gateway) -> list[Route]:
    """The page's paths."""
    return [("/admin", EntryHandler, {"gateway": gateway}), ("/admin/([^/]*)", FileHandler, {"gateway": gateway})]


DIALECT = Dialect("web", routes)
