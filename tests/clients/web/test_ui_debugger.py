"""The debugger on the session page, with a real debugger: breakpoints, steps, frames, and what ended a failed cell."""

from __future__ import annotations

import secrets

import pytest
from playwright.sync_api import Locator, expect

from tests.clients.web.conftest import SessionPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

AREA = """def area(w, h):
    product = w * h
    return product

for i in range(5):
    x = area(i, 2)
print('done', x)"""


@pytest.fixture
def name() -> str:
    return f"debug-{secrets.token_hex(4)}"


def said(page: SessionPage, text: str) -> None:
    expect(panel(page).get_by_role("status").filter(has_text=text)).to_be_visible()


def panel(page: SessionPage) -> Locator:
    return page.page.locator("details").filter(has=page.page.get_by_role("heading", name="Debugger"))


def set_breakpoint(page: SessionPage, line: int) -> None:
    """Set it with the keyboard alone."""
    page.code.press("Control+Home")
    for _ in range(line - 1):
        page.code.press("ArrowDown")
    page.code.press("F9")


def value(page: SessionPage, name: str) -> Locator:
    return page.rows("Variables of the frame").filter(has=page.page.get_by_text(name, exact=True)).locator("td").last


def test_a_cell_is_debugged_on_the_page(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.sign_in(name)
    session_page.code.fill(AREA)
    set_breakpoint(session_page, 3)
    page.get_by_label("Line 3, if").fill("w == 3")
    session_page.press("Debug")
    said(session_page, "The cell stands in line 3 (breakpoint).")
    expect(page.locator(".gutter .stopped")).to_have_text("3")
    expect(session_page.cell(1)).to_contain_text("running")
    expect(value(session_page, "product")).to_have_text("6")
    frames = panel(session_page).get_by_role("list", name="Frames").get_by_role("button")
    expect(frames).to_have_count(2)
    panel(session_page).get_by_label("Expression").fill("product * 7")
    session_page.press("Evaluate")
    expect(panel(session_page).get_by_text("42", exact=False).last).to_be_visible()
    frames.nth(1).click()
    expect(value(session_page, "i")).to_have_text("3")
    session_page.press("Step out")
    said(session_page, "The cell stands in line 6 (step).")
    session_page.press("Step over")
    said(session_page, "The cell stands in line 5 (step).")
    session_page.press("Continue")
    said(session_page, "The debugged cell has ended.")
    expect(session_page.cell(1)).to_contain_text("done 8")
    expect(page.locator(".gutter .stopped")).to_have_count(0)
    expect(session_page.code).to_have_value(AREA)  # for the next try


def test_a_debugged_cell_is_ended_and_its_variables_stay(session_page: SessionPage, name: str) -> None:
    session_page.sign_in(name)
    session_page.code.fill("kept = 1\nlater = 2")
    set_breakpoint(session_page, 2)
    session_page.press("Debug")
    said(session_page, "The cell stands in line 2")
    session_page.press("End cell")
    said(session_page, "The debugged cell has ended.")
    session_page.run("print(kept, 'later' in globals())")
    expect(session_page.cell(2)).to_contain_text("1 False")


def test_the_frames_of_an_exception_are_seen_after_the_cell(session_page: SessionPage, name: str) -> None:
    session_page.gateway.execute(name, "def mean(total, count):\n    return total / count\nmean(3, 0)")
    session_page.sign_in(name)
    session_page.page.get_by_role("heading", name="Debugger").click()
    said(session_page, "ZeroDivisionError: division by zero")
    expect(value(session_page, "count")).to_have_text("0")
    panel(session_page).get_by_label("Expression").fill("total * 10")
    session_page.press("Evaluate")
    expect(panel(session_page).get_by_text("30")).to_be_visible()


def test_a_breakpoint_stays_with_its_line(session_page: SessionPage, name: str) -> None:
    session_page.sign_in(name)
    session_page.code.fill("a = 1\nb = 2\nc = 3")
    set_breakpoint(session_page, 2)
    marked = session_page.page.locator(".gutter .set")
    expect(marked).to_have_text("2")
    session_page.code.press("Control+Home")
    session_page.code.press("Enter")
    expect(marked).to_have_text("3")
    session_page.code.press("Backspace")
    expect(marked).to_have_text("2")
    session_page.press("Remove the breakpoint of line 2")
    expect(marked).to_have_count(0)


def test_a_language_without_a_debugger_has_no_button(session_page: SessionPage, name: str) -> None:
    body = {"name": name, "language": "bash"}
    assert session_page.gateway.call("POST", "/v1/sessions", json=body).status_code == 201
    session_page.sign_in(name)
    expect(session_page.page.get_by_text("bash").first).to_be_visible()
    expect(session_page.page.get_by_role("button", name="Debug", exact=True)).to_be_hidden()
