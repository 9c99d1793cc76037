"""Bodies of the requests, and the answers. Every answer has `code`, `message` and `data`; the code 0 is a success."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from kernel_gateway.http.formats import failure_text
from sessions.model.errors import KernelDied, SessionError
from sessions.programs.program import Ending, Outcome, Program

#: language name of these clients → our language
LANGUAGES = {"python3": "python", "nodejs": "javascript"}
#: exit code of a program that ran too long
TIMED_OUT = -1
Answer = dict[str, Any]


class Run(BaseModel):
    """A program to run. Unknown fields are ignored, as Dify's sandbox does.

    So are `preload`, which it ignores by default, and `enable_network`, which Dify always sends as true.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    language: str
    code: str

    def program(self, timeout: float) -> Program:
        """Return the program, which may run for `timeout` seconds."""
        return Program(self.code, LANGUAGES[self.language], timeout=timeout, script=True)


class Packages(BaseModel):
    """A request about the packages of a language."""

    model_config = ConfigDict(extra="ignore", strict=True)

    language: str = "python3"


def succeeded(data: Answer) -> Answer:
    """Return an answer without a failure."""
    return {"code": 0, "message": "success", "data": data}


def answer_of_run(outcome: Outcome) -> Answer:
    """Return the answer for a program that has run.

    `error` is empty if the program has succeeded, whatever it wrote to stderr. Output that was cut is a failure,
    because Dify would read a part of it as the result.
    """
    exit_code = TIMED_OUT if outcome.ending is Ending.TIMEOUT else outcome.exit_code
    error = ""
    if outcome.ending is not Ending.OK:
        error = f"process exited with code {exit_code}\n{_cause(outcome)}\n{outcome.stderr}"
    elif outcome.truncated:
        error = f"the program printed too much: {outcome.omitted} bytes of its output were left out"
    return succeeded({"stdout": outcome.stdout, "stderr": outcome.stderr, "error": error, "exit_code": exit_code})


def _cause(outcome: Outcome) -> str:
    if outcome.ending is Ending.TIMEOUT:
        return "error: timeout"
    if outcome.error is None or (isinstance(outcome.error, KernelDied) and outcome.stderr):
        return "the program has failed"
    return f"error: {outcome.error.message} ({outcome.error.code})"


def answer_of_failure(code: int, failure: SessionError) -> Answer:
    """Return the answer for a program that was not run. The text names our own code, too."""
    return {"code": code, "message": f"{failure.code}: {failure_text(failure)}", "data": None}
