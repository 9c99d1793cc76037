"""Cells over HTTP, on a real gateway: state, outputs, input, streams, interruption, deadlines, death."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from textwrap import indent
from typing import Any
from urllib.parse import urlsplit

import pytest

from kernel_gateway.dialects.native.models import Result
from tests.gateways import KEYS, Gateway, text_of
from tests.kernel_gateway.calls import (
    DAWDLES,
    ENDS_FIRST,
    HANGS,
    NDJSON,
    SERVER_SENT,
    SHARED,
    WAITS,
    exists,
    failure,
    is_valid_nbformat,
    kernels,
    others,
    process_only,
    sessions,
    size_of_png,
    streamed,
    until,
    write,
)
from tests.tiers import some

# -- state -----------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_session_is_made_on_first_use_and_keeps_its_variables(gateway: Gateway, session: str) -> None:
    assert failure(gateway.call("GET", f"/v1/sessions/{session}")) == (404, "SB011")
    first = gateway.execute(session, "x = 40")
    second = gateway.execute(session, "x + 2")
    assert (first["status"], first["execution_count"], first["state"]) == ("ok", 1, "new")
    assert (text_of(second), second["execution_count"], second["state"]) == ("42", 2, "preserved")
    assert gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle"


@pytest.mark.gate
def test_two_tenants_have_two_kernels_under_one_name(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "secret = 'of alice'", tenant="alice")
    assert gateway.text(session, "'secret' in globals()", tenant="bob") == "False"
    gateway.execute(session, "secret = 'of bob'", tenant="bob")
    assert gateway.text(session, "secret", tenant="alice") == "'of alice'"


def test_twenty_concurrent_first_requests_make_one_kernel(gateway: Gateway, session: str) -> None:
    code = "import uuid; token = globals().setdefault('token', uuid.uuid4().hex); print(token)"
    with ThreadPoolExecutor(20) as clients:
        # ten of each, because a tenant may have ten executions at a time
        cells = [clients.submit(gateway.execute, session, code) for _ in range(10)]
        files = [clients.submit(write, gateway, session, f"file-{number}") for number in range(10)]
        replies = [cell.result() for cell in cells]
        for file in files:
            file.result()
    assert len({text_of(reply) for reply in replies}) == 1
    assert [reply["incarnation"] for reply in replies] == [1] * 10
    assert sorted(reply["execution_count"] for reply in replies) == list(range(1, 11))
    until(lambda: kernels(gateway) == sessions(gateway) + others(gateway) and others(gateway))  # the pool is full again


def test_a_kernel_sees_nothing_of_the_gateways_environment(gateway: Gateway) -> None:
    names = gateway.text(SHARED, "import os; print(*os.environ)").split()
    assert "HOME" in names
    assert [name for name in names if name.startswith("KERNEL_GATEWAY")] == ["KERNEL_GATEWAY_SESSION"]


# -- outputs ---------------------------------------------------------------------------------------------------

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 4])\nplt.show()"
FRAME = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [3, 4]})"


def only(reply: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the only output of a kind."""
    (output,) = [output for output in reply["outputs"] if output["output_type"] == kind]
    assert is_valid_nbformat(reply["outputs"])
    return dict(output)


def test_a_plot_is_returned_as_an_image(gateway: Gateway) -> None:
    data = only(gateway.execute(SHARED, PLOT), "display_data")["data"]
    assert min(size_of_png(data["image/png"])) > 100
    assert "Figure" in data["text/plain"]


def test_a_data_frame_is_returned_as_html_and_text(gateway: Gateway) -> None:
    data = only(gateway.execute(SHARED, FRAME), "execute_result")["data"]
    assert "<table" in data["text/html"]
    assert data["text/plain"].split() == ["a", "b", "0", "1", "3", "1", "2", "4"]


def test_an_exception_is_an_output_and_no_failed_request(gateway: Gateway) -> None:
    reply = gateway.execute(SHARED, "kept = 1\n1 / 0")
    error = only(reply, "error")
    assert (reply["status"], reply["error"]) == ("error", None)
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error["traceback"]))
    assert gateway.text(SHARED, "kept") == "1"


def test_streams_are_joined_and_kept_apart_by_name(gateway: Gateway) -> None:
    reply = gateway.execute(SHARED, "import sys\nprint('a')\nprint('b')\nprint('c', file=sys.stderr, flush=True)")
    assert is_valid_nbformat(reply["outputs"])
    streams = {output["name"]: output["text"] for output in reply["outputs"]}
    assert streams == {"stdout": "a\nb\n", "stderr": "c\n"}


