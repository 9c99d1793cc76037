"""Jupyter's own servers in front of a gateway: only the URL and the key are set by the tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from tests.gateways import KEYS, Gateway

README = Path(__file__).parents[2] / "README.md"
#: token of the server itself
TOKEN = "front"  # noqa: S105 - the server lives for one test
#: seconds for a server to listen, and for it to end its kernels and exit
START_TIMEOUT = 60
STOP_TIMEOUT = 5


def pasted(gateway: Gateway) -> list[str]:
    """Return the flags that the README tells the users of JupyterLab and Jupyter Server, for this gateway."""
    [flags] = re.findall("`(--gateway-url=.*)`", README.read_text())
    return str(flags).replace("http://127.0.0.1:8888", gateway.url).replace("=KEY", f"={KEYS['alice']}").split()


@contextlib.contextmanager
def jupyter_server(
    gateway: Gateway, home: Path, *flags: str, app: str = "jupyter_server", socket: Path | None = None
) -> Iterator[str]:
    """Run a server with `--gateway-url`: its kernels are the gateway's.

    Args:
        gateway: the gateway whose kernels the server offers.
        home: directory for notebooks and all other files of the server.
        *flags: more flags of the server.
        app: the module to run.
        socket: path of a Unix socket on which the server listens instead of a port.

    Yields:
        URL of the server.
    """
    runtime, log = home / ".runtime", home / ".server.log"
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}  # noqa: TID251 - a child's
    places = {"HOME": home, "JUPYTER_CONFIG_DIR": home / ".config", "JUPYTER_DATA_DIR": home / ".data"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", app, "--allow-root", "--no-browser", f"--ServerApp.root_dir={home}"),
                *((f"--ServerApp.sock={socket}",) if socket else ("--ServerApp.port=0", "--ServerApp.port_retries=0")),
                *(f"--IdentityProvider.token={TOKEN}", *pasted(gateway), *flags),
            ],
            env=keep | {name: str(place) for name, place in (places | {"JUPYTER_RUNTIME_DIR": runtime}).items()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, runtime, log)
    finally:
        _stop(process)


def _address(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Wait until the server has published its address, and return it."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        for told in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(json.JSONDecodeError, requests.ConnectionError):  # half written, not listening yet
                url = str(json.loads(told.read_text())["url"]).rstrip("/")
                if url.startswith("http:"):
                    requests.get(f"{url}/api", timeout=10)
                return url
        time.sleep(0.1)
    raise AssertionError("the server does not listen: " + log.read_text()[-3000:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server as Ctrl-C does, then by force: threads that read files may keep it alive after its event loop."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
