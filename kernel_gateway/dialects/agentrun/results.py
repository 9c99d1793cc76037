"""Converts the result of an execution to the items that clients read. Pure functions.

The items have the fields of the vendor's page and the fields that its service was observed to send, because some
clients read the former and some the latter. The SDK's own tool set also reads `stdout`, `stderr` and `exitCode`.
"""

from __future__ import annotations

from typing import Any

from kernel_gateway.http.formats import failure_text
from sessions.cells.packed import Output
from sessions.model.values import ExecutionResult, Status

Item = dict[str, Any]

#: the status in the last item; clients treat every status except `ok` as a failure
END_STATUS = {
    Status.OK: "ok",
    Status.ERROR: "error",
    Status.TIMEOUT: "timeout",
    Status.INTERRUPTED: "error",
    Status.DIED: "error",
}
#: name of the error of an execution that the gateway ended; the names are those of Python's exceptions
ERROR_NAMES = {Status.TIMEOUT: "TimeoutError", Status.INTERRUPTED: "KeyboardInterrupt"}


def reply(context_id: str, result: ExecutionResult) -> dict[str, Any]:
    """Return the answer to an execute request."""
    items = [_item(output) for output in result.outputs]
    if failure := _failure(result):
        items.append(failure)
    items.append({"type": "endOfExecution", "status": END_STATUS[result.status]})
    return {
        "results": items,
        "contextId": context_id,
        "stdout": _text_of(result, "stdout"),
        "stderr": _text_of(result, "stderr"),
        "exitCode": 0 if result.status is Status.OK else 1,
        "state": result.state.value,
        "stateReason": result.state_reason,
        "truncated": result.truncated,
        "omittedBytes": result.omitted,
    }


def _text_of(result: ExecutionResult, stream: str) -> str:
    return "".join(output["text"] for output in result.outputs if output.get("name") == stream)


def _item(output: Output) -> Item:
    match output["output_type"]:
        case "stream":
            # Clients print every item on its own line.
            return {"type": output["name"], "text": output["text"].removesuffix("\n")}
        case "error":
            return _error(output["ename"], output["evalue"], output["traceback"])
    item = {"type": "result", "data": output["data"], "text": output["data"].get("text/plain", "")}
    return item | ({"executionCount": output["execution_count"]} if "execution_count" in output else {})


def _error(name: str, value: str, traceback: list[str]) -> Item:
    return {"type": "error", "name": name, "value": value, "traceback": traceback, "text": f"{name}: {value}"}


def _failure(result: ExecutionResult) -> Item | None:
    """Return the error item of an execution that did not end on its own, or None."""
    if result.error is None:
        return None
    name = ERROR_NAMES.get(result.status, result.error.name)
    return _error(name, failure_text(result.error), [])
