"""What replies say of a cell's outputs: all of it, or how much is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import NDJSON, SERVER_SENT, process_only, streamed

pytestmark = process_only

SMALL = 64 * 1024
LIVE = """
from IPython.display import clear_output, display
plot = display({}, display_id=True)
for epoch in range(400):
    clear_output(wait=True)
    print(f'{epoch:50000}')
    plot = display({'text/plain': 'x'}, raw=True, display_id=True)
    plot.update({'text/plain': f'{epoch:50000}'}, raw=True)
"""
FAILING_TASK = """
import asyncio
async def fail(): raise ValueError('inner')
async with asyncio.TaskGroup() as group:
    group.create_task(fail())
"""


@pytest.fixture
def small(gateway: Gateway, session: str) -> str:
    """A session that keeps 64 KiB of output."""
    made = gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"output": "64k"}})
    assert made.status_code == 201
    return session


def errors(reply: dict[str, Any]) -> list[str]:
    return [output["ename"] for output in reply["outputs"] if output["output_type"] == "error"]


def test_output_beyond_the_limit_is_cut_and_the_reply_says_how_much(gateway: Gateway, small: str) -> None:
    reply = gateway.execute(small, "print('x' * 100_000)")
    assert text_of(reply) == "x" * SMALL
    assert (reply["status"], reply["truncated"], reply["omitted_bytes"]) == ("ok", True, 100_001 - SMALL)
    whole = gateway.execute(small, "'x' * 60_000")
    assert (len(text_of(whole)), whole["truncated"], whole["omitted_bytes"]) == (60_002, False, 0)


@pytest.mark.parametrize("form", [NDJSON, SERVER_SENT])
def test_a_failed_cell_shows_its_error_beyond_the_limit(gateway: Gateway, small: str, form: str) -> None:
    code = "print('x' * 100_000); 1/0"
    reply = gateway.execute(small, code)
    assert (reply["status"], errors(reply), reply["omitted_bytes"]) == ("error", ["ZeroDivisionError"], 100_001 - SMALL)
    assert "division by zero" in "".join(reply["outputs"][-1]["traceback"])
    with streamed(gateway, small, code, form) as events:
        *_, failed, result = list(events)
    assert (failed["output"]["ename"], result["status"]) == ("ZeroDivisionError", "error")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise ExceptionGroup('g', [ValueError('inner')])", "ExceptionGroup"),
        ("%nosuchmagic", "UsageError"),
        (FAILING_TASK, "ExceptionGroup"),
        ("raise ValueError('x' * 200_000)", "ValueError"),
        ("class Odd:\n    def __repr__(self): raise KeyError\nOdd()", "KeyError"),
    ],
)
def test_a_failed_cell_has_one_error_in_its_reply_and_its_notebook(
    gateway: Gateway, small: str, code: str, name: str
) -> None:
    gateway.execute(small, "1/0")  # whose traceback is none of a later cell's
    reply = gateway.execute(small, code)
    assert (reply["status"], errors(reply)) == ("error", [name])
    assert "ZeroDivisionError" not in str(reply["outputs"])
    notebook = gateway.call("GET", f"/v1/sessions/{small}/notebook").json()
    assert errors(notebook["cells"][-1]) == [name]


def test_a_live_display_ends_with_its_last_frame(gateway: Gateway, session: str) -> None:
    last = f"{399:50000}"
    reply = gateway.execute(session, LIVE)
    assert (text_of(reply), reply["truncated"]) == (f"{last}\n{last}", False)
    with streamed(gateway, session, LIVE) as events:
        *_, update, result = list(events)
    assert (update["data"]["text/plain"], result["truncated"]) == (last, False)


@pytest.mark.parametrize("form", [NDJSON, SERVER_SENT])
def test_a_client_of_a_stream_can_apply_the_updates_of_displays(gateway: Gateway, session: str, form: str) -> None:
    code = "h = display(1, display_id='one'); display(2); display(3, display_id='other'); h.update(4)"
    shown: dict[str, str] = {}
    with streamed(gateway, session, code, form) as events:
        for event in events:
            if event["type"] == "output":
                shown[event.get("display_id", "none")] = event["output"]["data"]["text/plain"]
            elif event["type"] == "update_display_data":
                assert event["display_id"] in shown
                shown[event["display_id"]] = event["data"]["text/plain"]
    assert shown == {"one": "4", "none": "2", "other": "3"}


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("len?", "Return the number of items in a container."),
        ("def f(): return 'the source'\n%psource f", "def f(): return 'the source'"),
        ("%prun sum([1])", "function calls"),
        ("open('m.py', 'w').write('loaded = 1'); get_ipython().run_line_magic('load', 'm.py')", "loaded = 1"),
        ("open('m.py', 'w').write('paged = 1'); get_ipython().run_line_magic('pycat', 'm.py')", "paged"),
    ],
)
def test_what_a_front_end_shows_beside_the_notebook_is_shown(
    gateway: Gateway, session: str, code: str, shown: str
) -> None:
    reply = gateway.execute(session, code, plain=True)
    assert (reply["status"], shown in text_of(reply)) == ("ok", True)


# -- values ----------------------------------------------------------------------------------------------------

#: a number that no float can hold, one that is infinite as a float, and the largest that orjson reads
NUMBERS = [2**70 + 1, 10**400, 2**64 - 1]
SHOWS = f"display({{'application/json': {{'a': {NUMBERS}}}, 'text/plain': 'text'}}, raw=True)"


def test_numbers_of_displays_are_exact(gateway: Gateway, session: str) -> None:
    expected = {"application/json": {"a": NUMBERS}, "text/plain": "text"}
    assert gateway.execute(session, SHOWS)["outputs"][0]["data"] == expected
    for form in (NDJSON, SERVER_SENT):
        with streamed(gateway, session, SHOWS, form, idempotency_key=form[:4]) as events:
            assert [event["output"]["data"] for event in events if event["type"] == "output"] == [expected]
    notebook = gateway.call("GET", f"/v1/sessions/{session}/notebook").json()
    assert notebook["cells"][0]["outputs"][0]["data"] == expected


def test_arguments_and_results_are_exact(gateway: Gateway, session: str) -> None:
    code = "def main(numbers): return [number + 1 for number in numbers]"
    reply = gateway.execute(session, code, arguments={"numbers": NUMBERS})
    assert reply["outputs"][0]["data"]["application/json"] == [number + 1 for number in NUMBERS]


def test_a_result_of_very_many_parts_is_shown_as_text(gateway: Gateway, session: str) -> None:
    (output,) = gateway.execute(session, "def main(): return [[]] * 250_000", arguments={})["outputs"]
    assert (set(output["data"]), output["output_type"]) == ({"text/plain"}, "execute_result")


def test_a_value_that_cannot_be_shown_takes_no_other_away(gateway: Gateway, session: str) -> None:
    def shown(levels: int) -> dict[str, Any]:
        nested = f"eval('[' * {levels} + ']' * {levels})"
        code = f"display({{'application/json': {nested}, 'text/plain': 'text'}}, raw=True)"
        data: dict[str, Any] = gateway.execute(session, code)["outputs"][0]["data"]
        return data

    assert shown(99) == {"application/json": json.loads("[" * 99 + "]" * 99), "text/plain": "text"}
    assert shown(199)["text/plain"] == "text"
    assert "nested more deeply" in shown(199)["application/json"]