def test_an_updated_display_keeps_its_place_and_shows_its_last_content(gateway: Gateway) -> None:
    code = "shown = display('first', display_id=True); print('between'); shown.update('second')"
    reply = gateway.execute(SHARED, code)
    assert [text_of({"outputs": [output]}) for output in reply["outputs"]] == ["'second'", "between\n"]
    assert is_valid_nbformat(reply["outputs"])


def test_a_later_cell_updates_the_display_of_an_earlier_one(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "shown = display('first', display_id=True)")
    assert gateway.execute(session, "shown.update('second')")["outputs"] == []
    cells = gateway.call("GET", f"/v1/sessions/{session}/notebook").json()["cells"]
    assert cells[0]["outputs"][0]["data"]["text/plain"] in ("'second'", ["'second'"])


def test_cleared_output_is_replaced_by_the_next_output(gateway: Gateway) -> None:
    code = "from IPython.display import clear_output\nfor n in range(3):\n    clear_output(wait=True)\n    print(n)"
    assert gateway.text(SHARED, code) == "2\n"
    assert gateway.execute(SHARED, "print('x'); clear_output()")["outputs"] == []


def test_a_reply_has_the_documented_form(gateway: Gateway) -> None:
    for code in ("1", "1/0", ""):
        reply = gateway.execute(SHARED, code)
        assert reply.keys() == Result.model_fields.keys()
        Result.model_validate(reply, strict=True)


@process_only
def test_output_beyond_the_limit_is_left_out_and_reported_as_truncated(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"output": "10k"}})
    within = gateway.execute(session, "print('x' * 5000)")
    beyond = gateway.execute(session, "for _ in range(100): print('x' * 1000, flush=True)")
    assert (len(text_of(within)), within["truncated"]) == (5001, False)
    assert beyond["truncated"]
    assert 0 < len(text_of(beyond)) <= 10 * 1024
    assert (beyond["status"], beyond["state"]) == ("ok", "preserved")


@process_only
def test_a_cell_without_history_is_neither_counted_nor_in_the_notebook(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    gateway.execute(session, "x = 2", store_history=False)
    assert gateway.execute(session, "x")["execution_count"] == 2
    cells = gateway.call("GET", f"/v1/sessions/{session}/notebook").json()["cells"]
    assert ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"] == ["x = 1", "x"]
    assert "Cells that ran here and are not in this notebook: 1." in cells[1]["source"]


@pytest.mark.parametrize(
    "code", ["print('\\udc80 ends')", "print('\\ud800 ends')", "display({'text/plain': '\\udfff'}, raw=True)"]
)
@process_only
def test_invalid_unicode_in_output_is_replaced(gateway: Gateway, code: str) -> None:
    reply = gateway.execute(SHARED, code)
    assert reply["status"] == "ok"
    assert is_valid_nbformat(reply["outputs"])
    assert "\ufffd" in text_of(reply)
    assert gateway.text(SHARED, "'goes on'") == "'goes on'"


# -- arguments and retries -------------------------------------------------------------------------------------


def test_main_is_called_with_the_arguments(gateway: Gateway, session: str) -> None:
    code = "def main(items, factor=1):\n    print('called')\n    return {'sum': sum(items) * factor}"
    ran = gateway.execute(session, code, arguments={"items": [1, 2, 3.5], "factor": 2})
    assert (ran["status"], [output["output_type"] for output in ran["outputs"]]) == ("ok", ["stream", "execute_result"])
    assert ran["outputs"][1]["data"] == {"text/plain": "{'sum': 13.0}", "application/json": {"sum": 13.0}}
    assert gateway.text(session, "main([1])") == "called\n{'sum': 1}"  # the function is a variable like others
    wrong = gateway.execute(session, "def main(): pass", arguments={"a": 1})
    assert (wrong["status"], wrong["outputs"][0]["ename"]) == ("error", "TypeError")
    missing = gateway.execute(session, "del main", arguments={})
    assert missing["outputs"][0]["evalue"] == "name 'main' is not defined"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        *(("{'a': [1, None, True]}", {"a": [1, None, True]}), ("[]", []), ("3", 3), ("1.5", 1.5), ("'é'", "é")),
        *(("False", False), ("(1, 2)", [1, 2]), ("float('nan')", ...), ("{1, 2}", ...), ("'x' * 2**20", ...)),
    ],
)
@process_only
def test_the_value_of_main_comes_as_json_if_it_is_json(gateway: Gateway, value: str, told: object) -> None:
    [output] = gateway.execute(SHARED, f"def main(): return {value}", arguments={})["outputs"]
    assert output["data"].get("application/json", ...) == told
    assert output["data"]["text/plain"]
    [later] = gateway.execute(SHARED, f"other = {value}; other")["outputs"]
    assert output["data"].keys() - {"application/json"} == later["data"].keys(), "other results are as ever"


