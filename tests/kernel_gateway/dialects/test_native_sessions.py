"""Sessions over HTTP, on a real gateway: made, listed, described, limited, ended, exported, separate per tenant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import nbformat
import pytest
from nbformat import v4
from requests import Response

from kernel_gateway.dialects.native.models import SessionInfo
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import SHARED, failure, process_only, until

MIB = 1024**2


def create(gateway: Gateway, **body: Any) -> dict[str, Any]:
    """Make a session."""
    response = gateway.call("POST", "/v1/sessions", json=body)
    assert response.status_code == 201, response.text
    info: dict[str, Any] = response.json()
    assert response.headers["Location"] == f"/v1/sessions/{info['name']}"
    return info


def names(gateway: Gateway, tenant: str = "alice") -> list[str]:
    """Return the names of a tenant's sessions."""
    listed = gateway.call("GET", "/v1/sessions", tenant=tenant).json()["sessions"]
    return [session["name"] for session in listed]


# -- life cycle ------------------------------------------------------------------------------------------------


def test_a_session_is_made_described_listed_and_ended(gateway: Gateway, session: str) -> None:
    made = create(gateway, name=session, language="python")
    assert (made["name"], made["language"], made["state"], made["incarnation"]) == (session, "python", "idle", 1)
    described = gateway.call("GET", f"/v1/sessions/{session}").json()
    assert described["created_at"] == made["created_at"]
    assert described.keys() == SessionInfo.model_fields.keys()
    assert abs((datetime.fromisoformat(described["created_at"]) - datetime.now(UTC)).total_seconds()) < 60
    assert session in names(gateway)
    ended = gateway.call("DELETE", f"/v1/sessions/{session}")
    assert (ended.status_code, ended.content) == (204, b"")
    assert session not in names(gateway)
    for method in ("GET", "DELETE"):
        assert failure(gateway.call(method, f"/v1/sessions/{session}")) == (404, "SB011")


@pytest.mark.parametrize(
    ("asked", "is_there"), [("a/b", "/home/user/a/b"), ("/home/user/a", "/home/user/a"), ("/tmp/a", "/tmp/a")]
)
@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_a_kernel_starts_in_the_directory_that_was_asked_for(
    gateway: Gateway, session: str, asked: str, is_there: str
) -> None:
    create(gateway, name=session, cwd=asked)
    assert gateway.text(session, "import os; os.getcwd()") == repr(is_there)


@process_only
@pytest.mark.parametrize("elsewhere", ["/etc", "../out", "/"])
def test_a_kernels_directory_lies_in_the_workspace_or_tmp(gateway: Gateway, elsewhere: str) -> None:
    refused = gateway.call("POST", "/v1/sessions", json={"name": "elsewhere", "cwd": elsewhere})
    assert failure(refused) == (400, "SB002")


def test_an_ended_session_that_is_used_again_reports_its_lost_state_once(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    gateway.call("DELETE", f"/v1/sessions/{session}")
    back = gateway.execute(session, "'x' in globals()")
    assert (text_of(back), back["state"], back["state_reason"]) == ("False", "lost", "the session was ended")
    assert gateway.execute(session, "")["state"] == "preserved"


def test_a_cell_runs_only_in_the_session_that_its_client_means(gateway: Gateway, session: str) -> None:
    def execute(**more: str) -> Response:
        return gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "x = 1", **more})

    first = execute()
    meant = first.json()["session_id"]
    assert (first.headers["X-Session-Id"], first.json()["state"]) == (meant, "new")
    assert gateway.call("GET", f"/v1/sessions/{session}").json()["id"] == meant
    assert execute(if_session=meant).json()["state"] == "preserved"
    gateway.call("DELETE", f"/v1/sessions/{session}")
    assert failure(execute(if_session=meant)) == (404, "SB011")
    assert session not in names(gateway)  # nothing was made
    assert execute().json()["state"] == "lost"
    assert failure(execute(if_session=meant)) == (404, "SB011")


def test_a_cell_runs_only_in_the_kernel_that_its_client_means(gateway: Gateway, session: str) -> None:
    def execute(code: str, **more: str | int) -> Response:
        return gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": code, **more})

    assert failure(execute("1", if_incarnation=1)) == (404, "SB011")
    assert session not in names(gateway)  # nothing was made
    first = execute("x = 1").json()
    meant = {"if_session": first["session_id"], "if_incarnation": first["incarnation"]}
    assert text_of(execute("x", **meant).json()) == "1"
    assert gateway.call("POST", f"/v1/sessions/{session}/restart").status_code == 200
    other = execute("x = 2").json()
    assert other["state"] == "restarted"  # another client got the report
    assert failure(execute("open('ran', 'w')", **meant)) == (404, "SB011")
    now = {**meant, "if_incarnation": other["incarnation"]}
    assert text_of(execute("import os; x, os.path.exists('ran')", **now).json()) == "(2, False)"


