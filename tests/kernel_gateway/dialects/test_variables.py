"""The variables of sessions, over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from kernel_gateway.client import GatewayError, Session
from sessions.kernels.variables import VariableDetail, VariableList
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, failure, until

SETUP = """
import pandas as pd
df = pd.DataFrame({"city": ["Oslo", "Rome"], "sales": [120, 80]})
class Slow:
    def __repr__(self):
        import time; time.sleep(60)
slow = Slow()
_hidden = 1
"""


def _listed(gateway: Gateway, session: str) -> dict[str, Any]:
    answer = gateway.call("GET", f"/v1/sessions/{session}/variables")
    assert answer.status_code == HTTPStatus.OK, answer.text
    VariableList.model_validate(answer.json())
    return {variable.pop("name"): variable for variable in answer.json()["variables"]}


def test_variables_are_listed_and_one_is_shown_with_its_content(gateway: Gateway) -> None:
    gateway.execute("seen", SETUP)
    found = _listed(gateway, "seen")
    assert list(found) == ["df", "pd", "Slow", "slow"]
    assert found["df"]["shape"] == [2, 2]
    assert found["slow"] == {"type": "Slow", "preview": "<Slow>"}
    shown = gateway.call("GET", "/v1/sessions/seen/variables/df").json()
    VariableDetail.model_validate(shown)
    assert shown["rows"] == [["Oslo", "120"], ["Rome", "80"]]
    assert gateway.call("GET", "/v1/sessions/seen/variables/_hidden").json()["preview"] == "1"


def test_variables_are_listed_while_a_cell_runs(gateway: Gateway) -> None:
    begun = gateway.call("POST", "/v1/sessions/busy/execute", json={"code": "x = 7\n" + HANGS, "wait": False})
    until(lambda: exists(gateway, "busy", "begun"))
    assert _listed(gateway, "busy")["x"]["preview"] == "7"
    shown = gateway.call("GET", begun.headers["Location"]).json()
    assert shown["status"] == "running"
    gateway.call("DELETE", begun.headers["Location"])


def test_a_variable_that_is_not_there_is_not_found(gateway: Gateway) -> None:
    gateway.execute("none", "1")
    answer = gateway.call("GET", "/v1/sessions/none/variables/missing")
    assert failure(answer) == (HTTPStatus.NOT_FOUND, "SB066")


def test_another_tenants_variables_are_not_found(gateway: Gateway) -> None:
    gateway.execute("private", "secret = 'its owner sees it'")
    assert "secret" in _listed(gateway, "private")
    for path in ("variables", "variables/secret"):
        answer = gateway.call("GET", f"/v1/sessions/private/{path}", tenant="bob")
        assert failure(answer) == (HTTPStatus.NOT_FOUND, "SB011")


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
def test_a_language_without_them_says_so(gateway: Gateway) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": "shell", "language": "bash"})
    answer = gateway.call("GET", "/v1/sessions/shell/variables")
    assert failure(answer) == (HTTPStatus.BAD_REQUEST, "SB002")


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
@pytest.mark.parametrize("answer", ["{'variables': [{'name': 'x' * 1000}], 'total': -1}", "{'variable': 5}", "{}"])
def test_a_kernel_that_lies_is_refused(gateway: Gateway, answer: str) -> None:
    lie = f"""
kernel = get_ipython().kernel
async def lie(stream, ident, parent):
    kernel.session.send(stream, "variables_reply", {answer}, parent, ident)
kernel.control_handlers["variables_request"] = lie
"""
    gateway.execute("liar", lie)
    assert failure(gateway.call("GET", "/v1/sessions/liar/variables")) == (HTTPStatus.BAD_GATEWAY, "SB003")


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
def test_the_client_library_has_them(gateway: Gateway) -> None:
    with Session(gateway.url, KEYS["alice"], "library") as session:
        session.run("rows = [1, 2]")
        assert [variable["name"] for variable in session.variables()] == ["rows"]
        assert [entry["preview"] for entry in session.variable("rows")["entries"]] == ["1", "2"]
        with pytest.raises(GatewayError, match="no variable"):
            session.variable("missing")
