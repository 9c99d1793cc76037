"""Looks of the pages: readable in light and dark, never wider than a phone; pictures with `--artifacts`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.clients.web.conftest import LOOKS, AdminPage, SessionPage
from tests.clients.web.fake import FakeProviders

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: finds text with too little contrast to its background. Source: WCAG 2.2, 1.4.3 and its relative luminance.
PALE = """() => {
  const parts = (color) => {
    const [r, g, b, a = 1] = color.match(/[0-9.]+/g).map(Number);
    return color.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, index) => sum + v * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || element.value;
    if (!says || !element.checkVisibility()) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.tagName} ${element.textContent.slice(0, 40)}`);
  }
  return found;
}"""
#: finds controls without an accessible name
NAMELESS = """() => [...document.querySelectorAll("button, a, input, select, textarea, iframe, img")]
  .filter((it) => it.checkVisibility() && !(it.textContent.trim() || it.labels?.length || it.ariaLabel || it.title))
  .filter((it) => it.alt == null || it.tagName !== "IMG")
  .map((it) => it.outerHTML)"""


def with_alerts(overview: dict[str, Any]) -> dict[str, Any]:
    """Return an overview with an alert of each level."""
    alert = {"summary": "It is full.", "action": "Make room.", "seconds": 90}
    levels = ("critical", "warning")
    return overview | {"alerts": [alert | {"name": f"KernelGateway{level}", "severity": level} for level in levels]}


@pytest.mark.parametrize("look", LOOKS)
def test_every_section_can_be_read(pages: Callable[..., AdminPage], artifacts: Path | None, look: str) -> None:
    admin_page = pages(**LOOKS[look])
    page, gateway = admin_page.page, admin_page.gateway
    for tenant, session in (("alice", "report-2026"), ("alice", "scratch"), ("bob", "etl")):
        gateway.execute(session, "print('x' * 5000)", tenant=tenant)
    gateway.execute("etl", "1/0", tenant="bob")

    def look_at(name: str) -> None:
        if artifacts is not None:
            page.screenshot(path=artifacts / f"admin-{name}-{look}.png", full_page=True)
        assert page.evaluate(PALE) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")

    admin_page.open()
    admin_page.enter("not-a-key")
    expect(page.get_by_role("status")).to_contain_text("SB020")
    look_at("sign-in")

    admin_page.answer("v1/admin/overview", with_alerts(admin_page.ask("GET", "/v1/admin/overview").json()))
    fake = FakeProviders(page)
    fake.kept |= {"endpoint": "https://works.example", "api_key": "the-secret-wxyz", "token": "the-token-abcd"}
    fake.active = "full"
    admin_page.sign_in("overview")
    expect(page.get_by_text("It is full.")).to_have_count(2)
    look_at("overview")

    admin_page.go("Providers")
    full = page.locator("details[data-provider=full]")
    full.get_by_label("Timeout").fill("301")
    admin_page.press("Save", full)
    expect(full.locator("[data-field=timeout] .problem")).to_be_visible()
    look_at("providers")

    admin_page.go("Sessions")
    expect(admin_page.rows("Sessions")).to_have_count(3)
    look_at("sessions")
    admin_page.press("End", admin_page.row("Sessions", "scratch"))
    look_at("dialog")
    admin_page.press("Cancel")
    page.get_by_label("Filter").fill("nothing like it")
    look_at("empty")

    admin_page.go("Tenants and keys")
    expect(admin_page.rows("Tenants").first).to_be_visible()
    page.get_by_role("form", name="New key").get_by_label("Tenant").fill("team-a")
    admin_page.press("Make key")
    expect(page.get_by_label("The new key")).to_be_visible()
    look_at("tenants")
    admin_page.press("Limits", admin_page.row("Tenants", "alice"))
    expect(page.get_by_role("dialog")).to_be_visible()
    look_at("limits")
    admin_page.press("Cancel", page.get_by_role("dialog"))

    for section, table in (("Usage", "Usage"), ("Audit", "Executions")):
        admin_page.go(section)
        expect(admin_page.rows(table).first).to_be_visible()
        look_at(section.lower())


#: cells with all that the session page shows
CELLS = (
    "import pandas as pd\nsales = pd.DataFrame({'city': ['Oslo', 'Rome', 'Kyiv'], 'sales': [120, 80, 95.5]})\nsales",
    "import matplotlib.pyplot as plt\nsales.plot.bar(x='city', figsize=(5, 2.4)); plt.show()",
    "import sys\nprint('\\x1b[32mgreen\\x1b[0m \\x1b[38;5;226myellow\\x1b[0m \\x1b[48;5;19mblue\\x1b[0m')\n1 / 0",
    "from tqdm import tqdm\nfor _ in tqdm(range(50)): pass\nanswer = input('Shall it go on? ')",
)


@pytest.mark.parametrize("look", LOOKS)
def test_the_session_page_can_be_read(
    session_pages: Callable[..., SessionPage], artifacts: Path | None, look: str
) -> None:
    session_page = session_pages(**LOOKS[look])
    page, gateway, name = session_page.page, session_page.gateway, f"report-{look}"
    for code in CELLS[:3]:
        gateway.execute(name, code)

    def look_at(what: str) -> None:
        if artifacts is not None:
            page.screenshot(path=artifacts / f"ui-{what}-{look}.png")
        assert page.evaluate(PALE) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")

    session_page.open()
    look_at("sign-in")
    session_page.enter(session_page.key)
    expect(session_page.rows("Sessions").filter(has_text=name)).to_be_visible()
    look_at("sessions")
    page.get_by_role("link", name=name).click()
    session_page.run(CELLS[3])
    expect(session_page.cell(4).get_by_label("Shall it go on?")).to_be_visible()
    look_at("question")
    session_page.press("Send", session_page.cell(4))
    expect(session_page.cell(4)).to_contain_text("done")
    for panel in ("Debugger", "Variables", "Files", "Checkpoints"):
        page.get_by_role("heading", name=panel).click()
    session_page.press("sales")
    expect(page.get_by_role("heading", name="sales")).to_be_visible()
    look_at("panels")
    page.evaluate("scrollTo(0, 0)")
    expect(session_page.cell(1).locator("iframe")).to_be_visible()
    look_at("notebook")
    session_page.code.fill("sales.gro")
    session_page.code.press("Tab")
    look_at("code")
    session_page.code.fill("for row in range(3):\n    total = row * 2\nprint(total)")
    session_page.code.press("ArrowUp")
    session_page.code.press("F9")
    session_page.press("Debug")
    expect(page.get_by_text("The cell stands in line 2")).to_be_visible()
    page.get_by_role("heading", name="Debugger").scroll_into_view_if_needed()
    look_at("debugger")
    session_page.press("End cell")


def test_the_session_page_is_used_by_the_keyboard_alone(session_page: SessionPage) -> None:
    page, name = session_page.page, "keyboard"
    session_page.gateway.execute(name, "1")
    session_page.open()
    page.keyboard.type(session_page.key)  # the place for the key has the focus
    page.keyboard.press("Enter")
    link = page.get_by_role("link", name=name)
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name, level=1)).to_be_focused()
    session_page.code.focus()
    page.keyboard.type("'typed'")
    page.keyboard.press("Control+Enter")
    expect(session_page.cell(2)).to_contain_text("typed")
    expect(session_page.code).to_be_focused()
    expect(page.get_by_role("article", name="Cell 2, done")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Cell 2: done")).to_have_count(1)  # read out
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")  # the editor does not hold the focus
    expect(session_page.code).not_to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("details[open]")).to_have_count(1)


def test_unreadable_text_and_nameless_controls_would_be_found(admin_page: AdminPage) -> None:
    admin_page.open()
    assert admin_page.page.evaluate(PALE) == []
    admin_page.page.evaluate("""() => {
        document.querySelector("h1").style.color = "rgb(150, 150, 150)";
        document.querySelector("button.main").replaceChildren();
    }""")
    assert len(admin_page.page.evaluate(PALE)) == 1
    assert len(admin_page.page.evaluate(NAMELESS)) == 1
