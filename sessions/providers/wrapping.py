"""Programs for interpreters that return only their output.

A program is passed as data to the small runner of its language (`programs/`). The runner calls `main` and prints its
answer as one line at the end of stdout. A random marker begins that line, so no other output is mistaken for it. A
program can find out the marker and forge the answer: that changes only the program's own result.
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

from sessions.model import bounded_json
from sessions.programs.program import Returned

PROGRAMS = Path(__file__).parent / "programs"
#: source and final call of the runner, by language, for languages whose programs define `main`
RUNNERS: Mapping[str, tuple[str, str]] = {
    "python": ((PROGRAMS / "program.py").read_text(), '\n\n_run_program("TASK")\n'),
    "javascript": ((PROGRAMS / "program.js").read_text(), ""),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a program's runner."""

    #: output of the program itself
    stdout: str
    exit_code: int
    returned: Returned | None = None
    #: why the return value cannot be passed on. Empty means that it can.
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A program in its runner."""

    source: str
    marker: str = field(repr=False)

    def read(self, stdout: str) -> Answer | None:
        """Extract the answer from stdout. None means that there is no answer: the runner has not reached its end."""
        before, mark, rest = stdout.rpartition(f"\n{self.marker}")
        if not mark:
            return None
        line, _, after = rest.partition("\n")
        return parsed(line, before + after)


def wrapped(code: str, language: str, arguments: Mapping[str, Any], file: Path | None = None) -> Wrapped:
    """Wrap a program in its runner.

    Args:
        code: source that defines `main`.
        language: one of `RUNNERS`.
        arguments: arguments of `main`.
        file: path for the answer of a runner that is its own process. None means that the answer is the last line of
            stdout.
    """
    marker = f"@{secrets.token_hex(16)}:"
    task: dict[str, Any] = {"code": code, "arguments": arguments}
    task |= {"marker": marker} if file is None else {"file": str(file)}
    source, call = RUNNERS[language]
    # No character of base64 has a special meaning in a program.
    text = base64.b64encode(json.dumps(task).encode()).decode()
    return Wrapped(f"{source}{call}".replace("TASK", text), marker)


def parsed(line: str, stdout: str) -> Answer | None:
    """Parse an answer. None means that the line is no complete answer."""
    try:
        told = bounded_json.loads(line)
        exit_code, value = told["exit_code"], told.get("value")
        if not isinstance(exit_code, int):
            return None
        if value is None:
            return Answer(stdout, exit_code)
        text = base64.b64decode(value, validate=True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    try:
        return Answer(stdout, exit_code, Returned(parse_json(text)))
    except ValueError as error:
        return Answer(stdout, 1, trouble=f"the return value of main cannot be passed on: {error}\n")


def parse_json(text: bytes) -> Any:
    """Parse JSON that is not too deep to be serialised again. Integers keep their full size.

    Raises:
        ValueError: when the text is no JSON, too deep, or has too many values.
    """
    try:
        orjson.dumps(bounded_json.loads(text))  # refuses JSON that is too deep for the next line
    except TypeError as error:
        raise ValueError(str(error)) from None
    return json.loads(text)
