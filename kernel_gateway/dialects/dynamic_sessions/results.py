"""Converts the result of an execution to the two shapes that clients read. Pure functions."""

from __future__ import annotations

import ast
import math
from typing import Any

from sessions.model.values import ExecutionResult, Status

#: maximum characters of a value that is sent as a number or as plain text
LITERAL_MAX = 100_000
#: what the service says about code that ran too long
TIMED_OUT = "Request timed out waiting for code execution to complete"


def fields_of(result: ExecutionResult) -> dict[str, Any]:
    """Return what both shapes have in common. The last four fields are ours."""
    return {
        "stdout": _text(result, "stdout"),
        "stderr": _text(result, "stderr") + _raised(result) + _ended(result),
        "executionTimeInMilliseconds": round(result.duration * 1000),
        "state": result.state.value,
        "stateReason": result.state_reason,
        "truncated": result.truncated,
        "omittedBytes": result.omitted,
    }


def old_shape(result: ExecutionResult) -> dict[str, Any]:
    """Return the answer to `code/execute`."""
    status = "Success" if result.status is Status.OK else "Failure"
    return {"$id": "1", "properties": {"$id": "2", "status": status, "result": value_of(result)} | fields_of(result)}


def new_shape(result: ExecutionResult, identifier: str, number: str) -> dict[str, Any]:
    """Return the answer to `executions`."""
    return {
        "id": number,
        "identifier": identifier,
        "executionType": "Synchronous",
        "status": "Succeeded" if result.status is Status.OK else "Failed",
        "result": fields_of(result) | {"executionResult": value_of(result)},
    }


def value_of(result: ExecutionResult) -> Any:
    """Return the last image or value: numbers, truth values and text as they are, others as IPython shows them."""
    for output in reversed(result.outputs):
        data = output.get("data", {})
        if image := data.get("image/png"):
            return {"type": "image", "format": "png", "base64_data": image}
        if output["output_type"] == "execute_result":
            return _literal(str(data.get("text/plain", "")))
    return ""


def _literal(text: str) -> Any:
    if len(text) > LITERAL_MAX:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if isinstance(value, str):
        return text if any("\ud800" <= letter <= "\udfff" for letter in value) else value
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else text


def _text(result: ExecutionResult, stream: str) -> str:
    return "".join(output["text"] for output in result.outputs if output.get("name") == stream)


def _raised(result: ExecutionResult) -> str:
    return "".join("\n".join(output["traceback"]) for output in result.outputs if output["output_type"] == "error")


def _ended(result: ExecutionResult) -> str:
    """Return why the gateway has ended the execution."""
    if result.status is Status.TIMEOUT:
        return TIMED_OUT
    return f"Execution aborted: {result.error.message} ({result.error.code})" if result.error else ""
