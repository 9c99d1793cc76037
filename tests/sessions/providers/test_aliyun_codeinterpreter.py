"""Aliyun's code interpreter, with the real SDK, against this gateway's own AgentRun dialect."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from sessions.model.errors import NotInitialized, SandboxNotFound
from sessions.providers.agentrun import outcome
from sessions.providers.aliyun_codeinterpreter import AliyunCodeInterpreter
from sessions.providers.wrapping import wrapped
from tests import gateways
from tests.gateways import Gateway
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import Case, instance, run, value

ID, SECRET = "LTAI-alice-0123456789", "secret-of-alice-0123456789"


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.engine)])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with gateways.gateway(request.param, access_keys=f"alice:{ID}:{SECRET}") as serving:
        yield serving


@pytest.fixture
def case(gateway: Gateway) -> Case:
    async def left() -> int:
        answer = gateway.call("GET", "/2025-09-10/sandboxes?maxResults=100").json()
        return len(answer["data"]["items"])

    return Case(
        AliyunCodeInterpreter,
        {
            "access_key_id": ID,
            "access_key_secret": SECRET,
            "account_id": "1234567890",
            "data_endpoint": gateway.url,
        },
        left=left,
        invalid={
            "access_key_id: it is required": {"access_key_id": ""},
            "account_id: it is required": {"account_id": None},
            "region: it must be one of cn-hangzhou": {"region": "us-east-1"},
            "timeout: it must be at most 30": {"timeout": 31},
            "data_endpoint must be a URL": {"data_endpoint": "gateway:8888"},
        },
        nobody={"data_endpoint": "http://127.0.0.1:1"},
    )


async def test_a_wrong_key_is_not_healthy_and_makes_nothing(case: Case) -> None:
    provider = AliyunCodeInterpreter()
    assert not await provider.initialize(case.config | {"access_key_secret": "another-secret-0123456789"})
    assert case.left is not None
    before = await case.left()
    with pytest.raises(NotInitialized, match="access key"):
        await provider.create_instance()
    assert await case.left() == before
    await provider.close()


async def test_a_template_that_is_not_there_makes_nothing(case: Case) -> None:
    provider = AliyunCodeInterpreter()
    await provider.initialize(case.config | {"template_name": "no-such-template"})
    with pytest.raises(SandboxNotFound):
        await provider.create_instance()
    await provider.close()


async def test_a_deleted_sandbox_is_reported_as_not_found(gateway: Gateway, provider: AliyunCodeInterpreter) -> None:
    made = await provider.create_instance()
    assert gateway.call("DELETE", f"/sandboxes/{made.metadata['sandbox_id']}").status_code == 200
    with pytest.raises(SandboxNotFound):
        await provider.execute_code(made.instance_id, "def main(): return 1", "python")
    assert await provider.destroy_instance(made.instance_id)


async def test_without_its_sdk_it_says_what_to_install(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agentrun.sandbox", None)
    with pytest.raises(NotInitialized, match=r"\[aliyun\]"):
        await AliyunCodeInterpreter().initialize(case.config)


async def test_loading_the_sdk_says_nothing() -> None:
    """A program's standard output may be JSON, and the log always is."""
    code = "from sessions.providers.agentrun import sdk; print(sdk().__name__)"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, stderr=pipe)
    assert await process.communicate() == (b"agentrun.sandbox\n", b"")


async def test_an_instance_is_one_sandbox(provider: AliyunCodeInterpreter) -> None:
    async with instance(provider) as made:
        await provider.execute_code(made, "def main(): open('kept', 'w').write('here')", "python")
        assert value(await provider.execute_code(made, "def main(): return open('kept').read()", "python")) == "here"
    assert (await run(provider, "def main(): return open('kept').read()")).exit_code == 1


def test_a_reply_with_items_only_is_understood() -> None:
    """The service itself answers without the fields that this gateway adds."""
    program = wrapped("", "python", {})
    answer = f'\n{program.marker}{{"exit_code": 0, "value": "NDI="}}'
    items = [{"type": "stdout", "text": "out\n" + answer}, {"type": "stderr", "text": "err"}]
    told = outcome(program, {"results": [*items, {"type": "endOfExecution", "status": "ok"}]}, 1)
    assert (told.stdout, told.stderr, told.returned and told.returned.value) == ("out\n", "err\n", 42)
    late = outcome(program, {"results": [{"type": "endOfExecution", "status": "timeout"}]}, 1)
    assert (late.ending, late.error and late.error.code) == ("timeout", "SB005")
    lost = outcome(program, {"results": [{"type": "endOfExecution", "status": "ok"}]}, 1)
    assert (lost.ending, lost.error and lost.error.code) == ("died", "SB010")
    raised = {"type": "error", "name": "A", "value": "b", "traceback": ["\x1b[31mA\x1b[0m: b"], "text": "A: b"}
    failed = outcome(program, {"results": [raised, {"type": "endOfExecution", "status": "error"}]}, 1)
    assert (failed.ending, failed.exit_code, failed.stderr) == ("error", 1, "A: b\n")