@process_only
def test_a_name_can_be_used_once_at_a_time(gateway: Gateway, session: str) -> None:
    create(gateway, name=session)
    gateway.execute(session, "x = 1")
    assert failure(gateway.call("POST", "/v1/sessions", json={"name": session})) == (409, "SB012")
    assert gateway.text(session, "x") == "1"
    gateway.call("DELETE", f"/v1/sessions/{session}")
    create(gateway, name=session)


@process_only
def test_a_session_without_a_name_gets_one(gateway: Gateway) -> None:
    one, other = create(gateway), create(gateway)
    assert one["name"] != other["name"]
    for info in (one, other):
        assert gateway.call("DELETE", f"/v1/sessions/{info['name']}").status_code == 204


@process_only
def test_a_language_has_aliases_and_an_unknown_one_is_refused_with_the_known_ones(
    gateway: Gateway, session: str
) -> None:
    response = gateway.call("POST", "/v1/sessions", json={"name": session, "language": "cobol"})
    assert failure(response) == (400, "SB002")
    assert "python" in response.json()["error"]["message"]
    assert create(gateway, name=session, language="PY")["language"] == "python"


# -- limits and environment ------------------------------------------------------------------------------------


@pytest.mark.gate
def test_limits_can_be_lowered(gateway: Gateway, session: str) -> None:
    asked = {"memory": "256m", "cpus": 0.5, "processes": 48, "disk": 8 * MIB, "output": "1m"}
    limits = create(gateway, name=session, limits=asked, idle_timeout=60)["limits"]
    assert limits == {"memory": 256 * MIB, "cpus": 0.5, "processes": 48, "disk": 8 * MIB, "output": MIB}
    assert gateway.call("GET", f"/v1/sessions/{session}").json()["idle_timeout"] == 60


@process_only
@pytest.mark.parametrize(
    "body",
    [
        {"limits": {"memory": "513m"}},
        {"limits": {"memory": 0}},
        {"limits": {"memory": -1}},
        {"limits": {"memory": "plenty"}},
        {"limits": {"memory": 0.5}},
        {"limits": {"memory": "64m"}},
        {"limits": {"memory": "200m"}, "language": "javascript"},
        {"limits": {"cpus": 0.01}},
        {"limits": {"cpus": 1.5}},
        {"limits": {"cpus": 0}},
        {"limits": {"cpus": "1"}},
        {"limits": {"processes": 65}},
        {"limits": {"disk": "1g"}},
        {"limits": {"disk": 1}},
        {"limits": {"disk": 2**20 - 1}},
        {"limits": {"output": "11m"}},
        {"limits": {"colour": 1}},
        {"limits": []},
        {"idle_timeout": 3601},
        {"idle_timeout": 0},
        {"idle_timeout": True},
        {"env": {"LD_PRELOAD": "evil.so"}},
        {"env": {"PYTHONSTARTUP": "evil.py"}},
        {"env": {"PATH": "."}},
        {"env": {"A B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A=B": "c"}},
        {"env": {"A": "b\0c"}},
        {"env": {"A": "\ud800"}},
        {"env": {"A": 1}},
        {"env": {"A" * 100_000: ""}},
        {"env": {"A": "x" * 40_000}},
        {"env": ["A=b"]},
        {"language": 1},
        {"language": ""},
        {"name": 1},
    ],
    ids=lambda body: str(body)[:40],
)
def test_an_invalid_setting_is_refused_and_no_session_is_made(
    gateway: Gateway, session: str, body: dict[str, Any]
) -> None:
    response = gateway.call("POST", "/v1/sessions", json={"name": session} | body)
    assert failure(response) == (400, "SB002")
    assert session not in names(gateway)


def test_a_session_has_the_environment_it_was_given(gateway: Gateway, session: str) -> None:
    create(gateway, name=session, env={"GREETING": "grüß Gott", "EMPTY": ""})
    assert gateway.text(session, "import os; os.environ['GREETING'], os.environ['EMPTY']") == "('grüß Gott', '')"


# -- export ----------------------------------------------------------------------------------------------------


