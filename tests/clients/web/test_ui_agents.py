"""An agent's cells in gVisor, over HTTP, MCP, Jupyter and E2B, are followed on the session page, and stay inert."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests import gateways
from tests.clients.web.conftest import LOOKS, SessionPage
from tests.clients.web.test_ui_hostile import HTML, PAYLOAD, SVG
from tests.gateways import Gateway
from tests.kernel_gateway import e2b, jupyter, mcp

pytestmark = [pytest.mark.browser, pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway whose kernels run in gVisor."""
    with gateways.gateway("docker") as serving:
        yield serving


#: a cell of each client of an agent
PLOT = "sales.plot.bar(x='city', figsize=(5, 2.4)); plt.show()"
TABLE = (
    "import matplotlib.pyplot as plt\nimport pandas as pd\n"
    "sales = pd.DataFrame({'city': ['Oslo', 'Rome', 'Kyiv'], 'sales': [120, 80, 95.5]})\nsales"
)
ASKS = "name = input('Whose report? ')\nprint('Report of', name)"
BUG = "def mean(rows):\n    total = sum(rows)\n    return total / (len(rows) - 3)\nmean(list(sales['sales']))"


async def _over_jupyter(gateway: Gateway, kernel: str) -> None:
    async with jupyter.connected(gateway, kernel) as client:
        await client.execute(ASKS, allow_stdin=True)


def test_an_agents_cells_of_every_dialect_are_followed_answered_and_debugged(
    session_pages: Callable[..., SessionPage], artifacts: Path | None
) -> None:
    page = session_pages(**LOOKS["light"])
    gateway = page.gateway
    name = gateway.call("POST", "/api/kernels", json={}).json()["id"]
    page.sign_in(name)
    gateway.execute(name, TABLE, timeout=120)  # over HTTP
    expect(page.cell(1).frame_locator("iframe").get_by_role("cell", name="Oslo")).to_be_visible()
    wire = mcp.modern("tools/call", name="run_code", arguments={"session": name, "code": PLOT})
    assert mcp.send(gateway, wire).status_code == 200
    expect(page.cell(2).locator("img")).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    asking = threading.Thread(target=lambda: asyncio.run(_over_jupyter(gateway, name)))
    asking.start()
    page.cell(3).get_by_label("Whose report?").fill("Ada")
    page.press("Send", page.cell(3))
    expect(page.cell(3).locator(".outputs")).to_contain_text("Report of Ada")
    asking.join()
    gateway.execute(name, BUG)
    expect(page.cell(4).locator(".failure")).to_contain_text("ZeroDivisionError")
    page.page.get_by_role("heading", name="Debugger").click()
    expect(page.page.get_by_text("ZeroDivisionError: float division by zero. These were its frames.")).to_be_visible()
    expect(page.rows("Variables of the frame").filter(has_text="total")).to_contain_text("295.5")
    page.code.fill(BUG)
    page.code.press("ArrowUp")  # to line 3
    page.code.press("F9")
    page.press("Debug")
    expect(page.page.get_by_text("The cell stands in line 3 (breakpoint).")).to_be_visible()
    page.page.get_by_label("Expression").fill("len(rows)")
    page.press("Evaluate")
    expect(page.page.locator("details").get_by_text("3   (int)")).to_be_visible()
    _take(page, artifacts, "debugged-light")
    page.press("End cell")
    expect(page.page.get_by_text("The debugged cell has ended.")).to_be_visible()
    for look in ("dark", "narrow"):
        other = session_pages(**LOOKS[look])
        other.sign_in(f"{name}/cell-2")
        expect(other.cell(2).locator("img")).to_be_visible()
        _take(other, artifacts, f"followed-{look}")
    gateway.call("DELETE", f"/api/kernels/{name}")


def test_cells_of_an_e2b_sandbox_are_followed_and_hostile_ones_stay_inert(
    session_page: SessionPage, artifacts: Path | None
) -> None:
    page, gateway = session_page.page, session_page.gateway
    before = {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]}
    with e2b.boxed(gateway) as box:
        assert box.text("6 * 7") == "42"
        session_page.sign_in()
        rows = session_page.rows("Sessions").filter(has_text="6 * 7")
        rows.get_by_role("link").click()
        expect(session_page.cell(1).locator(".outputs")).to_contain_text("42")
        assert page.get_by_role("heading", level=1).inner_text() not in before
        code = (
            f"from IPython.display import HTML, SVG, display\ndisplay(HTML({HTML!r}), SVG({SVG!r}))\nprint({PAYLOAD!r})"
        )
        box.run(code)
        shown = session_page.cell(2)
        expect(shown.locator("pre.stdout")).to_have_text(f"{PAYLOAD}\n")
        expect(shown.frame_locator("iframe").get_by_text("still here")).to_be_visible()
        page.wait_for_timeout(500)  # for what a script would do
        assert page.evaluate("window.ran ?? null") is None
        _take(session_page, artifacts, "hostile-light")
    session_page.problems.clear()  # the browser tells what the frame's policy has refused


def _take(page: SessionPage, artifacts: Path | None, name: str) -> None:
    """Keep a picture."""
    if artifacts is not None:
        page.page.screenshot(path=artifacts / f"ui-sandboxed-{name}.png")
