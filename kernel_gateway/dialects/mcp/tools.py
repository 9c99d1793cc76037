"""The six tools as a client sees them: names, descriptions, schemas, annotations, in this order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from kernel_gateway.dialects.mcp.rpc import Json
from kernel_gateway.http.debugging import DebugCommand
from kernel_gateway.http.request_body import Body
from sessions.kernels.variables import NAME_MAX

INSTRUCTIONS = (
    "Runs code in sandboxes that keep their state. A session is one kernel with its own files: variables, imports and "
    "files stay from call to call. Call run_code without a session to get a new one, and pass its name in later calls. "
    "The first line of each result says what became of the state. A session that is not used for some minutes may end; "
    "its next result then says that the state is lost. A call that takes long answers with status running and a run: "
    "the code goes on, and wait continues to wait for it."
)

#: maximum characters of code and of a file's content in one call
CODE_MAX = 1024**2
CONTENT_MAX = 4 * 1024**2
#: bytes of a file that one call reads, without and with a limit of its own
READ_USUAL, READ_MAX = 64 * 1024, 256 * 1024
#: variables that a status lists
LISTED_MAX = 100

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=64)]
_MIRRORED: dict[str, Any] = {"x-mcp-header": "Session"}


class RunCode(Body):
    """Arguments of `run_code`."""

    code: str = Field(
        max_length=CODE_MAX, description="the code of one cell; the value of its last expression is shown"
    )
    session: _Name | None = Field(
        None,
        description="name of the session, as an earlier result named it; a new one is made and named when absent",
        json_schema_extra=_MIRRORED,
    )
    language: str | None = Field(None, description="language of a new session, python when absent", max_length=64)
    timeout: _Seconds | None = Field(None, description="seconds that the code may run before it is interrupted")
    stdin: str | None = Field(None, description="answers to input(), one a line", max_length=CODE_MAX)
    idempotency_key: str | None = Field(
        None, min_length=1, max_length=255, description="a call with the same key runs once, however often it is sent"
    )


class Files(Body):
    """Arguments of `files`."""

    session: _Name = Field(description="name of the session", json_schema_extra=_MIRRORED)
    action: Literal["list", "read", "write", "delete"] = Field(description="what to do")
    path: str = Field("", description="path in the session's home directory; its top when absent")
    content: str | None = Field(None, description="content to write", max_length=CONTENT_MAX)
    encoding: Literal["utf-8", "base64"] = Field("utf-8", description="encoding of the content")
    offset: int | None = Field(None, ge=0, description="first byte to read, from 0")
    limit: int | None = Field(None, ge=1, le=READ_MAX, description="bytes to read at most, 65536 when absent")


class SessionCall(Body):
    """Arguments of `session`."""

    session: _Name = Field(description="name of the session", json_schema_extra=_MIRRORED)
    action: Literal["status", "interrupt", "restart", "end"] = Field(description="what to do")
    variable: str | None = Field(
        None, max_length=NAME_MAX, description="name of a variable whose value status shows, in place of the list"
    )


class Checkpoint(Body):
    """Arguments of `checkpoint`."""

    session: _Name = Field(description="name of the session", json_schema_extra=_MIRRORED)
    action: Literal["save", "rollback", "branch", "list"] = Field(description="what to do")
    name: _Name | None = Field(
        None,
        description="name of the checkpoint; a new one for save, the last one for rollback, the present for branch",
    )


class Wait(Body):
    """Arguments of `wait`."""

    run: str = Field(description="the run that an earlier result named", max_length=128)
    timeout: _Seconds | None = Field(None, description="seconds to wait at most; the run goes on afterwards")


class Debug(DebugCommand):
    """Arguments of `debug`."""

    session: _Name = Field(description="name of the session", json_schema_extra=_MIRRORED)


_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_ERROR: Json = {
    "type": "object",
    "description": "why the call or its code has failed",
    "properties": {"name": _TEXT, "message": _TEXT, "code": _TEXT, "resolution": _TEXT},
}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties | {"error": _ERROR}}


_RUN: Json = _object(
    session=_TEXT | {"description": "name of the session, for later calls"},
    state={
        "type": "string",
        "enum": ["new", "preserved", "restarted", "rolled_back", "lost"],
        "description": "whether the variables of earlier calls are still there",
    },
    state_reason=_TEXT | {"description": "why they are not preserved"},
    status={"type": "string", "enum": ["ok", "error", "timeout", "interrupted", "died", "running"]},
    run=_TEXT | {"description": "what wait takes"},
    text=_TEXT | {"description": "all output as plain text"},
    result=_TEXT | {"description": "value of the last expression as plain text"},
    truncated=_FLAG | {"description": "some output is left out of the text"},
    files={"type": "array", "items": _TEXT, "description": "files of the session that hold the whole output"},
)
_FILES: Json = _object(
    entries={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": _TEXT, "type": _TEXT, "size": {"type": "integer"}, "modified": {"type": "number"}},
        },
    },
    content=_TEXT,
    size={"type": "integer", "description": "bytes of the whole file"},
    truncated=_FLAG | {"description": "there is more than is shown"},
)
_VARIABLE: Json = {
    "name": _TEXT,
    "type": _TEXT,
    "preview": _TEXT | {"description": "beginning of the value, as code writes it"},
    "shape": {"type": "array", "items": {"type": "integer"}, "description": "of a table or an array"},
    "length": {"type": "integer"},
    "bytes": {"type": "integer"},
    "dtype": _TEXT,
}
_VARIABLES: Json = {"type": "array", "items": {"type": "object", "properties": _VARIABLE}}
_COLUMN: Json = {"type": "object", "properties": {"name": _TEXT, "type": _TEXT}}
_SESSION: Json = _object(
    session=_TEXT,
    state={"type": "string", "enum": ["starting", "idle", "busy", "asleep", "dead", "ended"]},
    busy=_FLAG,
    language=_TEXT,
    variables=_VARIABLES | {"description": f"the first {LISTED_MAX} variables by name, while a kernel runs"},
    variables_total={"type": "integer", "description": "number of all variables"},
    variable={
        "type": "object",
        "description": "the variable that was asked for, with the beginning of its content",
        "properties": _VARIABLE
        | {
            "columns": {"type": "array", "items": _COLUMN},
            "rows": {"type": "array", "items": {"type": "array", "items": _TEXT}},
            "entries": _VARIABLES,
        },
    },
    truncated=_FLAG | {"description": "there is more than is shown"},
)
_CHECKPOINT: Json = _object(
    checkpoints={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": _TEXT, "bytes": {"type": "integer"}, "automatic": _FLAG},
        },
    },
    session=_TEXT,
    state=_TEXT,
)


_DEBUG: Json = _object(
    session=_TEXT,
    state={"type": "string", "enum": ["none", "running", "stopped", "ended", "post_mortem"]},
    reason=_TEXT | {"description": "why the cell is stopped"},
    description=_TEXT | {"description": "name and text of the exception"},
    frames={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"frameId": {"type": "integer"}, "name": _TEXT, "line": {"type": "integer"}, "text": _TEXT},
        },
    },
    variables={"type": "array", "items": {"type": "object", "properties": {"name": _TEXT, "value": _TEXT}}},
    value=_TEXT | {"description": "value of the expression"},
    run=_TEXT | {"description": "what wait takes for the output of the debugged cell"},
)


def _schema(model: type[BaseModel]) -> Json:
    """Return the JSON schema of a model, in the plain form that language models read best: no titles, no nulls."""
    made = model.model_json_schema()
    properties = {}
    for name, described in made["properties"].items():
        plain = {key: value for key, value in described.items() if key not in {"title", "anyOf"}}
        if plain.get("default", "") is None:
            del plain["default"]
        for choice in described.get("anyOf", ()):
            if choice != {"type": "null"}:
                plain |= choice
        properties[name] = plain
    return {
        "type": "object",
        "properties": properties,
        "required": made["required"],
        "additionalProperties": False,
    }


def _tool(name: str, title: str, text: str, model: type[BaseModel], output: Json, **hints: bool) -> Json:
    return {
        "name": name,
        "title": title,
        "description": text,
        "inputSchema": _schema(model),
        "outputSchema": output,
        "annotations": {"title": title} | {f"{hint}Hint": value for hint, value in hints.items()},
    }


MODELS: dict[str, type[BaseModel]] = {
    "run_code": RunCode,
    "files": Files,
    "session": SessionCall,
    "checkpoint": Checkpoint,
    "wait": Wait,
    "debug": Debug,
}

TOOLS: tuple[Json, ...] = (
    _tool(
        "run_code",
        "Run code",
        "Run one cell of code in a session and return its output, the value of its last expression and its pictures. "
        "Variables, imports and files stay for later calls with the same session. Without a session, a new one is made "
        "and named. The first line of the result says whether the state is new, preserved, rolled_back, restarted or "
        "lost. Sessions that are not used for some minutes may end. The code has no network. If the status is running, "
        "the code goes on: call wait with the run.",
        RunCode,
        _RUN,
        readOnly=False,
        destructive=True,
        idempotent=False,
        openWorld=False,
    ),
    _tool(
        "files",
        "Files of a session",
        "List, read, write or delete files of a session. Paths are relative to its home directory, where its code "
        "runs. Long files are read in parts with offset and limit. Files stay as long as the session.",
        Files,
        _FILES,
        readOnly=False,
        destructive=True,
        idempotent=True,
        openWorld=False,
    ),
    _tool(
        "session",
        "Control a session",
        "status says whether a session is idle, busy or asleep, and lists its variables with type, shape and the "
        "beginning of each, also while code runs; with variable, it shows that one; interrupt stops its running code "
        "and keeps the variables; restart gives it a fresh kernel and keeps the files; end removes it with variables "
        "and files.",
        SessionCall,
        _SESSION,
        readOnly=False,
        destructive=True,
        idempotent=True,
        openWorld=False,
    ),
    _tool(
        "checkpoint",
        "Checkpoints of a session",
        "save keeps the variables and files of a session as they are; rollback returns to the last checkpoint, or to "
        "the one of this name; branch makes a new session from one; list names them. Where the gateway can, one is "
        "saved before each run_code, so rollback without a name undoes the last one.",
        Checkpoint,
        _CHECKPOINT,
        readOnly=False,
        destructive=True,
        idempotent=False,
        openWorld=False,
    ),
    _tool(
        "wait",
        "Wait for running code",
        "Continue to wait for code that run_code left running, and return its result as run_code does. Waiting again "
        "for a run that has ended returns its result again.",
        Wait,
        _RUN,
        readOnly=True,
        idempotent=True,
        openWorld=False,
    ),
    _tool(
        "debug",
        "Debug code",
        "Find out why Python code does what it does. After run_code has failed, stackTrace, variables and evaluate "
        "look at the frames of its exception. launch runs code with breakpoints; while it is stopped, look at its "
        "frames, or go on with next, stepIn, stepOut and continue; terminate ends it and keeps the variables. Each "
        "answer has the frames, the innermost first, and the variables of one of them. A cell that stands for some "
        "minutes without a command is ended.",
        Debug,
        _DEBUG,
        readOnly=False,
        destructive=True,
        idempotent=False,
        openWorld=False,
    ),
)

#: the tool of vLLM's tool server
PYTHON: Json = {
    "name": "python",
    "description": "Run Python code in a stateful sandbox and return its output. Variables stay for later calls.",
    "inputSchema": {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the code to run"}},
        "required": ["code"],
    },
}
