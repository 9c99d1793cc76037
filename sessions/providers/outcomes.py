"""Conversion of a provider's result into the outcome that the rest of the domain uses."""

from __future__ import annotations

from base64 import b64decode

from sessions.model.errors import ExecutionTimeout, KernelDied, OutOfMemory, SessionError, of_code
from sessions.programs.program import Artifact, Ending, Outcome, Returned
from sessions.providers.base import ExecutionResult

#: error of each ending, for providers that report no error code
_ERRORS: dict[Ending, type[SessionError]] = {
    Ending.TIMEOUT: ExecutionTimeout,
    Ending.OUT_OF_MEMORY: OutOfMemory,
    Ending.DIED: KernelDied,
}


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
            Artifact(each["name"], each["mime_type"], b64decode(each["content_b64"], validate=True))
            for each in told.get("artifacts", ())
        ),
        duration=result.execution_time,
        truncated=bool(told.get("truncated")),
        error=of_code(told.get("error_code")) or (usual() if usual else None),
    )
