"""Converts the result of a cell to the texts that clients show. Pure functions."""

from __future__ import annotations

from typing import Any

from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.terminal_text import without_escapes
from sessions.model.values import ExecutionResult, StateChange


def stdout_of(result: ExecutionResult) -> str:
    """Return what the code has printed, and the values that it has shown."""
    text = ""
    for output in result.outputs:
        if output.get("name") == "stdout":
            text += output["text"]
        elif shown := _shown(output):
            text += ("\n" if text and not text.endswith("\n") else "") + f"{shown}\n"
    return text


def _shown(output: dict[str, Any]) -> str | None:
    """Return the text of a value or display. A picture has none: code has to save it to a file."""
    data = output.get("data", {})
    return None if "image/png" in data else readable_text(data)


def stderr_of(result: ExecutionResult, notes: list[str]) -> str:
    """Return what the code has written to stderr, its traceback, and what the model must know besides.

    Args:
        result: result of the cell.
        notes: further lines.
    """
    parts = [output["text"] for output in result.outputs if output.get("name") == "stderr"]
    parts += [
        without_escapes("\n".join(output["traceback"])) + "\n"
        for output in result.outputs
        if output["output_type"] == "error"
    ]
    if result.error is not None:
        parts.append(f"{result.error.message} ({result.error.code})\n")
    if result.state not in {StateChange.NEW, StateChange.PRESERVED}:
        parts.append(f"The variables of earlier calls are {result.state.value}: {result.state_reason}\n")
    if result.omitted:
        parts.append(f"{result.omitted} bytes of output were left out: print less, or write to a file.\n")
    return "".join(parts + [f"{note}\n" for note in notes])
