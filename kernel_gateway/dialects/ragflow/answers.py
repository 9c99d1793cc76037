"""Converts outcomes of programs to answers for RAGFlow's clients. Pure functions.

Every answer has all keys. A failure has neither stdout nor artifacts: clients treat an answer with stdout and without
stderr as a success, even if its status is a failure.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from kernel_gateway.dialects.ragflow.markers import split
from kernel_gateway.errors import InternalError
from sessions.model import errors
from sessions.model.errors import KernelDied, SessionError
from sessions.programs.program import Ending, Outcome

Answer = dict[str, Any]

#: text in stderr → the status, and the field and value of the cause; the first matching row counts
STDERR_CAUSES = (
    ("Permission denied", "unauthorized_access", "unauthorized_access_type", "file_access"),
    ("Operation not permitted", "unauthorized_access", "unauthorized_access_type", "disallowed_syscall"),
    ("MemoryError", "resource_limit_exceeded", "resource_limit_type", "memory"),
    ("", "program_error", "runtime_error_type", "nonzero_exit"),
)
#: code of the error that the code policy raises; its details have `problems`
UNSAFE = "SB007"
#: errors that mean that no kernel is available now, but perhaps soon
BUSY = (errors.StartFailed, errors.NotInitialized, errors.BackendUnavailable, errors.ShuttingDown)


def _answer(status: str, exit_code: int, **more: Any) -> Answer:
    blank = {
        "status": status,
        "stdout": "",
        "stderr": "",
        "exit_code": exit_code,
        "detail": None,
        "time_used_ms": None,
        "memory_used_kb": None,
        "resource_limit_type": None,
        "unauthorized_access_type": None,
        "runtime_error_type": None,
        "artifacts": [],
        "result": None,
        # Our additions: RAGFlow's specification has such codes, but its own executor never sends them.
        "error_code": None,
        "truncated": False,
        "omitted_bytes": 0,
    }
    return blank | more


def answer_of_run(outcome: Outcome) -> Answer:
    """Return the answer for a program that has run."""
    told = _outcome_answer(outcome)
    if told["status"] != "program_runner_error":
        told["time_used_ms"] = round(outcome.duration * 1000, 3)
    return told | {"truncated": outcome.truncated, "omitted_bytes": outcome.omitted}


def _outcome_answer(outcome: Outcome) -> Answer:
    code = outcome.error.code if outcome.error else None
    match outcome.ending:
        case Ending.OK:
            return _succeeded(outcome)
        case Ending.TIMEOUT:
            return _limited(-124, "time", "Execution timeout", code)
        case Ending.OUT_OF_MEMORY:
            return _limited(-137, "memory", "Memory limit exceeded (killed by OOM)", code)
    if outcome.unread is not None:
        return _unsafe([f"Line -1: Parsing Error: {outcome.unread}"])
    if outcome.error is not None and not isinstance(outcome.error, KernelDied):
        return answer_of_refusal(outcome.error)
    _, status, field, value = next(sign for sign in STDERR_CAUSES if sign[0] in outcome.stderr)
    # To clients, empty stderr would mean a success.
    stderr = outcome.stderr or (outcome.error.message if outcome.error else f"exit code {outcome.exit_code}")
    return _answer(status, outcome.exit_code, stderr=stderr, error_code=code, **{field: value})


def _limited(exit_code: int, limit: str, stderr: str, code: str | None) -> Answer:
    return _answer("resource_limit_exceeded", exit_code, resource_limit_type=limit, stderr=stderr, error_code=code)


def _succeeded(outcome: Outcome) -> Answer:
    stdout, marked = split(outcome.stdout)
    result = None
    if outcome.returned is not None:
        result = {"present": True, "value": _json(outcome.returned.value), "type": "json"}
    elif marked is not None:
        result = {"present": marked.present, "value": _json(marked.value), "type": "json"}
    artifacts = [artifact.as_dict() for artifact in outcome.artifacts]
    return _answer("success", 0, stdout=stdout, stderr=outcome.stderr, result=result, artifacts=artifacts)


def _json(value: Any) -> orjson.Fragment:
    """Serialize a value. It may contain large integers, which orjson refuses."""
    return orjson.Fragment(json.dumps(value))


def _unsafe(problems: list[str]) -> Answer:
    return _answer("program_runner_error", -999, detail="Code is unsafe", stderr="\n".join(problems))


def answer_of_refusal(failure: SessionError) -> Answer:
    """Return the answer for a program that the gateway did not run, or whose outcome it does not know."""
    if failure.code == UNSAFE:
        return _unsafe(failure.details["problems"]) | {"error_code": UNSAFE}
    exit_code, detail, stderr = -3, "internal_error", failure.message
    if isinstance(failure, errors.QuotaExceeded):
        exit_code, detail = -429, "Too many requests, please try again later"
    elif isinstance(failure, BUSY):
        exit_code, detail, stderr = -10, "no_available_container", "Container pool is busy"
    elif isinstance(failure, InternalError):
        exit_code, detail = -999, "unhandled_exception"
    return _answer("program_runner_error", exit_code, detail=detail, stderr=stderr, error_code=failure.code)


def older_form(answer: Answer) -> Answer:
    """Convert an answer to the format of `/execute`, with `execution_time` in seconds and `result` as JSON text."""
    status = "success" if answer["status"] == "success" else "error"
    result, took = answer["result"], answer["time_used_ms"]
    return {
        "status": "timeout" if answer["resource_limit_type"] == "time" else status,
        "stdout": answer["stdout"],
        "stderr": answer["stderr"],
        "result": orjson.dumps(result["value"]).decode() if result and result["present"] else None,
        "error": None if status == "success" else answer["stderr"] or answer["detail"],
        "execution_time": None if took is None else took / 1000,
        "error_code": answer["error_code"],
        "truncated": answer["truncated"],
        "omitted_bytes": answer["omitted_bytes"],
    }
