"""The outcome of a program, from the answer of its cell and from the observations of the gateway. Pure.

A program can forge the answer of its cell. A forged answer only changes what the program's own client gets.
"""

from __future__ import annotations

from sessions.model import exact_json
from sessions.model.errors import OutOfMemory
from sessions.model.values import ExecutionResult, Status
from sessions.programs.program import Ending, Outcome, Returned

#: exit codes of a shell for a program that ran too long, and for a program that was killed
TIMED_OUT, KILLED = 124, 137


def outcome_of(result: ExecutionResult) -> tuple[Outcome, bool]:
    """Return a program's outcome without artifacts, and True if the program says that it left some."""
    stdout, stderr = _text(result, "stdout"), _text(result, "stderr")
    ending, exit_code, left_something = Ending.ERROR, 1, False
    returned: Returned | None = None
    unread: str | None = None
    if result.status is Status.TIMEOUT:
        ending, exit_code = Ending.TIMEOUT, TIMED_OUT
    elif isinstance(result.error, OutOfMemory):
        ending, exit_code = Ending.OUT_OF_MEMORY, KILLED
    elif result.status is Status.DIED:
        ending, exit_code = Ending.DIED, _died_with(result)
    else:
        match result.answer:
            case {
                "exit_code": int() as exit_code,
                "value": str() | None as value,
                "error": str() as error,
                "unread": str() | None as why,
                "artifacts": bool() as left_something,
            }:
                stderr, unread = stderr + error, why
                if exit_code == 0:
                    ending, returned = Ending.OK, returned_by(value)
            case _:  # interrupted from outside, or the program has broken the runner
                stderr += _raised(result) or "the program has ended without an answer\n"
    outcome = Outcome(
        ending=ending,
        stdout=stdout,
        stderr=stderr,
        exit_code=exit_code,
        returned=returned,
        duration=result.duration,
        truncated=result.truncated,
        omitted=result.omitted,
        unread=unread,
        error=result.error,
    )
    return outcome, left_something


def _text(result: ExecutionResult, stream: str) -> str:
    return "".join(output["text"] for output in result.outputs if output.get("name") == stream)


def _raised(result: ExecutionResult) -> str:
    return "".join(f"{out['ename']}: {out['evalue']}\n" for out in result.outputs if out["output_type"] == "error")


def _died_with(result: ExecutionResult) -> int:
    code = result.error.details.get("exit_code") if result.error else None
    return code if type(code) is int and code else 1


def returned_by(text: str | None) -> Returned | None:
    """Return the value of JSON text. None means that there is no value, or a value that some dialect cannot send."""
    if text is None:
        return None
    try:
        return Returned(exact_json.loads(text))
    except ValueError:
        return None
