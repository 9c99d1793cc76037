"""The admin page in a real browser, used as admins do."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.clients.web.conftest import AdminPage, Wire
from tests.gateways import KEYS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


# -- signing in ------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_only_an_admins_key_signs_in_and_the_key_is_stored_nowhere(admin_page: AdminPage) -> None:
    page = admin_page.page
    admin_page.open()
    for key, told in (("not-a-key-at-all", "SB020"), (KEYS["alice"], "SB026"), ("ключ", "This is no key.")):
        admin_page.enter(key)
        expect(page.get_by_role("status")).to_contain_text(told)
        expect(page.get_by_role("navigation")).to_be_hidden()
    admin_page.enter(admin_page.key)
    expect(page.get_by_role("navigation")).to_be_visible()
    kept = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
    assert page.evaluate(kept) == '[{},{},"","http://localhost:8888/admin/",null]'
    assert admin_page.key not in page.content()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Admin key")).to_be_focused()
    expect(page.get_by_label("Admin key")).to_have_value("")


def test_signing_out_removes_all_data_from_the_page(admin_page: AdminPage) -> None:
    admin_page.sign_in("tenants")
    expect(admin_page.rows("Keys").first).to_contain_text("ops")
    admin_page.press("Sign out")
    expect(admin_page.page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(admin_page.page.get_by_role("navigation")).to_be_hidden()
    assert "ops" not in admin_page.page.content()


# -- overview --------------------------------------------------------------------------------------------------


def test_the_page_begins_with_the_state_of_the_gateway_and_its_alerts(admin_page: AdminPage) -> None:
    page = admin_page.page
    admin_page.gateway.execute("s", "1")
    told = admin_page.ask("GET", "/v1/admin/overview").json()
    admin_page.answer("v1/admin/overview", told | {"alerts": []})  # a busy machine may have some
    admin_page.open()
    admin_page.enter(admin_page.key)
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    expect(admin_page.section).to_contain_text("No alert is due.")
    expect(admin_page.section).to_contain_text("Starts of kernelsready")
    expect(admin_page.section).to_contain_text(
        re.compile(r"Disk of the state directory[\d.]+ .iB of [\d.]+ .iB \(\d+ %\)")
    )
    expect(admin_page.section).to_contain_text(re.compile(r"Sessions.*\d idle"))
    alert = {"name": "KernelGatewayLeftovers", "severity": "warning", "seconds": 2400}
    told["alerts"] = [alert | {"summary": "Something is left.", "action": "See the log."}]
    told["ready"], told["trouble"] = False, {"code": "SB009", "message": "No engine.", "resolution": "Start it."}
    admin_page.answer("v1/admin/overview", told)
    expect(admin_page.section).to_contain_text("Something is left.")  # at the next look
    expect(admin_page.section).to_contain_text("KernelGatewayLeftovers for 40 min")
    expect(admin_page.section).to_contain_text("not ready No engine. Start it.SB009")
    expect(admin_page.section).not_to_contain_text("No alert is due.")


# -- sessions --------------------------------------------------------------------------------------------------


def test_sessions_are_listed_sorted_filtered_and_ended(admin_page: AdminPage) -> None:
    gateway, page = admin_page.gateway, admin_page.page
    for session in admin_page.ask("GET", "/v1/admin/sessions").json()["sessions"]:
        admin_page.ask("DELETE", f"/v1/admin/sessions/{session['tenant']}/{session['name']}")
    admin_page.sign_in()
    expect(admin_page.section).to_contain_text("There are no sessions.")
    names = [f"{letter}-{secrets.token_hex(3)}" for letter in "ba"]
    for name in names:  # they appear without a reload
        gateway.execute(name, "1")
    gateway.execute(names[0], "1", tenant="bob")
    row = admin_page.row("Sessions", "alice", names[0])
    expect(row).to_contain_text("idle")
    expect(row.get_by_role("cell").nth(7)).to_have_text("1")
    expect(admin_page.rows("Sessions")).to_have_count(3)

    head = page.get_by_role("columnheader", name="Session")
    for direction, first in (("ascending", names[1]), ("descending", names[0])):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", direction)
        expect(admin_page.rows("Sessions").first).to_contain_text(first)
    page.get_by_label("Filter").fill("BOB")
    expect(admin_page.rows("Sessions")).to_have_count(1)
    expect(admin_page.section).to_contain_text("1 of 3")
    container = admin_page.row("Sessions", "bob", names[0]).get_by_role("cell").nth(8).inner_text()
    page.get_by_label("Filter").fill(container)
    expect(admin_page.rows("Sessions")).to_have_count(1)
    expect(admin_page.section).to_contain_text("1 of 3")
    page.get_by_label("Filter").fill("")

    end = row.get_by_role("button", name="End")
    dialog = page.get_by_role("alertdialog")
    end.focus()
    for leave in ("Enter", "Escape"):  # Cancel has the focus
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text(f"{names[0]} of alice")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press(leave)
        expect(dialog).to_have_count(0)
        expect(end).to_be_enabled()  # the button is disabled until the dialog has closed
        expect(end).to_be_focused()
    for _ in range(2):  # refreshes do not move the focus
        page.wait_for_event("response", lambda response: response.url.endswith("/v1/admin/sessions"))
    expect(end).to_be_focused()
    assert gateway.call("GET", f"/v1/sessions/{names[0]}").status_code == 200

    end.click()
    admin_page.press("End session", dialog)
    expect(row).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="was ended")).to_be_visible()
    assert focused(page) == "Sessions"
    assert gateway.call("GET", f"/v1/sessions/{names[0]}").status_code == 404
    assert gateway.call("GET", f"/v1/sessions/{names[0]}", tenant="bob").status_code == 200


# -- tenants and keys ------------------------------------------------------------------------------------------


def test_a_key_is_made_shown_once_and_revoked(pages: Callable[..., AdminPage]) -> None:
    admin_page = pages(permissions=["clipboard-read", "clipboard-write"])
    page, tenant = admin_page.page, f"carol-{secrets.token_hex(3)}"
    admin_page.sign_in("tenants")
    line = page.get_by_role("form", name="New key")
    line.get_by_label("Tenant").fill("a:b")
    admin_page.press("Make key")
    expect(admin_page.section.get_by_role("status").first).to_contain_text("tenant must be")
    line.get_by_label("Tenant").fill(tenant)
    line.get_by_label("Name").fill("nightly job")
    line.get_by_label("Expires").fill("2999-12-31")
    admin_page.press("Make key")
    shown = page.get_by_label("The new key")
    expect(shown).to_be_visible()
    key = shown.input_value()
    assert admin_page.ask("GET", "/v1/sessions", key).status_code == 200
    admin_page.press("Copy")
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == key
    admin_page.press("Done")
    expect(shown).to_have_count(0)
    row = admin_page.row("Keys", tenant)
    expect(row).to_contain_text(re.compile("user.*nightly job.*31 Dec 2999"))
    expect(admin_page.row("Tenants", tenant)).to_have_count(1)
    assert key not in page.content()

    admin_page.press("Revoke", row)
    admin_page.press("Cancel", page.get_by_role("alertdialog"))
    assert admin_page.ask("GET", "/v1/sessions", key).status_code == 200
    admin_page.press("Revoke", row)
    admin_page.press("Revoke key", page.get_by_role("alertdialog"))
    expect(row).to_have_count(0)
    assert admin_page.ask("GET", "/v1/sessions", key).status_code == 401


def test_revoking_the_own_key_signs_out(admin_page: AdminPage) -> None:
    tenant = f"dora-{secrets.token_hex(3)}"
    made = admin_page.ask("POST", "/v1/admin/keys", json={"tenant": tenant, "role": "admin"}).json()
    admin_page.key = made["key"]
    admin_page.sign_in("tenants")
    admin_page.press("Revoke", admin_page.row("Keys", tenant))
    admin_page.press("Revoke key", admin_page.page.get_by_role("alertdialog"))
    expect(admin_page.page.get_by_role("status")).to_contain_text("The key opens nothing any more")


@pytest.mark.gate
def test_the_limits_of_a_tenant_are_changed_and_taken_back(admin_page: AdminPage) -> None:
    page, tenant = admin_page.page, f"erin-{secrets.token_hex(3)}"
    admin_page.ask("POST", "/v1/admin/keys", json={"tenant": tenant})
    admin_page.sign_in("tenants")
    row, dialog = admin_page.row("Tenants", tenant), page.get_by_role("dialog")

    def told() -> dict[str, Any]:
        limits = admin_page.ask("GET", f"/v1/admin/tenants/{tenant}/limits").json()
        return {name: limit["value"] for name, limit in limits.items() if limit["source"] == "admin"}

    admin_page.press("Limits", row)
    expect(dialog).to_contain_text(f"Limits of {tenant}")
    dialog.get_by_label("Sessions and sandboxes").fill("many")
    admin_page.press("Save limits", dialog)
    expect(dialog.locator("[data-field=sessions] .problem")).to_contain_text("valid integer")
    dialog.get_by_label("Sessions and sandboxes").fill("5")
    dialog.get_by_label("Memory").fill("2g")
    admin_page.press("Save limits", dialog)
    expect(dialog.get_by_role("status")).to_contain_text("memory must be at most 512 MiB: the gateway's setting")
    assert told() == {}
    dialog.get_by_label("Memory").fill("256m")
    dialog.get_by_label("Timeout").fill("1.5")
    dialog.get_by_label("Images").fill("-")
    dialog.get_by_label("Network allowlist").select_option("no")
    admin_page.press("Save limits", dialog)
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text("sessions 5, memory 256m, timeout 1.5, images -, egress no")
    assert told() == {"sessions": 5, "memory": 256 * 1024**2, "timeout": 1.5, "images": [], "egress": False}

    admin_page.press("Limits", row)
    expect(dialog.get_by_label("Memory")).to_have_value("256m")
    dialog.get_by_label("Memory").fill("")
    admin_page.press("Save limits", dialog)
    expect(row).to_contain_text("sessions 5, timeout 1.5")
    assert "memory" not in told()
    admin_page.press("Limits", row)
    dialog.get_by_label("Sessions and sandboxes").fill("6")
    admin_page.press("Cancel", dialog)
    expect(dialog).to_have_count(0)
    assert told()["sessions"] == 5


# -- usage -----------------------------------------------------------------------------------------------------


def test_the_use_of_tenants_is_shown_for_a_period(admin_page: AdminPage) -> None:
    tenant = f"used-{secrets.token_hex(3)}"
    key = admin_page.ask("POST", "/v1/admin/keys", json={"tenant": tenant}).json()["key"]
    assert admin_page.ask("POST", "/v1/sessions/s/execute", key, json={"code": "print('x' * 9)"}).status_code == 200
    admin_page.sign_in("usage")
    row = admin_page.row("Usage", tenant)
    expect(row).to_contain_text(re.compile("1.*10 B"))
    form = admin_page.section.get_by_role("search")
    form.get_by_label("From").fill("2001-01-01")
    form.get_by_label("Until").fill("2001-02-01")
    admin_page.press("Show")
    expect(admin_page.section).to_contain_text("Nothing was used in this period.")


# -- audit -----------------------------------------------------------------------------------------------------


def test_the_audit_is_shown_page_by_page_and_by_tenant(admin_page: AdminPage) -> None:
    session = f"s-{secrets.token_hex(3)}"
    for _ in range(51):
        admin_page.gateway.execute(session, "print(1)")
    admin_page.gateway.execute(session, "1/0", tenant="bob")
    admin_page.sign_in("audit")
    rows = admin_page.rows("Executions")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("bob")
    expect(rows.first).to_contain_text("error")
    expect(rows.nth(1)).to_contain_text(re.compile("alice.*ok.*2 B"))
    admin_page.press("Older")
    expect(admin_page.section).to_contain_text("Page 2")
    expect(admin_page.row("Executions", session)).to_have_count(2)
    admin_page.press("Newer")
    expect(rows).to_have_count(50)
    form = admin_page.section.get_by_role("search")
    form.get_by_label("Tenant").fill("bob")
    admin_page.press("Show")
    expect(admin_page.row("Executions", "alice")).to_have_count(0)
    expect(rows.first).to_contain_text("bob")
    for tenant, told in (("nobody", "Nothing fits the filter"), ("b:b", "tenant must be")):
        form.get_by_label("Tenant").fill(tenant)
        admin_page.press("Show")
        expect(admin_page.section).to_contain_text(told)


def test_the_audit_is_filtered_by_who_asked_and_when(admin_page: AdminPage) -> None:
    tenant = f"erin-{secrets.token_hex(3)}"
    made = [admin_page.ask("POST", "/v1/admin/keys", json={"tenant": tenant}).json() for _ in range(2)]
    ran = [admin_page.ask("POST", "/v1/sessions/s/execute", each["key"], json={"code": "1"}) for each in made]
    admin_page.sign_in("audit")
    rows = admin_page.rows("Executions")
    form = admin_page.section.get_by_role("search")

    def shown(**wanted: str) -> None:
        for label, value in wanted.items():
            field = form.get_by_label(label, exact=True)
            field.select_option(value) if label == "Outcome" else field.fill(value)
        admin_page.press("Show")

    shown(Tenant=tenant)
    expect(rows).to_have_count(2)
    shown(Key=made[0]["id"])
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(re.compile(f"{made[0]['id']}.*127.0.0.1.*native"))
    shown(Key="", Request=ran[1].headers["X-Request-Id"])
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(made[1]["id"])
    shown(Request="")
    expect(rows).to_have_count(2)
    for label, same, other in (
        ("Session", "s", "t"),
        ("Language", "python", "r"),
        ("Outcome", "ok", "error"),
        ("Address", "127.0.0.1", "127.0.0.2"),
        ("Dialect", "native", "e2b"),
        ("From", "2026-01-01T00:00", "2999-01-01T00:00"),
        ("Until", "2999-01-01T00:00", "2026-01-01T00:00"),
    ):
        shown(**{label: other})
        expect(admin_page.section).to_contain_text("Nothing fits the filter")
        shown(**{label: same})
        expect(rows).to_have_count(2)


# -- when the gateway is unreachable ---------------------------------------------------------------------------


def test_an_unreachable_gateway_is_reported_and_the_page_recovers(admin_page: AdminPage, wire: Wire) -> None:
    page = admin_page.page
    admin_page.sign_in()
    session = f"s-{secrets.token_hex(3)}"
    wire.cut()
    try:
        expect(page.get_by_role("alert")).to_contain_text("does not answer")
        admin_page.gateway.execute(session, "1")
    finally:
        wire.fix()
    expect(page.get_by_role("alert")).to_have_text("")
    expect(admin_page.row("Sessions", session)).to_have_count(1)
    expect(admin_page.section).not_to_contain_text("does not answer")