def test_a_retry_gets_the_first_result(gateway: Gateway, session: str) -> None:
    code = "n = globals().get('n', 0) + 1; print(n); n"
    first = gateway.execute(session, code, idempotency_key="k1")
    again = gateway.execute(session, code, idempotency_key="k1")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert again == first | {"replayed": True}
    with streamed(gateway, session, code, idempotency_key="k1") as events:
        *outputs, result = list(events)
    assert [event["output"] for event in outputs if event["type"] == "output"] == first["outputs"]
    assert result["replayed"]
    assert gateway.text(session, "n") == "1"
    other = gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": "n", "idempotency_key": "k1"})
    assert failure(other) == (400, "SB002")


def test_a_cell_with_an_idempotency_key_continues_without_its_client(gateway: Gateway, session: str) -> None:
    with streamed(gateway, session, WAITS + "print('done')", idempotency_key="k2") as events:
        assert next(events)["type"] == "started"
    write(gateway, session, "go")
    ran = gateway.execute(session, WAITS + "print('done')", idempotency_key="k2")
    assert (ran["status"], text_of(ran), ran["replayed"]) == ("ok", "done\n", True)


# -- streams that are resumed ----------------------------------------------------------------------------------

COUNTS_ON = """
import pathlib, time
for number in range(6):
    print(number, flush=True)
    while number < 5 and not pathlib.Path(f"go-{number}").exists(): time.sleep(0.01)
"""


@pytest.mark.parametrize("media_type", [NDJSON, SERVER_SENT])
def test_a_broken_stream_resumes_without_duplicate_or_missing_events(
    gateway: Gateway, session: str, media_type: str
) -> None:
    cell: dict[str, Any] = {"code": COUNTS_ON, "media_type": media_type, "idempotency_key": "k", "timeout": 60}
    heard: list[dict[str, Any]] = []
    for ends_with in ("0\n", "1\n", "3\n"):
        with streamed(gateway, session, seen=heard[-1]["id"] if heard else None, **cell) as events:
            for event in events:
                heard.append(event)
                said = event.get("output", {}).get("text", "")
                if said == ends_with:
                    break
                if said:
                    write(gateway, session, f"go-{said.strip()}")  # the cell waits for this file
        write(gateway, session, f"go-{ends_with.strip()}")  # the output that follows reaches no client
    with streamed(gateway, session, seen=heard[-1]["id"], **cell) as events:
        for event in events:
            heard.append(event)
            if said := event.get("output", {}).get("text", ""):
                write(gateway, session, f"go-{said.strip()}")
    assert [event["id"] for event in heard] == list(range(1, len(heard) + 1))
    assert "".join(event["output"]["text"] for event in heard if event["type"] == "output") == "0\n1\n2\n3\n4\n5\n"
    assert (heard[-1]["type"], heard[-1]["status"], heard[-1]["replayed"]) == ("result", "ok", True)
    for seen in (0, 3, len(heard) - 1):  # and again after the end of the cell
        with streamed(gateway, session, seen=seen, **cell) as events:
            assert list(events) == heard[seen:]
    assert gateway.text(session, "number") == "5"


@process_only
def test_another_client_with_the_key_receives_a_running_cell_from_the_start(gateway: Gateway, session: str) -> None:
    code = "print('first', flush=True)\n" + WAITS + "print('last')"
    with streamed(gateway, session, code, idempotency_key="k") as one:
        heard = [next(one), next(one)]
        with streamed(gateway, session, code, idempotency_key="k") as other:
            assert [next(other), next(other)] == heard
            write(gateway, session, "go")
            rest, again = list(one), list(other)
    assert [event["type"] for event in rest] == ["output", "result"]
    assert again == [rest[0], rest[1] | {"replayed": True}]


@process_only
@pytest.mark.parametrize(
    ("headers", "body"),
    some(
        [
            ({"Last-Event-ID": "one"}, {"idempotency_key": "k"}),
            ({"Last-Event-ID": "-1"}, {"idempotency_key": "k"}),
            ({"Last-Event-ID": "0"}, {"idempotency_key": "never given"}),
            ({"Last-Event-ID": "0"}, {}),
            ({}, {"idempotency_key": "k", "on_disconnect": "interrupt"}),
            ({"Last-Event-ID": ""}, {"idempotency_key": "k"}),
            ({"Last-Event-ID": "9" * 10}, {"idempotency_key": "k"}),
            ({"Last-Event-ID": "4"}, {"idempotency_key": "k"}),
            ({}, {"on_disconnect": "explode"}),
        ],
        gate=5,
    ),
)
def test_an_invalid_resumption_is_refused_and_runs_nothing(
    gateway: Gateway, session: str, headers: dict[str, str], body: dict[str, str]
) -> None:
    path, code = f"/v1/sessions/{session}/execute", "n = globals().get('n', 0) + 1; n"
    assert gateway.text(session, code, idempotency_key="k") == "1"
    assert failure(gateway.call("POST", path, headers=headers, json={"code": code} | body)) == (400, "SB002")
    again = gateway.call("POST", path, headers={"Last-Event-ID": "2"}, json={"code": code, "idempotency_key": "k"})
    assert (again.status_code, text_of(again.json())) == (200, "1")  # the control
    assert gateway.text(session, "n") == "1"


