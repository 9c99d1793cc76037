"""The log lines of requests and cells, and the secrets that must never be in them."""

from __future__ import annotations

import hashlib
import re
import signal
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from tornado.websocket import websocket_connect

from kernel_gateway.http.access_log import request_ended
from sessions.model.tasks import spawn
from sessions.model.values import Asker
from sessions.store.records import Begin, read
from tests import gateways
from tests.gateways import KEYS, Gateway, text_of
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.sockets import Socket, connected, request

OURS = re.compile("[0-9a-f]{16}")


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """The gateway without a sandbox: the isolation makes no difference."""
    return started("process")


def lines(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """Return the lines of the log with these fields."""
    return [entry for entry in gateway.logged() if fields.items() <= entry.items()]


def test_a_line_has_the_status_of_a_request_as_a_number() -> None:
    """Handlers have it as an `HTTPStatus`, which a terminal would show with its name and class."""
    request = SimpleNamespace(method="GET", path="/v1/sessions", request_time=lambda: 0.1)
    handler: Any = SimpleNamespace(
        request=request, logged_path=request.path, get_status=lambda: HTTPStatus.NOT_FOUND, asker=Asker()
    )
    with capture_logs() as said:
        request_ended(handler)
    assert repr(said[0]["status"]) == "404"


# -- request ids -----------------------------------------------------------------------------------------------


def test_a_cells_log_line_names_its_tenant_session_and_request(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}/execute"
    name = f"run.{session}_1"
    headers = {"X-Request-Id": name}
    ran = gateway.call("POST", path, headers=headers, json={"code": "while True: pass", "timeout": 0.5})
    assert ran.headers["X-Request-Id"] == name
    (cell,) = until(lambda: lines(gateway, event="execution", request_id=name))
    assert (cell["tenant"], cell["session"], cell["status"], cell["code"]) == ("alice", session, "timeout", "SB005")
    assert cell["duration_ms"] >= 500
    assert re.fullmatch("[0-9a-f]{32}", cell["execution"])
    assert re.fullmatch("[0-9a-f]{64}", cell["code_sha256"])
    (asked,) = until(lambda: lines(gateway, event="request", request_id=name))
    assert (asked["method"], asked["path"], asked["status"], asked["dialect"]) == ("POST", path, 200, "native")


def test_lines_and_the_audit_say_who_asked(gateway: Gateway, session: str) -> None:
    made = gateway.call(
        "POST", "/v1/admin/keys", tenant=None, headers=bearer(gateway.admin_key()), json={"tenant": "carol"}
    ).json()
    name, path = f"who-{session}", f"/v1/sessions/{session}/execute"
    headers = bearer(made["key"]) | {"X-Request-Id": name}
    gateway.call("POST", path, tenant=None, headers=headers, json={"code": "1"}).raise_for_status()
    asker = {"key_id": made["id"], "address": "127.0.0.1", "dialect": "native", "request_id": name}
    for event in ("execution", "request"):
        (line,) = until(partial(lines, gateway, event=event, request_id=name))
        assert {field: line[field] for field in asker} == asker
    (begin,) = [
        each.what for each in read(gateway.state_dir / "audit.db") if getattr(each.what, "tenant", "") == "carol"
    ]
    assert {field: getattr(begin, field) for field in asker} == asker


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_of_the_settings_has_an_id_in_log_and_audit(gateway: Gateway, session: str) -> None:
    name = f"settings-{session}"
    gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "1"}, headers={"X-Request-Id": name})
    (line,) = until(lambda: lines(gateway, event="request", request_id=name))
    key_id = f"s-{hashlib.sha256(KEYS['alice'].encode()).hexdigest()[:8]}"
    assert (line["key_id"], line["tenant"]) == (key_id, "alice")
    begun = (record.what for record in read(gateway.state_dir / "audit.db") if isinstance(record.what, Begin))
    assert [begin.key_id for begin in begun if begin.request_id == name] == [key_id]


def test_each_cell_has_the_id_of_its_own_request(gateway: Gateway, session: str) -> None:
    """The first request also starts the kernel and its background tasks, which live on."""
    ids = [f"{session}-{number}" for number in range(3)]
    for name in ids:
        path = f"/v1/sessions/{session}/execute"
        gateway.call("POST", path, headers={"X-Request-Id": name}, json={"code": "1"}).raise_for_status()
    until(lambda: len(lines(gateway, event="execution", session=session)) == len(ids))
    assert [entry["request_id"] for entry in lines(gateway, event="execution", session=session)] == ids


async def test_cells_of_a_socket_have_the_id_of_its_request(gateway: Gateway, session: str) -> None:
    headers = {"Authorization": f"Bearer {KEYS['alice']}", "X-Request-Id": session}
    socket = Socket(await websocket_connect(request(gateway, session, headers)))
    await socket.run("1")
    await socket.close()
    (cell,) = until(lambda: lines(gateway, event="execution", session=session))
    assert cell["request_id"] == session


def test_a_refusal_names_the_request(gateway: Gateway) -> None:
    answer = gateway.call("GET", "/v1/sessions/absent", headers={"X-Request-Id": "where-is-it"})
    assert answer.json()["error"]["request_id"] == answer.headers["X-Request-Id"] == "where-is-it"


