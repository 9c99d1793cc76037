"""Hostile outputs, names and files of sessions are shown inertly, and load nothing from elsewhere."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.clients.browsers import URL
from tests.clients.web.conftest import SessionPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: what a script would do that runs anywhere: the page's own `ran`, and a request that the test would see
EVIL = "try{parent.ran=top.ran=1}catch(e){};new Image().src='/stolen?'+document.cookie;fetch('/stolen')"
SVG = f"<svg xmlns='http://www.w3.org/2000/svg' width='20' height='20' onload=\"{EVIL}\"><script>{EVIL}</script></svg>"
HTML = f"""
<script>{EVIL}</script><img src=x onerror="{EVIL}"><svg onload="{EVIL}"></svg>
<iframe src="javascript:{EVIL}"></iframe><iframe srcdoc="<script>{EVIL}</script>"></iframe>
<object data="/stolen"></object><embed src="/stolen"><link rel=stylesheet href="/stolen">
<link rel=dns-prefetch href=//evil.example>
<meta http-equiv=refresh content="0;url=/stolen"><base href="/stolen/">
<form action="/stolen"><button autofocus>x</button></form>
<a id=away href="/stolen" target=_top>away</a><a ping="/stolen" href="/stolen">ping</a>
<style>@import "/stolen"; body {{ background: url(/stolen) }} @font-face {{ font-family: f; src: url(/stolen) }}</style>
<video src="/stolen" poster="/stolen" autoplay></video><details open ontoggle="{EVIL}"><p>still here</p></details>
"""
PAYLOAD = "<img src=x onerror='window.ran=1'>"


@pytest.fixture
def name() -> str:
    return f"hostile-{secrets.token_hex(4)}"


@pytest.fixture
def stolen(session_page: SessionPage) -> list[str]:
    """The requests that hostile code has caused. What a policy blocks never comes so far."""
    found = list[str]()

    def note(route: Route) -> None:
        found.append(route.request.url)
        route.fulfill(body="")

    session_page.page.context.route(lambda url: "stolen" in url or not url.startswith(f"{URL}/"), note)
    return found


def shows(name: str, page: SessionPage, data: dict[str, Any]) -> None:
    """Display a bundle in a cell."""
    encoded = base64.b64encode(json.dumps(data).encode()).decode()
    code = f"import base64, json; display(json.loads(base64.b64decode('{encoded}')), raw=True)"
    page.gateway.execute(name, f"from IPython.display import display\n{code}")


def forgive_refusals(page: SessionPage) -> None:
    """Forget what the policies have refused: that is what they are for. Anything else stays a problem."""
    page.problems[:] = [
        problem
        for problem in page.problems
        if not any(
            word in problem for word in ("Content Security Policy", "sandboxed", "Refused", "violates", "blocked")
        )
    ]
    page.page.evaluate("window.violations = []")


@pytest.mark.gate
def test_hostile_html_runs_nothing_and_loads_nothing(session_page: SessionPage, name: str, stolen: list[str]) -> None:
    page = session_page.page
    session_page.sign_in(name)
    shows(name, session_page, {"text/html": HTML, "text/plain": "plain"})
    frame = session_page.cell(1).frame_locator("iframe")
    expect(frame.get_by_text("still here")).to_be_visible()
    expect(frame.locator("script, iframe, object, embed, link, meta, base, form")).to_have_count(3)  # the frame's own
    frame.get_by_text("away").click()
    page.wait_for_timeout(300)
    expect(frame.get_by_text("still here")).to_be_visible()
    assert page.url == f"{URL}/ui/#{name}"
    assert page.evaluate("window.ran") is None
    assert stolen == []
    forgive_refusals(session_page)


def test_the_payload_would_work_in_a_page_without_the_frame(session_page: SessionPage, stolen: list[str]) -> None:
    page = session_page.page
    page.route(f"{URL}/open", lambda route: route.fulfill(body=HTML, content_type="text/html"))
    page.goto(f"{URL}/open")
    page.wait_for_timeout(300)
    assert stolen
    session_page.problems.clear()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("image/svg+xml", SVG),
        ("image/png", f'AAAA" onerror="{EVIL}'),
        ("text/markdown", PAYLOAD),
        ("text/latex", PAYLOAD),
        ("application/json", {PAYLOAD: PAYLOAD}),
        ("application/javascript", EVIL),
        ("text/plain", PAYLOAD),
    ],
)
def test_other_displays_are_inert(
    session_page: SessionPage, name: str, stolen: list[str], kind: str, content: object
) -> None:
    session_page.sign_in(name)
    shows(name, session_page, {kind: content})
    expect(session_page.cell(1)).to_contain_text("done")
    expect(session_page.cell(1).locator(".outputs > :not(.hint)")).to_have_count(1)
    session_page.page.wait_for_timeout(200)
    assert session_page.cell(1).locator("script, iframe, svg").count() == 0
    assert session_page.page.evaluate("window.ran") is None
    assert stolen == []
    session_page.problems.clear()


def test_scripts_of_a_display_that_shows_nothing_else_are_named(session_page: SessionPage, name: str) -> None:
    session_page.sign_in(name)
    html = "<div id=plot></div><script>window.plotly = 1</script>"
    shows(name, session_page, {"text/html": html, "text/plain": "Figure()"})
    expect(session_page.cell(1)).to_contain_text("A display that needs scripts")
    expect(session_page.cell(1)).to_contain_text("Figure()")


def test_code_errors_prompts_and_escapes_are_text(session_page: SessionPage, name: str, stolen: list[str]) -> None:
    gateway = session_page.gateway
    session_page.sign_in(name)
    gateway.execute(name, f"# {PAYLOAD}\nprint({PAYLOAD!r})\nraise ValueError({PAYLOAD!r})")
    expect(session_page.cell(1)).to_contain_text(f"ValueError: {PAYLOAD}")
    gateway.execute(
        name, r"print('\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07 \x1b[999999A\x1b[999999Cfar\x1b[38;2;1')"
    )
    expect(session_page.cell(2)).to_contain_text("link")
    assert session_page.cell(2).locator(".outputs a").count() == 0
    session_page.run(f"input({PAYLOAD!r})")
    expect(session_page.cell(3).get_by_role("form")).to_contain_text(PAYLOAD)
    assert session_page.page.locator("main img").count() == 0
    assert session_page.page.evaluate("window.ran") is None
    assert stolen == []


def test_hostile_names_of_sessions_and_languages_are_text(session_page: SessionPage) -> None:
    """The gateway's own rules would refuse such names; a fake feed sends them all the same."""
    page = session_page.page
    session: dict[str, Any] = {
        "id": PAYLOAD,
        "state": PAYLOAD,
        "created_at": "2026-11-21T10:00:00Z",
        "memory_bytes": None,
        "cells": 1,
    }
    session |= {"last": {"code": PAYLOAD, "state": PAYLOAD}, "can_sleep": False, "language": PAYLOAD}
    names = [PAYLOAD, "javascript:window.ran=1", "</td></tr></table><h1>gone", "\u202eevil", "__proto__"]
    frame = json.dumps({"type": "sessions", "sessions": [session | {"name": name} for name in names]})
    page.route_web_socket("**/ui/feed", lambda socket: socket.send(frame))
    session_page.sign_in()
    expect(session_page.rows("Sessions")).to_have_count(len(names))
    for link in session_page.rows("Sessions").get_by_role("link").all():
        assert (link.get_attribute("href") or "").startswith("#")
    assert page.locator("main img, main h1").count() == 1
    assert page.evaluate("window.ran") is None