@process_only
def test_resuming_a_stream_of_an_absent_session_does_not_make_the_session(gateway: Gateway, session: str) -> None:
    path, body = f"/v1/sessions/{session}/execute", {"code": "1", "idempotency_key": "k"}
    assert failure(gateway.call("POST", path, headers={"Last-Event-ID": "0"}, json=body)) == (404, "SB011")
    assert failure(gateway.call("GET", f"/v1/sessions/{session}")) == (404, "SB011")


@process_only
def test_resuming_after_events_were_dropped_returns_the_result_with_all_outputs(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"output": "2k"}}).raise_for_status()
    code = "import time\nfor number in range(50): print(number, flush=True); time.sleep(0.005)"
    with streamed(gateway, session, code, idempotency_key="k") as events:
        *heard, result = list(events)
    assert "outputs" not in result
    assert heard[-1]["id"] > 25
    with streamed(gateway, session, code, seen=1, idempotency_key="k") as events:
        (alone,) = list(events)
    assert (alone["id"], alone["type"], alone["replayed"]) == (result["id"], "result", True)
    assert text_of(alone) == "".join(f"{number}\n" for number in range(50))
    with streamed(gateway, session, code, seen=heard[-2]["id"], idempotency_key="k") as events:
        assert list(events) == [heard[-1], result | {"replayed": True}]


# -- input -----------------------------------------------------------------------------------------------------


def test_input_is_answered_in_order_and_then_ends(gateway: Gateway) -> None:
    code = "import getpass\nprint(input('a? ') + getpass.getpass('b? '))\ninput()"
    reply = gateway.execute(SHARED, code, stdin=["An", "swers"])
    assert "Answers" in text_of(reply)
    assert only(reply, "error")["ename"] == "EOFError"


def test_input_without_answers_is_an_immediate_error(gateway: Gateway) -> None:
    reply = gateway.execute(SHARED, "input('anybody? ')", timeout=60)
    error = only(reply, "error")
    assert (error["ename"], "send the answers with the cell (`stdin`" in error["evalue"]) == (
        "StdinNotImplementedError",
        True,
    )


# -- streams ---------------------------------------------------------------------------------------------------

SPEAKS = "print('one', flush=True)\ndisplay('two')\n3"


@pytest.mark.parametrize("media_type", [NDJSON, SERVER_SENT])
def test_the_first_event_arrives_before_the_cell_ends(gateway: Gateway, session: str, media_type: str) -> None:
    code = "print('first', flush=True)\n" + WAITS + "print('last')"
    with streamed(gateway, session, code, media_type) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event.get("output", {}).get("text") == "first\n":
                write(gateway, session, "go")  # nothing but this ends the cell
    assert [event["type"] for event in events] == ["started", "output", "output", "result"]
    assert events[-1]["status"] == "ok"


@pytest.mark.parametrize("media_type", [NDJSON, SERVER_SENT])
def test_a_stream_has_the_same_outputs_one_by_one(gateway: Gateway, media_type: str) -> None:
    whole = gateway.execute(SHARED, SPEAKS)
    with streamed(gateway, SHARED, SPEAKS, media_type) as stream:
        events = list(stream)
    outputs = [event["output"] for event in events if event["type"] == "output"]
    assert list(map(without_count, outputs)) == list(map(without_count, whole["outputs"]))
    assert events[-1].keys() == whole.keys() - {"outputs"} | {"type", "id"}
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert (events[-1]["type"], events[-1]["status"]) == ("result", "ok")


def without_count(output: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in output.items() if name != "execution_count"}


def test_updates_and_clears_are_events_too(gateway: Gateway) -> None:
    code = "s = display('a', display_id='d'); s.update('b')\nfrom IPython.display import clear_output; clear_output()"
    with streamed(gateway, SHARED, code) as stream:
        events = list(stream)
    assert [event["type"] for event in events] == ["started", "output", "update_display_data", "clear_output", "result"]
    assert (events[2]["display_id"], events[2]["data"]) == ("d", {"text/plain": "'b'"})


