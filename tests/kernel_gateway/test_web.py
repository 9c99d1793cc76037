"""The pages' files as the server sends them. `tests/clients/web` tests the pages in a browser."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kernel_gateway
from kernel_gateway.dialects.web.files import PAGES
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import failure, raw

WEB = Path(kernel_gateway.__file__).parent / "web"
#: all files by their paths
FILES = {f"{page}/{name}": file for page, files in PAGES.items() for name, file in files.items()}
#: limits of the pages in bytes, each without what it takes from the other
SIZE_MAX = {"admin": 70_000, "ui": 130_000}


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """Any gateway: the tests use no kernel."""
    return started("process")


@pytest.mark.parametrize("path", FILES)
def test_every_file_is_public_and_has_the_security_headers(gateway: Gateway, path: str) -> None:
    answer = raw(gateway, "GET", f"/{path}", headers=())
    assert (answer.status_code, answer.content) == (200, FILES[path].content)
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    none = dict.fromkeys(("default-src", "form-action", "base-uri"), "'none'")
    more = {"img-src": "'self' data:", "frame-src": "'self'"} if path.startswith("ui/") else {"img-src": "'self'"}
    page = {
        **dict.fromkeys(("frame-ancestors", "trusted-types"), "'none'"),
        **dict.fromkeys(("script-src", "style-src", "connect-src"), "'self'"),
        "require-trusted-types-for": "'script'",
    }
    frame = {"script-src": "'self'", "style-src": "'unsafe-inline'", "img-src": "data:", "frame-ancestors": "'self'"}
    frame["sandbox"] = "allow-scripts"
    assert policy == none | (frame if path in {"ui/frame.html", "ui/frame.js"} else page | more)
    headers = ("Referrer-Policy", "X-Content-Type-Options", "Cross-Origin-Opener-Policy", "Cache-Control")
    assert [answer.headers[header] for header in headers] == ["no-referrer", "nosniff", "same-origin", "no-cache"]
    shared = "cross-origin" if path == "ui/frame.js" else "same-origin"
    assert answer.headers["Cross-Origin-Resource-Policy"] == shared


def test_the_files_have_their_media_types(gateway: Gateway) -> None:
    kinds = {"": "text/html", "admin.css": "text/css", "main.js": "text/javascript", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        answer = raw(gateway, "GET", f"/admin/{name}", headers=())
        assert answer.headers["Content-Type"].partition(";")[0] == kind


def test_the_served_files_are_those_of_the_folder_and_stay_small() -> None:
    contents = {path.read_bytes() for path in WEB.rglob("*") if path.is_file()}
    assert contents == {file.content for file in FILES.values()}
    for page, most in SIZE_MAX.items():
        assert sum(len(file.content) for file in PAGES[page].values()) < most


def test_a_file_that_has_not_changed_is_not_sent_again(gateway: Gateway) -> None:
    first = raw(gateway, "GET", "/admin/main.js", headers=())
    again = raw(gateway, "GET", "/admin/main.js", headers=(("If-None-Match", first.headers["ETag"]),))
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    other = raw(gateway, "GET", "/admin/api.js", headers=(("If-None-Match", first.headers["ETag"]),))
    assert (other.status_code, other.content) == (200, FILES["admin/api.js"].content)


def test_head_returns_the_headers_of_every_file(gateway: Gateway) -> None:
    for path, file in FILES.items():
        answer = raw(gateway, "HEAD", f"/{path}", headers=())
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["Content-Length"] == str(len(file.content))


@pytest.mark.parametrize("page", PAGES)
def test_the_path_without_a_slash_redirects_to_the_page(gateway: Gateway, page: str) -> None:
    for method in ("GET", "HEAD"):
        answer = raw(gateway, method, f"/{page}", headers=())
        assert (answer.status_code, answer.headers["Location"]) == (302, f"{page}/")


@pytest.mark.parametrize(
    "name",
    [
        *("admin.html", "nothing.js", "main.js/", "MAIN.JS", "main.js%00", "main.js%20", "main.js~", ".", ".."),
        *("admin/main.js", "../config.py", "..%2fconfig.py", "%2e%2e/config.py", "..%5cconfig.py", "....//config.py"),
        *("%252e%252e%252fconfig.py", "/etc/passwd", "%2fetc%2fpasswd", "../../../../../../etc/passwd"),
    ],
)
def test_no_other_file_is_served(gateway: Gateway, name: str) -> None:
    assert raw(gateway, "GET", "/admin/main.js", headers=()).status_code == 200  # the control
    answer = raw(gateway, "GET", f"/admin/{name}", headers=())
    assert failure(answer) == (404, "SB022")
    assert answer.headers["Content-Security-Policy"].endswith("sandbox")


def test_methods_that_write_are_refused(gateway: Gateway) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert failure(raw(gateway, method, "/admin/", headers=())) == (405, "SB023")


def test_the_files_are_the_same_with_and_without_a_key(gateway: Gateway) -> None:
    gateway.call("GET", "/v1/sessions")
    for path in FILES:
        with_key, without = raw(gateway, "GET", f"/{path}"), raw(gateway, "GET", f"/{path}", headers=())
        assert with_key.content == without.content
        assert not any(secret.encode() in without.content for secret in KEYS.values())


class Markup(HTMLParser):
    """Collects markup that the policy would refuse, or that loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag in {"script", "style"}
        for name, value in attrs:
            if name == "style" or name.startswith("on") or (name in {"src", "href"} and ":" in (value or "")):
                self.refused.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.refused.append(data)


def refused(html: str) -> list[str]:
    markup = Markup()
    markup.feed(html)
    return markup.refused


def test_the_page_needs_no_exception_from_its_policy() -> None:
    assert refused(FILES["admin/"].content.decode()) == []
    assert refused(FILES["ui/"].content.decode()) == []
    for bad in (
        "<script>1</script>",
        "<p style='x'>",
        "<p onclick='x'>",
        "<script src='https://x/y.js'>",
        "<a href='javascript:x'>",
    ):
        assert refused(bad)


def test_the_scripts_make_no_markup_from_text_and_import_only_one_another() -> None:
    banned = re.compile(
        r"\.(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage\.|srcdoc"
    )
    for path, file in FILES.items():
        if path.endswith(".js"):
            code = file.content.decode()
            assert not banned.search(code)
            page = path.partition("/")[0]
            imported = {posixpath.normpath(f"{page}/{name}") for name in re.findall(r' from "([^"]+)"', code)}
            assert imported <= set(FILES)
            assert page == "ui" or all(name.startswith("admin/") for name in imported)
    assert banned.search('node.innerHTML = "x"')
