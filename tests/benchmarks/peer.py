"""`jupyter_kernel_gateway` for comparison, in a separate environment, because its package has our name."""

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
#: libraries that both gateways use in the same versions, so that differences come from the gateways
SHARED = ("ipykernel", "jupyter_client", "pyzmq", "tornado")
#: names under which our kernel and a stock one are started
KERNEL = "same"
STOCK_KERNEL = "stock"
START_TIMEOUT = 60.0
#: without the last option it would drop output beyond 1000 messages or 1 MB per second
OPTIONS = ("--ip=127.0.0.1", "--port_retries=0", "--ZMQChannelsWebsocketConnection.limit_rate=False")
#: its command; and code that sets TCP_NODELAY on its sockets, which it does not set on its own
COMMAND = "from kernel_gateway.gatewayapp import launch_instance; launch_instance()"
NODELAY = """
from tornado.iostream import IOStream
set_nodelay = IOStream.set_nodelay
IOStream.set_nodelay = lambda self, wanted: set_nodelay(self, True)
"""


def install() -> None:
    """Make the environment, unless it exists."""
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
    """Write kernelspecs of our kernel and a stock one, both with this interpreter, for `jupyter_client`.

    Args:
        directory: folder of kernelspecs.
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
    """A running `jupyter_kernel_gateway`, ended with its kernels afterwards.

    Args:
        nodelay: True to set TCP_NODELAY, so that it sends small frames at once.

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
                # -P: do not import from the current directory, where our own package could be
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
            process.terminate()  # its kernels end with it
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
