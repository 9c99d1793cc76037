"""The smallest case of a real client of each dialect, or of its calls, with kernels in Pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b_code_interpreter import Sandbox
from jupyter_server.gateway.gateway_client import GatewayClient
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from kernel_gateway.client import Session
from tests.clients.test_agentrun import ACCESS_KEYS
from tests.clients.test_dynamic_sessions import executor
from tests.clients.test_e2b import made
from tests.clients.test_nbclient import notebook, run
from tests.clients.test_open_webui import execute
from tests.cluster.access import gateway
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import agentrun, ragflow
from tests.kernel_gateway.dialects import test_dify, test_librechat
from tests.kernel_gateway.dialects.test_open_terminal import User, frontend_key

pytestmark = [pytest.mark.cluster, pytest.mark.full]


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    with gateway(pool_size="2", access_keys=ACCESS_KEYS) as serving:
        yield serving
        assert serving.errors() == []


def test_the_library_of_the_native_dialect(serving: Gateway) -> None:
    with Session(serving.url, KEYS["alice"], "library") as session:
        session.run("x = 40")
        assert session.run("x + 2").text == "42\n"


def test_jupyter(serving: Gateway) -> None:
    GatewayClient.clear_instance()
    GatewayClient.instance(url=serving.url, auth_token=KEYS["alice"])
    try:
        assert [output.data["text/plain"] for output in run(notebook("x = 40\nx + 2"))[0]] == ["42"]
    finally:
        GatewayClient.clear_instance()


def test_open_webui(serving: Gateway) -> None:
    assert execute(serving, "print(40 + 2)")["stdout"] == "42\n"


@pytest.mark.brief
def test_e2b_with_two_contexts_in_one_pod(serving: Gateway) -> None:
    with made(serving) as sandbox:
        assert isinstance(sandbox, Sandbox)
        assert sandbox.run_code("x = 40\nx + 2").text == "42"
        assert sandbox.run_code("x").text == "40"
        sandbox.files.write("a.txt", "written by the client")
        other = sandbox.create_code_context()
        assert sandbox.run_code("open('a.txt').read()", context=other).text == "written by the client"
        assert "NameError" in str(sandbox.run_code("x", context=other).error)
        assert sandbox.commands.run("cat a.txt").stdout == "written by the client"


def test_agentrun(serving: Gateway) -> None:
    with agentrun.boxed(serving) as box:
        context = box.context()
        assert "42" in str(box.run("x = 40\nprint(x + 2)", contextId=context))
        assert box.command("echo hello")["stdout"] == "hello\n"


def test_ragflow(serving: Gateway) -> None:
    assert ragflow.value(serving, "def main(): return 40 + 2") == 42


def test_difys_calls(serving: Gateway) -> None:
    assert test_dify.run(serving, "print(40 + 2)")["stdout"] == "42\n"


def test_librechats_calls(serving: Gateway) -> None:
    assert test_librechat.run(serving, "print(40 + 2)")["stdout"] == "42\n"


def test_open_terminals_calls(serving: Gateway) -> None:
    assert User(serving, frontend_key(serving), "ada").said("echo $((40 + 2))") == "42\n"


def test_dynamic_sessions(serving: Gateway, tmp_path: Path) -> None:
    from autogen_core import CancellationToken  # noqa: PLC0415 - takes seconds to import
    from autogen_core.code_executor import CodeBlock  # noqa: PLC0415 - as above

    blocks = [CodeBlock(code="x = 40\nprint(x + 2)", language="python")]
    result = asyncio.run(executor(serving, tmp_path).execute_code_blocks(blocks, CancellationToken()))
    assert (result.exit_code, result.output) == (0, "42\n")


def test_mcp(serving: Gateway) -> None:
    async def call() -> str:
        headers = {"Authorization": f"Bearer {KEYS['alice']}"}
        async with (
            create_mcp_http_client(headers=headers) as client,
            streamable_http_client(f"{serving.url}/mcp", http_client=client) as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return str((await session.call_tool("run_code", {"code": "40 + 2"})).content)

    assert "42" in asyncio.run(call())
