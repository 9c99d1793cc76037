"""A real Chromium in a separate network that contains one server and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

_BROWSER = Path(__file__).with_name("browser.sh")
_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
#: URL of the server in the browser's network
URL = "http://localhost:8888"


@contextlib.contextmanager
def chromium(home: Path, socket: Path) -> Iterator[Browser]:
    """Run a browser that reaches the server at a Unix socket.

    Args:
        home: directory for the browser's files.
        socket: path of the server's socket.
    """
    environment: dict[str, str | float | bool] = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(home),
        "FRONT_SOCKET": str(socket),
    }
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=_BROWSER, args=_FLAGS, env=environment) as browser,
    ):
        yield browser


@dataclass
class LongestTask:
    """The longest task of a page, during which it does nothing for its reader."""

    #: milliseconds, and those of them in which the page had a processor: the rest is other work of the machine
    wall: float = 0
    cpu: float = 0


@contextlib.contextmanager
def longest_task(page: Page) -> Iterator[LongestTask]:
    """Measure the longest task of a page's main thread with Chromium's own trace; it is known after the block."""
    events: list[dict[str, Any]] = []
    ended = list[bool]()
    found = LongestTask()
    devtools = page.context.new_cdp_session(page)
    devtools.on("Tracing.dataCollected", lambda told: events.extend(told["value"]))
    devtools.on("Tracing.tracingComplete", lambda _: ended.append(True))
    categories = {"includedCategories": ["toplevel", "devtools.timeline"]}
    devtools.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": categories})
    yield found
    devtools.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    devtools.detach()
    [main] = {(event["pid"], event["tid"]) for event in events if event["name"] == "UpdateLayoutTree"}
    tasks = [event for event in events if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) == main]
    found.wall = max(event.get("dur", 0) for event in tasks) / 1000
    found.cpu = max(event.get("tdur", 0) for event in tasks) / 1000