@process_only
def test_an_invalid_request_for_a_stream_is_refused(gateway: Gateway) -> None:
    response = gateway.call(
        "POST", f"/v1/sessions/{SHARED}/execute", json={"code": 1}, headers={"Accept": "application/x-ndjson"}
    )
    assert failure(response) == (400, "SB002")


# -- interruption and deadlines --------------------------------------------------------------------------------


@pytest.mark.gate
def test_an_interrupt_ends_the_cell_and_keeps_the_variables(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    assert gateway.call("POST", f"/v1/sessions/{session}/interrupt").json() == {"interrupted": False}
    with ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.execute, session, HANGS, timeout=60)
        until(lambda: exists(gateway, session, "begun"))
        assert gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "busy"
        assert gateway.call("POST", f"/v1/sessions/{session}/interrupt").json() == {"interrupted": True}
        reply = cell.result()
    assert (reply["status"], reply["state"]) == ("interrupted", "preserved")
    assert only(reply, "error")["ename"] == "KeyboardInterrupt"
    assert gateway.text(session, "x") == "1"


def test_a_late_interrupt_does_not_hit_the_next_cell(gateway: Gateway, session: str) -> None:
    gateway.execute(session, DAWDLES)
    with ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.execute, session, ENDS_FIRST)
        until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "busy")
        assert gateway.call("POST", f"/v1/sessions/{session}/interrupt").json() == {"interrupted": True}
        assert cell.result()["status"] == "ok"
    assert gateway.execute(session, "time.sleep(1)")["status"] == "ok"
    assert gateway.text(session, "taken") == "1"


