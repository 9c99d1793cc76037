"""Random messages of a hostile kernel, signed with its key: every cell has a result, and the gateway does not fail."""

from __future__ import annotations

import inspect
import json
from typing import Any

import nbformat
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernel_gateway.dialects.native.models import Result
from tests.attacks import forge
from tests.fuzz.conftest import FUZZED
from tests.fuzz.values import VALUE, fields, nested
from tests.gateways import Gateway, text_of

pytestmark = pytest.mark.full

#: cells, and messages that each cell forges
EXAMPLES = 150
MESSAGES = 6
TEXT = st.text(max_size=20)
BUNDLE = st.dictionaries(
    st.sampled_from(["text/plain", "text/html", "image/png", "application/json"]) | TEXT, TEXT | VALUE, max_size=3
)
DISPLAY = {"data": BUNDLE, "metadata": BUNDLE, "transient": fields({}, {"display_id": TEXT})}
TRACEBACK = st.lists(TEXT, max_size=3)
#: content by type of message
CONTENT = {
    "stream": fields({"name": st.sampled_from(["stdout", "stderr"]), "text": TEXT}),
    "display_data": fields(DISPLAY),
    "update_display_data": fields(DISPLAY),
    "execute_result": fields(DISPLAY | {"execution_count": st.integers()}),
    "execute_input": fields({"code": TEXT, "execution_count": st.integers()}),
    "error": fields({"ename": TEXT, "evalue": TEXT, "traceback": TRACEBACK}),
    "clear_output": fields({"wait": st.booleans()}),
    "status": fields({"execution_state": st.sampled_from(["busy", "idle", "starting", "dead"])}),
    "comm_open": fields({"comm_id": TEXT, "target_name": TEXT, "data": VALUE}),
    "comm_msg": fields({"comm_id": TEXT, "data": VALUE}),
    "execute_reply": fields(
        {"status": st.sampled_from(["ok", "error", "aborted"])},
        {"execution_count": st.integers(), "payload": VALUE, "ename": TEXT},
    ),
    "kernel_info_reply": fields({"status": TEXT, "protocol_version": TEXT, "language_info": VALUE}),
    "interrupt_reply": fields({"status": TEXT}),
    "input_request": fields({"prompt": TEXT, "password": st.booleans()}),
    "debug_event": fields({"event": TEXT, "seq": st.integers(), "body": VALUE}),
    "settled": fields({}),
}
WAYS = st.sampled_from(["on_iopub", "on_iopub", "on_iopub", "on_shell", "on_stdin", "on_control"])


def of_kind(kind: str) -> st.SearchStrategy[list[Any]]:
    """Messages of one type: way, type, content, parent (None: the cell)."""
    content = CONTENT[kind]
    return st.tuples(
        WAYS, st.just(kind), content | content | VALUE, st.none() | st.none() | fields({}, {"msg_id": TEXT}) | VALUE
    ).map(list)


FORGED = st.sampled_from(sorted(CONTENT)).flatmap(of_kind)


@pytest.fixture
def forger(fuzzed: Gateway) -> Gateway:
    """The gateway, whose session has the tools to forge messages."""
    assert fuzzed.execute(FUZZED, inspect.getsource(forge))["status"] == "ok"
    assert fuzzed.text(FUZZED, "on_iopub(printed('forged'))") == "forged"
    return fuzzed


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(forged=st.lists(FORGED, min_size=1, max_size=MESSAGES))
@example(forged=[["on_iopub", "display_data", {"data": {"application/json": nested(1, 90)}}, None]])
def test_any_messages_of_a_kernel_give_a_result(forger: Gateway, forged: list[list[Any]]) -> None:
    code = f"for way, *rest in json.loads({json.dumps(forged)!r}): globals()[way](message(*rest))"
    answered = forger.call("POST", f"/v1/sessions/{FUZZED}/execute", json={"code": code})
    assert answered.status_code == 200, answered.text
    result = Result.model_validate_json(answered.content)
    if result.state != "preserved" or result.status == "died":
        forger.execute(FUZZED, inspect.getsource(forge))
    nbformat.validate(json.loads(forger.call("GET", f"/v1/sessions/{FUZZED}/notebook").content))
    after = forger.execute(FUZZED, "print(6 * 7)")
    assert "42" in text_of(after) or after["status"] != "ok", after
