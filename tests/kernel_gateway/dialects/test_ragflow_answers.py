"""Answers to RAGFlow's clients: every row of their executor's table, and no answer that they would misread."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_gateway.config import Settings
from kernel_gateway.dialects.ragflow.answers import answer_of_refusal, answer_of_run, older_form
from kernel_gateway.dialects.ragflow.markers import PREFIX, split
from kernel_gateway.dialects.ragflow.models import Execute, Run, read
from kernel_gateway.errors import InternalError
from sessions.model import errors
from sessions.model.errors import InvalidRequest, SessionError
from sessions.programs.program import Artifact, Ending, Outcome, Program, Returned

KEYS = [
    "status",
    "stdout",
    "stderr",
    "exit_code",
    "detail",
    "time_used_ms",
    "memory_used_kb",
    "resource_limit_type",
    "unauthorized_access_type",
    "runtime_error_type",
    "artifacts",
    "result",
    "error_code",
    "truncated",
    "omitted_bytes",
]


def sent(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as the client receives it. Every answer has all keys."""
    value: dict[str, Any] = json.loads(orjson.dumps(answer))
    assert list(value) == KEYS
    return value


def outcome(ending: Ending, exit_code: int = 1, **fields: Any) -> Outcome:
    told: dict[str, Any] = {
        "stdout": "out\n",
        "stderr": "",
        "duration": 0.25,
        "artifacts": (Artifact("a.csv", "text/csv", b"1"),),
    }
    return Outcome(ending, exit_code=exit_code, **(told | fields))


def told(ending: Ending, exit_code: int = 1, **fields: Any) -> dict[str, Any]:
    return sent(answer_of_run(outcome(ending, exit_code, **fields)))


# -- rows ------------------------------------------------------------------------------------------------------


def test_a_returned_value_is_a_success() -> None:
    answer = told(Ending.OK, 0, returned=Returned({"a": None}), stderr="a warning")
    assert (answer["status"], answer["exit_code"], answer["detail"]) == ("success", 0, None)
    assert answer["result"] == {"present": True, "value": {"a": None}, "type": "json"}
    assert (answer["stdout"], answer["stderr"], answer["time_used_ms"]) == ("out\n", "a warning", 250.0)
    content = {"name": "a.csv", "mime_type": "text/csv", "size": 1, "content_b64": base64.b64encode(b"1").decode()}
    assert answer["artifacts"] == [content]


@pytest.mark.parametrize("value", [None, 0, "", [], 2**100, -(2**80), 1.5, "\u2028\0é", {"a": [1]}])
def test_any_value_arrives_as_it_is(value: Any) -> None:
    assert told(Ending.OK, 0, returned=Returned(value))["result"]["value"] == value


def test_an_end_without_a_value_is_also_a_success() -> None:
    answer = told(Ending.OK, 0)
    assert (answer["status"], answer["result"]) == ("success", None)


ROWS: list[tuple[Outcome, dict[str, Any]]] = [
    (
        outcome(Ending.ERROR, 1, stderr="Traceback"),
        {"status": "program_error", "exit_code": 1, "runtime_error_type": "nonzero_exit", "stderr": "Traceback"},
    ),
    (outcome(Ending.ERROR, 7), {"status": "program_error", "exit_code": 7, "runtime_error_type": "nonzero_exit"}),
    (
        outcome(Ending.ERROR, 1, stderr="PermissionError: Permission denied; Operation not permitted; MemoryError"),
        {"status": "unauthorized_access", "exit_code": 1, "unauthorized_access_type": "file_access"},
    ),
    (
        outcome(Ending.ERROR, 2, stderr="Operation not permitted; MemoryError"),
        {"status": "unauthorized_access", "exit_code": 2, "unauthorized_access_type": "disallowed_syscall"},
    ),
    (
        outcome(Ending.ERROR, 1, stderr="MemoryError"),
        {"status": "resource_limit_exceeded", "exit_code": 1, "resource_limit_type": "memory"},
    ),
    (
        outcome(Ending.TIMEOUT, 124, error=errors.ExecutionTimeout(), stderr="Permission denied"),
        {
            "status": "resource_limit_exceeded",
            "exit_code": -124,
            "resource_limit_type": "time",
            "stderr": "Execution timeout",
            "error_code": "SB005",
        },
    ),
    (
        outcome(Ending.OUT_OF_MEMORY, 137, error=errors.OutOfMemory()),
        {
            "status": "resource_limit_exceeded",
            "exit_code": -137,
            "resource_limit_type": "memory",
            "stderr": "Memory limit exceeded (killed by OOM)",
            "error_code": "SB006",
        },
    ),
    (
        outcome(Ending.DIED, 3, error=errors.KernelDied()),
        {"status": "program_error", "exit_code": 3, "runtime_error_type": "nonzero_exit", "error_code": "SB010"},
    ),
    (
        outcome(Ending.DIED, 1, error=errors.SessionClosed()),
        {"status": "program_runner_error", "exit_code": -3, "detail": "internal_error", "error_code": "SB013"},
    ),
    (
        outcome(Ending.ERROR, 1, unread="invalid syntax (main.py, line 1)", stderr="SyntaxError"),
        {
            "status": "program_runner_error",
            "exit_code": -999,
            "detail": "Code is unsafe",
            "stderr": "Line -1: Parsing Error: invalid syntax (main.py, line 1)",
            "time_used_ms": None,
        },
    ),
]


