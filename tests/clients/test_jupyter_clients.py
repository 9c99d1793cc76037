"""Jupyter's own clients, unmodified, against this gateway: only the URL and the key are set by the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from jupyter_kernel_client import JupyterKernelClient

from tests.clients.front import TOKEN, jupyter_server
from tests.gateways import KEYS, Gateway

KEY = KEYS["alice"]


# -- jupyter_kernel_client -------------------------------------------------------------------------------------


def text_of(reply: dict[str, object]) -> str:
    outputs = reply["outputs"]
    assert isinstance(outputs, list)
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_jupyter_kernel_client_runs_interrupts_and_restarts(gateway: Gateway) -> None:
    with JupyterKernelClient(server_url=gateway.url, token=KEY) as kernel:
        assert kernel.id in gateway.kernels()
        assert text_of(kernel.execute("x = 40\nprint('hello')\nx + 2")) == "hello\n42"
        assert kernel.get_variable("x") == 40
        assert "x" in [variable["name"] for variable in kernel.list_variables()]
        failed = kernel.execute("1 / 0")
        assert (failed["status"], failed["outputs"][0]["ename"]) == ("error", "ZeroDivisionError")
        kernel.restart()
        assert text_of(kernel.execute("'x' in globals()")) == "False"
    assert gateway.kernels() == []


# -- a Jupyter server in front of the gateway ------------------------------------------------------------------


@pytest.mark.gate
def test_a_jupyter_server_with_gateway_url_runs_a_notebook_through_us(gateway: Gateway, tmp_path: Path) -> None:
    with jupyter_server(gateway, tmp_path) as url:
        listed = requests.get(f"{url}/api/kernelspecs?token={TOKEN}", timeout=30).json()
        assert listed["default"] == "python3"
        asked = {"path": "a.ipynb", "type": "notebook", "name": "a", "kernel": {"name": "python3"}}
        book = requests.post(f"{url}/api/sessions?token={TOKEN}", json=asked, timeout=60).json()
        assert book["kernel"]["id"] in gateway.kernels()
        with JupyterKernelClient(server_url=url, token=TOKEN, kernel_id=book["kernel"]["id"]) as kernel:
            assert text_of(kernel.execute("x = 20\nprint('through two')\nx * 2.1")) == "through two\n42.0"
            plot = kernel.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
            assert [output for output in plot["outputs"] if "image/png" in output.get("data", {})]
        interrupted = requests.post(f"{url}/api/kernels/{book['kernel']['id']}/interrupt?token={TOKEN}", timeout=30)
        assert interrupted.status_code == 204
        restarted = requests.post(f"{url}/api/kernels/{book['kernel']['id']}/restart?token={TOKEN}", timeout=60)
        assert restarted.status_code == 200
        requests.delete(f"{url}/api/sessions/{book['id']}?token={TOKEN}", timeout=30)
        assert gateway.kernels() == []