def test_hostile_files_and_variables_are_text(session_page: SessionPage, name: str, stolen: list[str]) -> None:
    gateway, page = session_page.gateway, session_page.page
    gateway.execute(name, f"class Evil:\n    __repr__ = lambda _: {PAYLOAD!r}\nevil, text = Evil(), {PAYLOAD!r}")
    gateway.call("PUT", f"/v1/sessions/{name}/files/a.svg", data=SVG.encode())
    gateway.call(
        "PUT", f"/v1/sessions/{name}/files/%3Cimg%20src=x%20onerror='window.ran=1'%3E.html", data=HTML.encode()
    )
    session_page.sign_in(name)
    page.get_by_role("heading", name="Files").click()
    rows = session_page.rows("Files")
    expect(rows).to_have_count(2)
    session_page.press("Open", rows.filter(has_text="a.svg"))
    expect(page.locator(".detail img")).to_be_visible()
    session_page.press("Open", rows.filter(has_text=".html"))
    expect(page.locator(".detail pre")).to_contain_text("<script>")
    page.get_by_role("heading", name="Variables").click()
    expect(session_page.rows("Variables").filter(has_text="text")).to_contain_text(PAYLOAD)
    session_page.press("evil")
    expect(page.get_by_role("heading", name="evil")).to_be_visible()
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert stolen == []


def test_the_frames_document_can_be_framed_by_the_page_alone(session_page: SessionPage) -> None:
    answer = session_page.gateway.call("GET", "/ui/frame.html", tenant=None)
    assert "frame-ancestors 'self'" in answer.headers["Content-Security-Policy"]
    page: Page = session_page.page
    page.route(
        f"{URL}/other", lambda route: route.fulfill(body="<iframe src='/ui/'></iframe>", content_type="text/html")
    )
    page.goto(f"{URL}/other")
    page.wait_for_load_state()
    assert "Sign in" not in "".join(inner.content() for inner in page.frames)
    session_page.problems.clear()