@pytest.mark.parametrize(("ended", "row"), ROWS, ids=[f"{ended.ending}-{row['exit_code']}" for ended, row in ROWS])
def test_each_failed_outcome_has_its_row_of_the_table(ended: Outcome, row: dict[str, Any]) -> None:
    answer = sent(answer_of_run(ended))
    assert {name: answer[name] for name in row} == row
    # These clients treat some stdout and blank stderr as a success, whatever the status says.
    assert (answer["stdout"], answer["artifacts"], answer["result"]) == ("", [], None)
    assert answer["stderr"]


@pytest.mark.parametrize(
    ("failure", "exit_code", "detail", "stderr"),
    [
        (
            errors.PolicyViolation("no", problems=["Line 1: Import: os", "Line 2"]),
            -999,
            "Code is unsafe",
            "Line 1: Import",
        ),
        (errors.QuotaExceeded("too many"), -429, "Too many requests, please try again later", "too many"),
        (errors.StartFailed(), -10, "no_available_container", "Container pool is busy"),
        (errors.NotInitialized(), -10, "no_available_container", "Container pool is busy"),
        (errors.BackendUnavailable(), -10, "no_available_container", "Container pool is busy"),
        (errors.ShuttingDown(), -10, "no_available_container", "Container pool is busy"),
        (errors.AuditUnavailable(), -3, "internal_error", "audit"),
        (errors.ConnectionFailed(), -3, "internal_error", "cannot be reached"),
        (InternalError(), -999, "unhandled_exception", "failed"),
    ],
)
def test_each_refused_program_has_its_row(failure: SessionError, exit_code: int, detail: str, stderr: str) -> None:
    answer = sent(answer_of_refusal(failure))
    assert (answer["status"], answer["exit_code"], answer["detail"]) == ("program_runner_error", exit_code, detail)
    assert stderr in answer["stderr"]
    assert answer["error_code"] == failure.code
    assert (answer["stdout"], answer["time_used_ms"]) == ("", None)


def test_the_policys_problems_are_lines_of_stderr() -> None:
    answer = answer_of_refusal(errors.PolicyViolation("no", problems=["Line 1: a", "Line 2: b"]))
    assert answer["stderr"] == "Line 1: a\nLine 2: b"


# -- the older form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (
            outcome(Ending.OK, 0, returned=Returned({"a": 1})),
            {"status": "success", "result": '{"a": 1}', "error": None, "execution_time": 0.25, "stdout": "out\n"},
        ),
        (outcome(Ending.OK, 0), {"status": "success", "result": None}),
        (outcome(Ending.TIMEOUT, 124), {"status": "timeout", "error": "Execution timeout", "stdout": ""}),
        (outcome(Ending.ERROR, 1, stderr="bad"), {"status": "error", "error": "bad", "result": None}),
    ],
)
def test_the_older_form_has_the_same_content(ended: Outcome, expected: dict[str, Any]) -> None:
    answer = json.loads(orjson.dumps(older_form(answer_of_run(ended))))
    assert {name: answer[name] for name in expected} == expected


# -- markers ---------------------------------------------------------------------------------------------------


def marker(value: object) -> str:
    return PREFIX + base64.b64encode(json.dumps(value).encode()).decode()


GOOD = marker({"present": True, "value": 1, "type": "json"})


