"""What came of a program, from what its cell says and what the gateway saw. Pure.

The cell's own word is the program's: it can forge it, and says then what its own client is told.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from sessions.errors import OutOfMemory
from sessions.models import ExecutionResult, Status
from sessions.oneshot import Ending, Outcome, Returned

#: what a shell says of a program that ran too long, and of one that was killed
TIMED_OUT, KILLED = 124, 137


def outcome_of(result: ExecutionResult) -> tuple[Outcome, bool]:
    """What came of a program, its artifacts aside; and whether it says that there are any."""
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
            case _:  # interrupted from outside, or the program has taken the runner apart
                stderr += _raised(result) or "the program has ended without a word\n"
    outcome = Outcome(
        ending=ending,
        stdout=stdout,
        stderr=stderr,
        exit_code=exit_code,
        returned=returned,
        duration=result.duration,
        truncated=result.truncated,
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
    """The value in JSON's text; None: there is none, or it is not what every dialect can send on."""
    if text is None:
        return None
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
        # Numbers that are no more finite, halves of characters: what can be read can still not be written.
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return Returned(value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
