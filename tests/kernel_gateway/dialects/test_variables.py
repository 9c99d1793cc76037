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


@pytest.mark.gate
def test_variables_are_listed_and_one_is_shown_with_its_content(gateway: Gateway, session: str) -> None:
    gateway.execute(session, SETUP)
    found = _listed(gateway, session)
    assert list(found) == ["df", "pd", "Slow", "slow"]
    assert found["df"]["shape"] == [2, 2]
    assert found["slow"] == {"type": "Slow", "preview": "<Slow>"}
    shown = gateway.call("GET", f"/v1/sessions/{session}/variables/df").json()
    VariableDetail.model_validate(shown)
    assert shown["rows"] == [["Oslo", "120"], ["Rome", "80"]]
    assert gateway.call("GET", f"/v1/sessions/{session}/variables/_hidden").json()["preview"] == "1"


def test_variables_are_listed_while_a_cell_runs(gateway: Gateway, session: str) -> None:
    begun = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "x = 7\n" + HANGS, "wait": False})
    until(lambda: exists(gateway, session, "begun"))
    assert _listed(gateway, session)["x"]["preview"] == "7"
    shown = gateway.call("GET", begun.headers["Location"]).json()
    assert shown["status"] == "running"
    gateway.call("DELETE", begun.headers["Location"])


def test_a_variable_that_is_not_there_is_not_found(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    answer = gateway.call("GET", f"/v1/sessions/{session}/variables/missing")
    assert failure(answer) == (HTTPStatus.NOT_FOUND, "SB066")


def test_another_tenants_variables_are_not_found(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "secret = 'its owner sees it'")
    assert "secret" in _listed(gateway, session)
    for path in ("variables", "variables/secret"):
        answer = gateway.call("GET", f"/v1/sessions/{session}/{path}", tenant="bob")
        assert failure(answer) == (HTTPStatus.NOT_FOUND, "SB011")


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
def test_a_language_without_them_says_so(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "language": "bash"})
    answer = gateway.call("GET", f"/v1/sessions/{session}/variables")
    assert failure(answer) == (HTTPStatus.BAD_REQUEST, "SB002")
    assert "languages that can: python" in answer.json()["error"]["message"]


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
@pytest.mark.parametrize("answer", ["{'variables': [{'name': 'x' * 1000}], 'total': -1}", "{'variable': 5}", "{}"])
def test_a_kernel_that_lies_is_refused(gateway: Gateway, session: str, answer: str) -> None:
    lie = f"""
kernel = get_ipython().kernel
async def lie(stream, ident, parent):
    kernel.session.send(stream, "variables_reply", {answer}, parent, ident)
kernel.control_handlers["variables_request"] = lie
"""
    gateway.execute(session, lie)
    assert failure(gateway.call("GET", f"/v1/sessions/{session}/variables")) == (HTTPStatus.BAD_GATEWAY, "SB003")


@pytest.mark.parametrize("gateway", ["process"], indirect=True)
def test_the_client_library_has_them(gateway: Gateway, session: str) -> None:
    with Session(gateway.url, KEYS["alice"], session) as client:
        client.run("rows = [1, 2]")
        assert [variable["name"] for variable in client.variables()] == ["rows"]
        assert [entry["preview"] for entry in client.variable("rows")["entries"]] == ["1", "2"]
        with pytest.raises(GatewayError, match="no variable"):
            client.variable("missing")
