"""Models of requests and answers about sessions and cells, and their conversion to and from types of `sessions`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from kernel_gateway.config import Settings
from kernel_gateway.dialects.native.tools import TOOLS_MAX, ToolBody
from kernel_gateway.errors import STATUS
from kernel_gateway.http.debugging import DebugBody
from kernel_gateway.http.plain_text import PlainText
from kernel_gateway.http.request_body import Body
from kernel_gateway.setting_types import Bytes
from kernel_gateway.times import moment
from sessions.guest.paths import sandbox_path
from sessions.model.checkpoint import CheckpointMode, OnIdle
from sessions.model.errors import InvalidRequest
from sessions.model.values import ExecuteRequest, ExecutionResult, Network, SessionSpec, valid_env
from sessions.session.registry import Registry
from sessions.session.session import Session

#: maximum characters of a cell's code
CODE_MAX = 2 * 1024**2
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LimitsBody(Body):
    """Limits of one session. Each is at most the gateway's limit."""

    memory: Bytes | None = Field(None, description='bytes, or for example "256m"')
    cpus: float | None = Field(None, gt=0, allow_inf_nan=False)
    processes: int | None = Field(None, gt=0)
    disk: Bytes | None = Field(None, description='bytes, or for example "64m"')
    output: Bytes | None = Field(None, description="bytes of output kept per execution")


class CreateSession(Body):
    """Settings of a new session."""

    name: str | None = Field(None, description="1 to 64 of A-Z a-z 0-9 . _ -; generated when absent")
    language: str | None = None
    limits: LimitsBody | None = None
    env: dict[str, str] = Field(default_factory=dict)
    idle_timeout: _Seconds | None = Field(None, description="seconds; at most `max_idle_timeout`")
    on_idle: Literal["auto", "end", "sleep"] | None = Field(
        None,
        description="when it is idle for too long: `end` it, let it `sleep` with its memory on disk, or `auto`: sleep "
        "where that is proven, and end elsewhere; a session that sleeps by `auto` gives way to newer ones",
    )
    checkpoints: Literal["manual", "auto"] = Field(
        "manual",
        description="auto: a checkpoint before each cell, to which the session returns if the cell ends its "
        "kernel; it takes time",
    )
    image: str | None = Field(
        None, description="image of the kernel, one that the setting `images` allows; starts cold", max_length=1000
    )
    cwd: str = Field("", description="directory where the kernel starts, in the workspace or `/tmp`; made if absent")
    network: Literal["none", "allowlist"] = Field(
        "none", description="what its code may reach: nothing, or the hosts that the operator lists, through a proxy"
    )

    def spec(self, settings: Settings, defaults: SessionSpec) -> SessionSpec:
        """Return the specification of the session.

        Raises:
            InvalidRequest: when a limit is above the gateway's, a variable cannot be set, or the image is not allowed.
        """
        return replace(
            defaults,
            language=defaults.language if self.language is None else self.language,
            limits=defaults.limits.narrowed(
                self.limits.model_dump(exclude_none=True) if self.limits else {}, settings.note
            ),
            env=valid_env(self.env),
            idle_timeout=settings.valid_idle_timeout(self.idle_timeout),
            on_idle=defaults.on_idle if self.on_idle is None else OnIdle(self.on_idle),
            checkpoints=CheckpointMode(self.checkpoints),
            cwd=sandbox_path(self.cwd),
            image=settings.valid_image(self.image),
            network=Network(self.network),
        )


