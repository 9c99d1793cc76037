"""Our own kernels as a provider, with a runner in this process and with a runner behind RAGFlow's protocol."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sessions.model.errors import (
    AuditUnavailable,
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    NotInitialized,
    QuotaExceeded,
    SessionError,
)
from sessions.providers import executor
from sessions.providers.self_managed import SelfManaged
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import ECHO, Case, instance, run, value
from tests.sessions.providers.runner import KEY, LocalRunner, Server, serving

INVALID: dict[str, Any] = {
    "endpoint must be a URL": {"endpoint": "localhost:9385"},
    "endpoint must be a URL such": {"endpoint": "file:///etc/passwd"},
    "endpoint must be a URL such as": {"endpoint": "http://user:password@localhost:9385"},
    "endpoint must be a URL such as http": {"endpoint": "http://localhost:9385\r\n/a"},
    "api_key must be plain": {"api_key": "two\nlines"},
    "timeout: it must be at least 5": {"timeout": 4},
    "max_retries: it must be at most 10": {"max_retries": 11},
    "max_memory: it must be one of 128m": {"max_memory": "2g"},
}

ARTIFACT = {"name": "a.csv", "mime_type": "text/csv", "size": 1, "content_b64": "YQ=="}
LIMIT = {"status": "resource_limit_exceeded"}


@pytest.fixture
def runner() -> LocalRunner:
    return LocalRunner()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture(params=["here", "there"])
def case(request: pytest.FixtureRequest, runner: LocalRunner) -> Case:
    if request.param == "here":
        return Case(lambda: SelfManaged(runner), {}, artifacts=True, invalid=INVALID)
    server: Server = request.getfixturevalue("server")
    return Case(
        lambda: SelfManaged(runner),
        {"endpoint": f"{server.url}/", "api_key": KEY},
        artifacts=True,
        invalid=INVALID,
        nobody={"endpoint": "http://127.0.0.1:1", "max_retries": 0},
    )


@pytest.fixture
async def remote(runner: LocalRunner, server: Server) -> AsyncIterator[SelfManaged]:
    provider = SelfManaged(runner)
    assert await provider.initialize({"endpoint": server.url, "api_key": KEY})
    yield provider
    await provider.close()


async def test_the_own_runner_gets_the_whole_program(runner: LocalRunner) -> None:
    provider = SelfManaged(runner)
    await provider.initialize({"timeout": 20, "max_memory": "128m"})
    async with instance(provider, tenant="alice") as made:
        await provider.execute_code(made, ECHO["python"], "python", 60, {"value": 1})
    ((tenant, program),) = runner.asked
    assert (tenant, program.code, program.language, dict(program.arguments)) == (
        "alice",
        ECHO["python"],
        "python",
        {"value": 1},
    )
    assert (program.timeout, program.memory) == (20, 128 * 2**20)


async def test_an_endpoint_gets_requests_like_those_of_ragflow(
    remote: SelfManaged, server: Server, runner: LocalRunner
) -> None:
    assert value(await run(remote, ECHO["javascript"], "javascript", value=[1])) == [1]
    (body,) = server.bodies
    assert set(body) == {"code_b64", "language", "arguments", "timeout"}
    assert (body["language"], body["arguments"]) == ("nodejs", {"value": [1]})
    assert runner.asked == []


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, "", NotInitialized),
        (403, "", NotInitialized),
        (422, {"detail": []}, InvalidRequest),
        (429, "", QuotaExceeded),
        (500, "", BackendUnavailable),
        (503, "", BackendUnavailable),
        (200, "", ConnectionFailed),
        (200, "<html>", ConnectionFailed),
        (200, [1], ConnectionFailed),
        (200, {"status": 1}, ConnectionFailed),
        (200, {"status": "success", "artifacts": [{"name": "a"}]}, ConnectionFailed),
        (200, {"status": "success", "artifacts": [ARTIFACT | {"content_b64": "?"}]}, ConnectionFailed),
        (200, {"status": "program_runner_error", "detail": "no_available_container"}, BackendUnavailable),
        (200, {"status": "program_runner_error", "detail": "internal_error"}, BackendUnavailable),
        (200, {"status": "program_runner_error", "detail": "internal_error", "error_code": "SB019"}, AuditUnavailable),
        (200, {"status": "program_runner_error", "detail": "Too many requests, please try again later"}, QuotaExceeded),
    ],
)  # fmt: skip
async def test_a_program_that_was_not_run_is_an_error_and_is_not_resent(
    remote: SelfManaged, server: Server, status: int, body: object, error: type[SessionError]
) -> None:
    server.answer = (status, body if isinstance(body, str) else json.dumps(body))
    with pytest.raises(error):
        await run(remote, ECHO["python"])
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"status": "success", "exit_code": 0, "result": None}, ("ok", 0, None)),
        (LIMIT | {"exit_code": -124, "resource_limit_type": "time"}, ("timeout", -124, "SB005")),
        (LIMIT | {"exit_code": -137, "resource_limit_type": "memory"}, ("out_of_memory", -137, "SB006")),
        ({"status": "unauthorized_access", "exit_code": 1}, ("error", 1, None)),
        ({"status": "program_error", "exit_code": 3, "error_code": "SB010"}, ("error", 3, "SB010")),
        ({"status": "program_error", "exit_code": 3, "error_code": "nothing"}, ("error", 3, None)),
        ({"status": "program_runner_error", "exit_code": -999, "detail": "Code is unsafe"}, ("error", -999, ...)),
    ],
)  # fmt: skip
async def test_every_outcome_is_reported(remote: SelfManaged, server: Server, body: object, expected: Any) -> None:
    server.answer = (200, json.dumps(body))
    result = await run(remote, ECHO["python"])
    told = result.metadata
    assert (told["status"], result.exit_code, told["result_present"]) == (*expected[:2], False)
    assert expected[2] in {..., told.get("error_code")}


async def test_a_value_is_exact(remote: SelfManaged, server: Server) -> None:
    server.answer = (
        200,
        '{"status": "success", "exit_code": 0, "result": {"present": true, "value": 1180591620717411303425}}',
    )
    assert value(await run(remote, ECHO["python"])) == 2**70 + 1


async def test_an_answer_is_read_up_to_its_bound(
    remote: SelfManaged, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"status": "success", "exit_code": 0}).encode()
    monkeypatch.setattr(executor, "ANSWER_MAX", 1024**2)
    server.answer = (200, answer.ljust(executor.ANSWER_MAX))
    assert (await run(remote, ECHO["python"])).exit_code == 0
    server.answer = (200, answer.ljust(executor.ANSWER_MAX + 1))
    with pytest.raises(ConnectionFailed, match="more than 1048576 bytes; the program's outcome is not known"):
        await run(remote, ECHO["python"])
    server.answer = (500, b" " * (executor.ANSWER_MAX + 1))  # it is not read at all
    with pytest.raises(BackendUnavailable):
        await run(remote, ECHO["python"])


async def test_an_answer_is_never_decompressed(remote: SelfManaged, server: Server) -> None:
    server.headers = {"Content-Encoding": "gzip"}
    server.answer = (200, gzip.compress(json.dumps({"status": "success", "exit_code": 0}).encode()))
    with pytest.raises(ConnectionFailed, match="compressed"):
        await run(remote, ECHO["python"])
    server.headers = {"Content-Encoding": "identity"}
    server.answer = (200, json.dumps({"status": "success", "exit_code": 0}))
    assert (await run(remote, ECHO["python"])).exit_code == 0


async def test_a_request_that_may_have_arrived_is_not_resent(remote: SelfManaged, server: Server) -> None:
    server.cut = True
    with pytest.raises(ConnectionFailed, match="is not known"):
        await run(remote, ECHO["python"])
    assert len(server.bodies) == 1


async def test_an_answer_that_does_not_come_is_a_timeout(
    remote: SelfManaged, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(server.runner, "run", never)
    monkeypatch.setattr(executor, "TRANSFER", 0.2)
    result = await run(remote, ECHO["python"], seconds=1)
    assert (result.metadata["status"], result.metadata["error_code"]) == ("timeout", "SB005")
    assert len(server.bodies) == 1


async def test_a_connection_that_is_refused_is_tried_again(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is bound, but no server listens on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
        tried = 0
        sleep = asyncio.sleep

        async def counted(_seconds: float) -> None:
            nonlocal tried
            tried += 1
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", counted)
        for retries in (0, 4):
            tried = 0
            provider = SelfManaged(runner)
            assert not await provider.initialize({"endpoint": closed, "max_retries": retries})
            with pytest.raises(ConnectionFailed, match="nothing was run"):
                await run(provider, ECHO["python"])
            assert tried == retries
            await provider.close()


async def test_a_retry_succeeds_once_a_server_listens(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        provider = SelfManaged(runner)
        await provider.initialize({"endpoint": "http://127.0.0.1:1", "api_key": KEY, "max_retries": 3})
        sleep = asyncio.sleep

        async def moved(_seconds: float) -> None:
            assert provider._executor is not None
            provider._executor._client.base_url = server.url
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", moved)
        assert value(await run(provider, ECHO["python"], value=5)) == 5
        assert len(server.bodies) == 1
        await provider.close()
