"""Frozen values that the whole domain uses, and the rules for names and limits, which hold in all dialects. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from signal import Signals
from typing import Any

from sessions.model.checkpoint import CheckpointMode, OnIdle
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


#: exit code of a launcher that has not found the kernel's program, as in a shell
NO_PROGRAM = 127
#: exit code of a launcher whose kernel was ended by a signal: this number plus the signal's number
SIGNALLED = 128
#: what a signal after a fault means for code in a sandbox
_MEANING = {
    Signals.SIGBUS: ": memory that is a file is gone, or its file system is full (`/dev/shm`: setting `temporary`)",
    Signals.SIGSEGV: ": a fault in compiled code",
}


class ExitReason(StrEnum):
    """Why a kernel has ended."""

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
    #: what outside of the kernel has ended it, in words that follow "because". Empty means that this is not known.
    why: str = ""

    @property
    def signal(self) -> Signals | None:
        """The signal that ended the kernel, or None."""
        known = {SIGNALLED + one: one for one in Signals}
        return known.get(self.code) if self.code is not None else None

    def __str__(self) -> str:
        """Say how the kernel ended."""
        if self.why:
            return f"The kernel was ended because {self.why}"
        if self.signal is not None:
            return f"The kernel was ended by the signal {self.signal.name}{_MEANING.get(self.signal, '')}"
        return "The kernel has ended" + (f" with exit code {self.code}" if self.code is not None else "")

    def at_start(self, language: str) -> str:
        """Return a text that says why a kernel of a language ended before it could be used."""
        if self.code == NO_PROGRAM:
            return f"the kernels' image has no {language}"
        return f"the kernel ended while it started (exit code {self.code})"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The seconds for which an execution waits at the end of its cell."""

    #: between the cell's reply and its `idle`, whichever comes first
    idle: float = 1.0
    #: after that, until the kernel has proven that it has nothing more to send
    proof: float = 10.0
    #: after each attempt to interrupt the cell
    interrupt_step: float = 2.0
    #: until the client has the cell's last events, before the end is recorded
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


#: A client may not ask for less memory (bytes), processors and processes. Measured under gVisor on an idle machine: a
#: Python kernel needs 64 MiB to start, and more beside a file tool. With a tenth of a processor it starts in 8 to 9 s.
#: With 8 threads it does not start.
MEMORY_MIN = 128 * 1024**2
CPUS_MIN = 0.1
PROCESSES_MIN = 16
_MIB = 1024**2
#: bytes of the smallest workspace that a client may ask for: no kernel starts in a workspace of a few bytes
DISK_MIN = _MIB
_LEAST = {"memory": MEMORY_MIN, "cpus": CPUS_MIN, "processes": PROCESSES_MIN, "disk": DISK_MIN}


def shown(value: float) -> str:
    """Return the value of a limit as a text for people, in MiB if possible."""
    return f"{value // _MIB} MiB" if value >= _MIB and value % _MIB == 0 else str(value)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one kernel may use."""

    #: bytes of memory; there is no swap beside it
    memory: int = 512 * 1024**2
    #: number of processors, also a fraction
    cpus: float = 1.0
    #: processes and threads inside the sandbox
    processes: int = 64
    #: bytes of workspace
    disk: int = 256 * 1024**2
    #: bytes of output kept per execution
    output: int = 10 * 1024**2

    def narrowed(self, asked: Mapping[str, float], note: Callable[[str], str] = lambda _name: "") -> Limits:
        """Return these limits with some of them lowered.

        Args:
            asked: wanted value of each limit to lower.
            note: returns the end of the message about a limit of this name: whose limit it is.

        Raises:
            InvalidRequest: when a limit is unknown, lower than a kernel needs, or higher than in these limits.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name, value in asked.items():
            if name not in values:
                raise InvalidRequest(f"unknown limit {name!r}; known: {', '.join(values)}", field=f"limits.{name}")
            kind, least = type(values[name]), min(_LEAST.get(name, 1), values[name])
            if not least <= value <= values[name]:
                raise InvalidRequest(
                    f"limit {name} must be at least {shown(least)} and at most {shown(values[name])}{note(name)}",
                    field=f"limits.{name}",
                    min=least,
                    max=values[name],
                )
            values[name] = kind(value)
        return Limits(**values)


