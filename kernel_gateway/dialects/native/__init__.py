"""The gateway's own API, `/v1`. The routes and the OpenAPI document are made from the table `API`."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from itertools import chain
from typing import Any

from kernel_gateway.dialects.native import (
    admin,
    checkpoints,
    debug,
    executions,
    files,
    languages,
    overview,
    ports,
    replay,
    sessions,
    stream,
    tenant_limits,
    tenant_removal,
    variables,
)
from kernel_gateway.dialects.native.events import Event
from kernel_gateway.dialects.native.examples import EXAMPLES
from kernel_gateway.dialects.native.execute import LAST_EVENT, ExecuteHandler
from kernel_gateway.dialects.native.models import (
    CreateSession,
    Execute,
    Failure,
    Interrupted,
    Result,
    SessionInfo,
    SessionList,
)
from kernel_gateway.dialects.native.tools import ToolAnswer
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.debugging import DebugCommand
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.openapi import BINARY, TEXT, Operation, document, ref
from kernel_gateway.http.usage_report import UsageReport
from sessions.kernels.completion import Completion
from sessions.kernels.variables import VariableDetail, VariableList
from sessions.model import exact_json

_SESSION = "/v1/sessions/{name}"
_CHECKPOINTS, _FILE = f"{_SESSION}/checkpoints", f"{_SESSION}/files/{{path}}"
_EXECUTIONS, _VARIABLES = f"{_SESSION}/executions", f"{_SESSION}/variables"
_PORT, _LINK = f"{_SESSION}/ports/{{port}}", "/v1/ports/{tenant}/{session}/{port}/{token}"
_LIMITS = "/v1/admin/tenants/{tenant}/limits"
_RESUME_HEADERS = {
    LAST_EVENT: "`id` of the last event received from the run with this `idempotency_key`. The stream continues after "
    "it, and no code runs. If later events are no longer kept, it is the `result` alone, with all `outputs`."
}
_RANGE_HEADERS = {
    "Range": "`bytes=FIRST-`, `bytes=FIRST-LAST` or `bytes=-LENGTH`: the answer is 206 with that part, or 416",
    "If-Range": "ETag of an earlier answer; if the file has changed since, the answer is the whole file",
}
_STREAMED = {
    "application/x-ndjson": {"schema": ref(Event), "x-form": "one event per line"},
    "text/event-stream": {"schema": ref(Event), "x-form": "server-sent events; `data` is an event, `id` its number"},
}
_FRAMES = (stream.CodeFrame, stream.InputFrame, ToolAnswer, stream.DebugFrame, stream.InterruptFrame)


class OpenApiHandler(BaseHandler):
    """`/v1/openapi.json`."""

    public = True

    def get(self) -> None:
        """Send the OpenAPI document."""
        self.set_header("Content-Type", "application/json")
        self.finish(_openapi_text())


def _passed(path: str, how: str, *, public: bool = False) -> list[Operation]:
    """Return the operations of a server of user code. Its answers may have any status and any body."""
    return [
        Operation(
            method,
            path,
            f"{method} of a server that the session's code has started, {how}",
            media=BINARY,
            public=public,
        )
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    ]


#: the operations of each handler; all operations of one handler have the same path
API: dict[type[BaseHandler], list[Operation]] = {
    languages.LanguagesHandler: [
        Operation(
            "GET", "/v1/languages", "List the languages, each with its version and packages", languages.LanguageList
        )
    ],
    tenant_limits.LimitsHandler: [
        Operation("GET", "/v1/limits", "List the limits of the tenant", tenant_limits.TenantLimits)
    ],
    sessions.SessionsHandler: [
        Operation("GET", "/v1/sessions", "List the tenant's sessions", SessionList),
        Operation("POST", "/v1/sessions", "Make a session", SessionInfo, CreateSession, HTTPStatus.CREATED),
    ],
    sessions.SessionHandler: [
        Operation("GET", _SESSION, "Describe a session", SessionInfo),
        Operation("DELETE", _SESSION, "End a session", status=HTTPStatus.NO_CONTENT),
    ],
    ExecuteHandler: [
        Operation(
            "POST",
            f"{_SESSION}/execute",
            "Run a cell; the session is made on first use",
            Result,
            Execute,
            media=_STREAMED,
            headers=_RESUME_HEADERS,
            models=(Event,),
            further={HTTPStatus.ACCEPTED: executions.ExecutionSummary},
        )
    ],
    executions.ExecutionsHandler: [
        Operation("GET", _EXECUTIONS, "List the session's executions, newest first", executions.ExecutionList)
    ],
    executions.ExecutionHandler: [
        Operation(
            "GET",
            f"{_EXECUTIONS}/{{execution}}",
            "Describe an execution, with its outputs until now",
            executions.ExecutionDetail,
            query={"plain": TEXT | {"description": "present: outputs as short plain text, as with `plain` in execute"}},
        ),
        Operation(
            "DELETE",
            f"{_EXECUTIONS}/{{execution}}",
            "Interrupt an execution, and no other cell; if its turn has not come, it never runs",
            status=HTTPStatus.NO_CONTENT,
        ),
    ],
    executions.InputHandler: [
        Operation(
            "POST",
            f"{_EXECUTIONS}/{{execution}}/input",
            "Answer the `input()` of an interactive execution",
            None,
            executions.Answer,
            HTTPStatus.NO_CONTENT,
        )
    ],
    executions.ToolsHandler: [
        Operation(
            "POST",
            f"{_EXECUTIONS}/{{execution}}/tools",
            "Answer a call of a tool by an execution",
            None,
            ToolAnswer,
            HTTPStatus.NO_CONTENT,
        )
    ],
    sessions.InterruptHandler: [
        Operation("POST", f"{_SESSION}/interrupt", "Interrupt the running cell, keep the variables", Interrupted)
    ],
    sessions.RestartHandler: [
        Operation("POST", f"{_SESSION}/restart", "Start a fresh kernel in the same session", SessionInfo)
    ],
    sessions.SleepHandler: [
        Operation("POST", f"{_SESSION}/sleep", "Let the session sleep, with its variables on disk", SessionInfo)
    ],
    sessions.WakeHandler: [
        Operation("POST", f"{_SESSION}/wake", "Wake the session; start a kernel if it has none", SessionInfo)
    ],
    sessions.CompleteHandler: [
        Operation(
            "POST",
            f"{_SESSION}/complete",
            "Tell how code may go on at its cursor, while no cell runs",
            Completion,
            sessions.Complete,
        )
    ],
    variables.VariablesHandler: [
        Operation("GET", _VARIABLES, "List the session's variables, also while a cell runs", VariableList)
    ],
    variables.VariableHandler: [
        Operation(
            "GET",
            f"{_VARIABLES}/{{variable}}",
            "Describe a variable with its content",
            VariableDetail,
        )
    ],
    debug.DebugHandler: [
        Operation("GET", f"{_SESSION}/debug", "Describe the debugged cell", debug.DebugInfo),
        Operation(
            "POST",
            f"{_SESSION}/debug",
            "Debug a cell: run it with breakpoints, step, look at frames, also after an uncaught exception",
            debug.DebugInfo,
            DebugCommand,
        ),
    ],
    checkpoints.CheckpointsHandler: [
        Operation("GET", _CHECKPOINTS, "List the session's checkpoints, oldest first", checkpoints.CheckpointList),
        Operation(
            "POST",
            _CHECKPOINTS,
            "Take a checkpoint: variables, processes and files",
            checkpoints.CheckpointInfo,
            checkpoints.TakeCheckpoint,
            HTTPStatus.CREATED,
        ),
    ],
    checkpoints.CheckpointHandler: [
        Operation("DELETE", f"{_CHECKPOINTS}/{{checkpoint}}", "Delete a checkpoint", status=HTTPStatus.NO_CONTENT)
    ],
    checkpoints.RollBackHandler: [
        Operation("POST", f"{_SESSION}/rollback", "Return to a checkpoint", SessionInfo, checkpoints.RollBack)
    ],
    checkpoints.BranchHandler: [
        Operation(
            "POST",
            f"{_SESSION}/branch",
            "Make a session that begins as this one is, or was",
            SessionInfo,
            checkpoints.Branch,
            HTTPStatus.CREATED,
        )
    ],
    replay.ReplayHandler: [
        Operation(
            "POST",
            "/v1/replay",
            "Run the cells of a session or a notebook again in a fresh session, and compare their outputs",
            replay.ReplayReport,
            replay.AskReplay,
            media={
                media_type: {"schema": ref(replay.ReplayEvent), "x-form": content["x-form"]}
                for media_type, content in _STREAMED.items()
            },
            models=(replay.ReplayEvent,),
        )
    ],
    sessions.NotebookHandler: [
        Operation(
            "GET",
            f"{_SESSION}/notebook",
            "Export the transcript as .ipynb",
            media={"application/x-ipynb+json": {}},
        )
    ],
    files.FilesHandler: [
        Operation(
            "GET",
            _FILE,
            "Download a file or a part of it, or list a directory",
            files.FileList,
            media=BINARY,
            query={"list": TEXT | {"description": "present: list the directory"}},
            headers=_RANGE_HEADERS,
            others=(HTTPStatus.PARTIAL_CONTENT,),
        ),
        Operation("HEAD", _FILE, "Get the headers of a download: size, time, ETag"),
        Operation("PUT", _FILE, "Write a file", media=BINARY, status=HTTPStatus.NO_CONTENT),
        Operation("DELETE", _FILE, "Delete a file or directory", status=HTTPStatus.NO_CONTENT),
    ],
    files.MoveHandler: [
        Operation("POST", f"{_SESSION}/move", "Rename a file or directory", files.FileEntry, files.Move)
    ],
    files.MakeDirectoryHandler: [
        Operation(
            "POST", f"{_SESSION}/mkdir", "Make a directory, if there is none", files.FileEntry, files.MakeDirectory
        )
    ],
    ports.LinksHandler: [
        Operation(
            "POST",
            f"{_SESSION}/links",
            "Make a URL that opens a port of the session without a key, until it ends",
            ports.LinkInfo,
            ports.NewLink,
            HTTPStatus.CREATED,
        )
    ],
    ports.PortRootHandler: [
        Operation(
            "GET", _PORT, "Redirect to the same path with a slash at its end", status=HTTPStatus.PERMANENT_REDIRECT
        )
    ],
    ports.SessionPortHandler: _passed(f"{_PORT}/{{path}}", "with a key"),
    ports.LinkRootHandler: [
        Operation(
            "GET",
            _LINK,
            "Redirect to the same path with a slash at its end",
            status=HTTPStatus.PERMANENT_REDIRECT,
            public=True,
        )
    ],
    ports.LinkedPortHandler: _passed(f"{_LINK}/{{path}}", "with a link", public=True),
    stream.StreamHandler: [
        Operation(
            "GET",
            f"{_SESSION}/stream",
            "Upgrade to a WebSocket: JSON frames in, events out",
            status=HTTPStatus.SWITCHING_PROTOCOLS,
            models=(*_FRAMES, Event),
            websocket={"send": ref(*_FRAMES), "receive": ref(Event)},
        )
    ],
    admin.KeysHandler: [
        Operation("GET", "/v1/admin/keys", "List the keys, without their secrets", admin.KeyList),
        Operation("POST", "/v1/admin/keys", "Make a key", admin.NewKey, admin.CreateKey, HTTPStatus.CREATED),
    ],
    admin.KeyHandler: [Operation("DELETE", "/v1/admin/keys/{id}", "Revoke a key", status=HTTPStatus.NO_CONTENT)],
    admin.AuditHandler: [
        Operation("GET", "/v1/admin/audit", "List who ran what, newest first", admin.AuditPage, query=admin.AUDIT_QUERY)
    ],
    admin.UsageHandler: [
        Operation(
            "GET",
            "/v1/admin/usage",
            "Report what each tenant has used within a period",
            UsageReport,
            media={"text/csv": {"schema": TEXT}},
            query=admin.USAGE_QUERY,
        )
    ],
    overview.OverviewHandler: [
        Operation("GET", "/v1/admin/overview", "Describe the state of the gateway and its alerts", overview.Overview)
    ],
    overview.LiveSessionsHandler: [
        Operation("GET", "/v1/admin/sessions", "List the sessions of all tenants, oldest first", overview.LiveSessions)
    ],
    overview.LiveSessionHandler: [
        Operation(
            "DELETE", "/v1/admin/sessions/{tenant}/{name}", "End a tenant's session", status=HTTPStatus.NO_CONTENT
        )
    ],
    overview.TenantsHandler: [
        Operation("GET", "/v1/admin/tenants", "List the tenants with their usage, quotas and limits", overview.Tenants)
    ],
    tenant_removal.TenantHandler: [
        Operation(
            "DELETE",
            "/v1/admin/tenants/{tenant}",
            "Revoke a tenant's keys, end its sessions and sandboxes, and delete its templates and limits",
            tenant_removal.RemovedTenant,
        )
    ],
    tenant_limits.TenantLimitsHandler: [
        Operation("GET", _LIMITS, "List the limits of a tenant", tenant_limits.TenantLimits),
        Operation(
            "PATCH",
            _LIMITS,
            "Change limits of a tenant, from its next session or cell on",
            tenant_limits.TenantLimits,
            tenant_limits.ChangeLimits,
        ),
    ],
    OpenApiHandler: [
        Operation("GET", "/v1/openapi.json", "This description", media={"application/json": {}}, public=True)
    ],
}
OPERATIONS = list(chain.from_iterable(API.values()))


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of this API."""
    return document("sandboxed-kernel-gateway", version("sandboxed-kernel-gateway"), OPERATIONS, Failure, EXAMPLES)


@cache
def _openapi_text() -> bytes:
    """Return the document as JSON. It needs no key, and to make it takes 16 ms of the event loop: it is made once."""
    return exact_json.dumps(openapi())


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of this API."""
    return [(_pattern(operations[0].path), handler, {"gateway": gateway}) for handler, operations in API.items()]


def _pattern(path: str) -> str:
    """Return the regular expression for a path. Only the parameter `{path}` may contain slashes."""
    return re.sub(r"{\w+}", "([^/]+)", path.replace(".", r"\.").replace("{path}", "(.*)"))


DIALECT = Dialect("native", routes)
