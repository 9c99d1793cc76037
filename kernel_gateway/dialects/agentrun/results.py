"""What a cell has shown, as items. Pure.

The items carry the fields of the vendor's page and those that its service was seen to send, because clients read
either; `stdout`, `stderr` and `exitCode` beside them are read by the SDK's own tool set.
"""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.agentrun.models import sentences
from sessions.models import ExecutionResult, Status
from sessions.outputs import Output

Item = dict[str, Any]

#: what the last item says; clients take all but `ok` for a failure
END = {
    Status.OK: "ok",
    Status.ERROR: "error",
    Status.TIMEOUT: "timeout",
    Status.INTERRUPTED: "error",
    Status.DIED: "error",
}
#: how Python calls what became of a cell that the gateway ended
NAMES = {Status.TIMEOUT: "TimeoutError", Status.INTERRUPTED: "KeyboardInterrupt"}


def reply(context_id: str, result: ExecutionResult) -> dict[str, Any]:
    """The answer to an execute."""
    items = [_item(output) for output in result.outputs]
    if failure := _failure(result):
        items.append(failure)
    items.append({"type": "endOfExecution", "status": END[result.status]})
    return {
        "results": items,
        "contextId": context_id,
        "stdout": _text_of(result, "stdout"),
        "stderr": _text_of(result, "stderr"),
        "exitCode": 0 if result.status is Status.OK else 1,
        "state": result.state.value,
        "stateReason": result.state_reason,
        "truncated": result.truncated,
    }


def _text_of(result: ExecutionResult, stream: str) -> str:
    return "".join(output["text"] for output in result.outputs if output.get("name") == stream)


def _item(output: Output) -> Item:
    match output["output_type"]:
        case "stream":
            # Clients put items on lines of their own.
            return {"type": output["name"], "text": output["text"].removesuffix("\n")}
        case "error":
            return _error(output["ename"], output["evalue"], output["traceback"])
    item = {"type": "result", "data": output["data"], "text": output["data"].get("text/plain", "")}
    return item | ({"executionCount": output["execution_count"]} if "execution_count" in output else {})


def _error(name: str, value: str, traceback: list[str]) -> Item:
    return {"type": "error", "name": name, "value": value, "traceback": traceback, "text": f"{name}: {value}"}


def _failure(result: ExecutionResult) -> Item | None:
    """What the gateway has to say of a cell that did not end by itself."""
    if result.error is None:
        return None
    name = NAMES.get(result.status, result.error.name)
    return _error(name, sentences(result.error), [])
