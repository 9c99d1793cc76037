"""`jupyter_kernel_gateway`, to measure beside: in an environment of its own, because it imports by our name."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import requests

from sessions.backends.base import KERNEL_IMAGE
from tests.benchmarks.figures import say
from tests.gateways import KEYS

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-peer"
#: what both gateways stand on, in the same versions: the difference is theirs
SHARED = ("ipykernel", "jupyter_client", "pyzmq", "tornado")
#: our kernel, and one as it is, by the names under which they are started
KERNEL = "same"
STOCK_KERNEL = "stock"
START_TIMEOUT = 60.0
#: it would leave out output beyond 1000 messages or 1 MB per second
OPTIONS = ("--ip=127.0.0.1", "--port_retries=0", "--ZMQChannelsWebsocketConnection.limit_rate=False")
#: its command; with TCP_NODELAY on its sockets, which it does not set by itself
COMMAND = "from kernel_gateway.gatewayapp import launch_instance; launch_instance()"
NODELAY = """
from tornado.iostream import IOStream
set_nodelay = IOStream.set_nodelay
IOStream.set_nodelay = lambda self, wanted: set_nodelay(self, True)
"""


def install() -> None:
    """Make its environment, unless it is there."""
    wanted = ["jupyter_kernel_gateway>=3,<4", *(f"{name}=={version(name)}" for name in SHARED)]
    stamp = VENV / ".installed"
    if stamp.exists() and stamp.read_text() == "\n".join(wanted):
        return
    say(f"making {VENV.name} for jupyter_kernel_gateway")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    say("installing " + ", ".join(wanted))
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--progress-bar", "off", "--quiet"]
    subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
    stamp.write_text("\n".join(wanted))


def write_kernelspecs(directory: Path) -> None:
    """Put our own kernel and a stock one, with our own interpreter, where `jupyter_client` finds them.

    Args:
        directory: a folder of kernelspecs.
    """
    spec = json.loads((KERNEL_IMAGE / "kernelspecs/python/kernel.json").read_text())
    places = {"python": sys.executable, "image": str(KERNEL_IMAGE), "connection_file": "{connection_file}"}
    spec["argv"] = [part.format(**places) for part in spec["argv"]]
    stock = spec | {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    for name, written in ((KERNEL, spec), (STOCK_KERNEL, stock)):
        (directory / name).mkdir(parents=True)
        (directory / name / "kernel.json").write_text(json.dumps(written))


@contextlib.contextmanager
def peer(*, nodelay: bool) -> Iterator[tuple[str, int]]:
    """A running one, ended with its kernels afterwards.

    Args:
        nodelay: as it would be if it sent small frames at once.

    Yields:
        its URL, and its process id.
    """
    install()
    with tempfile.TemporaryDirectory(prefix="kgw-peer-") as home:
        write_kernelspecs(Path(home, "kernels"))
        port = _free_port()
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}  # noqa: TID251 - a child's
        with Path(home, "log").open("wb") as log:
            process = subprocess.Popen(
                # -P: in its own directory there is nothing to import, and in ours there would be ourselves
                [VENV / "bin/python", "-P", "-c", (NODELAY if nodelay else "") + COMMAND, f"--port={port}", *OPTIONS],
                env=keep | {"HOME": home, "JUPYTER_PATH": home, "KG_AUTH_TOKEN": KEYS["alice"]},
                cwd=home,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _until_it_answers(url, process, Path(home, "log"))
            yield url, process.pid
        finally:
            process.terminate()  # it takes its kernels along
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError):
            requests.get(f"{url}/api", timeout=5)
            return
        time.sleep(0.1)
    raise AssertionError("jupyter_kernel_gateway does not start: " + log.read_text()[-3000:])
