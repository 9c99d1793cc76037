"""Executions by id, over HTTP: begun without a client that waits, listed, described, interrupted."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from kernel_gateway.dialects.native import executions
from kernel_gateway.dialects.native.executions import ExecutionDetail, ExecutionList, ExecutionSummary
from sessions.model.values import ExecuteRequest
from tests import gateways
from tests.fakes import World
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import (
    HANGS,
    NDJSON,
    WAITS,
    exists,
    failure,
    is_valid_nbformat,
    process_only,
    until,
    write,
)
from tests.kernel_gateway.sockets import connected


def submit(gateway: Gateway, session: str, code: str, **fields: Any) -> str:
    """Run a cell without waiting, and return the path of its execution."""
    answer = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": code, "wait": False, **fields})
    assert answer.status_code == HTTPStatus.ACCEPTED, answer.text
    begun = ExecutionSummary.model_validate(answer.json())
    assert answer.headers["Location"] == f"/v1/sessions/{session}/executions/{begun.id}"
    assert (answer.headers["X-Session-Id"], answer.headers["X-Execution-Id"]) == (begun.session_id, begun.id)
    return str(answer.headers["Location"])


def shown(gateway: Gateway, path: str) -> dict[str, Any]:
    answer = gateway.call("GET", path)
    assert answer.status_code == HTTPStatus.OK, answer.text
    ExecutionDetail.model_validate(answer.json())
    described: dict[str, Any] = answer.json()
    assert is_valid_nbformat(described["outputs"])
    return described


def ended(gateway: Gateway, path: str) -> dict[str, Any]:
    until(lambda: shown(gateway, path)["status"] not in {"queued", "running"})
    return shown(gateway, path)


def listed(gateway: Gateway, session: str) -> list[dict[str, Any]]:
    answer = gateway.call("GET", f"/v1/sessions/{session}/executions").json()
    ExecutionList.model_validate(answer)
    found: list[dict[str, Any]] = answer["executions"]
    return found


@pytest.mark.gate
def test_a_client_that_does_not_wait_finds_outputs_and_result_by_the_id(gateway: Gateway, session: str) -> None:
    running = submit(gateway, session, f"print('begun', flush=True)\n{WAITS}print('over'); 42")
    queued = submit(gateway, session, "1 / 0")
    until(lambda: text_of(shown(gateway, running)) == "begun\n")
    now = shown(gateway, running)
    assert (now["status"], now["result"], now["error"], now["outputs_kept"]) == ("running", None, None, True)
    assert shown(gateway, queued)["status"] == "queued"
    assert [each["status"] for each in listed(gateway, session)] == ["queued", "running"]
    write(gateway, session, "go")
    done = ended(gateway, running)
    assert (done["status"], done["result"]["status"], done["result"]["state"]) == ("done", "ok", "new")
    assert [output["output_type"] for output in done["outputs"]] == ["stream", "execute_result"]
    assert done["outputs"][0]["text"] == "begun\nover\n"
    failed = ended(gateway, queued)
    assert (failed["result"]["status"], failed["result"]["state"]) == ("error", "preserved")
    assert failed["outputs"][0]["ename"] == "ZeroDivisionError"
    assert [each["id"] for each in listed(gateway, session)] == [failed["id"], done["id"]]
    assert gateway.call("GET", f"/v1/sessions/{session}/notebook").text.count('"cell_type":"code"') == 2


@pytest.mark.gate
def test_a_delete_interrupts_exactly_one_execution(gateway: Gateway, session: str) -> None:
    over = submit(gateway, session, "x = 1")
    ended(gateway, over)
    running, cancelled = submit(gateway, session, HANGS), submit(gateway, session, "open('ran', 'w')")
    later = submit(gateway, session, "x")
    until(lambda: exists(gateway, session, "begun"))
    for path in (over, cancelled, cancelled):
        assert gateway.call("DELETE", path).status_code == HTTPStatus.NO_CONTENT
    gone = ended(gateway, cancelled)
    assert (gone["status"], gone["error"]["code"], gone["result"]) == ("not_run", "SB051", None)
    assert (shown(gateway, running)["status"], shown(gateway, later)["status"]) == ("running", "queued")
    assert gateway.call("DELETE", running).status_code == HTTPStatus.NO_CONTENT
    assert ended(gateway, running)["result"]["status"] == "interrupted"
    assert text_of(ended(gateway, later)) == "1"
    assert not exists(gateway, session, "ran")
    assert ended(gateway, over)["result"]["status"] == "ok"


@process_only
def test_an_execution_belongs_to_its_session_and_tenant(gateway: Gateway, session: str) -> None:
    path = submit(gateway, session, "1")
    assert ended(gateway, path)["status"] == "done"
    for method in ("GET", "DELETE"):
        assert failure(gateway.call(method, path, tenant="bob")) == (404, "SB011")
        assert failure(gateway.call(method, f"/v1/sessions/{session}/executions/none")) == (404, "SB050")
    assert failure(gateway.call("GET", f"/v1/sessions/{session}/executions", tenant="bob")) == (404, "SB011")
    gateway.execute(session, "1", tenant="bob")
    assert failure(gateway.call("GET", path, tenant="bob")) == (404, "SB050")


@process_only
def test_the_fields_of_execute_mean_the_same_without_waiting(gateway: Gateway, session: str) -> None:
    path = submit(
        gateway, session, "def main(a):\n    print(input())\n    return a + 1", arguments={"a": 4}, stdin=["in"]
    )
    done = ended(gateway, path)
    assert [output.get("text") or output["data"]["text/plain"] for output in done["outputs"]] == ["in\n", "5"]
    late = submit(gateway, session, "import time; time.sleep(60)", timeout=0.2)
    assert ended(gateway, late)["result"]["error"]["code"] == "SB005"
    kept = submit(gateway, session, "n = 1", idempotency_key="k")
    assert submit(gateway, session, "n = 1", idempotency_key="k") == kept
    assert gateway.execute(session, "n = 1", idempotency_key="k")["replayed"]
    for fields, field in (
        ({"idempotency_key": "k"}, "idempotency_key"),
        ({"on_disconnect": "interrupt"}, "on_disconnect"),
        ({"plain": True}, "plain"),
        ({"timeout": 1e9}, "timeout"),
    ):
        body = {"code": "2", "wait": False, **fields}
        refused = gateway.call("POST", f"/v1/sessions/{session}/execute", json=body)
        assert (failure(refused), refused.json()["error"]["details"]["field"]) == ((400, "SB002"), field)
    resumed = gateway.call(
        "POST", f"/v1/sessions/{session}/execute", json={"code": "2", "wait": False}, headers={"Last-Event-ID": "1"}
    )
    assert (failure(resumed), resumed.json()["error"]["details"]["field"]) == ((400, "SB002"), "wait")
    body = {"code": "2", "wait": False, "if_session": "another"}
    assert failure(gateway.call("POST", f"/v1/sessions/{session}/execute", json=body)) == (404, "SB011")


@process_only
def test_a_client_that_waits_with_a_key_is_told_the_id_before_the_end(gateway: Gateway, session: str) -> None:
    body, path = {"code": HANGS, "idempotency_key": "k"}, f"/v1/sessions/{session}/execute"
    with gateway.call("POST", path, json=body, headers={"Accept": NDJSON}, stream=True) as stream:
        until(lambda: exists(gateway, session, "begun"))
        execution = f"/v1/sessions/{session}/executions/{stream.headers['X-Execution-Id']}"
        assert gateway.call("DELETE", execution).status_code == HTTPStatus.NO_CONTENT
        assert json.loads(list(stream.iter_lines())[-1])["status"] == "interrupted"
    whole = gateway.call("POST", path, json=body)
    assert execution.endswith(whole.headers["X-Execution-Id"])
    assert "X-Execution-Id" not in gateway.call("POST", path, json={"code": "1"}).headers


@process_only
def test_outputs_of_an_execution_come_as_plain_text_to_a_client_that_asks_for_it(
    gateway: Gateway, session: str
) -> None:
    path = submit(gateway, session, "print('\\x1b[31mred\\x1b[0m')")
    assert text_of(ended(gateway, path)) == "\x1b[31mred\x1b[0m\n"
    assert text_of(shown(gateway, f"{path}?plain")) == "red\n"


@process_only
def test_a_refusal_that_is_known_at_once_answers_the_request(gateway: Gateway, session: str) -> None:
    paths = [submit(gateway, session, HANGS) for _ in range(30)]  # 10 at a time, and 20 that wait
    refused = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "1", "wait": False})
    assert failure(refused) == (429, "SB008")
    assert refused.headers["Retry-After"] == "1"
    for path in reversed(paths):
        assert gateway.call("DELETE", path).status_code == HTTPStatus.NO_CONTENT
    ended(gateway, paths[0])
    assert len(listed(gateway, session)) == 30


def test_after_the_gateway_was_killed_an_execution_is_found_with_what_is_known_of_its_end(tmp_path: Path) -> None:
    with gateways.gateway("process", state_dir=str(tmp_path)) as serving:
        over = submit(serving, "s", "print(1)")
        before = ended(serving, over)
        running, queued = submit(serving, "s", HANGS), submit(serving, "s", "1", idempotency_key="k")
        until(lambda: exists(serving, "s", "begun"))
        serving.process.kill()
        serving.process.wait()
    with gateways.gateway("process", state_dir=str(tmp_path)) as serving:
        after = shown(serving, over)
        assert after == before | {"outputs": [], "outputs_kept": False}
        assert [each["status"] for each in listed(serving, "s")] == ["not_run", "unknown", "done"]
        found = shown(serving, running)
        assert (found["error"]["code"], found["created_at"], found["outputs_kept"]) == ("SB030", None, False)
        assert failure(serving.call("DELETE", running)) == (409, "SB030")
        found = shown(serving, queued)
        assert (found["error"]["code"], found["outputs_kept"]) == ("SB028", True)
        assert "did not run" in found["error"]["message"]
        assert serving.call("DELETE", queued).status_code == HTTPStatus.NO_CONTENT
        assert submit(serving, "s", "1", idempotency_key="k") == queued
        assert ended(serving, queued)["result"]["state"] == "lost"
        assert serving.call("DELETE", over).status_code == HTTPStatus.NO_CONTENT
        assert serving.execute("s", "1")["status"] == "ok"


def test_the_executions_of_a_session_end_with_it(gateway: Gateway, session: str) -> None:
    path = submit(gateway, session, HANGS)
    until(lambda: exists(gateway, session, "begun"))
    assert gateway.call("DELETE", f"/v1/sessions/{session}").status_code == HTTPStatus.NO_CONTENT
    assert failure(gateway.call("GET", path)) == (404, "SB011")
    gateway.execute(session, "1")
    assert failure(gateway.call("GET", path)) == (404, "SB050")
    assert listed(gateway, session) == []


def idle_for(gateway: Gateway, session: str) -> float:
    """Return the seconds since the session was used."""
    answer = gateway.call("GET", f"/v1/sessions/{session}")
    used = datetime.fromisoformat(answer.json()["last_activity"])
    return (datetime.now(UTC) - used).total_seconds()


@process_only
def test_a_look_at_an_execution_is_a_use_of_its_session_and_a_list_is_none(gateway: Gateway, session: str) -> None:
    path = submit(gateway, session, "1")
    ended(gateway, path)
    until(lambda: idle_for(gateway, session) > 0.5)
    listed(gateway, session)
    assert idle_for(gateway, session) > 0.5
    before = time.monotonic()
    gateway.call("GET", path)
    assert idle_for(gateway, session) < time.monotonic() - before + 0.1


async def test_a_list_has_the_newest_executions_and_says_that_there_are_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executions, "LISTED_MAX", 2)
    session = await world.session()
    runs = [await session.submit(ExecuteRequest("1"))]
    for more in (False, True):
        runs.append(await session.submit(ExecuteRequest("1")))
        found = ExecutionList.of(session)
        assert ([each.id for each in found.executions], found.truncated) == ([each.id for each in runs[:-3:-1]], more)


@process_only
async def test_a_frame_of_a_websocket_never_waits(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.send(code="1", wait=False)
        refused = (await socket.until("error"))[-1]
        assert refused["error"]["code"] == "SB002"
        await socket.send(code="1", wait=True)
        assert (await socket.until("result"))[-1]["status"] == "ok"
