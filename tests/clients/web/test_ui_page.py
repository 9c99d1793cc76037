"""The session page in a real browser, with real kernels whose cells come from clients of several dialects."""

from __future__ import annotations

import re
import secrets
import threading

import pytest
from playwright.sync_api import expect

from tests.clients.web.conftest import SessionPage
from tests.gateways import KEYS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def name() -> str:
    """A name of a session."""
    return f"ui-{secrets.token_hex(4)}"


def test_a_tenants_key_signs_in_and_is_stored_nowhere(session_page: SessionPage) -> None:
    page = session_page.page
    session_page.open()
    for key, told in (("not-a-key-at-all", "SB020"), ("ключ", "This is no key.")):
        session_page.enter(key)
        expect(page.get_by_role("status")).to_contain_text(told)
        expect(page.get_by_role("navigation")).to_be_hidden()
    session_page.enter(session_page.key)
    expect(page.get_by_role("heading", name="Sessions", level=1)).to_be_visible()
    kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
    assert page.evaluate(kept) == '[{},{},"","http://localhost:8888/ui/",null]'
    assert session_page.key not in page.content()
    session_page.press("Sign out")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_sessions_are_listed_live_and_only_the_tenants_own(session_page: SessionPage, name: str) -> None:
    gateway = session_page.gateway
    session_page.sign_in()
    gateway.execute(name, "answer = 6 * 7\nanswer")  # it appears without a reload
    gateway.execute(f"{name}-bob", "1", tenant="bob")
    row = session_page.rows("Sessions").filter(has_text=name)
    expect(row).to_have_count(1)
    expect(row).to_contain_text("idle")
    expect(row).to_contain_text("answer = 6 * 7")
    gateway.call("DELETE", f"/v1/sessions/{name}")
    expect(row).to_have_count(0)


def test_a_notebook_grows_while_cells_of_other_clients_run(session_page: SessionPage, name: str) -> None:
    gateway = session_page.gateway
    session_page.sign_in(name)
    expect(session_page.page.get_by_text("There is no session of this name.")).to_be_visible()
    code = "import time\nprint('begun', flush=True)\nwhile not __import__('os').path.exists('go'): time.sleep(0.05)"
    running = threading.Thread(target=gateway.execute, args=(name, code))
    running.start()
    first = session_page.cell(1)
    expect(first).to_contain_text("running")
    expect(first.locator(".outputs")).to_contain_text("begun")
    gateway.call("PUT", f"/v1/sessions/{name}/files/go", data=b"")
    expect(first).to_contain_text("done")
    running.join()
    gateway.execute(name, "1 / 0")
    failed = session_page.cell(2).locator(".failure")
    expect(failed).to_contain_text("ZeroDivisionError")
    assert failed.locator("[class*=fg]").count() > 0  # colours
    expect(session_page.cell(2)).to_contain_text("failed")
    expect(session_page.cell(2).get_by_role("link", name="Link to cell 2")).to_have_text("[2]")


def test_a_progress_bar_is_shown_as_a_terminal_shows_it(session_page: SessionPage, name: str) -> None:
    session_page.sign_in(name)
    bar = "for done in range(101): print(f'\\r{done:3} %', end='', flush=True)\nprint('\\n\\x1b[1mready\\x1b[0m')"
    session_page.gateway.execute(name, bar)
    expect(session_page.cell(1).locator("pre.stdout")).to_have_text("100 %\nready\n")
    expect(session_page.cell(1).locator("span.bold")).to_have_text("ready")


def test_plots_are_pictures_and_tables_are_in_frames(session_page: SessionPage, name: str) -> None:
    session_page.sign_in(name)
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]); plt.show()"
    session_page.gateway.execute(name, plot)
    picture = session_page.cell(1).locator("img")
    expect(picture).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    session_page.gateway.execute(name, "import pandas as pd\npd.DataFrame({'city': ['Oslo'], 'sales': [120]})")
    frame = session_page.cell(2).frame_locator("iframe")
    expect(frame.get_by_role("cell", name="Oslo")).to_be_visible()
    element = session_page.cell(2).locator("iframe")
    assert element.get_attribute("sandbox") == "allow-scripts"
    assert element.evaluate("frame => frame.contentDocument") is None  # an origin of its own


def test_code_is_run_completed_and_recalled_and_input_is_answered(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.sign_in(name)
    session_page.run("import math\nvalue = math.sqrt(49)\nvalue")
    expect(session_page.cell(1).locator(".outputs")).to_contain_text("7.0")
    session_page.code.fill("math.sqr")
    session_page.code.press("Tab")
    expect(session_page.code).to_have_value(re.compile("^math.sqrt"))
    session_page.code.fill("math.co")
    session_page.code.press("Tab")
    expect(page.get_by_role("option", name=re.compile("copysign"))).to_be_visible()
    session_page.code.press("Escape")
    session_page.code.fill("")
    session_page.code.press("ArrowUp")
    expect(session_page.code).to_have_value("import math\nvalue = math.sqrt(49)\nvalue")
    session_page.run("print('Hello', input('Who? '))")
    asked = session_page.cell(2).get_by_role("form")
    asked.get_by_label("Who?").fill("Ada")
    session_page.press("Send", asked)
    expect(session_page.cell(2).locator(".outputs")).to_contain_text("Hello Ada")
    expect(asked).to_have_count(0)


def test_cells_are_interrupted_and_the_session_is_restarted_and_ended(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.sign_in(name)
    session_page.run("kept = 1\nimport time\nprint('begun', flush=True)\ntime.sleep(300)")
    expect(session_page.cell(1)).to_contain_text("begun")
    session_page.press("Interrupt")
    expect(session_page.cell(1)).to_contain_text("KeyboardInterrupt")
    session_page.press("Restart")
    session_page.press("Restart kernel")
    expect(page.get_by_role("status").filter(has_text="fresh kernel")).to_be_visible()
    session_page.run("'kept' in globals()")
    expect(session_page.cell(2)).to_contain_text("False")
    expect(session_page.cell(2)).to_contain_text("The kernel was restarted")
    with page.expect_download() as download:
        session_page.press("Download notebook")
    assert download.value.suggested_filename == f"{name}.ipynb"
    assert "time.sleep(300)" in download.value.path().read_text()
    session_page.press("End")
    session_page.press("End session")
    expect(page.get_by_role("heading", name="Sessions", level=1)).to_be_visible()
    assert session_page.gateway.call("GET", f"/v1/sessions/{name}").status_code == 404


def test_a_link_leads_to_one_cell(session_page: SessionPage, name: str) -> None:
    for number in range(1, 41):
        session_page.gateway.execute(name, f"print('line\\n' * 20)\n{number}")
    session_page.sign_in(f"{name}/cell-7")
    expect(session_page.cell(7)).to_be_in_viewport()
    expect(session_page.cell(7)).to_be_focused()
    expect(session_page.cell(7).locator(".outputs")).to_contain_text("line")


def test_a_page_of_another_tenant_sees_nothing(session_page: SessionPage, name: str) -> None:
    session_page.gateway.execute(name, "print('secret')")
    session_page.key = KEYS["bob"]
    session_page.sign_in(name)
    expect(session_page.page.get_by_text("There is no session of this name.")).to_be_visible()
    assert "secret" not in session_page.page.content()