class Network(StrEnum):
    """What a session's code may reach."""

    NONE = "none"
    #: the hosts that the operator lists, through the egress proxy
    ALLOWLIST = "allowlist"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Settings of a new session."""

    language: str = "python"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity before the culler ends the session, or lets it sleep
    idle_timeout: float = 300.0
    #: seconds that any cell may run, including cells without their own timeout
    max_execute_timeout: float = 600.0
    #: directory in which its kernels start, relative to the workspace, or absolute; made if absent and allowed
    cwd: str = ""
    #: workspace of the sandbox that the session belongs to. None means that the session has a workspace of its own.
    workspace: str | None = None
    #: image of its kernels, among those that the operator allows. Empty means the backend's usual image.
    image: str = ""
    #: whether no client uses the session again: then no later gateway takes it over, and its end is not remembered
    throwaway: bool = False
    network: Network = Network.NONE
    #: what the client uses the session for, such as a notebook's path. The next session of the same place reports the
    #: end of this one. Empty means unknown.
    place: str = ""
    on_idle: OnIdle = OnIdle.END
    checkpoints: CheckpointMode = CheckpointMode.MANUAL
    #: whether its `/tmp` is on a disk beside its workspace, because it began as a branch of a sandbox's session
    temporary_on_disk: bool = False

    @property
    def in_sandbox(self) -> bool:
        """Whether the session shares the workspace of a sandbox, and ends with the sandbox."""
        return self.workspace is not None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Settings of a new sandbox."""

    #: name of its template
    template: str
    #: limits of each of its containers; `disk` is the limit of the workspace, which they share
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity before the culler ends the sandbox. 0 means no limit.
    idle_timeout: float = 300.0
    #: seconds after which the sandbox is ended in any case. 0 means no limit.
    lifetime: float = 0.0
    #: seconds that any execution in the sandbox may run
    max_execute_timeout: float = 600.0
    template_id: str = ""
    #: the client's own labels, by which it finds the sandbox again
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: secret from which a dialect makes tokens for this sandbox alone. Empty means that clients need a tenant's key.
    secret: str = field(default="", repr=False)
    #: id of the key whose revocation also ends these tokens. None means that the key cannot be revoked.
    key_id: str | None = None
    #: whether the sandbox is paused at the end of its lifetime, and not ended
    auto_pause: bool = False
    #: whether everyone who knows the sandbox's id may reach its servers; otherwise they need a token
    public_ports: bool = True
    #: value of the header Host that its servers get; `${PORT}` stands for the port. Empty means as the client sent it.
    request_host: str = ""
    #: age of the sandbox in seconds when it was paused. None means that it is not paused.
    paused_at: float | None = None
    #: seconds that a paused sandbox lives on when a use has woken it. 0 means that no use wakes it, only a resume.
    wake_lifetime: float = 0.0
    #: image of its containers, among those that the operator allows. Empty means the backend's usual image.
    image: str = ""
    #: what else its client has asked for, which only the client's dialect reads
    asked: Mapping[str, Any] = field(default_factory=dict)