def test_the_notebook_contains_the_cells_and_their_outputs(gateway: Gateway, session: str) -> None:
    for code in ("x = 20", "print('hi')\nx + 1", "x /"):
        gateway.execute(session, code)
    response = gateway.call("GET", f"/v1/sessions/{session}/notebook")
    assert response.headers["Content-Type"] == "application/x-ipynb+json"
    assert response.headers["Content-Disposition"] == f'attachment; filename="{session}.ipynb"'
    notebook = nbformat.reads(response.text, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.metadata.kernelspec.name, notebook.nbformat, notebook.nbformat_minor) == ("python3", 4, 5)
    assert [(cell.source, cell.execution_count) for cell in notebook.cells] == [
        ("x = 20", 1),
        ("print('hi')\nx + 1", 2),
        ("x /", 3),
    ]
    shown = [[output.output_type for output in cell.outputs] for cell in notebook.cells]
    assert shown == [[], ["stream", "execute_result"], ["error"]]


@process_only
def test_a_session_that_ran_nothing_is_an_empty_notebook(gateway: Gateway, session: str) -> None:
    create(gateway, name=session)
    notebook = nbformat.reads(gateway.call("GET", f"/v1/sessions/{session}/notebook").text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells == v4.new_notebook().cells


# -- tenants ---------------------------------------------------------------------------------------------------

OTHERS = [
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/interrupt"),
    ("POST", "/restart"),
    ("GET", "/notebook"),
    ("GET", "/files/?list"),
    ("GET", "/files/secret.txt"),
    ("DELETE", "/files/secret.txt"),
]


@process_only
@pytest.mark.parametrize(("method", "rest"), OTHERS)
def test_a_session_of_another_tenant_looks_like_an_absent_session(gateway: Gateway, method: str, rest: str) -> None:
    gateway.execute(SHARED, "x = 1")
    bodies = []
    for name in (SHARED, "nobody"):
        response = gateway.call(method, f"/v1/sessions/{name}{rest}", tenant="bob")
        assert failure(response) == (404, "SB011")
        body = response.json()
        assert body["error"].pop("request_id")
        headers = {key: value for key, value in response.headers.items() if key not in {"X-Request-Id", "Date"}}
        bodies.append((str(body).replace(name, "NAME"), headers.keys()))
    assert bodies[0] == bodies[1]
    assert gateway.text(SHARED, "x") == "1"


@process_only
def test_a_list_shows_only_the_tenants_own_sessions(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "", tenant="bob")
    assert session in names(gateway, "bob")
    assert session not in names(gateway, "alice")


@process_only
def test_an_image_that_is_not_allowed_is_refused_by_name(gateway: Gateway) -> None:
    answer = gateway.call("POST", "/v1/sessions", json={"image": "other:1"})
    assert failure(answer) == (400, "SB002")
    assert answer.json()["error"]["details"] == {"field": "image"}
    assert "known: kernel-gateway/python:latest" in answer.json()["error"]["message"]


def test_a_session_has_no_network_and_one_that_asks_for_one_is_refused_with_the_remedy(gateway: Gateway) -> None:
    refused = gateway.call("POST", "/v1/sessions", json={"name": "online", "network": "allowlist"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "SB039")
    assert "egress_allow" in refused.json()["error"]["resolution"]
    assert gateway.call("GET", "/v1/sessions/online").status_code == 404, "it was not made without the network"
    assert gateway.call("POST", "/v1/sessions", json={"network": "internet"}).status_code == 400
    made = gateway.call("POST", "/v1/sessions", json={"name": "offline"})
    assert made.json()["network"] == "none"
    gateway.call("DELETE", "/v1/sessions/offline")


# -- sleep, wake, completion -----------------------------------------------------------------------------------


def test_a_session_sleeps_and_wakes_at_its_clients_wish(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "kept = 42")
    asked = gateway.call("POST", f"/v1/sessions/{session}/sleep")
    if gateway.isolation == "process":
        assert failure(asked) == (501, "SB046")
        assert gateway.call("POST", f"/v1/sessions/{session}/wake").json()["state"] == "idle"
    elif asked.status_code == 200:
        assert asked.json()["state"] == "asleep"
        assert gateway.call("POST", f"/v1/sessions/{session}/wake").json()["state"] == "idle"
    else:
        assert failure(asked)[1] in {"SB041", "SB046"}
    assert gateway.text(session, "kept") == "42"


def test_code_is_completed_while_no_cell_runs(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "import math")
    path = f"/v1/sessions/{session}/complete"
    found = gateway.call("POST", path, json={"code": "'\U0001f98a'; math.sqr", "cursor": 13}).json()
    assert "sqrt" in str(found["matches"])
    assert found["end"] == 13
    assert failure(gateway.call("POST", path, json={"code": "a", "cursor": -1})) == (400, "SB002")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"
    gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": code, "wait": False})
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "busy")
    assert failure(gateway.call("POST", path, json={"code": "math.", "cursor": 5})) == (400, "SB002")
    gateway.call("PUT", f"/v1/sessions/{session}/files/go", data=b"")
