"""Hostile names and outputs stay text, and the page's policy holds where the page itself would fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.clients.browsers import URL
from tests.clients.web.conftest import AdminPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PAYLOAD = "<img src=x onerror='window.ran=1'>"
NAMES = [
    PAYLOAD,
    "<script>window.ran = 1</script>",
    "javascript:window.ran=1",
    "</td></tr></table><h1>gone",
    "\u202eevil\u2066",
    "שלום עולם",
    "🦊" * 40,
    "x" * 500,
    "a\u0301" * 60,
    "constructor",
    "__proto__",
]
SECTIONS = ("overview", "sessions", "tenants", "usage", "audit", "providers")
WHEN = "2026-11-21T10:00:00Z"


def seem_hostile(admin_page: AdminPage) -> None:
    """Fill every answer with hostile names. The server's own rules would refuse most of them."""
    session = {"language": PAYLOAD, "state": "idle", "created_at": WHEN, "idle_seconds": 1}
    sessions = [session | {"tenant": name, "name": name, "memory_bytes": None, "executions": 1} for name in NAMES]
    sessions[0]["state"] = PAYLOAD
    admin_page.answer("v1/admin/sessions", {"sessions": sessions})
    used = dict.fromkeys(("cells", "cell_seconds", "output_bytes", "memory_gib_hours", "disk_gib_hours"), 1)
    admin_page.answer("v1/admin/usage*", {"tenants": [used | {"tenant": name} for name in NAMES]})
    nothing = {"used": 1, "max": None}
    alerts = [{"name": name, "severity": PAYLOAD, "summary": name, "action": name, "seconds": 1} for name in NAMES]
    state = {"ready": False, "trouble": {"code": PAYLOAD, "message": "x" * 300, "resolution": PAYLOAD}}
    abilities = {name: {"on": False, "detail": "x" * 300} for name in ("golden_images", "sleep")}
    room = dict.fromkeys(("state_disk", "sleep_disk", "memory"), nothing)
    counts = {"sessions": {PAYLOAD: 1}, "sandboxes": 1, "warm_kernels": 1}
    admin_page.answer("v1/admin/overview", state | abilities | room | counts | {"alerts": alerts})
    names = ("sessions", "executions", "queued", "execution_seconds", "output_bytes", "upload_bytes")
    limit = {"value": NAMES, "most": NAMES, "source": "admin"}
    limits = dict.fromkeys(("sessions", "memory", "cpus", "disk", "timeout", "images", "egress"), limit)
    tenants = [{"tenant": name, "limits": limits} | dict.fromkeys(names, nothing) for name in NAMES]
    admin_page.answer("v1/admin/tenants", {"tenants": tenants, "window": 3600})
    keys = [{"id": name, "tenant": name, "role": PAYLOAD, "created_at": WHEN} for name in NAMES]
    admin_page.answer("v1/admin/keys", {"keys": keys})
    ran = {"language": PAYLOAD, "outcome": PAYLOAD, "error": PAYLOAD, "began_at": WHEN, "ended_at": WHEN}
    executions: list[dict[str, Any]] = [
        ran | {"seq": seq, "tenant": name, "session": name, "code_sha256": name} for seq, name in enumerate(NAMES)
    ]
    admin_page.answer("v1/admin/audit?*", {"executions": executions, "next": None})
    fields = {
        name: {"type": "string", "label": name, "description": name, "placeholder": name, "options": options}
        for name, options in ((PAYLOAD, []), ("constructor", NAMES), ("x" * 300, []))
    }
    provider = {"name": PAYLOAD, "description": PAYLOAD, "config_schema": fields, "supported_languages": NAMES}
    admin_page.answer("api/admin/sandbox/providers", {"data": [provider | {"id": "it"}]})
    admin_page.answer("api/admin/sandbox/config", {"data": {"active": "it", "it": {PAYLOAD: PAYLOAD}}})


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("section", SECTIONS)
def test_hostile_names_are_shown_as_text(pages: Callable[..., AdminPage], section: str, width: int) -> None:
    admin_page = pages(viewport={"width": width, "height": 800})
    page = admin_page.page
    seem_hostile(admin_page)
    admin_page.sign_in(section)
    expect(admin_page.section).to_contain_text(PAYLOAD)
    assert page.locator("main img, main script, main iframe").count() == 0
    assert page.locator("h1").count() == len(SECTIONS)
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    if section == "sessions":
        expect(admin_page.rows("Sessions")).to_have_count(len(NAMES))
        long = admin_page.page.get_by_title("x" * 500).first
        expect(long).to_have_text("x" * 500)
        assert long.evaluate("element => element.scrollWidth > element.clientWidth")  # cut off, the rest on hover
        height = admin_page.rows("Sessions").first.evaluate("row => row.offsetHeight")
        assert height < (80 if width > 1000 else 400)
        assert long.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"


