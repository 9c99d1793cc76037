"""Frozen values that the rest of the domain speaks in. No I/O, no clock.

Every rule about what a valid name, limit or environment is stands here, once, whichever dialect it came by.
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
#: What no process can be given: NUL, and surrogates without their other half.
NOT_PASSED = re.compile("[\0\ud800-\udfff]")
ENV_MAX_BYTES = 32 * 1024


def valid_name(kind: str, value: object) -> str:
    """Check a tenant's or session's name.

    Args:
        kind: what it names, for the message.
        value: the name as it came.

    Raises:
        InvalidRequest: it is not a string of the allowed form.
    """
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidRequest(f"{kind} must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit", field=kind)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session, and which."""

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

    #: bytes of memory; swap is not given on top
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
        """These limits with some of them lowered.

        Raises:
            InvalidRequest: an unknown limit, or one that is not above zero and at most the present one.
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
        InvalidRequest: a name is malformed or reserved, a value is no text, or it is too much in all.
    """
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or ENV_DENIED.fullmatch(name):
            raise InvalidRequest(f"environment variable {name[:64]!r} cannot be set", field="env")
        if NOT_PASSED.search(value):
            raise InvalidRequest(f"the value of {name} holds a NUL or half a character", field="env")
    if sum(len(name) + len(value.encode()) for name, value in env.items()) > ENV_MAX_BYTES:
        raise InvalidRequest(f"env is larger than {ENV_MAX_BYTES} bytes", field="env")
    return dict(env)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How a session is to be made."""

    language: str = "python"
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity after which it is culled
    idle_timeout: float = 300.0
    #: seconds that any cell may run, also one that names no timeout of its own
    max_execute_timeout: float = 600.0
    #: the directory its kernels start in, relative to the workspace, or below `/tmp`; made if absent
    cwd: str = ""
    #: the workspace of the sandbox it belongs to; None: it has one of its own
    workspace: str | None = None
    #: nobody comes back for it: no gateway goes on with it, and its end is not remembered
    throwaway: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a sandbox is to be made."""

    #: the name of what it was made from
    template: str
    #: of each of its containers; `disk` of the workspace
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity after which it is culled
    idle_timeout: float = 300.0
    #: seconds after which it is ended in any case; 0: no limit
    lifetime: float = 0.0
    #: seconds that anything in it may run
    max_execute_timeout: float = 600.0
    #: the id of what it was made from
    template_id: str = ""


#: how messages are signed where nothing else was agreed on: `hmac-` and a hash's name
SIGNATURE = "hmac-sha256"


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """Where one kernel listens, and the secrets to talk to it.

    Source: the connection file of jupyter_client, with its CurveZMQ fields.
    """

    transport: str
    ip: str
    shell_port: int
    iopub_port: int
    stdin_port: int
    control_port: int
    hb_port: int
    key: bytes = field(repr=False)
    signature: str = SIGNATURE
    curve_publickey: bytes | None = field(repr=False, default=None)
    curve_secretkey: bytes | None = field(repr=False, default=None)

    def endpoint(self, channel: str) -> tuple[str, int]:
        """The address and port of one channel."""
        return self.ip, getattr(self, f"{channel}_port")

    def url(self, channel: str) -> str:
        """The ZMQ endpoint of one channel."""
        port = getattr(self, f"{channel}_port")
        separator = "-" if self.transport == "ipc" else ":"
        return f"{self.transport}://{self.ip}{separator}{port}"

    def file(self) -> dict[str, Any]:
        """The content of a Jupyter connection file, as the kernel's side reads it."""
        content: dict[str, Any] = {
            "transport": self.transport,
            "ip": self.ip,
            "key": self.key.decode(),
            "signature_scheme": self.signature,
            **{f"{name}_port": getattr(self, f"{name}_port") for name in ("shell", "iopub", "stdin", "control", "hb")},
        }
        if self.curve_publickey and self.curve_secretkey:
            content["curve_publickey"] = self.curve_publickey.decode()
            content["curve_secretkey"] = self.curve_secretkey.decode()
        return content


class ExitReason(StrEnum):
    """Why a kernel is gone."""

    #: it used more memory than its limit
    OOM = "out_of_memory"
    #: the gateway ended it
    KILLED = "killed"
    #: it ended by itself, crashed, or somebody else ended it
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class KernelExit:
    """How a kernel ended."""

    reason: ExitReason
    code: int | None = None


class StateChange(StrEnum):
    """What a reply says about the variables that a client may count on."""

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
    #: seconds from its own start
    timeout: float = 30.0
    store_history: bool = True
    #: answers to `input()`, in order; empty: input ends at once; None: input is not allowed
    stdin: tuple[str, ...] | None = None
    #: a client is there to answer `input()` when `stdin` has no more answers
    interactive: bool = False
    #: the code defines `main`, which is then called with these; None: nothing is called
    arguments: Mapping[str, Any] | None = None
    #: what else is evaluated when it has run: the `user_expressions` of Jupyter's messages
    expressions: tuple[str, ...] = ()
    #: a later request with this key gets this one's result instead of running again
    idempotency_key: str | None = None
    #: what the client wrote, when that is not what is sent to the kernel
    source: str | None = field(default=None, repr=False)
    #: the MIME type in which the code says what came of it, apart from its outputs; None: it does not
    answer_mime: str | None = field(default=None, repr=False)

    @property
    def written(self) -> str:
        """The code as the client wrote it: what is written down, and judged."""
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
    #: some output was left out, because of the limit or because it never arrived
    truncated: bool
    #: set when status is timeout or died
    error: SessionError | None = None
    #: it ran before, when its idempotency key was first given
    replayed: bool = False
    #: bytes that it put out, left out ones included
    output_bytes: int = 0
    #: bytes of memory that its kernel had at its end; None: nobody can tell
    memory: int | None = None
    #: the last display of the request's `answer_mime`, whatever the code has put into it; None: there was none
    answer: Any = None
