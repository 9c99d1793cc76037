"""An admin looks at a tenant's session without any change to it, and the tenant's page says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests import gateways
from tests.clients.browsers import URL
from tests.clients.web.conftest import SessionPage
from tests.gateways import Gateway

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway whose operator allows such looks."""
    with gateways.gateway("process", admin_looks="true") as serving:
        yield serving


def test_an_admins_page_only_shows_and_the_tenants_page_says_so(
    session_pages: Callable[..., SessionPage], admin: str
) -> None:
    own, look = session_pages(), session_pages()
    own.gateway.execute("looked", "print('work')")
    own.sign_in("looked")
    told = own.page.get_by_text("An admin looks at this session now.")
    expect(own.cell(1)).to_contain_text("work")
    expect(told).to_be_hidden()
    look.page.goto(f"{URL}/ui/?tenant=alice#looked")
    look.enter(own.key)  # the tenant's own key is none of an admin
    expect(look.cell(1)).to_contain_text("work")
    look.page.goto(f"{URL}/ui/?tenant=bob")
    look.enter(own.key)
    expect(look.page.get_by_role("status")).to_contain_text("SB026")
    look.page.goto(f"{URL}/ui/?tenant=alice#looked")
    look.enter(admin)
    expect(look.page.get_by_text("You look, without any change")).to_be_visible()
    expect(look.cell(1)).to_contain_text("work")
    for name in ("Run", "Interrupt", "Restart", "End"):
        expect(look.page.get_by_role("button", name=name, exact=True)).to_be_hidden()
    expect(told).to_be_visible()
    look.press("Sign out")
    expect(told).to_be_hidden()
