"""The session page over gVisor kernels: memory, checkpoints as a line of time and compared, sleep and wake."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests import gateways
from tests.clients.web.conftest import SessionPage
from tests.gateways import Gateway

pytestmark = [pytest.mark.browser, pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway whose kernels can sleep."""
    with gateways.gateway("docker", golden_images="auto", preload="") as serving:
        serving.wait_for_sleep()
        yield serving


def test_a_sandboxed_session_is_seen_rolled_back_branched_and_put_to_sleep(session_page: SessionPage) -> None:
    name, page, gateway = f"box-{secrets.token_hex(4)}", session_page.page, session_page.gateway
    gateway.execute(name, "value = 'before'\nprint(value)")
    session_page.sign_in()
    row = session_page.rows("Sessions").filter(has_text=name)
    expect(row).to_contain_text("MiB")  # its memory
    row.get_by_role("link").click()
    expect(session_page.cell(1).locator(".outputs")).to_contain_text("before")
    page.get_by_role("heading", name="Checkpoints").click()
    page.get_by_label("Name").fill("first")
    session_page.press("Take checkpoint")
    moment = page.locator(".timeline li").filter(has_text="first")
    expect(moment).to_be_visible()
    session_page.run("value = 'after'\nprint(value)")
    expect(session_page.cell(2).locator(".outputs")).to_contain_text("after")
    session_page.press("Compare variables")  # with now
    changed = session_page.rows("Differences of variables").filter(has_text="value")
    expect(changed).to_contain_text("changed")
    expect(changed).to_contain_text("'before'")
    expect(changed).to_contain_text("'after'")
    expect(moment).to_contain_text("after cell 1")
    names = {session["name"] for session in gateway.call("GET", "/v1/sessions").json()["sessions"]}
    assert not [made for made in names if made.startswith("compare-")]
    session_page.press("Roll back", moment)
    session_page.press("Roll back", page.get_by_role("alertdialog"))
    expect(session_page.cell(2)).to_contain_text("undone")
    session_page.run("print(value)")
    expect(session_page.cell(3).locator(".outputs")).to_contain_text("before")
    session_page.press("Sleep")
    expect(page.get_by_role("status").filter(has_text="sleeps")).to_be_visible()
    session_page.press("Wake")
    expect(page.get_by_role("status").filter(has_text="awake")).to_be_visible()
    moment.get_by_label("As").fill(f"{name}-b")
    session_page.press("Branch", moment)
    expect(page.get_by_role("heading", name=f"{name}-b")).to_be_visible()
    session_page.run("print(value + ' in the branch')")
    expect(session_page.cell(1).locator(".outputs")).to_contain_text("before in the branch")
    for each in (name, f"{name}-b"):
        gateway.call("DELETE", f"/v1/sessions/{each}")
