"""The gateway's own providers, set on the admin page: the API confirms what the page shows."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.clients.web.conftest import AdminPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PATH = "/api/admin/sandbox"
SECRET = "a-secret-key-of-another-gateway-wxyz"  # noqa: S105 - opens nothing


def config(admin_page: AdminPage) -> dict[str, Any]:
    found: dict[str, Any] = admin_page.ask("GET", f"{PATH}/config").json()["data"]
    return found


def test_each_provider_has_a_form_of_its_fields(admin_page: AdminPage) -> None:
    providers = admin_page.ask("GET", f"{PATH}/providers").json()["data"]
    admin_page.sign_in("providers")
    for provider in providers:
        card = admin_page.page.locator(f"details[data-provider={provider['id']}]")
        expect(card.get_by_role("heading", include_hidden=True)).to_have_text(provider["name"])
        for name, field in provider["config_schema"].items():
            assert str(card.locator(f"[data-field={name}] label").first.text_content()).startswith(field["label"])
        for input_ in card.locator("input[type=password]").all():
            assert input_.input_value() == ""


def test_the_self_managed_provider_is_configured_tried_and_saved(admin_page: AdminPage) -> None:
    admin_page.sign_in("providers")
    card = admin_page.page.locator("details[data-provider=self_managed]")
    told, timeout = card.get_by_role("status"), card.get_by_label("Timeout")
    before = config(admin_page)["self_managed"]["timeout"]
    expect(card.locator("summary")).to_contain_text("active")
    expect(timeout).to_have_value(str(before))

    timeout.fill("100000")
    admin_page.press("Save", card)
    expect(timeout).to_have_attribute("aria-invalid", "true")
    expect(card.locator("[data-field=timeout] .problem")).to_contain_text("at most 300")
    expect(told).to_contain_text("SB002")
    assert config(admin_page)["self_managed"]["timeout"] == before

    timeout.fill("45")
    admin_page.press("Test connection", card)
    expect(told).to_contain_text("It works")
    assert config(admin_page)["self_managed"]["timeout"] == before
    admin_page.press("Save", card)
    expect(card.locator("summary")).not_to_contain_text("not saved")
    assert config(admin_page)["self_managed"]["timeout"] == 45

    key = card.get_by_label("API key")
    key.fill(SECRET)
    admin_page.press("Save", card)
    expect(key).to_have_attribute("placeholder", "••••wxyz (kept)")
    expect(key).to_have_value("")
    timeout.fill("46")
    admin_page.press("Save", card)  # sends the masked secret
    expect(card.locator("summary")).not_to_contain_text("not saved")
    kept = config(admin_page)["self_managed"]
    assert (kept["api_key"], kept["timeout"]) == ("••••wxyz", 46)
    assert SECRET not in admin_page.page.content()

    card.get_by_label("Endpoint").fill("http://127.0.0.1:9")  # another endpoint needs the secret again
    admin_page.press("Save", card)
    expect(key).to_have_attribute("aria-invalid", "true")
    key.fill(SECRET)
    admin_page.press("Test connection", card)
    expect(told).to_contain_text("It does not work")
    assert config(admin_page)["self_managed"]["endpoint"] == ""
