"""Clients of Azure's dynamic sessions, and one of Dify's sandbox, as they are installed, against gVisor kernels.

Only these kernels have `/mnt/data`.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.azure import ACADynamicSessionsCodeExecutor

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.tiers import cases

ROOT = Path(__file__).parents[2]
POOL = "/dynamic-sessions/default"


def executor(gateway: Gateway, tmp_path: Path) -> ACADynamicSessionsCodeExecutor:
    credential = SimpleNamespace(get_token=lambda _scope: SimpleNamespace(token=KEYS["alice"]))
    endpoint = f"{gateway.url}{POOL}"
    return ACADynamicSessionsCodeExecutor(endpoint, credential=credential, work_dir=tmp_path)


@pytest.mark.engine
@pytest.mark.gate
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
async def test_autogens_client_of_dynamic_sessions_runs_code_with_files(gateway: Gateway, tmp_path: Path) -> None:
    client, token = executor(gateway, tmp_path), CancellationToken()

    async def run(code: str) -> tuple[int, str]:
        result = await client.execute_code_blocks([CodeBlock(code=code, language="python")], token)
        return result.exit_code, result.output

    assert await run("x = 40\nprint('hello')") == (0, "hello\n")
    assert await run("x + 2") == (0, "42")
    assert await run("import os; os.getcwd() in ('/mnt/data', '/home/user')") == (0, "True")
    failed = await run("1 / 0")
    assert (failed[0], "ZeroDivisionError" in failed[1]) == (1, True)
    (tmp_path / "in.txt").write_text("brought")
    await client.upload_files(["in.txt"], token)
    assert await run("print(open('/mnt/data/in.txt').read(), file=open('/mnt/data/out.txt', 'w'))") == (0, "")
    assert sorted(await client.get_file_list(token)) == ["in.txt", "out.txt"]
    await client.download_files(["out.txt"], token)
    assert (tmp_path / "out.txt").read_text() == "brought\n"


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
@pytest.mark.parametrize(
    ("client", "path"), [("langchain_tool", POOL), ("llama_index_tool", POOL), ("dify_sandbox_client", "/dify")]
)
def test_a_client_works_as_it_is_installed(gateway: Gateway, client: str, path: str, tmp_path: Path) -> None:
    drive("sandbox-clients", client, tmp_path, f"{gateway.url}{path}", KEYS["alice"])


@pytest.mark.engine
@pytest.mark.full
def test_semantic_kernel_works_as_it_is_installed(tmp_path: Path) -> None:
    with gateways.gateway("docker", "--tls") as serving:
        endpoint = f"{serving.url}{POOL}"
        drive("semantic-kernel", "semantic_kernel_tool", tmp_path, endpoint, KEYS["alice"], str(serving.trusted))


@dataclass(frozen=True)
class Client:
    """What differs in the requests of the clients, as they were recorded in November 2026."""

    code: str
    result: object
    #: content type of an upload; None: that of a form
    form_type: str | None = None
    #: further fields of requests with code
    more: Mapping[str, object] = field(default_factory=dict)
    #: the file's name in the form
    file: str = "up.txt"


CLIENTS = {
    "langchain-azure-dynamic-sessions 1.0.4": Client("print('hello world')\n1 + 1", 2, file="test0.txt"),
    "llama-index-tools-azure-code-interpreter 0.7.0": Client("x = 40\nx + 2\n", 42, file="/mnt/data/up.txt"),
    "semantic-kernel 1.45.0": Client(
        "40 + 2", 42, "application/json", more={"timeoutInSeconds": 100}, file="/mnt/data/up.txt"
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("gateway", ["docker"], indirect=True)
@pytest.mark.parametrize("client", cases(CLIENTS, gate="langchain-azure-dynamic-sessions 1.0.4"))
def test_what_a_client_sends_is_answered_as_it_expects(gateway: Gateway, client: Client) -> None:
    """A replay over plain HTTP: the clients take too long to install for the gate. Other tests here run themselves."""
    identifier = str(uuid.uuid4())

    def call(method: str, path: str, **options: Any) -> Any:
        target = f"{POOL}/{path}?identifier={identifier}&api-version=2024-02-02-preview"
        response = gateway.call(method, target, **options)
        assert response.status_code == 200, response.text
        return response

    asked = {"codeInputType": "inline", "executionType": "synchronous", "code": client.code, **client.more}
    told = call("POST", "code/execute", json={"properties": asked}).json()["properties"]
    assert told.keys() >= {"status", "result", "stdout", "stderr"}
    assert (told["status"], told["result"]) == ("Success", client.result)
    form = (
        f'--b0\r\nContent-Disposition: form-data; name="file"; filename="{client.file}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\nabc\r\n--b0--\r\n"
    )
    kind = client.form_type or "multipart/form-data; boundary=b0"
    [sent] = call("POST", "files/upload", data=form, headers={"Content-Type": kind}).json()["value"]
    [listed] = call("GET", "files").json()["value"]
    for each in (sent, listed):
        assert each["properties"].items() >= {"filename": Path(client.file).name, "size": 3}.items()
    assert call("GET", f"files/content/{Path(client.file).name}").content == b"abc"


def drive(environment: str, program: str, directory: Path, *arguments: str) -> None:
    """Run a program of `sandboxes/` in the environment that has its client."""
    python = ROOT / f".venv-{environment}/bin/python"
    assert python.exists(), f"run `make .venv-{environment}/.setup`"
    done = subprocess.run(
        [python, ROOT / f"tests/clients/sandboxes/{program}.py", *arguments],
        cwd=directory,
        env={"PATH": os.defpath, "HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