@pytest.mark.parametrize("told", ["", "a b", 'a"b', "x" * 65, "é", "a/b", "{}", "%0a"])
def test_an_invalid_request_id_is_replaced(gateway: Gateway, told: str) -> None:
    answer = gateway.call("GET", "/v1/sessions", headers={"X-Request-Id": told.encode("latin-1")})
    assert OURS.fullmatch(answer.headers["X-Request-Id"])
    longest = "Aa0._-" + "x" * 58
    assert gateway.call("GET", "/healthz", headers={"X-Request-Id": longest}).headers["X-Request-Id"] == longest


async def test_work_in_the_background_has_the_id_of_the_request_that_began_it(nothing_left: None) -> None:
    async def works() -> None:
        structlog.get_logger().info("works")

    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        with structlog.contextvars.bound_contextvars(request_id="began-it"):
            task = spawn(works(), "background")
        await task
        await spawn(works(), "of nobody")
    assert [entry.get("request_id") for entry in logs] == ["began-it", None]


# -- secrets ---------------------------------------------------------------------------------------------------

#: one secret for each way into the gateway, by the name of the way
PLANTED = {
    name: f"planted-{name}-5EcReT"
    for name in ("code", "stdin", "argument", "env", "file", "output", "query", "key", "header")
}


def test_secrets_are_in_no_log_no_metric_no_audit_and_no_error(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}"
    gateway.call("POST", "/v1/sessions", json={"name": session, "env": {"E": PLANTED["env"]}}).raise_for_status()
    gateway.call("PUT", f"{path}/files/f", data=PLANTED["file"].encode()).raise_for_status()
    ran = gateway.execute(
        session, f"print(input(), '{PLANTED['code']}', 'planted-out' + 'put-5EcReT')", stdin=[PLANTED["stdin"]]
    )
    seen = text_of(ran) + gateway.text(session, "import os; print(os.environ['E'], open('f').read())")
    seen += gateway.text(session, "def main(a): print(a)", arguments={"a": PLANTED["argument"]})
    for name in ("stdin", "code", "output", "env", "file", "argument"):  # the control: the cells did see them
        assert PLANTED[name] in seen
    errors = [
        gateway.call("POST", f"{path}/execute", json={"code": PLANTED["code"], "timeout": PLANTED["argument"]}),
        gateway.call("POST", f"{path}/execute", data=b'{"code": "' + PLANTED["code"].encode()),
        gateway.call("POST", "/v1/sessions", json={"name": session, "env": {"E": PLANTED["env"] + "\0"}}),
        gateway.call("GET", f"/api/kernels?token={PLANTED['query']}", tenant=None),
        gateway.call("GET", "/v1/sessions", tenant=None, headers={"Authorization": f"Bearer {PLANTED['key']}"}),
        gateway.call("GET", "/v1/sessions", tenant=None, headers={"X-API-Key": PLANTED["key"]}),
        gateway.call("GET", f"{path}/files/absent", headers={"X-Request-Id": PLANTED["header"] + " " + "x"}),
    ]
    assert {error.status_code // 100 for error in errors} == {4}
    told = [error.text for error in errors]
    told += [str(error.headers) for error in errors]
    told += [gateway.call("GET", "/metrics", tenant=None).text, gateway.log.read_text()]
    told += [file.read_bytes().decode("latin-1") for file in Path(gateway.state_dir).glob("audit.db*")]
    assert session in told[-1] + told[-2]  # the control: log or audit do mention the session
    for secret in (*PLANTED.values(), *KEYS.values()):
        assert not [text for text in told if secret in text], secret


@pytest.mark.parametrize("isolation", ["process", pytest.param("docker", marks=[pytest.mark.engine, pytest.mark.full])])
async def test_normal_use_logs_no_warning(isolation: str) -> None:
    with gateways.gateway(isolation, pool_size="1") as serving:
        assert serving.call("POST", "/v1/sessions", json={"name": "idle", "idle_timeout": 1}).status_code == 201
        assert serving.text("used", "print(6 * 7)") == "42\n"
        assert serving.execute("used", "1/0")["status"] == "error"
        assert serving.execute("used", "while True: pass", timeout=0.5)["status"] == "timeout"
        assert serving.call("PUT", "/v1/sessions/used/files/a", data=b"a").status_code == 204
        assert serving.call("POST", "/v1/sessions/used/restart").status_code == 200
        async with connected(serving, "used") as socket:
            await socket.send(code="print(1)")
            await socket.until("result")
        box = serving.call("POST", "/sandboxes", json={"templateName": "code-interpreter-v1"}).json()["sandboxId"]
        assert serving.call("DELETE", f"/sandboxes/{box}").status_code == 200
        until(lambda: serving.call("GET", "/v1/sessions/idle").status_code == 404)
        assert serving.call("DELETE", "/v1/sessions/used").status_code == 204
        serving.text("left", "1")
        serving.process.send_signal(signal.SIGTERM)
        serving.process.wait(60)
        events = {record["event"] for record in serving.logged()}
        assert {"session culled", "request", "execution"} <= events, "control"
        assert [record for record in serving.logged() if record["level"] not in {"debug", "info"}] == []
