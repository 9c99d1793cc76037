"""Clients of Azure's dynamic sessions: AutoGen's as it is installed, against gVisor kernels, which have `/mnt/data`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.azure import ACADynamicSessionsCodeExecutor

from tests.gateways import KEYS, Gateway


def executor(gateway: Gateway, tmp_path: Path) -> ACADynamicSessionsCodeExecutor:
    credential = SimpleNamespace(get_token=lambda _scope: SimpleNamespace(token=KEYS["alice"]))
    endpoint = f"{gateway.url}/dynamic-sessions/default"
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
