"""The pages for people in a real browser: one gateway and one browser per module, a new page per test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

from tests import gateways
from tests.clients.browsers import URL, chromium
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until

#: seconds to wait for anything on the page, on a slow machine
PATIENCE = 30
#: script that each page runs before its own
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""

#: how people see the pages
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 860}},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
    "narrow-dark": {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "reduced_motion": "reduce"},
}


@pytest.fixture(scope="module")
def artifacts(request: pytest.FixtureRequest) -> Path | None:
    """The directory of pictures, or None for no pictures."""
    directory: Path | None = request.config.getoption("--artifacts")
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Any gateway: the page does not depend on where kernels run."""
    with gateways.gateway("process") as serving:
        yield serving


@pytest.fixture(scope="module")
def admin(gateway: Gateway) -> str:
    """An admin's key."""
    return gateway.admin_key()


class Wire:
    """The connection of the browser's network to the gateway, which tests can cut and fix."""

    def __init__(self, gateway: Gateway, socket: Path) -> None:
        self._to = f"TCP:{urlsplit(gateway.url).netloc}"
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    def fix(self) -> None:
        self._socket.unlink(missing_ok=True)
        listen = f"UNIX-LISTEN:{self._socket},fork,backlog=64"
        self._process = subprocess.Popen(["socat", listen, self._to], start_new_session=True)
        until(self._socket.exists)

    def cut(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()


@pytest.fixture(scope="module")
def wire(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    wire = Wire(gateway, tmp_path_factory.mktemp("wire") / "socket")
    wire.fix()
    yield wire
    wire.cut()


@pytest.fixture(scope="module")
def browser(wire: Wire, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser"), wire._socket) as browser:
        yield browser


@dataclass
class UserPage:
    """A page as a user reads and operates it."""

    page: Page
    gateway: Gateway
    key: str
    #: errors and warnings of the page or its policy
    problems: list[str] = field(default_factory=list)

    def press(self, name: str, within: Locator | None = None) -> None:
        (within or self.page).get_by_role("button", name=name, exact=True).click()

    def rows(self, table: str) -> Locator:
        return self.page.get_by_role("table", name=table).locator("tbody tr")


class SessionPage(UserPage):
    """The session page."""

    def open(self, place: str = "") -> None:
        self.page.goto(f"{URL}/ui/{'#' + place if place else ''}")
        expect(self.page.get_by_role("heading", name="Sign in")).to_be_visible()

    def enter(self, key: str) -> None:
        self.page.get_by_label("Key", exact=True).fill(key)
        self.page.get_by_role("button", name="Sign in").click()

    def sign_in(self, place: str = "") -> None:
        self.open(place)
        self.enter(self.key)
        expect(self.page.get_by_role("navigation")).to_be_visible()

    def cell(self, number: int) -> Locator:
        return self.page.locator(f"#cell-{number}")

    @property
    def code(self) -> Locator:
        """The place to type code."""
        return self.page.get_by_role("textbox", name="Code")

    def run(self, code: str) -> None:
        self.code.fill(code)
        self.code.press("Shift+Enter")
        expect(self.code).to_have_value("")


class AdminPage(UserPage):
    """The admin page."""

    def open(self, section: str = "") -> None:
        self.page.goto(f"{URL}/admin/{'#' + section if section else ''}")
        expect(self.page.get_by_role("heading", name="Sign in")).to_be_visible()

    def enter(self, key: str) -> None:
        self.page.get_by_label("Admin key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()

    def sign_in(self, section: str = "sessions") -> None:
        self.open(section)
        self.enter(self.key)
        expect(self.page.get_by_role("navigation")).to_be_visible()
        expect(self.section).not_to_have_attribute("aria-busy", "true")

    def go(self, name: str) -> None:
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()

    @property
    def section(self) -> Locator:
        """The section that is shown."""
        return self.page.locator("main > section:visible")

    def row(self, table: str, *words: str) -> Locator:
        found = self.rows(table)
        for word in words:
            found = found.filter(has_text=word)
        return found

    def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> requests.Response:
        """Call the API directly, with the admin's key unless another is given."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return self.gateway.call(method, path, tenant=None, headers=headers, **options)

    def answer(self, path: str, body: Any) -> None:
        """Replace the gateway's answer by one that it would never send."""
        self.page.route(f"{URL}/{path}", lambda route: route.fulfill(json=body))


@pytest.fixture
def all_pages(browser: Browser, gateway: Gateway) -> Iterator[Callable[..., Any]]:
    """A function that opens pages of a kind. At the end, no page may have problems that the test has not cleared."""
    opened: list[UserPage] = []

    def make(kind: type[UserPage], key: str, **options: Any) -> UserPage:
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        page.add_init_script(WATCH)
        made = kind(page, gateway, key)
        page.on("pageerror", lambda error: made.problems.append(str(error)))
        page.on("console", lambda message: made.problems.extend(_complaint(message)))
        opened.append(made)
        return made

    yield make
    for made in opened:
        violations = made.page.evaluate("window.violations ?? []")
        made.page.context.close()
        assert made.problems + violations == []


@pytest.fixture
def pages(all_pages: Callable[..., AdminPage], admin: str) -> Callable[..., AdminPage]:
    """A function that opens admin pages."""
    return partial(all_pages, AdminPage, admin)


@pytest.fixture
def session_pages(all_pages: Callable[..., SessionPage]) -> Callable[..., SessionPage]:
    """A function that opens session pages of a tenant."""
    return partial(all_pages, SessionPage, KEYS["alice"])


@pytest.fixture
def session_page(session_pages: Callable[..., SessionPage]) -> SessionPage:
    """A session page in a window of usual size."""
    return session_pages(viewport={"width": 1280, "height": 900})


def _complaint(message: ConsoleMessage) -> list[str]:
    """Return a console error or warning, but none about a request that was refused or not answered."""
    quiet = message.type not in {"error", "warning"} or message.text.startswith("Failed to load resource")
    return [] if quiet else [message.text]


@pytest.fixture
def admin_page(pages: Callable[..., AdminPage]) -> AdminPage:
    """A page in a window of usual size."""
    return pages(viewport={"width": 1280, "height": 900})
