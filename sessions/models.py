"""Frozen values that the whole domain uses. No I/O, no clock.

All rules for valid names, limits and environments are here, once for all dialects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sessions.errors import InvalidRequest, SessionError

#: One allow-list for tenants and sessions. No colon, so that `tenant:session` has exactly one reading.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Names that would change what the interpreter loads before any user code runs.
ENV_DENIED = re.compile(r"(LD_|PYTHON|IPYTHON|JUPYTER|DENO_|KERNEL_GATEWAY_).*|PATH|HOME|SHELL")
#: Characters that cannot be passed to a process: NUL and lone surrogates.
NOT_PASSED = re.compile("[\0\ud800-\udfff]")
ENV_MAX_BYTES = 32 * 1024


def valid_name(kind: str, value: object) -> str:
    """Check a tenant's or session's name.

    Args:
        kind: kind of the name, for the message.
        value: name as received.

    Raises:
        InvalidRequest: when the value is not a string of the allowed form.
    """
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{kind} must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit", field=kind)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Tenant and name of a session."""

    tenant: str
    name: str

    def __post_init__(self) -> None:
        valid_name("tenant", self.tenant)
        valid_name("session", self.name)

    def __str__(self) -> str:
        return f"{self.tenant}:{self.name}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one kernel may use."""

    #: bytes of memory, without additional swap
    memory: int = 512 * 1024**2
    #: processors, as a fraction or multiple of one
    cpus: float = 1.0
    #: processes and threads inside the sandbox
    processes: int = 64
    #: bytes of workspace
    disk: int = 256 * 1024**2
    #: bytes of output kept per execution
    output: int = 10 * 1024**2

    def narrowed(self, asked: Mapping[str, float]) -> Limits:
        """Return these limits with some of them lowered.

        Raises:
            InvalidRequest: when a limit is unknown, or is not above zero and at most the present one.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name, value in asked.items():
            if name not in values:
                raise InvalidRequest(f"unknown limit {name!r}; known: {', '.join(values)}", field=f"limits.{name}")
            kind = type(values[name])
            if not 0 < value <= values[name] or not kind(value):
                raise InvalidRequest(
                    f"limit {name} must be above 0 and at most {values[name]}", field=f"limits.{name}", max=values[name]
                )
            values[name] = kind(value)
        return Limits(**values)


def valid_env(env: Mapping[str, str]) -> dict[str, str]:
    """Check a session's extra environment variables.

    Raises:
        InvalidRequest: when a name is malformed or reserved, a value is no text, or all together are too large.
    """
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or ENV_DENIED.fullmatch(name):
            raise InvalidRequest(f"environment variable {name[:64]!r} cannot be set", field="env")
        if NOT_PASSED.search(value):
            raise InvalidRequest(f"the value of {name} contains a NUL or a lone surrogate", field="env")
    if sum(len(name) + len(value.encode()) for name, value in env.items()) > ENV_MAX_BYTES:
        raise InvalidRequest(f"env is larger than {ENV_MAX_BYTES} bytes", field="env")
    return dict(env)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Settings of a new session."""

    language: str = "python"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity before the culler ends it
    idle_timeout: float = 300.0
    #: seconds that any cell may run, including cells without their own timeout
    max_execute_timeout: float = 600.0
    #: directory in which its kernels start, relative to the workspace, or below `/tmp`; made if absent
    cwd: str = ""
    #: workspace of the sandbox that the session belongs to; None: the session has its own workspace
    workspace: str | None = None
    #: True: no client uses the session again, no later gateway takes it over, and its end is not remembered
    throwaway: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Settings of a new sandbox."""

    #: name of its template
    template: str
    #: limits of each of its containers; `disk`: of the workspace
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity before the culler ends it
    idle_timeout: float = 300.0
    #: seconds after which the sandbox is ended in any case; 0: no limit
    lifetime: float = 0.0
    #: seconds that any execution in the sandbox may run
    max_execute_timeout: float = 600.0
    #: id of its template
    template_id: str = ""


class ExitReason(StrEnum):
    """Why a kernel is gone."""

    #: the kernel used more memory than its limit
    OOM = "out_of_memory"
    #: the gateway ended the kernel
    KILLED = "killed"
    #: the kernel ended on its own, crashed, or was ended from outside the gateway
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class KernelExit:
    """How a kernel ended."""

    reason: ExitReason
    code: int | None = None


class StateChange(StrEnum):
    """What a reply reports about the variables that a client may count on."""

    PRESERVED = "preserved"
    RESTARTED = "restarted"
    LOST = "lost"


class Status(StrEnum):
    """How a cell ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """One cell to run."""

    code: str
    #: seconds from the start of the cell
    timeout: float = 30.0
    store_history: bool = True
    #: answers to `input()`, in order; empty: input ends at once; None: input is not allowed
    stdin: tuple[str, ...] | None = None
    #: True: a client can answer `input()` when `stdin` has no more answers
    interactive: bool = False
    #: arguments for a call of `main`, which the code defines; None: no call
    arguments: Mapping[str, Any] | None = None
    #: expressions to evaluate after the code: the `user_expressions` of Jupyter's messages
    expressions: tuple[str, ...] = ()
    #: a later request with this key gets this one's result instead of running again
    idempotency_key: str | None = None
    #: code as the client wrote it, if other code is sent to the kernel
    source: str | None = field(default=None, repr=False)
    #: MIME type of the display that reports the outcome, apart from the outputs; None: no such display
    answer_mime: str | None = field(default=None, repr=False)

    @property
    def written(self) -> str:
        """The code as the client wrote it, for the audit and the code policy."""
        return self.code if self.source is None else self.source


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The one terminal event of an execution."""

    status: Status
    execution_count: int | None
    #: nbformat 4.5 outputs
    outputs: list[dict[str, Any]]
    #: seconds from the request's turn to its end
    duration: float
    state: StateChange
    #: why the state is not preserved
    state_reason: str | None
    #: how many kernels the session has had, this one included
    incarnation: int
    #: True: some output was left out, because of the limit or because it never arrived
    truncated: bool
    #: set when status is timeout or died
    error: SessionError | None = None
    #: True: the execution ran for an earlier request with the same idempotency key
    replayed: bool = False
    #: bytes of output, including bytes that were left out
    output_bytes: int = 0
    #: bytes of memory that its kernel used at its end; None: unknown
    memory: int | None = None
    #: content of the last display of the request's `answer_mime`, as the code made it; None: no such display
    answer: Any = None