class Execute(Body):
    """A cell to run."""

    code: str = Field(max_length=CODE_MAX)
    language: str | None = Field(
        None, description="language of the session that is made on first use; one that is there must have it"
    )
    timeout: _Seconds | None = Field(None, description="seconds the cell may run")
    stdin: list[str] | None = Field(None, fail_fast=True, description="answers to input(), in order; then end of input")
    store_history: bool = Field(True, description="count the cell and keep it in the notebook")  # noqa: FBT003
    arguments: dict[str, Any] | None = Field(
        None, description="arguments for `main`, which the code defines; the value of `main` is the cell's result"
    )
    idempotency_key: str | None = Field(
        None, min_length=1, max_length=255, description="a retry with this key gets the first run's result"
    )
    if_session: str | None = Field(
        None,
        max_length=64,
        description="`session_id` of an earlier result; if the variables of that session are gone, the cell does not "
        "run, and the answer is 404",
    )
    if_incarnation: int | None = Field(
        None,
        ge=1,
        description="`incarnation` of an earlier result; the cell runs in that kernel only, and the answer is 404 if "
        "it is gone. Clients that share a session need it: `if_session` refuses no cell once one of them was told",
    )
    plain: bool = Field(
        False,  # noqa: FBT003
        description="outputs as short plain text: no colours, tracebacks of the code's own frames, bounded texts, and "
        "`text/plain` in place of HTML and other markup; images stay. `truncated` also tells of texts that were cut",
    )
    on_disconnect: Literal["continue", "interrupt"] = Field(
        "continue", description="what happens to the cell when its client leaves; a cell with a key always continues"
    )

    interactive: bool = Field(
        False,  # noqa: FBT003
        description="the client reads a stream and answers `input()` with `POST …/executions/{id}/input`; needs an "
        "`idempotency_key`, or `wait` false, and the session page answers; on a WebSocket every cell is interactive",
    )

    tools: list[ToolBody] = Field(
        default_factory=list,
        max_length=TOOLS_MAX,
        description="functions of the client that the cell may import from `tools`; the client reads a stream and "
        "answers calls with `POST …/executions/{id}/tools`; needs an `idempotency_key`, but not on a WebSocket",
    )

    debug: DebugBody | None = Field(
        None,
        description="run it under the debugger: the events `stopped` and `continued` say where it stands, and commands "
        "are sent with `POST …/debug`; it ends when its client leaves; needs a stream, or a WebSocket, which takes "
        "commands, too",
    )

    wait: bool = Field(
        True,  # noqa: FBT003
        description="false: the answer is 202 with an execution's id, and the cell runs without its client; not on a "
        "WebSocket, where no frame waits",
    )

    def request(self, settings: Settings, *, interactive: bool = False) -> ExecuteRequest:
        """Return the request for the session.

        Args:
            settings: settings of the client's tenant, with the limits of timeouts.
            interactive: True if the client can answer `input()` while the cell runs.

        Raises:
            InvalidRequest: when the timeout is above the maximum, the code is not valid text, `on_disconnect` is
                `interrupt` for a cell that continues without its client, `plain` asks for outputs that the answer
                does not have, or a breakpoint is not in the code.
        """
        timeout = settings.valid_timeout(self.timeout)
        if self.idempotency_key is not None and self.on_disconnect == "interrupt":
            raise InvalidRequest("a cell with an idempotency_key continues without its client", field="on_disconnect")
        if not self.wait and self.on_disconnect == "interrupt":
            raise InvalidRequest("a cell with `wait` false continues without its client", field="on_disconnect")
        if not self.wait and self.plain:
            raise InvalidRequest("with `wait` false, add `?plain` to the execution's path instead", field="plain")
        return ExecuteRequest(
            code=self.code,
            timeout=timeout,
            store_history=self.store_history,
            stdin=None if self.stdin is None else tuple(self.stdin),
            interactive=interactive or self.interactive,
            tools=tuple(tool.tool() for tool in self.tools),
            arguments=self.arguments,
            idempotency_key=self.idempotency_key,
            if_session=self.if_session,
            if_incarnation=self.if_incarnation,
            debug=None if self.debug is None else self.debug.plan(self.code),
        )


def check_language(registry: Registry, session: Session, language: str | None) -> None:
    """Check that a session has the language that a cell asks for. None means that the cell asks for none.

    Raises:
        InvalidRequest: when there is no such language, or the session has another one.
    """
    if language is not None and registry.language(language) != session.kernelspec.name:
        raise InvalidRequest(
            f"session {session.key.name!r} runs {session.kernelspec.name}: use another session, or end this one first",
            field="language",
        )


class ErrorDetail(BaseModel):
    """An error, and what to do about it."""

    code: str = Field(json_schema_extra={"enum": [*sorted({error.code for error in STATUS})]})
    name: str = Field(description="name of the error, one for each code")
    message: str = Field(description="what happened")
    resolution: str = Field(description="what to do")
    details: dict[str, Any]
    request_id: str | None = None


