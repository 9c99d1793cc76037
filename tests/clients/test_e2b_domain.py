"""E2B's real SDKs by https and host names, without a server's URL: the only way for releases before July 2026."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import gateways
from tests.gateways import Gateway

ROOT = Path(__file__).parents[2]
DOMAIN = "sandboxes.test"
#: early releases insist on this form
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
DRIVE = Path(__file__).parent / "e2b/drive.py"
NPM = ROOT / ".venv-e2b-npm"
#: each SDK's command; the proxy's address follows
SDKS = {
    "python-2.8": [ROOT / ".venv-e2b-early/bin/python", DRIVE],
    "python-newest": [sys.executable, DRIVE],
    "npm-newest": [NPM / "bin/node", "--input-type=module", "-"],
}

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


class Proxy(socketserver.ThreadingTCPServer):
    """A proxy for https that finds all names on this machine, and notes them: no resolver knows the names."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Tunnel)
        self.names: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Tunnel(socketserver.StreamRequestHandler):
    """One connection through the proxy."""

    server: Proxy

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split()
        assert method == "CONNECT"
        while self.rfile.readline().strip():
            pass
        name, _, port = target.rpartition(":")
        self.server.names.add(name)
        with socket.create_connection(("127.0.0.1", int(port))) as gateway:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            answers = threading.Thread(target=copy, args=(gateway, self.connection))
            answers.start()
            copy(self.connection, gateway)
            answers.join()


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one of both has left
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("process", keys=f"alice:{KEY}", tls="true", allowed_hosts=f"*.{DOMAIN}") as serving:
        yield serving
        assert serving.errors() == []


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


@pytest.mark.parametrize("command", SDKS.values(), ids=SDKS)
def test_host_names_are_all_that_a_client_needs(gateway: Gateway, proxy: Proxy, command: list[str | Path]) -> None:
    assert Path(command[0]).exists(), "run `make .venv-e2b-early/.setup .venv-e2b-npm/node_modules`"
    trusted = str(gateway.trusted)
    done = subprocess.run(
        [*command, proxy.url],
        input=(Path(__file__).parent / "e2b/drive.mjs").read_text(),  # for Node.js
        cwd=NPM,
        env={
            "PATH": os.defpath,
            "E2B_API_KEY": KEY,
            "E2B_DOMAIN": f"{DOMAIN}:{urlsplit(gateway.url).port}",
            "SSL_CERT_FILE": trusted,
            "NODE_EXTRA_CA_CERTS": trusted,
            # The npm SDK's option for a proxy does not hold for its calls of the code interpreter.
            "HTTPS_PROXY": proxy.url,
            "NODE_USE_ENV_PROXY": "1",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    sandbox = done.stdout.strip()
    assert proxy.names == {f"{place}.{DOMAIN}" for place in ("api", f"49983-{sandbox}", f"49999-{sandbox}")}
