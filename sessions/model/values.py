"""Frozen values that the whole domain uses. No I/O, no clock. Rules for limits and names are here, for all dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from signal import Signals
from typing import Any

from sessions.model.checkpoint import Checkpoints, OnIdle
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.units import ENV_NAMES

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


def valid_env(env: Mapping[str, str]) -> dict[str, str]:
    """Check a session's extra environment variables.

    Raises:
        InvalidRequest: when there are too many, a name is malformed or reserved, a value is no text, or all together
            are too large.
    """
    if len(env) > ENV_NAMES:
        raise InvalidRequest(f"env has more than {ENV_NAMES} variables", field="env")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or ENV_DENIED.fullmatch(name):
            raise InvalidRequest(f"environment variable {name[:64]!r} cannot be set", field="env")
        if NOT_PASSED.search(value):
            raise InvalidRequest(f"the value of {name} contains a NUL or a lone surrogate", field="env")
    if sum(len(name) + len(value.encode()) for name, value in env.items()) > ENV_MAX_BYTES:
        raise InvalidRequest(f"env is larger than {ENV_MAX_BYTES} bytes", field="env")
    return dict(env)


#: exit code of a launcher that has not found the kernel's program, as of a shell
NO_PROGRAM = 127
#: exit code of a launcher whose kernel was ended by a signal, without the signal's number
SIGNALLED = 128
#: what the signals of a processor's faults mean for code in a sandbox
_MEANING = {
    Signals.SIGBUS: ": memory that is a file is gone, or its file system is full (`/dev/shm`: setting `temporary`)",
    Signals.SIGSEGV: ": a fault in compiled code",
}


class ExitReason(StrEnum):
    """Why a kernel is gone."""

    #: the kernel used more memory than its limit
    OOM = "out_of_memory"
    KILLED = "killed"
    #: the kernel ended on its own, crashed, or was ended from outside the gateway
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class KernelExit:
    """How a kernel ended."""

    reason: ExitReason
    code: int | None = None

    @property
    def signal(self) -> Signals | None:
        """The signal that ended the kernel, or None."""
        known = {SIGNALLED + one: one for one in Signals}
        return known.get(self.code) if self.code is not None else None

    def __str__(self) -> str:
        """Say how the kernel ended."""
        if self.signal is not None:
            return f"The kernel was ended by the signal {self.signal.name}{_MEANING.get(self.signal, '')}"
        return "The kernel has ended" + (f" with exit code {self.code}" if self.code is not None else "")

    def at_start(self, language: str) -> str:
        """Return why a kernel of a language ended before it could be used."""
        if self.code == NO_PROGRAM:
            return f"the kernels' image has no {language}"
        return f"the kernel ended while it started (exit code {self.code})"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for the end of a cell."""

    #: for its `idle` after its reply, and the other way round
    idle: float = 1.0
    #: after that, for proof that the kernel has nothing more to send
    proof: float = 10.0
    #: after each attempt to interrupt it
    interrupt_step: float = 2.0
    #: for its client to get its last events, before the end is recorded
    answer: float = 0.05


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


#: The least bytes of memory, processors, and number of processes of a kernel. Measured under gVisor on an idle machine:
#: a Python kernel needs 64 MiB to start, more with a file tool; with a tenth of a processor 8 to 9 s; 8 threads: none.
MEMORY_MIN = 128 * 1024**2
CPUS_MIN = 0.1
PROCESSES_MIN = 16
_MIB = 1024**2
#: bytes of the smallest workspace that a client may ask for: in one of a few bytes no kernel starts
DISK_MIN = _MIB
_LEAST = {"memory": MEMORY_MIN, "cpus": CPUS_MIN, "processes": PROCESSES_MIN, "disk": DISK_MIN}


def _shown(value: float) -> str:
    """Return the value of a limit for people: large sizes in MiB."""
    return f"{value // _MIB} MiB" if value >= _MIB and value % _MIB == 0 else str(value)


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
            InvalidRequest: when a limit is unknown, below what a kernel needs, or above the present one.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name, value in asked.items():
            if name not in values:
                raise InvalidRequest(f"unknown limit {name!r}; known: {', '.join(values)}", field=f"limits.{name}")
            kind, least = type(values[name]), min(_LEAST.get(name, 1), values[name])
            if not least <= value <= values[name]:
                raise InvalidRequest(
                    f"limit {name} must be at least {_shown(least)} and at most {_shown(values[name])}",
                    field=f"limits.{name}",
                    min=least,
                    max=values[name],
                )
            values[name] = kind(value)
        return Limits(**values)


