"""Providers on the admin page: forms made from schemas, problems of fields, trials, saving, activating."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.clients.web.conftest import AdminPage
from tests.clients.web.fake import FakeProviders

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def card(admin_page: AdminPage, provider: str) -> Locator:
    return admin_page.page.locator(f"details[data-provider={provider}]")


@pytest.fixture
def fake(admin_page: AdminPage) -> FakeProviders:
    return FakeProviders(admin_page.page)


@pytest.fixture
def full(admin_page: AdminPage, fake: FakeProviders) -> Locator:
    """The opened card of the provider that has every kind of field."""
    admin_page.sign_in("providers")
    found = card(admin_page, "full")
    found.get_by_role("heading").click()
    return found


def test_a_form_is_made_from_a_schema(admin_page: AdminPage, full: Locator) -> None:
    expect(card(admin_page, "plain")).to_contain_text("There is nothing to set.")
    expect(card(admin_page, "plain").locator("summary .chip")).to_have_text(["no sandbox", "active"])
    expect(full.locator("summary")).not_to_contain_text("active")
    expect(full).to_contain_text("Runs python, javascript.")
    endpoint = full.get_by_label("Endpoint")
    expect(endpoint).to_have_accessible_description("Where it listens.")
    expect(endpoint).to_have_attribute("aria-required", "true")
    expect(full.locator("[data-field=endpoint] label")).to_have_text("Endpoint required")
    expect(full.get_by_label("API key")).to_have_attribute("type", "password")
    timeout = full.get_by_label("Timeout")
    expect(timeout).to_have_accessible_description("From 5 up to 300.")
    expect(timeout).to_have_value("30")
    expect(full.get_by_label("Region").locator("option")).to_have_text(["not set", "us", "eu"])
    expect(full.get_by_label("Region")).to_have_value("us")
    expect(full.get_by_role("checkbox", name="Verify its certificate")).to_be_checked()


def test_a_problem_is_shown_at_its_field(admin_page: AdminPage, fake: FakeProviders, full: Locator) -> None:
    key, timeout = full.get_by_label("API key"), full.get_by_label("Timeout")
    full.get_by_label("Endpoint").fill("https://works.example")
    timeout.fill("301")
    expect(full.locator("summary")).to_contain_text("not saved")
    admin_page.press("Save", full)
    expect(full.get_by_role("status")).to_contain_text("The configuration is not valid.")
    expect(key).to_be_focused()
    expect(key).to_have_attribute("aria-invalid", "true")
    expect(key).to_have_accessible_description("Of the project. it is required")
    expect(full.locator("[data-field=timeout] .problem")).to_have_text("it must be at most 300")
    expect(full.get_by_label("Endpoint")).not_to_have_attribute("aria-invalid", "true")
    assert "endpoint" not in fake.kept
    key.fill("the-secret-key-wxyz")
    timeout.fill("60")
    admin_page.press("Save", full)
    expect(full.get_by_role("status")).to_contain_text("saved")
    expect(full.locator("[aria-invalid]")).to_have_count(0)
    expect(full.locator("summary")).not_to_contain_text("not saved")
    assert fake.kept["timeout"] == 60


def test_a_secret_is_never_shown_and_stays_unless_it_is_changed(
    admin_page: AdminPage, fake: FakeProviders, full: Locator
) -> None:
    full.get_by_label("Endpoint").fill("https://a.example")
    full.get_by_label("API key").fill("the-secret-key-wxyz")
    full.get_by_label("Proxy token").fill("the-token-abcd")
    admin_page.press("Save", full)
    expect(full.get_by_label("API key")).to_have_value("")
    expect(full.get_by_label("API key")).to_have_attribute("placeholder", "••••wxyz (kept)")
    expect(full.get_by_label("API key")).to_have_accessible_description(re.compile("Leave it empty to keep"))
    assert "the-secret" not in admin_page.page.content()
    full.get_by_label("Endpoint").fill("https://b.example")
    full.get_by_label("Remove what is there").check()
    full.get_by_label("Region").select_option("eu")
    full.get_by_role("checkbox", name="Verify its certificate").uncheck()
    admin_page.press("Save", full)
    expect(full.locator("summary")).not_to_contain_text("not saved")
    assert fake.sent[-1][1] == {
        "provider_type": "full",
        "set_active": False,
        # without the removed secret, and with the masked form of the kept secret
        "config": {
            "endpoint": "https://b.example",
            "api_key": "••••wxyz",
            "timeout": 30,
            "region": "eu",
            "verify": False,
        },
    }
    assert fake.kept["api_key"] == "the-secret-key-wxyz"


def test_a_provider_is_tried_without_saving_and_then_activated(
    admin_page: AdminPage, fake: FakeProviders, full: Locator
) -> None:
    told = full.get_by_role("status")
    for endpoint, outcome in (("nowhere", "It does not work (12 ms)"), ("https://works.example", "It works (12 ms)")):
        full.get_by_label("Endpoint").fill(endpoint)
        admin_page.press("Test connection", full)
        expect(told).to_contain_text(outcome)
    assert [what for what, _ in fake.sent] == ["test", "test"]
    assert "endpoint" not in fake.kept
    admin_page.press("Activate", full)
    expect(full.locator("summary")).to_contain_text("active")
    expect(full.get_by_role("button", name="Activate")).to_be_hidden()
    expect(card(admin_page, "plain").locator("summary")).not_to_contain_text("active")
    assert fake.active == "full"
    admin_page.go("Sessions")
    admin_page.go("Providers")
    expect(full.get_by_label("Endpoint")).to_have_value("https://works.example")  # the unsaved value is still there
