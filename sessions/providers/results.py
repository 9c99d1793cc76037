"""Outcomes of programs at a provider, and their conversion into the results of the providers' contract and back."""

from __future__ import annotations

import base64
import re
from typing import Any

from sessions.model.errors import ExecutionTimeout, KernelDied, OutOfMemory, SessionError, of_code
from sessions.programs.program import Artifact, Ending, Outcome, Returned
from sessions.providers.base import ExecutionResult
from sessions.providers.wrapping import Answer

#: exit code of RAGFlow's executor for programs that ran too long
TIMED_OUT = -124
#: error of each ending, for providers that report no error code
_ERRORS: dict[Ending, type[SessionError]] = {
    Ending.TIMEOUT: ExecutionTimeout,
    Ending.OUT_OF_MEMORY: OutOfMemory,
    Ending.DIED: KernelDied,
}


def to_result(instance_id: str, outcome: Outcome) -> ExecutionResult:
    """Convert an outcome into a provider's result."""
    metadata: dict[str, Any] = {
        "status": outcome.ending.value,
        "instance_id": instance_id,
        "result_present": outcome.returned is not None,
        "result_value": outcome.returned.value if outcome.returned else None,
        "artifacts": [artifact.as_dict() for artifact in outcome.artifacts],
        "truncated": outcome.truncated,
    }
    if outcome.error is not None:
        metadata["error_code"] = outcome.error.code
    return ExecutionResult(outcome.stdout, outcome.stderr, outcome.exit_code, outcome.duration, metadata)


def ending_of(result: ExecutionResult) -> Ending:
    """Return how a program ended. The exit code decides if the provider does not report it."""
    status = result.metadata.get("status")
    if status in list(Ending):
        return Ending(status)
    return Ending.ERROR if result.exit_code else Ending.OK


def outcome_of(result: ExecutionResult) -> Outcome:
    """Return the outcome of a program.

    Raises:
        ValueError: when an artifact is no base64, which is a defect of the provider.
    """
    told, ending = result.metadata, ending_of(result)
    usual = _ERRORS.get(ending)
    return Outcome(
        ending=ending,
        stdout=result.stdout,
        stderr=result.stderr,
        exit_code=result.exit_code,
        returned=Returned(told.get("result_value")) if told.get("result_present") else None,
        artifacts=tuple(
            Artifact(each["name"], each["mime_type"], base64.b64decode(each["content_b64"], validate=True))
            for each in told.get("artifacts", ())
        ),
        duration=result.execution_time,
        truncated=bool(told.get("truncated")),
        error=of_code(told.get("error_code")) or (usual() if usual else None),
    )


def ended(answer: Answer | None, stdout: str, stderr: str, seconds: float, *, truncated: bool = False) -> Outcome:
    """Return the outcome of a program whose interpreter was not ended from outside.

    Args:
        answer: answer of the runner. None means that the program also ended the runner, or that too much output
            displaced the answer.
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


def without_colours(text: str) -> str:
    """Remove the colours from a notebook's traceback."""
    return _COLOURS.sub("", text)