class Network(StrEnum):
    """What a session's code may reach."""

    NONE = "none"
    #: the hosts that the operator lists, through a proxy
    ALLOWLIST = "allowlist"


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
    #: image of its kernels, one that the operator allows; empty: the backend's usual one
    image: str = ""
    #: True: no client uses the session again, no later gateway takes it over, and its end is not remembered
    throwaway: bool = False
    network: Network = Network.NONE
    #: what its client uses it for, such as a notebook's path, whose next session reports this one's end; empty: unknown
    place: str = ""
    on_idle: OnIdle = OnIdle.END
    checkpoints: Checkpoints = Checkpoints.MANUAL

    @property
    def in_sandbox(self) -> bool:
        """Whether the session shares the workspace of a sandbox, and ends with it."""
        return self.workspace is not None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Settings of a new sandbox."""

    #: name of its template
    template: str
    #: limits of each of its containers; `disk`: of the workspace
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity before the culler ends it; 0: no limit
    idle_timeout: float = 300.0
    #: seconds after which the sandbox is ended in any case; 0: no limit
    lifetime: float = 0.0
    #: seconds that any execution in the sandbox may run
    max_execute_timeout: float = 600.0
    template_id: str = ""
    #: the client's own labels, by which it finds the sandbox again
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: secret from which a dialect makes tokens for this sandbox alone; empty: clients need a key of the tenant
    secret: str = field(default="", repr=False)
    #: id of the key that such tokens are revoked with; None: that key cannot be revoked
    key_id: str | None = None
    #: True: it is paused at the end of its lifetime, and not ended
    auto_pause: bool = False
    #: its age in seconds when it was paused; None: it is not
    paused_at: float | None = None


class StateChange(StrEnum):
    """What a reply reports about the variables that a client may count on."""

    #: no cell has run in the session before
    NEW = "new"
    PRESERVED = "preserved"
    RESTARTED = "restarted"
    #: they are those of an earlier moment, from a checkpoint
    ROLLED_BACK = "rolled_back"
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
    #: environment variables for this cell alone; afterwards those of the session are back
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: further MIME types for its displays, which its kernel adds where it can, and `SAVED_IMAGES`
    formats: tuple[str, ...] = ()
    #: id of the session with the variables that the cell needs; None: any session, also a new one
    if_session: str | None = None
    #: number of the session's kernel with the variables that the cell needs; None: whichever kernel it has
    if_incarnation: int | None = None
    #: code as the client wrote it, if other code is sent to the kernel
    source: str | None = field(default=None, repr=False)
    #: MIME type of the display that reports the outcome, apart from the outputs; None: no such display
    answer_mime: str | None = field(default=None, repr=False)

    @property
    def written(self) -> str:
        """The code as the client wrote it, for the audit and the code policy."""
        return self.code if self.source is None else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEnd:
    """How an execution ended, as the audit records it: a cell, a shell command, or a program at a provider."""

    status: Status
    #: seconds from the request's turn to its end
    duration: float
    #: what became of the session's variables; an execution that is no cell preserves them
    state: StateChange = StateChange.PRESERVED
    #: whether some output was left out, because of the limit or because it never arrived
    truncated: bool = False
    #: set when status is timeout or died
    error: SessionError | None = None
    #: bytes of output, including bytes that were left out
    output_bytes: int = 0
    #: bytes of memory that its kernel used at its end. None means that they are not known.
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult(ExecutionEnd):
    """The one terminal event of a cell: its end, and what its client gets."""

    execution_count: int | None
    #: nbformat 4.5 outputs
    outputs: list[dict[str, Any]]
    #: why the state is not preserved
    state_reason: str | None
    #: how many kernels the session has had, this one included
    incarnation: int
    #: bytes of output that were left out because of the limit; what never arrived is not counted
    omitted: int = 0
    #: whether the execution ran for an earlier request with the same idempotency key
    replayed: bool = False
    #: content of the last display of the request's `answer_mime`, as the code made it; None: no such display
    answer: Any = None


#: what a client is told whose kernel was continued with from disk
CUT = "its connections to other hosts were cut"


@dataclass(frozen=True, slots=True)
class StateNotice:
    """The state of the variables when a client's cell begins."""

    change: StateChange = StateChange.NEW
    #: why the variables are not preserved
    reason: str | None = None
    #: number of kernels that the session has had
    incarnation: int = 1

    @property
    def loss(self) -> str | None:
        """Why the variables are lost; None: they are not."""
        return self.reason if self.change is StateChange.LOST else None

    @property
    def replaced(self) -> str | None:
        """Why the variables are not those of the earlier cells; None: they are, or there were no earlier ones."""
        return None if self.change in {StateChange.NEW, StateChange.PRESERVED} else self.reason

    def noting(self, what: str) -> StateNotice:
        """Return the notice with something that has happened meanwhile, unless the variables are not preserved."""
        return replace(self, reason=what) if self.change is StateChange.PRESERVED else self

    def cut(self) -> StateNotice:
        """Return the notice with the end of the connections to other hosts, whatever else has happened."""
        told = [each for each in (self.reason, CUT) if each]
        return self if CUT in (self.reason or "") else replace(self, reason="; ".join(told))
