"""What is beside the notebook: variables, files and checkpoints; on process kernels, and once on gVisor's."""

from __future__ import annotations

import re
import secrets

import pytest
from playwright.sync_api import expect

from tests.clients.web.conftest import SessionPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def name() -> str:
    return f"panels-{secrets.token_hex(4)}"


def test_variables_are_listed_and_follow_the_cells(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.gateway.execute(
        name, "import pandas as pd\nsales = pd.DataFrame({'city': ['Oslo', 'Rome'], 'x': [1, 2]})"
    )
    session_page.sign_in(name)
    page.get_by_role("heading", name="Variables").click()
    row = session_page.rows("Variables").filter(has_text="sales")
    expect(row).to_contain_text("pandas.DataFrame")
    expect(row).to_contain_text(re.compile("2 . 2"))
    session_page.press("sales")
    expect(page.get_by_role("columnheader", name="city")).to_be_visible()
    expect(page.get_by_role("cell", name="Oslo")).to_be_visible()
    session_page.run("later = [1, 2, 3]")
    expect(session_page.rows("Variables").filter(has_text="later")).to_contain_text("list")


def test_files_go_up_and_down_and_are_viewed_and_deleted(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.gateway.execute(name, "import os\nos.makedirs('data')\nopen('data/in.csv', 'w').write('a,b\\n1,2\\n')")
    session_page.sign_in(name)
    page.get_by_role("heading", name="Files").click()
    rows = session_page.rows("Files")
    session_page.press("Open", rows.filter(has_text="data/"))
    session_page.press("Open", rows.filter(has_text="in.csv"))
    expect(page.locator(".detail pre")).to_have_text("a,b\n1,2\n")
    page.get_by_label("Upload").set_input_files({"name": "ü p.txt", "mimeType": "text/plain", "buffer": b"up"})
    expect(rows).to_have_count(2)
    assert session_page.gateway.text(name, "print(open('data/ü p.txt').read())") == "up\n"
    with page.expect_download() as download:
        session_page.press("Download", rows.filter(has_text="ü p.txt"))
    assert download.value.path().read_text() == "up"
    session_page.press("Delete", rows.filter(has_text="ü p.txt"))
    session_page.press("Delete", page.get_by_role("alertdialog"))
    expect(rows).to_have_count(1)
    session_page.press("Up")
    expect(rows.filter(has_text="data/")).to_have_count(1)


def test_what_cannot_be_done_is_said_and_the_page_goes_on(session_page: SessionPage, name: str) -> None:
    page = session_page.page
    session_page.gateway.execute(name, "1")
    session_page.sign_in(name)
    page.get_by_role("heading", name="Checkpoints").click()
    session_page.press("Take checkpoint")  # process kernels have none
    expect(page.get_by_role("status").filter(has_text="SB0")).to_be_visible()
    session_page.run("1 + 1")
    expect(session_page.cell(2)).to_contain_text("2")
