"""Programs for interpreters of which only the output comes back.

A program is handed over as data, in the small runner of its language (`programs/`), which calls `main` and answers by
one line at the end of stdout. What marks that line is random, so no other output is taken for it. A program can find
it out and answer for itself: that is its own result, and nothing more.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from sessions.oneshot import Returned

PROGRAMS = Path(__file__).parent / "programs"
#: the runners of the languages whose programs define `main`
RUNNERS: Mapping[str, tuple[str, str]] = {
    "python": ((PROGRAMS / "program.py").read_text(), '\n\n_run_program("TASK")\n'),
    "javascript": ((PROGRAMS / "program.js").read_text(), ""),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program's runner has to say."""

    #: what the program itself has written
    stdout: str
    exit_code: int
    returned: Returned | None = None
    #: why what it returned cannot be passed on
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A program in its runner."""

    source: str
    marker: str = field(repr=False)

    def read(self, stdout: str) -> Answer | None:
        """Take the answer out of stdout; None: there is none, so the runner has not come to its end."""
        before, mark, rest = stdout.rpartition(f"\n{self.marker}")
        if not mark:
            return None
        line, _, after = rest.partition("\n")
        return parsed(line, before + after)


def wrapped(code: str, language: str, arguments: Mapping[str, Any], file: Path | None = None) -> Wrapped:
    """Put a program into its runner.

    Args:
        code: which defines `main`.
        language: one of `RUNNERS`.
        arguments: what `main` is called with.
        file: to which the answer is written, by a process of its own; None: it comes at the end of stdout.
    """
    marker = f"@{secrets.token_hex(16)}:"
    task: dict[str, Any] = {"code": code, "arguments": arguments}
    task |= {"marker": marker} if file is None else {"file": str(file)}
    source, call = RUNNERS[language]
    # base64 has no character that means anything in a program.
    text = base64.b64encode(json.dumps(task).encode()).decode()
    return Wrapped(f"{source}{call}".replace("TASK", text), marker)


def parsed(line: str, stdout: str) -> Answer | None:
    """Read an answer; None: it is none, or cut off."""
    try:
        told = orjson.loads(line)
        exit_code, value = told["exit_code"], told.get("value")
        if not isinstance(exit_code, int):
            return None
        if value is None:
            return Answer(stdout, exit_code)
        text = base64.b64decode(value, validate=True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    try:
        return Answer(stdout, exit_code, Returned(passed_on(text)))
    except ValueError as error:
        return Answer(stdout, 1, trouble=f"what main returned cannot be passed on: {error}\n")


def passed_on(text: bytes) -> Any:
    """A JSON value that is not too deep to be written again; its integers are as large as they are.

    Raises:
        ValueError: it is none, or too deep.
    """
    try:
        orjson.dumps(orjson.loads(text))  # refuses what is too deep, before the next line could fail on it
    except TypeError as error:
        raise ValueError(str(error)) from None
    return json.loads(text)