class Failure(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class LimitsInfo(BaseModel):
    """Limits of the session's kernel: bytes, processors, processes."""

    memory: int
    cpus: float
    processes: int
    disk: int
    output: int


class SessionInfo(BaseModel):
    """A session."""

    name: str
    id: str = Field(description="differs from the ids of all other sessions, also of those with the same name")
    language: str
    state: Literal["starting", "idle", "busy", "asleep", "dead"]
    incarnation: int = Field(description="number of kernels that the session has had")
    created_at: datetime
    last_activity: datetime
    idle_timeout: float
    on_idle: Literal["auto", "end", "sleep"]
    sleep_problem: str | None = Field(
        description="why it is awake although it was idle for too long; it is tried again; null: no attempt has failed"
    )
    checkpoints: Literal["manual", "auto"]
    checkpoint_problem: str | None = Field(
        description="why there is no checkpoint from before the last cell; null: there is one, or none is wanted"
    )
    image: str | None = Field(description="image that was asked for; null: the gateway's usual one")
    limits: LimitsInfo
    network: Literal["none", "allowlist"]

    @classmethod
    def of(cls, session: Session) -> Self:
        """Describe a session."""
        limits, now = session.spec.limits, datetime.now(UTC)
        return cls.model_validate(
            {
                "name": session.key.name,
                "id": session.id,
                "language": session.kernelspec.name,
                "state": session.state.value,
                "incarnation": session.incarnation,
                "created_at": moment(session.created_at),
                "last_activity": now - timedelta(seconds=session.idle_for()),
                "idle_timeout": session.spec.idle_timeout,
                "on_idle": session.spec.on_idle.value,
                "sleep_problem": session.sleep_problem or None,
                "checkpoints": session.spec.checkpoints.value,
                "checkpoint_problem": session.checkpoints.problem or None,
                "image": session.spec.image or None,
                "limits": {name: getattr(limits, name) for name in LimitsInfo.model_fields},
                "network": session.spec.network.value,
            }
        )


class SessionList(BaseModel):
    """A tenant's sessions."""

    sessions: list[SessionInfo]


class Ended(BaseModel):
    """How a cell ended: its result without its outputs."""

    status: Literal["ok", "error", "timeout", "interrupted", "died"]
    execution_count: int | None
    duration_ms: float
    state: Literal["new", "preserved", "restarted", "rolled_back", "lost"] = Field(
        description="whether the variables of earlier cells are still there; new: this is the session's first cell; "
        "rolled_back: they are those of a checkpoint"
    )
    state_reason: str | None
    session_id: str = Field(description="id of the session, for `if_session`; also the header X-Session-Id")
    incarnation: int = Field(description="number of the session's kernel that the cell ran in, from 1")
    truncated: bool = Field(description="some output was left out, or never arrived")
    omitted_bytes: int = Field(
        description="bytes of output that were left out because of the limit `output`, and with `plain` those that "
        "were cut off from long texts; of cleared output none are"
    )
    replayed: bool = Field(description="the cell ran before, when its idempotency_key was first used")
    error: ErrorDetail | None = Field(None, description="set when status is timeout or died")


class Result(Ended):
    """The result of a cell."""

    outputs: list[dict[str, Any]] = Field(
        description="nbformat 4.5 outputs; a stream sends them one by one instead, if all of them are still kept"
    )


def result_json(
    session: Session, result: ExecutionResult, *, outputs: bool = True, plain: PlainText | None = None
) -> dict[str, Any]:
    """Return a `Result` as a dict. It is not validated, because this is the hot path and the types are right already.

    Args:
        session: session of the cell.
        result: result of the cell.
        outputs: False to leave the outputs out.
        plain: what converts the outputs to plain text, or has converted them, if the client wants that.
    """
    shown = list(map(plain.output, result.outputs)) if plain and outputs else result.outputs
    value: dict[str, Any] = {
        "status": result.status.value,
        "execution_count": result.execution_count,
        "duration_ms": round(result.duration * 1000, 3),
        "state": result.state.value,
        "state_reason": result.state_reason,
        "session_id": session.id,
        "incarnation": result.incarnation,
        "truncated": result.truncated,
        "omitted_bytes": result.omitted,
        "replayed": result.replayed,
        "error": result.error.as_dict() if result.error else None,
    }
    value = plain.counted(value) if plain else value
    return value | {"outputs": shown} if outputs else value


class Interrupted(BaseModel):
    """Whether a cell was running."""

    interrupted: bool