class StateChange(StrEnum):
    """What a reply says about the variables of the earlier cells."""

    #: no cell has run in the session before
    NEW = "new"
    PRESERVED = "preserved"
    RESTARTED = "restarted"
    #: the variables are those of a checkpoint
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
class Tool:
    """A function outside of the sandbox that a cell may call."""

    name: str
    description: str
    #: names of its arguments, in the order of positional ones
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """One cell to run."""

    code: str
    #: seconds from the start of the cell
    timeout: float = 30.0
    store_history: bool = True
    #: answers to `input()`, in order. Empty means that input ends at once. None means that input is not allowed.
    stdin: tuple[str, ...] | None = None
    #: whether a client can answer `input()` when `stdin` has no more answers
    interactive: bool = False
    #: arguments for a call of `main`, which the code defines. None means no call.
    arguments: Mapping[str, Any] | None = None
    #: expressions to evaluate after the code: the `user_expressions` of Jupyter's messages
    expressions: tuple[str, ...] = ()
    #: a later request with this key gets the result of this request, and does not run again
    idempotency_key: str | None = None
    #: environment variables for this cell alone; afterwards the session's variables are set again
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: further MIME types for its displays, which the kernel adds if it can, and `SAVED_IMAGES`
    formats: tuple[str, ...] = ()
    #: id of the session with the variables that the cell needs. None means any session, also a new one.
    if_session: str | None = None
    #: number of the session's kernel with the variables that the cell needs. None means any kernel of the session.
    if_incarnation: int | None = None
    #: code as the client wrote it. None means that `code` is the client's own.
    source: str | None = field(default=None, repr=False)
    #: functions outside of the sandbox that it may call; its client answers the calls
    tools: tuple[Tool, ...] = ()
    #: MIME type of the display that reports the outcome, apart from the outputs. None means no such display.
    answer_mime: str | None = field(default=None, repr=False)
    #: where it stops, if it runs under the debugger
    debug: DebugPlan | None = None
    #: frame of the last uncaught exception in which it runs, 0 for the innermost. None: in the session, as usual.
    frame: int | None = None

    @property
    def client_code(self) -> str:
        """The code as the client wrote it, for the audit and the code policy."""
        return self.code if self.source is None else self.source


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A line of a cell where it stops. The fields are those of the Debug Adapter Protocol."""

    line: int
    condition: str | None = None
    #: number of the hit at which it stops, or for example `>= 3`
    hit_condition: str | None = None
    #: text to log instead of a stop; `{expressions}` in it are evaluated
    log_message: str | None = None


@dataclass(frozen=True, slots=True)
class DebugPlan:
    """Where a debugged cell stops."""

    breakpoints: tuple[Breakpoint, ...] = ()
    #: exceptions at which it stops: those that are `raised` at all, or those `uncaught` by the cell's code
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks for something, for the audit and the log. Of work that no request asked for, all is None."""

    #: id of the key. None means a key of the settings, which has no id, or no key.
    key_id: str | None = None
    #: IP address of the client, or of the proxy before it
    address: str | None = None
    #: name of the dialect that the client speaks
    dialect: str | None = None
    #: id of the HTTP request
    request_id: str | None = None


#: of work that no request asked for
NO_ASKER = Asker()


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
    #: number of kernels that the session has had, this one included
    incarnation: int
    #: bytes of output that were left out because of the limit; what never arrived is not counted
    omitted: int = 0
    #: whether the execution ran for an earlier request with the same idempotency key
    replayed: bool = False
    #: content of the last display of the request's `answer_mime`, as the code made it; None: no such display
    answer: Any = None


#: told to the client of a kernel that continued from disk, if it had such connections
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
    def replaced(self) -> str | None:
        """Why the variables are not those of the earlier cells. None if they are, or if there were no earlier cells."""
        return None if self.change in {StateChange.NEW, StateChange.PRESERVED} else self.reason

    def with_reason(self, what: str) -> StateNotice:
        """Return the notice with `what` as its reason. Variables that are not preserved keep their own reason."""
        return replace(self, reason=what) if self.change is StateChange.PRESERVED else self

    def with_cut(self) -> StateNotice:
        """Return the notice, which also says that the connections to other hosts were cut."""
        told = [each for each in (self.reason, CUT) if each]
        return self if CUT in (self.reason or "") else replace(self, reason="; ".join(told))
