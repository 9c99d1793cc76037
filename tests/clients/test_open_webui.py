"""Open WebUI's Jupyter engine: its own client, unmodified, and for the gate its sequence of calls.

Source: `execute_code_jupyter` of open-webui 0.12.4, and its library `websockets` with the default limit of a message.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from tests.gateways import KEYS, Gateway

#: the path of the URL that the page gives
[PREFIX] = re.findall(r"URL=http://127.0.0.1:8888(\S+)", Path("docs/clients/open_webui.md").read_text())
ROOT = Path(__file__).parents[2]
#: an image of more than a megabyte, which compression does not make smaller
LARGE_IMAGE = (
    "from IPython.display import Image, display\nimport os\ndisplay(Image(b'\\x89PNG' + os.urandom(1_200_000)))"
)


def execute(gateway: Gateway, code: str, prefix: str = PREFIX) -> dict[str, str]:
    """Run code as Open WebUI does: one kernel for each run."""
    base = f"{prefix}/api/kernels"
    made = gateway.call("POST", f"{base}?token={KEYS['alice']}", tenant=None)
    assert made.status_code == 201, made.text
    kernel = f"{base}/{made.json()['id']}"
    try:
        return _answer(f"{gateway.url.replace('http', 'ws', 1)}{kernel}/channels?token={KEYS['alice']}", code)
    finally:
        assert gateway.call("DELETE", f"{kernel}?token={KEYS['alice']}", tenant=None).status_code == 204


def _answer(url: str, code: str) -> dict[str, str]:
    asked = uuid.uuid4().hex
    header = {"msg_id": asked, "msg_type": "execute_request", "username": "user", "session": uuid.uuid4().hex}
    content = {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    request = {
        "header": header | {"date": "", "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
    }
    answer = {"stdout": "", "stderr": "", "result": ""}
    with connect(url) as socket:
        socket.send(json.dumps(request))
        while True:
            message: dict[str, Any] = json.loads(socket.recv(timeout=60))
            if message.get("parent_header", {}).get("msg_id") != asked:
                continue
            said = message["content"]
            match message["msg_type"]:
                case "stream":
                    answer[said["name"]] += said["text"]
                case "execute_result" | "display_data":
                    image = said["data"].get("image/png")
                    answer["result"] += f"data:image/png;base64,{image}" if image else said["data"]["text/plain"]
                case "error":
                    answer["stderr"] += "\n".join(said["traceback"])
                case "status" if said["execution_state"] == "idle":
                    return answer


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
def test_open_webuis_own_client_runs_code(gateway: Gateway, tmp_path: Path) -> None:
    environment = ROOT / ".venv-open-webui"
    assert (environment / "open_webui").exists(), "run `make .venv-open-webui/open_webui`"
    done = subprocess.run(
        [
            environment / "bin/python",
            ROOT / "tests/clients/sandboxes/open_webui_engine.py",
            f"{gateway.url}{PREFIX}",
            KEYS["alice"],
        ],
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path), "DATA_DIR": str(tmp_path), "WEBUI_SECRET_KEY": "of-this-test"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.gate
def test_a_run_answers_with_output_result_and_image(gateway: Gateway) -> None:
    """A replay of what `test_open_webuis_own_client_runs_code` sends: its package is too large for the gate."""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n40 + 2"
    assert execute(gateway, code) == {"stdout": "out\n", "stderr": "err\n", "result": "42"}
    plot = execute(gateway, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    assert plot["result"].startswith("data:image/png;base64,iVBOR")
    assert "ZeroDivisionError" in execute(gateway, "1 / 0")["stderr"]


def test_no_run_sees_the_variables_of_another(gateway: Gateway) -> None:
    execute(gateway, "kept = 1")
    assert execute(gateway, "'kept' in globals()")["result"] == "False"
    assert gateway.kernels() == []


def test_long_text_arrives_whole(gateway: Gateway) -> None:
    assert execute(gateway, "print('é' * 3_000_000)")["stdout"] == "é" * 3_000_000 + "\n"


def test_a_message_that_open_webui_cannot_read_is_replaced_by_a_line_that_says_so(gateway: Gateway) -> None:
    answer = execute(gateway, f"{LARGE_IMAGE}\nprint('after')")
    assert "was left out, because Open WebUI reads at most 1 MiB" in answer["stderr"]
    assert (answer["stdout"], answer["result"]) == ("after\n", "")
    failed = execute(gateway, "raise ValueError('x' * 3_000_000)")
    assert failed["stderr"].startswith("ValueError: xxx")
    assert execute(gateway, "'x' * 2_000_000\n")["stderr"].startswith("kernel-gateway: an output")


def test_without_the_prefix_a_large_message_ends_the_connection(gateway: Gateway) -> None:
    with pytest.raises(ConnectionClosedError):
        execute(gateway, LARGE_IMAGE, prefix="")


@pytest.mark.parametrize("call", ["GET", "DELETE"])
def test_another_tenants_kernel_is_not_found(gateway: Gateway, call: str) -> None:
    made = gateway.call("POST", f"{PREFIX}/api/kernels").json()["id"]
    path = f"{PREFIX}/api/kernels/{made}"
    assert gateway.call(call, f"{path}?token={KEYS['bob']}", tenant=None).status_code == 404
    assert gateway.call("GET", f"{path}?token={KEYS['alice']}", tenant=None).status_code == 200
    assert gateway.call("DELETE", path).status_code == 204
