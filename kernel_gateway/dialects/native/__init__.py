"""The gateway's own API, `/v1`. `OPERATIONS` lists all of it."""

from __future__ import annotations

from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from kernel_gateway.dialects.native.admin import (
    AUDIT_QUERY,
    AuditHandler,
    AuditPage,
    CreateKey,
    KeyHandler,
    KeyList,
    KeysHandler,
    NewKey,
)
from kernel_gateway.dialects.native.checkpoints import (
    Branch,
    BranchHandler,
    CheckpointHandler,
    CheckpointInfo,
    CheckpointList,
    CheckpointsHandler,
    RollBack,
    RollBackHandler,
    TakeCheckpoint,
)
from kernel_gateway.dialects.native.events import Event
from kernel_gateway.dialects.native.examples import EXAMPLES
from kernel_gateway.dialects.native.execute import LAST_EVENT, ExecuteHandler
from kernel_gateway.dialects.native.files import (
    FileEntry,
    FileList,
    FilesHandler,
    MakeDirectory,
    MakeDirectoryHandler,
    Move,
    MoveHandler,
)
from kernel_gateway.dialects.native.languages import LanguageList, LanguagesHandler
from kernel_gateway.dialects.native.models import (
    CreateSession,
    Execute,
    Failure,
    Interrupted,
    Result,
    SessionInfo,
    SessionList,
)
from kernel_gateway.dialects.native.overview import (
    LiveSessionHandler,
    LiveSessions,
    LiveSessionsHandler,
    Tenants,
    TenantsHandler,
)
from kernel_gateway.dialects.native.sessions import (
    InterruptHandler,
    NotebookHandler,
    RestartHandler,
    SessionHandler,
    SessionsHandler,
)
from kernel_gateway.dialects.native.stream import CodeFrame, InputFrame, InterruptFrame, StreamHandler
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.openapi import BINARY, TEXT, Operation, document, ref

_SESSION = "/v1/sessions/{name}"
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
_FRAMES = (CodeFrame, InputFrame, InterruptFrame)

