"""Thousands of cells: the page has elements for those in view only, and gets outputs when they are seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from kernel_gateway.dialects.web.feed import CELLS_MAX
from tests.clients.browsers import longest_task
from tests.clients.web.conftest import SessionPage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CELLS = 5000
#: bytes of the outputs of each cell: 10,000 outputs, 100 MB in all
OUTPUT = 20_000
#: elements of the page beside the cells, those of all cells that are out of view, and of a cell in view
BESIDE, FAR, OF_A_CELL = 400, 600, 60
#: milliseconds of a task after which a reader notices that the page does not answer
LONG = 100
#: cells whose outputs the page holds
SEEN = 64


class Session:
    """The feed of a session that no kernel could fill in a test's time."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self.told = {"name": "long", "id": "1", "state": "idle", "created_at": "2026-11-21T10:00:00Z", "cells": cells}
        self.told |= {"memory_bytes": None, "last": None, "can_sleep": False, "can_debug": True, "language": "python"}
        #: cells in view, and bytes that were sent
        self.seen = list[int]()
        self.sent = 0

    def connect(self, socket: WebSocketRoute) -> None:
        socket.on_message(lambda message: self._take(socket, json.loads(message)))
        self._send(socket, {"type": "sessions", "sessions": [self.told]})

    def _send(self, socket: WebSocketRoute, frame: dict[str, Any]) -> None:
        text = json.dumps(frame)
        self.sent += len(text)
        socket.send(text)

    def _take(self, socket: WebSocketRoute, frame: dict[str, Any]) -> None:
        if frame.get("open"):
            self.seen = []
            self._send(socket, {"type": "opened", "session": self.told})
            for first in range(1, self._cells + 1, CELLS_MAX):
                cells = [head(number) for number in range(first, min(first + CELLS_MAX, self._cells + 1))]
                told = {"cells": cells, "more": cells[-1]["number"] < self._cells, "gone": [], "oldest": 1}
                self._send(socket, {"type": "cells"} | told)
        for number in set(frame.get("see", ())) - set(self.seen):
            outputs = [{"output_type": "stream", "name": name, "text": f"{number}: {'x' * 99}\n" * (OUTPUT // 200)}
                       for name in ("stdout", "stderr")]  # fmt: skip
            self._send(
                socket,
                {"type": "outputs", "cell": number, "fresh": True, "code": f"cell({number})", "outputs": outputs},
            )
        self.seen = frame.get("see", self.seen)


def head(number: int) -> dict[str, Any]:
    told = {"number": number, "count": number, "state": "done", "code": f"cell({number})", "chars": 10, "bytes": OUTPUT}
    return told | {"omitted": 0, "undone": False, "before": None, "error": None, "question": None}


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('*').length"))


@pytest.fixture
def long(session_page: SessionPage) -> Session:
    session = Session(CELLS)
    session_page.page.route_web_socket("**/ui/feed", session.connect)
    return session


def test_only_cells_in_view_have_elements_and_outputs(session_page: SessionPage, long: Session) -> None:
    page = session_page.page
    session_page.sign_in("long")
    expect(session_page.cell(CELLS).locator(".outputs")).to_contain_text(f"{CELLS}: xxx")  # it begins at the end
    assert elements(page) < BESIDE + FAR + SEEN * OF_A_CELL
    for place in (0, 0.25, 0.5, 0.75, 1, 0.1, 0.9):
        page.evaluate("(place) => scrollTo(0, place * document.scrollingElement.scrollHeight)", place)
        page.wait_for_timeout(150)
        in_view = (
            "[...document.querySelectorAll('article')].filter((it) => it.getBoundingClientRect().bottom > 60)[0].id"
        )
        number = int(page.evaluate(in_view).removeprefix("cell-"))
        expect(session_page.cell(number).locator(".outputs")).to_contain_text(f"{number}: xxx")
        assert elements(page) < BESIDE + FAR + SEEN * OF_A_CELL
        assert len(long.seen) <= SEEN
    assert long.sent < CELLS * OUTPUT / 5  # what nobody has seen was not sent


@pytest.mark.full
def test_no_task_keeps_a_reader_waiting(session_page: SessionPage, long: Session) -> None:
    page = session_page.page
    session_page.open("long")
    with longest_task(page) as task:
        session_page.enter(session_page.key)
        expect(session_page.cell(CELLS).locator(".outputs")).to_contain_text(f"{CELLS}: xxx")
        for place in (0.5, 0.1):
            page.evaluate("(place) => scrollTo(0, place * document.scrollingElement.scrollHeight)", place)
            page.wait_for_timeout(200)
        page.mouse.move(400, 400)
        for _ in range(20):
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(16)
    assert 0 < task.cpu < LONG, task  # other work on the machine makes tasks longer, and is none of the page
    assert long.sent > 20 * OUTPUT  # there was something to show


def test_a_link_into_a_long_notebook_gets_the_cell_alone(session_page: SessionPage, long: Session) -> None:
    session_page.sign_in("long/cell-2500")
    expect(session_page.cell(2500)).to_be_in_viewport()
    expect(session_page.cell(2500).locator(".outputs")).to_contain_text("2500: xxx")
    assert long.sent < CELLS * OUTPUT / 5


def test_much_text_of_one_cell_keeps_its_last_lines(session_page: SessionPage) -> None:
    page = session_page.page
    session_page.sign_in("flood")
    session_page.gateway.execute("flood", "for number in range(100_000): print(number)")
    text = session_page.cell(1).locator("pre.stdout")
    expect(text).to_contain_text("99999")
    expect(text).to_contain_text("earlier lines are not shown")
    assert elements(page) < 4000 + BESIDE + OF_A_CELL


def test_the_page_loads_little_and_only_from_the_gateway(session_page: SessionPage) -> None:
    page = session_page.page
    loaded: dict[str, int] = {}
    page.on("response", lambda response: loaded.update({response.url: len(response.body())}))
    session_page.open()
    page.wait_for_load_state("networkidle")
    assert all(url.startswith("http://localhost:8888/") for url in loaded)
    assert sum(loaded.values()) < 300_000
    assert page.evaluate("performance.getEntriesByName('first-paint').length") == 1