@pytest.mark.parametrize(
    ("stdout", "kept", "value"),
    [
        (f"a\n{GOOD}\nb\n", "a\nb\n", 1),
        (f"{GOOD}\n{marker({'present': True, 'value': 2, 'type': 'json'})}\n", "", 2),
        (f"{GOOD}\n{PREFIX}not base64!\n", f"{PREFIX}not base64!\n", 1),
        (f"{PREFIX}\n{PREFIX}   \na\n", "a\n", None),
        (f"a{GOOD}\n", f"a{GOOD}\n", None),
        (f"{PREFIX}{base64.b64encode(b'[1]').decode()}\n", f"{PREFIX}WzFd\n", None),
        (f"{PREFIX}{base64.b64encode(b'nonsense').decode()}", f"{PREFIX}bm9uc2Vuc2U=", None),
        ("no marker\r\n\x0b\u2028", "no marker\r\n\x0b\u2028", None),
        (GOOD, "", 1),
    ],
)
def test_the_last_readable_marker_is_the_result_and_readable_markers_are_no_output(
    stdout: str, kept: str, value: object
) -> None:
    rest, marked = split(stdout)
    assert rest == kept
    assert (marked.value if marked else None) == value


def test_the_value_of_main_takes_precedence_over_a_printed_marker() -> None:
    assert told(Ending.OK, 0, stdout=f"{GOOD}\n", returned=Returned(2))["result"]["value"] == 2
    assert told(Ending.OK, 0, stdout=f"{GOOD}\n")["result"] == {"present": True, "value": 1, "type": "json"}


@given(st.text(), st.binary())
def test_arbitrary_output_raises_no_error(text: str, data: bytes) -> None:
    told(Ending.OK, 0, stdout=f"{PREFIX}{text}\n{PREFIX}{base64.b64encode(data).decode()}\n{GOOD}")


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"', "[" * 500])
def test_a_marker_with_invalid_json_is_output(value: str) -> None:
    stdout = PREFIX + base64.b64encode(b'{"present": true, "value": ' + value.encode() + b"}").decode()
    assert told(Ending.OK, 0, stdout=stdout)["result"] is None


# -- bodies ----------------------------------------------------------------------------------------------------

CODE = base64.b64encode("def main(): return 'é'".encode()).decode()


def body(**fields: Any) -> bytes:
    return json.dumps({"code_b64": CODE} | fields).encode()


def test_a_body_becomes_a_program() -> None:
    settings = Settings.model_validate({})
    assert read(Run, body()).program(settings) == Program("def main(): return 'é'")
    asked = body(language="nodejs", arguments={"a": 2**100}, base_image="x", unknown=[1])
    assert read(Run, asked).program(settings) == Program("def main(): return 'é'", "javascript", {"a": 2**100})
    assert read(Run, body(arguments=None)).program(settings).arguments == {}


def test_the_older_form_gets_at_most_the_gateways_timeout_and_memory() -> None:
    settings = Settings.model_validate({"memory": 256 * 1024**2, "max_execute_timeout": 50})
    made = read(Execute, body(timeout=1e6, max_memory="1g", language="js")).program(settings)
    assert (made.timeout, made.memory, made.language) == (50, 256 * 1024**2, "javascript")
    made = read(Execute, body(timeout=3, max_memory="32m")).program(settings)
    assert (made.timeout, made.memory) == (3, 32 * 1024**2)
    assert read(Execute, body()).program(settings).timeout == settings.execute_timeout


@pytest.mark.parametrize(
    ("sent_body", "loc", "kind"),
    [
        (b"", ["body"], "json_invalid"),
        (b"{", ["body"], "json_invalid"),
        (b"[]", ["body"], "model_type"),
        (b"{}", ["body", "code_b64"], "missing"),
        (body(code_b64=None), ["body", "code_b64"], "string_type"),
        (body(code_b64=1), ["body", "code_b64"], "string_type"),
        (body(code_b64="%%%"), ["body", "code_b64"], "value_error"),
        (body(code_b64=CODE + "\n"), ["body", "code_b64"], "value_error"),
        (body(code_b64=CODE[:-1]), ["body", "code_b64"], "value_error"),
        (body(code_b64="/w=="), ["body", "code_b64"], "value_error"),
        (body(code_b64="é"), ["body", "code_b64"], "value_error"),
        (body(language="javascript"), ["body", "language"], "literal_error"),
        (body(language="python3"), ["body", "language"], "literal_error"),
        (body(language=None), ["body", "language"], "literal_error"),
        (body(arguments=[1]), ["body", "arguments"], "dict_type"),
        (body(arguments="a"), ["body", "arguments"], "dict_type"),
        (body(arguments=1), ["body", "arguments"], "dict_type"),
        (b"[" * 100_000, ["body"], "json_invalid"),
    ],
)
def test_an_invalid_body_is_reported_as_fastapi_does(sent_body: bytes, loc: list[str], kind: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(Run, sent_body)
    (problem,) = refusal.value.details["problems"]
    assert (problem["loc"], problem["type"]) == (loc, kind)
    assert set(problem) == {"type", "loc", "msg", "input"}
    assert len(orjson.dumps(problem)) < 2000
