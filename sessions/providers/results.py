"""What came of a program, in the form of the providers' contract."""

from __future__ import annotations

import base64
import re
from typing import Any

from sessions.errors import ExecutionTimeout, KernelDied
from sessions.oneshot import Artifact, Ending, Outcome
from sessions.providers.base import ExecutionResult
from sessions.providers.wrapping import Answer

#: what RAGFlow's executor gives as exit codes of what was ended from outside
TIMED_OUT, KILLED = -124, -137


def told(instance_id: str, outcome: Outcome) -> ExecutionResult:
    """An outcome as a provider tells it."""
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
    """The outcome of a program whose interpreter went on until its end.

    Args:
        answer: of its runner; None: the program has ended that too, or so much was put out that the answer was not.
        stdout: with what is not the answer.
        stderr: of the program.
        seconds: that it ran.
        truncated: some output is missing.
    """
    if answer is None:
        why = "too much output" if truncated else "it has ended its interpreter"
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
    """The outcome of a program that ran longer than it may."""
    return Outcome(Ending.TIMEOUT, stdout, stderr, TIMED_OUT, duration=seconds, error=ExecutionTimeout())


#: how terminals are told to colour
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain(text: str) -> str:
    """A notebook's traceback without its colours."""
    return _COLOURS.sub("", text)
