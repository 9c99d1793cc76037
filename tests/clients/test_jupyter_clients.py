"""Jupyter's own clients, as they are installed, against this gateway: only the URL and the key are ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from jupyter_kernel_client import JupyterKernelClient

from tests import gateways
from tests.gateways import KEYS, Gateway

KEY = KEYS["alice"]
#: seconds for a server to listen
SERVER_TIMEOUT = 40


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.engine)])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with gateways.gateway(request.param) as serving:
        yield serving


def kernels(gateway: Gateway) -> list[str]:
    return [kernel["id"] for kernel in gateway.call("GET", "/api/kernels").json()]


# -- jupyter_kernel_client -------------------------------------------------------------------------------------


def text_of(reply: dict[str, object]) -> str:
    outputs = reply["outputs"]
    assert isinstance(outputs, list)
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_jupyter_kernel_client_runs_interrupts_and_restarts(gateway: Gateway) -> None:
    with JupyterKernelClient(server_url=gateway.url, token=KEY) as kernel:
        assert kernel.id in kernels(gateway)
        assert text_of(kernel.execute("x = 40\nprint('hello')\nx + 2")) == "hello\n42"
        assert kernel.get_variable("x") == 40
        assert "x" in [variable["name"] for variable in kernel.list_variables()]
        failed = kernel.execute("1 / 0")
        assert (failed["status"], failed["outputs"][0]["ename"]) == ("error", "ZeroDivisionError")
        kernel.restart()
        assert text_of(kernel.execute("'x' in globals()")) == "False"
    assert kernels(gateway) == []


# -- a Jupyter server in front of us ---------------------------------------------------------------------------


@contextmanager
def jupyter_server(gateway: Gateway, home: Path) -> Iterator[str]:
    """`jupyter server --gateway-url`: its kernels are ours."""
    log = home / "log"
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}  # noqa: TID251 - a child's
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyter_server", "--allow-root", "--ServerApp.port=0", "--no-browser"),
                *("--ServerApp.token=front", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={home}"),
                *(f"--GatewayClient.url={gateway.url}", f"--GatewayClient.auth_token={KEY}"),
            ],
            env=keep | {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / "runtime")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + SERVER_TIMEOUT
        while not (found := list((home / "runtime").glob("jpserver-*.json"))):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        time.sleep(0.2)
        yield json.loads(found[0].read_text())["url"].rstrip("/")
    finally:
        process.terminate()
        process.wait(30)


def test_a_jupyter_server_with_gateway_url_runs_a_notebook_through_us(gateway: Gateway, tmp_path: Path) -> None:
    with jupyter_server(gateway, tmp_path) as url:
        listed = requests.get(f"{url}/api/kernelspecs?token=front", timeout=30).json()
        assert listed["default"] == "python3"
        asked = {"path": "a.ipynb", "type": "notebook", "name": "a", "kernel": {"name": "python3"}}
        book = requests.post(f"{url}/api/sessions?token=front", json=asked, timeout=60).json()
        assert book["kernel"]["id"] in kernels(gateway)
        with JupyterKernelClient(server_url=url, token="front", kernel_id=book["kernel"]["id"]) as kernel:  # noqa: S106
            assert text_of(kernel.execute("x = 20\nprint('through two')\nx * 2.1")) == "through two\n42.0"
            plot = kernel.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
            assert [output for output in plot["outputs"] if "image/png" in output.get("data", {})]
        interrupted = requests.post(f"{url}/api/kernels/{book['kernel']['id']}/interrupt?token=front", timeout=30)
        assert interrupted.status_code == 204
        restarted = requests.post(f"{url}/api/kernels/{book['kernel']['id']}/restart?token=front", timeout=60)
        assert restarted.status_code == 200
        requests.delete(f"{url}/api/sessions/{book['id']}?token=front", timeout=30)
        assert kernels(gateway) == []
