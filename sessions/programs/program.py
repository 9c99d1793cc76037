"""A program, which runs to its end in a fresh kernel that is then thrown away, and its outcome."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from sessions.model.errors import SessionError


@dataclass(frozen=True, slots=True)
class Program:
    """Code that defines `main`, and the arguments of `main`; or a script, which runs to its end as it is.

    The call is `main(**arguments)` in Python and `main(arguments)` in JavaScript. A script in Python is `__main__`.
    """

    code: str
    language: str = "python"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: seconds that the program may run. None means the gateway's `execute_timeout`.
    timeout: float | None = None
    #: bytes of memory. The gateway's limit applies to None, and to a number above it.
    memory: int | None = None
    #: whether the code is a script: no `main` is called
    script: bool = False


class Ending(StrEnum):
    """How a program ended."""

    #: the program ran to its end, with or without reaching `main`
    OK = "ok"
    #: the program raised an error, exited with a code other than 0, or could not be parsed
    ERROR = "error"
    #: the program ran longer than its timeout
    TIMEOUT = "timeout"
    #: the program used more memory than its limit
    OUT_OF_MEMORY = "out_of_memory"
    #: the program's kernel ended for another reason
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Returned:
    """The return value of `main`: any JSON value, null included."""

    value: Any


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a program left in `artifacts/`."""

    name: str
    mime_type: str
    content: bytes = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the file in the form that RAGFlow's clients and providers exchange."""
        content = base64.b64encode(self.content).decode()
        return {"name": self.name, "mime_type": self.mime_type, "size": len(self.content), "content_b64": content}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a program."""

    ending: Ending
    stdout: str
    #: includes the traceback, if there is one, as the language itself writes it
    stderr: str
    #: exit code of the program: 0 if it succeeded, 1 if it raised an error, else the code it exited with
    exit_code: int
    #: return value of `main`. None means that `main` was not reached, or did not return.
    returned: Returned | None = None
    artifacts: tuple[Artifact, ...] = ()
    #: run time in seconds
    duration: float = 0.0
    #: whether output or artifacts were left out because there was too much
    truncated: bool = False
    #: bytes of output that were left out because of the limit
    omitted: int = 0
    #: why the language could not parse the code, so that the program did not begin
    unread: str | None = None
    #: why the gateway ended the program. None means that the program ended on its own.
    error: SessionError | None = None


class Runner(Protocol):
    """Interface for running programs."""

    async def run(self, tenant: str, program: Program) -> Outcome:
        """Run a program to its end.

        Raises:
            SessionError: when the program was not begun: it is not valid or not allowed, or there is no room for it.
        """
