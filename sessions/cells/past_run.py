"""What is known of a run without its outputs: how it ended, as the ledger keeps it for the next gateway. Pure.

A run is an execution with an idempotency key; see `idempotency.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from sessions.cells.packed import Output
from sessions.model import exact_json
from sessions.model.errors import ExecutionCancelled, OutcomeUnknown, SessionError, of_code
from sessions.model.values import ExecutionResult, StateChange, Status


class Progress(StrEnum):
    """How far a run is."""

    #: its cell waits for its turn
    QUEUED = "queued"
    #: its cell was sent to the kernel
    RUNNING = "running"
    #: its cell has ended
    DONE = "done"
    #: it was cancelled or refused before any code ran
    NOT_RUN = "not_run"
    #: it began before the gateway was restarted, and its end is not known
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: with the result of its cell, or with an error before the cell was sent."""

    #: when the run was asked for, in seconds since 1970
    asked_at: float
    #: result without outputs. None means that no code has run.
    result: ExecutionResult | None = None
    #: why no code has run. None means that code has run.
    error: SessionError | None = None

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return Progress.NOT_RUN if self.result is None else Progress.DONE

    @property
    def frees_key(self) -> bool:
        """Whether the next request with the same idempotency key runs the cell.

        No code has run then. A cell that was cancelled stays cancelled: a client that repeats its first request must
        not undo what another client has asked for meanwhile.
        """
        return self.error is not None and not isinstance(self.error, ExecutionCancelled)

    def encode(self) -> bytes:
        """Return the end as JSON, for `decode`."""
        value: dict[str, Any] = {"asked_at": self.asked_at, "error": _told(self.error)}
        if self.result is not None:
            value["result"] = asdict(replace(self.result, outputs=[], answer=None, error=None))
            value["cell_error"] = _told(self.result.error)
        return exact_json.dumps(value)

    @classmethod
    def decode(cls, record: bytes) -> RunEnd | None:
        """Return the end that `encode` has turned into JSON. None means that another version has written it."""
        try:
            value = exact_json.parse(record)
            result = value.get("result")
            return cls(value["asked_at"], None if result is None else _result(value), _error(value["error"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run without outputs: an earlier gateway ran it, its outputs were dropped to save memory, or no code has run."""

    id: str
    digest: bytes
    #: how it ended. None means that this is not known.
    end: RunEnd | None

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress.UNKNOWN if self.end is None else self.end.progress

    @property
    def asked_at(self) -> float | None:
        """When it was asked for, in seconds since 1970. None means that this is not known."""
        return None if self.end is None else self.end.asked_at

    @property
    def error(self) -> SessionError | None:
        """Why it has no result. None means that it has a result."""
        return OutcomeUnknown() if self.end is None else self.end.error

    @property
    def outputs_kept(self) -> bool:
        """Whether its outputs are kept: only a run that has none loses none."""
        return self.progress is Progress.NOT_RUN

    def outputs_so_far(self) -> Iterator[Output]:
        """Return no outputs."""
        return iter(())

    def refusal(self) -> SessionError:
        """Return the error that a retry gets, which needs the outputs."""
        if self.error is not None or self.end is None or self.end.result is None:
            return self.error or OutcomeUnknown()
        status = self.end.result.status.value
        return OutcomeUnknown(
            f"the execution has ended with the status {status!r}, and its outputs are no longer kept; it was not run "
            "again"
        )


def _result(value: dict[str, Any]) -> ExecutionResult:
    fields: dict[str, Any] = value["result"]
    fields |= {"status": Status(fields["status"]), "state": StateChange(fields["state"])}
    return ExecutionResult(**fields | {"error": _error(value["cell_error"])})


def _told(error: SessionError | None) -> dict[str, Any] | None:
    return None if error is None else {"code": error.code, "message": error.message, "details": error.details}


def _error(told: dict[str, Any] | None) -> SessionError | None:
    if told is None:
        return None
    return of_code(told["code"], told["message"], **told["details"]) or SessionError(told["message"])