OPERATIONS = [
    Operation("GET", "/v1/languages", "List the languages, each with its version and packages", LanguageList),
    Operation("GET", "/v1/sessions", "List the tenant's sessions", SessionList),
    Operation("POST", "/v1/sessions", "Make a session", SessionInfo, CreateSession, HTTPStatus.CREATED),
    Operation("GET", _SESSION, "Describe a session", SessionInfo),
    Operation("DELETE", _SESSION, "End a session", status=HTTPStatus.NO_CONTENT),
    Operation(
        "POST",
        f"{_SESSION}/execute",
        "Run a cell; the session is made on first use",
        Result,
        Execute,
        media=_STREAMED,
        headers=_RESUME_HEADERS,
        models=(Event,),
    ),
    Operation("POST", f"{_SESSION}/interrupt", "Interrupt the running cell, keep the variables", Interrupted),
    Operation("POST", f"{_SESSION}/restart", "Start a fresh kernel in the same session", SessionInfo),
    Operation("GET", f"{_SESSION}/checkpoints", "List the session's checkpoints, oldest first", CheckpointList),
    Operation(
        "POST",
        f"{_SESSION}/checkpoints",
        "Take a checkpoint: variables, processes and files",
        CheckpointInfo,
        TakeCheckpoint,
        HTTPStatus.CREATED,
    ),
    Operation("DELETE", f"{_SESSION}/checkpoints/{{checkpoint}}", "Delete a checkpoint", status=HTTPStatus.NO_CONTENT),
    Operation("POST", f"{_SESSION}/rollback", "Return to a checkpoint", SessionInfo, RollBack),
    Operation(
        "POST",
        f"{_SESSION}/branch",
        "Make a session that begins as this one is, or was",
        SessionInfo,
        Branch,
        HTTPStatus.CREATED,
    ),
    Operation("GET", f"{_SESSION}/notebook", "Export the transcript as .ipynb", media={"application/x-ipynb+json": {}}),
    Operation(
        "GET",
        f"{_SESSION}/files/{{path}}",
        "Download a file or a part of it, or list a directory",
        FileList,
        media=BINARY,
        query={"list": TEXT | {"description": "present: list the directory"}},
        headers=_RANGE_HEADERS,
        others=(HTTPStatus.PARTIAL_CONTENT,),
    ),
    Operation("HEAD", f"{_SESSION}/files/{{path}}", "Get the headers of a download: size, time, ETag"),
    Operation("PUT", f"{_SESSION}/files/{{path}}", "Write a file", media=BINARY, status=HTTPStatus.NO_CONTENT),
    Operation("DELETE", f"{_SESSION}/files/{{path}}", "Delete a file or directory", status=HTTPStatus.NO_CONTENT),
    Operation("POST", f"{_SESSION}/move", "Rename a file or directory", FileEntry, Move),
    Operation("POST", f"{_SESSION}/mkdir", "Make a directory, if there is none", FileEntry, MakeDirectory),
    Operation(
        "GET",
        f"{_SESSION}/stream",
        "Upgrade to a WebSocket: JSON frames in, events out",
        status=HTTPStatus.SWITCHING_PROTOCOLS,
        models=(*_FRAMES, Event),
        websocket={"send": ref(*_FRAMES), "receive": ref(Event)},
    ),
    Operation("GET", "/v1/admin/keys", "List the keys, without their secrets", KeyList),
    Operation("POST", "/v1/admin/keys", "Make a key", NewKey, CreateKey, HTTPStatus.CREATED),
    Operation("DELETE", "/v1/admin/keys/{id}", "Revoke a key", status=HTTPStatus.NO_CONTENT),
    Operation(
        "GET",
        "/v1/admin/audit",
        "List who ran what, newest first",
        AuditPage,
        query=AUDIT_QUERY,
    ),
    Operation("GET", "/v1/admin/sessions", "List the sessions of all tenants, oldest first", LiveSessions),
    Operation("DELETE", "/v1/admin/sessions/{tenant}/{name}", "End a tenant's session", status=HTTPStatus.NO_CONTENT),
    Operation("GET", "/v1/admin/tenants", "List the tenants with their usage and quotas", Tenants),
    Operation("GET", "/v1/openapi.json", "This description", media={"application/json": {}}, public=True),
]


class OpenApiHandler(BaseHandler):
    """`/v1/openapi.json`."""

    public = True

    def get(self) -> None:
        """Send the OpenAPI document."""
        self.finish_json(openapi())


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of this API."""
    return document("sandboxed-kernel-gateway", version("sandboxed-kernel-gateway"), OPERATIONS, Failure, EXAMPLES)


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of this API."""
    one = r"/v1/sessions/([^/]+)"
    table = (
        (r"/v1/languages", LanguagesHandler),
        (r"/v1/sessions", SessionsHandler),
        (one, SessionHandler),
        (one + "/execute", ExecuteHandler),
        (one + "/interrupt", InterruptHandler),
        (one + "/restart", RestartHandler),
        (one + "/checkpoints", CheckpointsHandler),
        (one + "/checkpoints/([^/]+)", CheckpointHandler),
        (one + "/rollback", RollBackHandler),
        (one + "/branch", BranchHandler),
        (one + "/notebook", NotebookHandler),
        (one + "/files/(.*)", FilesHandler),
        (one + "/move", MoveHandler),
        (one + "/mkdir", MakeDirectoryHandler),
        (one + "/stream", StreamHandler),
        (r"/v1/admin/keys", KeysHandler),
        (r"/v1/admin/keys/([^/]+)", KeyHandler),
        (r"/v1/admin/audit", AuditHandler),
        (r"/v1/admin/sessions", LiveSessionsHandler),
        (r"/v1/admin/sessions/([^/]+)/([^/]+)", LiveSessionHandler),
        (r"/v1/admin/tenants", TenantsHandler),
        (r"/v1/openapi\.json", OpenApiHandler),
    )
    return [(path, handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("native", routes)
