"""Conversion of a program's outcome into the form of the providers' contract."""

from __future__ import annotations

import base64
import re
from typing import Any

from sessions.model.errors import ExecutionTimeout, KernelDied
from sessions.programs.program import Artifact, Ending, Outcome
from sessions.providers.base import ExecutionResult
from sessions.providers.wrapping import Answer

#: exit codes of RAGFlow's executor for programs that were ended from outside
TIMED_OUT, KILLED = -124, -137


def to_result(instance_id: str, outcome: Outcome) -> ExecutionResult:
    """Convert an outcome into a provider's result."""
    metadata: dict[str, Any] = {
        "status": outcome.ending.value,
        "instance_id": instance_id,
        "result_present": outcome.returned is not None,
        "result_value": outcome.returned.value if outcome.returned else None,
        "artifacts": [_artifact(artifact) for artifact in outcome.artifacts],
        "truncated": outcome.truncated,
    }
    if outcome.error is not None:
        metadata["error_code"] = outcome.error.code
    return ExecutionResult(outcome.stdout, outcome.stderr, outcome.exit_code, outcome.duration, metadata)


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return {
        "name": artifact.name,
        "mime_type": artifact.mime_type,
        "size": len(artifact.content),
        "content_b64": base64.b64encode(artifact.content).decode(),
    }


def ended(answer: Answer | None, stdout: str, stderr: str, seconds: float, *, truncated: bool = False) -> Outcome:
    """Return the outcome of a program whose interpreter was not ended from outside.

    Args:
        answer: answer of the runner; None: the program also ended the runner, or too much output displaced the answer.
        stdout: output of the interpreter, used when there is no answer.
        stderr: error output of the program.
        seconds: run time in seconds.
        truncated: True if some output is missing.
    """
    if answer is None:
        why = "too much output" if truncated else "the program has ended its interpreter"
        error = KernelDied(f"The program's result did not arrive: {why}.")
        return Outcome(Ending.DIED, stdout, stderr, 1, duration=seconds, truncated=truncated, error=error)
    return Outcome(
        Ending.ERROR if answer.exit_code else Ending.OK,
        answer.stdout,
        stderr + answer.trouble,
        answer.exit_code,
        answer.returned,
        duration=seconds,
        truncated=truncated,
    )


def timed_out(stdout: str, stderr: str, seconds: float) -> Outcome:
    """Return the outcome of a program that exceeded its time limit."""
    return Outcome(Ending.TIMEOUT, stdout, stderr, TIMED_OUT, duration=seconds, error=ExecutionTimeout())


#: escape sequences for colours in terminals
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain(text: str) -> str:
    """Remove the colours from a notebook's traceback."""
    return _COLOURS.sub("", text)