@pytest.mark.gate
def test_a_cell_past_its_deadline_is_interrupted_and_the_variables_are_kept(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    reply = gateway.execute(session, "print('so far', flush=True)\nwhile True: pass", timeout=0.5)
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("timeout", "preserved", "SB005")
    assert "so far" in text_of(reply)
    assert 500 <= reply["duration_ms"] < 10_000
    after = gateway.execute(session, "x")
    assert (text_of(after), after["state"]) == ("1", "preserved")


GROUP = "ExceptionGroup('g', [ValueError('inner')])"
UNUSUAL = {
    "a group": (f"raise {GROUP}", "ExceptionGroup", "inner"),
    "a group's handler": (f"try: raise {GROUP}\nexcept ExceptionGroup: 1 / 0", "ZeroDivisionError", "inner"),
    "a task": (
        "import asyncio\nasync def fail(): 1 / 0\nasync with asyncio.TaskGroup() as group: group.create_task(fail())",
        "ExceptionGroup",
        "ZeroDivisionError",
    ),
    "a magic": ("%nosuchmagic", "UsageError", "nosuchmagic"),
}


@process_only
@pytest.mark.parametrize(("code", "name", "cause"), UNUSUAL.values(), ids=UNUSUAL)
def test_every_error_is_an_output(gateway: Gateway, code: str, name: str, cause: str) -> None:
    (output,) = gateway.execute(SHARED, code)["outputs"]
    assert (output["output_type"], output["ename"]) == ("error", name)
    assert cause in "".join(output["traceback"])
    assert "IPython" not in "".join(output["traceback"])


ENDLESS = {
    "one function": "def f(): return f()\nf()",
    "two functions": "def f(): return g()\ndef g(): return f()\nf()",
    "a repr": "class Odd:\n    def __repr__(self): return repr(self)\nOdd()",
    "handlers": "def f():\n    try: f()\n    except Exception: 1 / 0\nf()",
}


@process_only
@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_the_error_of_an_endless_recursion_is_short(gateway: Gateway, code: str) -> None:
    (output,) = gateway.execute(SHARED, code)["outputs"]
    assert output["output_type"] == "error"
    lines = "".join(output["traceback"])
    assert "Cell" in lines
    assert "similar frames" in lines or "earlier exceptions are left out" in lines
    assert len(lines) < 32_000


@process_only
def test_a_deep_traceback_shows_both_ends(gateway: Gateway) -> None:
    code = "def down(n):\n    if n: return down(n - 1)\n    1 / 0\ndown(300)"
    (output,) = gateway.execute(SHARED, code)["outputs"]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", "".join(output["traceback"]))
    assert "----> 4 down(300)" in lines
    assert "----> 3     1 / 0" in lines
    assert "down at line 2 (282 times)" in lines


#: cells that wait for ever, each in its own way
WAITING = (
    "await asyncio.sleep(1000)",
    "await asyncio.Event().wait()",
    "await asyncio.gather(asyncio.sleep(1000), asyncio.Event().wait())",
    "await (await asyncio.create_subprocess_exec('sleep', '1000')).wait()",
)


@pytest.mark.parametrize("code", WAITING)
def test_a_cell_that_awaits_past_its_deadline_keeps_the_variables(gateway: Gateway, session: str, code: str) -> None:
    gateway.execute(session, "import asyncio; x = 1")
    reply = gateway.execute(session, code, timeout=0.5)
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("timeout", "preserved", "SB005")
    assert gateway.text(session, "x") == "1"


def test_a_deadline_ends_the_processes_of_its_cell_and_no_earlier_ones(gateway: Gateway, session: str) -> None:
    starts = "subprocess.Popen(['sh', '-c', 'sleep 1000; true'])"
    gateway.execute(session, f"import subprocess\nserver = {starts}")
    for _ in range(2):
        reply = gateway.execute(session, f"child = {starts}\nchild.wait()", timeout=1)
        assert (reply["status"], reply["state"]) == ("timeout", "preserved")
        assert gateway.text(session, "child.wait(60), server.poll()") == "(-2, None)"


@process_only
def test_a_cell_without_descriptors_and_with_a_child_has_its_reply(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "import os, subprocess\nchild, taken = subprocess.Popen(['sleep', '1000']), []")
    takes = "try:\n    while True: taken.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError: pass"
    reply = gateway.execute(session, takes)
    assert (reply["status"], reply["state"], reply["truncated"]) == ("ok", "preserved", False)
    assert gateway.text(session, "for one in taken: os.close(one)\nchild.poll()") == ""


@pytest.mark.full
@pytest.mark.timeout(900)
def test_of_a_hundred_cells_that_await_none_loses_its_kernel_beside_busy_loops(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "import asyncio")
    with ExitStack() as busy:
        for _ in range(2):
            loop = busy.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            busy.callback(loop.kill)
        replies = [gateway.execute(session, WAITING[turn % len(WAITING)], timeout=0.3) for turn in range(100)]
    others = [
        (turn, reply)
        for turn, reply in enumerate(replies)
        if reply["status"] != "timeout" or reply["state"] != "preserved"
    ]
    assert others == []


@pytest.mark.gate
def test_a_cell_that_ignores_interrupts_loses_the_state_and_reports_it_once(gateway: Gateway, session: str) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    gateway.execute(session, "x = 1")
    reply = gateway.execute(session, stubborn, timeout=0.5)
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("timeout", "lost", "SB005")
    assert_lost_once(gateway, session)


def assert_lost_once(gateway: Gateway, session: str) -> None:
    """Check that `x` is gone, and that only the next reply reports it."""
    next_one = gateway.execute(session, "'x' in globals()")
    assert (text_of(next_one), next_one["state"], next_one["incarnation"]) == ("False", "lost", 2)
    assert next_one["state_reason"]
    assert gateway.execute(session, "")["state"] == "preserved"


# -- death and restart -----------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_kernel_that_dies_is_reported_at_once_and_replaced(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    reply = gateway.execute(session, "import os; print('last words', flush=True); os._exit(1)", timeout=60)
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("died", "lost", "SB010")
    assert_lost_once(gateway, session)


CUT = """
import mmap
with open('cut', 'w+b') as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    mapped[0]
"""
ENDS = {
    "a status": ("import os; os._exit(3)", "exit code 3"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL"),
    "a fault": ("import ctypes; ctypes.string_at(0)", "signal SIGSEGV: a fault in compiled code"),
    "a cut file": (CUT, "signal SIGBUS: memory that is a file"),
}


@pytest.mark.parametrize(("code", "cause"), ENDS.values(), ids=ENDS)
def test_the_cause_of_a_kernels_end_is_named(gateway: Gateway, session: str, code: str, cause: str) -> None:
    reply = gateway.execute(session, code)
    assert (reply["status"], reply["state"]) == ("died", "lost")
    assert cause in reply["error"]["message"]
    assert cause in gateway.execute(session, "")["state_reason"]


def test_the_reply_says_which_processes_of_earlier_cells_an_interrupt_has_ended(gateway: Gateway, session: str) -> None:
    started = gateway.execute(session, "import subprocess; server = subprocess.Popen(['sleep', '300']); server.pid")
    stubborn = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: pass\ntime.sleep(60)"
    reply = gateway.execute(session, stubborn, timeout=1)
    assert (reply["status"], reply["state"]) == ("timeout", "preserved")
    assert f"Processes of earlier cells have ended, too: {text_of(started)} (sleep 300)\n" in text_of(reply)
    again = "server = subprocess.Popen(['sleep', '300'])"
    gateway.execute(session, again)
    reply = gateway.execute(session, "time.sleep(60)", timeout=1)
    assert "have ended" not in text_of(reply)
    assert text_of(gateway.execute(session, "print(server.poll())")) == "None\n"


SLOW = """
import time
tracebacks = get_ipython().InteractiveTB
shown = tracebacks.structured_traceback
def slow(*args, **options):
    time.sleep(2.5)
    return shown(*args, **options)
tracebacks.structured_traceback = slow
time.sleep(60)
"""


def test_the_error_of_an_interrupt_is_shown_whole_although_it_takes_until_the_next_one(
    gateway: Gateway, session: str
) -> None:
    gateway.execute(session, "x = 1")
    reply = gateway.execute(session, SLOW, timeout=1)
    shown = reply["outputs"][-1]
    assert (reply["status"], reply["state"], shown["ename"]) == ("timeout", "preserved", "KeyboardInterrupt")
    assert "time.sleep(60)" in re.sub(r"\x1b\[[0-9;]*m", "", "".join(shown["traceback"]))


@process_only
@pytest.mark.parametrize("code", ["1/0", "1/", "%nosuch"])
def test_a_notebook_that_a_magic_saves_has_the_errors_as_they_were_shown(
    gateway: Gateway, session: str, code: str
) -> None:
    (shown,) = gateway.execute(session, code)["outputs"]
    saved = gateway.text(
        session, "%notebook n.ipynb\nimport json; print(json.load(open('n.ipynb'))['cells'][0]['outputs'][0])"
    )
    assert ast.literal_eval(saved) == shown


SHARED_MEMORY = """
from multiprocessing.shared_memory import SharedMemory
one = SharedMemory(create=True, size=70 << 20)
one.buf[:] = bytes(one.size)
one.close(); one.unlink()
"""
FILL = "open('/tmp/large', 'wb').write(bytes(200 << 20))"


@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_temporary_folders_hold_a_quarter_of_the_memory_and_errors_say_so(gateway: Gateway, session: str) -> None:
    assert gateway.execute(session, SHARED_MEMORY)["status"] == "ok"
    reply = gateway.execute(session, FILL)
    assert (reply["outputs"][-1]["ename"], reply["state"]) == ("OSError", "preserved")
    traceback = "\n".join(reply["outputs"][-1]["traceback"])
    assert re.search(r"MiB that are free: /home/user \d+ of \d+, /tmp 0 of 128, /dev/shm 128 of 128", traceback), (
        traceback
    )


@process_only
@pytest.mark.parametrize(("code", "value"), [("exit()", ""), ("quit(3)", "3"), ("import sys; sys.exit(4)", "4")])
def test_an_exit_ends_the_cell_and_not_the_kernel(gateway: Gateway, session: str, code: str, value: str) -> None:
    reply = gateway.execute(session, f"x = 1\n{code}\nx = 2")
    (output,) = reply["outputs"]
    assert (output["ename"], output["evalue"], reply["state"]) == ("SystemExit", value, "new")
    after = gateway.execute(session, "x")
    assert (text_of(after), after["state"]) == ("1", "preserved")


@process_only
@pytest.mark.parametrize(
    ("code", "text", "status"),
    [("print('in the fork')", "in the fork", 0), ("1 / 0", "ZeroDivisionError", 1), ("raise SystemExit(7)", "", 7)],
)
def test_a_fork_ends_with_the_code_of_its_cell(
    gateway: Gateway, session: str, code: str, text: str, status: int
) -> None:
    forks = f"import os\nif not (fork := os.fork()): {code}"
    waits = "else: print(f'ended with {os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])}')"
    reply = gateway.execute(session, f"{forks}\n{waits}")
    assert f"ended with {status}" in text_of(reply)
    assert text in text_of(reply)
    assert gateway.text(session, "1") == "1"


def test_a_kernel_that_dies_between_two_cells_is_replaced_as_well(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1\nimport os, threading\nthreading.Timer(0.2, os._exit, [1]).start()")
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "dead")
    assert_lost_once(gateway, session)


@pytest.mark.gate
def test_a_restart_keeps_the_files_and_is_reported_once(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    write(gateway, session, "kept.txt", b"kept")
    restarted = gateway.call("POST", f"/v1/sessions/{session}/restart")
    assert (restarted.status_code, restarted.json()["incarnation"]) == (200, 2)
    reply = gateway.execute(session, "'x' in globals(), open('kept.txt').read()")
    assert (text_of(reply), reply["state"]) == ("(False, 'kept')", "restarted")
    assert reply["state_reason"]
    assert gateway.execute(session, "")["state"] == "preserved"


@process_only
def test_a_restart_ends_the_cell_that_runs(gateway: Gateway, session: str) -> None:
    with ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.execute, session, HANGS, timeout=60)
        until(lambda: exists(gateway, session, "begun"))
        gateway.call("POST", f"/v1/sessions/{session}/restart").raise_for_status()
        reply = cell.result()
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("died", "lost", "SB010")
    assert gateway.execute(session, "")["state"] == "restarted"


# -- clients that leave ----------------------------------------------------------------------------------------


INTERRUPT = {"on_disconnect": "interrupt"}
LEAVES = f"try:\n{indent(HANGS, '    ')}except KeyboardInterrupt:\n    left = True"


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_client_that_leaves_may_interrupt_its_cell_and_keeps_the_variables(
    gateway: Gateway, session: str, accept: str
) -> None:
    gateway.execute(session, "x = 1")
    with closing(HTTPConnection(urlsplit(gateway.url).netloc, timeout=60)) as client:
        headers = {"Authorization": f"Bearer {KEYS['alice']}", "Accept": accept}
        body = json.dumps({"code": LEAVES, "timeout": 60} | INTERRUPT)
        client.request("POST", f"/v1/sessions/{session}/execute", body, headers)
        until(lambda: exists(gateway, session, "begun"))
    reply = gateway.execute(session, "x, left")
    assert (text_of(reply), reply["state"]) == ("(1, True)", "preserved")


@process_only
def test_a_client_that_leaves_may_interrupt_a_cell_that_prints_continuously(gateway: Gateway, session: str) -> None:
    speaks = "import time\ntry:\n    while True: print('more', flush=True); time.sleep(0.01)\n"
    code = speaks + "except KeyboardInterrupt: left = True"
    with streamed(gateway, session, code, timeout=60, on_disconnect="interrupt") as events:
        assert [next(events)["type"] for _ in range(3)] == ["started", "output", "output"]
    assert gateway.text(session, "left") == "True"


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_client_that_leaves_does_not_end_its_cell(gateway: Gateway, session: str, accept: str) -> None:
    gateway.execute(session, "x = 1")
    cells = ["pathlib.Path('begun').touch(); " + WAITS + "print('unseen', flush=True); x = 2", "x += 1"]
    headers = {"Authorization": f"Bearer {KEYS['alice']}", "Accept": accept}
    for code in cells:  # the second cell waits for its turn, and runs too
        with closing(HTTPConnection(urlsplit(gateway.url).netloc, timeout=60)) as client:
            client.request(
                "POST", f"/v1/sessions/{session}/execute", json.dumps({"code": "import pathlib\n" + code}), headers
            )
            until(lambda: exists(gateway, session, "begun"))
    write(gateway, session, "go")
    until(lambda: len(gateway.call("GET", f"/v1/sessions/{session}/notebook").json()["cells"]) == 3)
    reply = gateway.execute(session, "x")
    assert (text_of(reply), reply["state"]) == ("3", "preserved")
    cells = gateway.call("GET", f"/v1/sessions/{session}/notebook").json()["cells"]
    assert "".join(cells[1]["outputs"][0]["text"]) == "unseen\n"


@process_only
def test_a_cell_without_its_client_ends_at_its_deadline(gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1")
    with streamed(gateway, session, LEAVES, timeout=1) as events:
        assert next(events)["type"] == "started"
    assert gateway.text(session, "x, left") == "(1, True)"


@process_only
def test_a_waiting_cell_with_interrupt_never_runs_after_its_client_leaves(gateway: Gateway, session: str) -> None:
    path = f"/v1/sessions/{session}/execute"
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}
    with streamed(gateway, session, WAITS, timeout=60) as events:
        assert next(events)["type"] == "started"
        for number in range(20):
            with closing(HTTPConnection(urlsplit(gateway.url).netloc, timeout=60)) as client:
                body = json.dumps({"code": f"ran_{number} = True"} | INTERRUPT)
                client.request("POST", path, body, headers)
        # The gateway notices each departure separately. The running cell must not end before.
        until(lambda: sum(record.get("path") == path for record in gateway.logged()) == 20)
        write(gateway, session, "go")
        assert list(events)[-1]["status"] == "ok"
    assert gateway.text(session, "[name for name in globals() if name.startswith('ran_')]") == "[]"


@process_only
def test_a_session_that_is_ended_ends_its_cell(gateway: Gateway, session: str) -> None:
    with ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.execute, session, HANGS, timeout=60)
        until(lambda: exists(gateway, session, "begun"))
        assert gateway.call("DELETE", f"/v1/sessions/{session}").status_code == 204
        reply = cell.result()
    assert (reply["status"], reply["state"], reply["error"]["code"]) == ("died", "lost", "SB013")
