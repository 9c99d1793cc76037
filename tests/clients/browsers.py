"""A real Chromium in a separate network that contains one server and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

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
