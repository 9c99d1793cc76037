"""The session page in headless Chromium: first paint, bytes of its files, and the longest tasks with 5,000 cells.

The cells have 10,000 outputs of 100 MB in all, from a feed that no kernel could fill in a benchmark's time. A task is
what keeps the page from answering its reader. On a busy machine read the processor's time. Run by hand, in a minute:

    .venv/bin/python tests/benchmarks/page.py [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures import machine, say
from tests.clients.browsers import URL, chromium, longest_task
from tests.clients.web.test_ui_size import CELLS, OUTPUT, Session
from tests.gateways import KEYS, Gateway, gateway

#: shares of the page's height to which it jumps, and turns of the wheel of 400 pixels
JUMPS, TURNS = (0, 0.25, 0.5, 0.75, 1, 0.1, 0.9), 60


@contextmanager
def browser(serving: Gateway) -> Iterator[Browser]:
    """Run a browser that reaches the gateway."""
    with tempfile.TemporaryDirectory() as home:
        socket = Path(home) / "socket"
        listen = f"UNIX-LISTEN:{socket},fork,backlog=64"
        wire = subprocess.Popen(["socat", listen, f"TCP:{urlsplit(serving.url).netloc}"], start_new_session=True)
        try:
            while not socket.exists():
                time.sleep(0.05)
            with chromium(Path(home), socket) as running:
                yield running
        finally:
            os.killpg(wire.pid, signal.SIGTERM)


def longest(page: Page, what: str, work: Callable[[], None]) -> dict[str, float]:
    """Do something, and return the milliseconds of the longest task meanwhile, and of its processor's time."""
    with longest_task(page) as task:
        work()
        page.wait_for_timeout(300)
    return {f"longest task: {what}, ms": task.wall, f"longest task: {what}, processor's ms": task.cpu}


def jump(page: Page) -> None:
    """Go to distant places."""
    for place in JUMPS:
        page.evaluate("(place) => scrollTo(0, place * document.scrollingElement.scrollHeight)", place)
        page.wait_for_timeout(400)


def turn(page: Page) -> None:
    """Turn the wheel up."""
    page.mouse.move(400, 400)
    for _ in range(TURNS):
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(16)


def measure(running: Browser) -> dict[str, float]:
    """Return the figures of one page."""
    page = running.new_context(viewport={"width": 1280, "height": 900}).new_page()
    loaded: dict[str, int] = {}
    page.on("response", lambda response: loaded.update({response.url: len(response.body())}))
    session = Session(CELLS)
    page.route_web_socket("**/ui/feed", session.connect)
    page.goto(f"{URL}/ui/#long")
    page.wait_for_load_state("networkidle")
    found = {
        "first paint, ms": float(page.evaluate("performance.getEntriesByName('first-paint')[0].startTime")),
        "files, kB": sum(loaded.values()) / 1000,
    }

    def sign_in() -> None:
        page.get_by_label("Key", exact=True).fill(KEYS["alice"])
        page.get_by_role("button", name="Sign in").click()
        page.locator(f"#cell-{CELLS} .outputs").get_by_text(f"{CELLS}: xxx").first.wait_for(state="attached")

    found |= longest(page, "open", sign_in)
    found |= longest(page, "jumps", lambda: jump(page))
    found |= longest(page, "wheel", lambda: turn(page))
    found["elements"] = float(page.evaluate("document.querySelectorAll('*').length"))
    page.context.close()
    return found


def main() -> None:
    """Measure, and print the median and the worst of each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pages, one after the other")
    arguments = parser.parse_args()
    say(machine())
    say(f"{CELLS} cells, {2 * CELLS} outputs, {CELLS * OUTPUT / 1e6:.0f} MB")
    with gateway("process") as serving, browser(serving) as running:
        rounds = [measure(running) for _ in range(arguments.rounds)]
    for name in rounds[0]:
        values = sorted(each[name] for each in rounds)
        say(f"{name:42} median {values[len(values) // 2]:8.0f}   most {values[-1]:8.0f}")


if __name__ == "__main__":
    main()