@pytest.mark.gate
def test_a_session_with_a_hostile_name_is_confirmed_and_ended_by_that_name(admin_page: AdminPage) -> None:
    seem_hostile(admin_page)
    asked = list[str]()

    def end(route: Route) -> None:
        asked.append(route.request.url)
        error = {"code": "SB011", "message": PAYLOAD, "resolution": PAYLOAD, "details": {}}
        route.fulfill(status=404, json={"error": error})

    admin_page.page.route(f"{URL}/v1/admin/sessions/**", end)
    admin_page.sign_in("sessions")
    row = admin_page.rows("Sessions").filter(has_text="</td>")
    admin_page.press("End", row)
    expect(admin_page.page.get_by_role("alertdialog")).to_contain_text("</td></tr></table><h1>gone of </td>")
    admin_page.press("End session")
    expect(admin_page.section.get_by_role("status")).to_contain_text(PAYLOAD)
    name = "%3C%2Ftd%3E%3C%2Ftr%3E%3C%2Ftable%3E%3Ch1%3Egone"
    assert asked == [f"{URL}/v1/admin/sessions/{name}/{name}"]
    assert admin_page.page.evaluate("window.ran") is None


INJECTED = (
    "<script>window.ran = 'script'</script><img src=x onerror=\"window.ran = 'handler'\"><p id=red style='color: red'>"
)


@pytest.mark.parametrize("policy", ["as it is", "none"])
def test_injected_markup_does_not_run_under_the_policy(pages: Callable[..., AdminPage], policy: str) -> None:
    admin_page = pages()
    page = admin_page.page

    def inject(route: Route) -> None:
        answer = admin_page.gateway.call("GET", "/admin/", tenant=None)
        names = {"Content-Type"} if policy == "none" else {"Content-Type", "Content-Security-Policy"}
        headers = {name: answer.headers[name] for name in names}
        route.fulfill(headers=headers, body=answer.text.replace("</header>", "</header>" + INJECTED))

    page.route(f"{URL}/admin/", inject)
    admin_page.open()
    page.wait_for_load_state()
    ran = {page.evaluate("window.ran"), page.evaluate("getComputedStyle(document.getElementById('red')).color")}
    became_markup = page.evaluate("""() => {
        try { document.body.insertAdjacentHTML("beforeend", "<i>markup</i>") } catch (error) { return error.name }
        return "markup";
    }""")
    violations = page.evaluate("window.violations.splice(0).map((line) => line.split(' ')[0])")
    if policy == "none":
        assert ran == {"handler", "rgb(255, 0, 0)"}
        assert (became_markup, violations) == ("markup", [])
    else:
        assert None in ran
        assert "rgb(255, 0, 0)" not in ran
        assert became_markup == "TypeError"
        assert {"script-src-elem", "script-src-attr", "style-src-attr", "require-trusted-types-for"} <= set(violations)
        assert admin_page.problems
    admin_page.problems.clear()


def test_no_other_page_can_frame_the_admin_page(pages: Callable[..., AdminPage]) -> None:
    admin_page = pages()
    page = admin_page.page
    frame = "<iframe src='/admin/'></iframe>"
    page.route(f"{URL}/other", lambda route: route.fulfill(body=frame, content_type="text/html"))
    page.goto(f"{URL}/other")
    page.wait_for_load_state()
    assert "Sign in" not in "".join(inner.content() for inner in page.frames)
    assert any("frame-ancestors" in problem for problem in admin_page.problems)
    admin_page.problems.clear()
