"""One program, run to its end in a fresh kernel that is thrown away: what runs, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from sessions.errors import SessionError


@dataclass(frozen=True, slots=True)
class Program:
    """Code that defines `main`, and what that is called with.

    Python's `main(**arguments)`, JavaScript's `main(arguments)`.
    """

    code: str
    language: str = "python"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    #: seconds that it may run; None: as long as the gateway's `execute_timeout`
    timeout: float | None = None
    #: bytes of memory; None, or more than the gateway's limit: that limit
    memory: int | None = None


class Ending(StrEnum):
    """How a program ended."""

    #: it ran to its end, whether or not `main` was reached
    OK = "ok"
    #: it raised, exited with another code than 0, or could not be read
    ERROR = "error"
    #: it ran longer than it may
    TIMEOUT = "timeout"
    #: it used more memory than it may
    OUT_OF_MEMORY = "out_of_memory"
    #: its kernel ended otherwise
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Returned:
    """What `main` returned: any JSON value, null included."""

    value: Any


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a program left in `artifacts/`."""

    name: str
    mime_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program."""

    ending: Ending
    stdout: str
    #: with the traceback, if there is one, as the language itself writes it
    stderr: str
    #: of the program: 0 if it ended well, 1 if it raised, else what it exited with
    exit_code: int
    #: None: `main` was not reached, or did not return
    returned: Returned | None = None
    artifacts: tuple[Artifact, ...] = ()
    #: seconds that it ran
    duration: float = 0.0
    #: output or artifacts were left out because there was too much
    truncated: bool = False
    #: why the language could not read the code, when it was not begun because of that
    unread: str | None = None
    #: why the gateway ended it; None: it ended by itself
    error: SessionError | None = None


class Runner(Protocol):
    """Whatever runs programs."""

    async def run(self, tenant: str, program: Program) -> Outcome:
        """Run one to its end.

        Raises:
            SessionError: it was not begun: it is not valid, not allowed, or there is no room for it.
        """
