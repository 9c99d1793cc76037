"""An example for each body of the native API. The OpenAPI document shows them; tests compare them with real answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from kernel_gateway.dialects.native.admin import AuditPage, CreateKey, KeyList, NewKey
from kernel_gateway.dialects.native.checkpoints import (
    Branch,
    CheckpointInfo,
    CheckpointList,
    RollBack,
    TakeCheckpoint,
)
from kernel_gateway.dialects.native.debug import DebugInfo
from kernel_gateway.dialects.native.events import (
    ClearEvent,
    ContinuedEvent,
    DebugEvent,
    ErrorEvent,
    InputEvent,
    OutputEvent,
    ResultEvent,
    StartedEvent,
    StoppedEvent,
    ToolCallEvent,
    UpdateEvent,
)
from kernel_gateway.dialects.native.executions import Answer, ExecutionDetail, ExecutionList, ExecutionSummary
from kernel_gateway.dialects.native.files import FileEntry, FileList, MakeDirectory, Move
from kernel_gateway.dialects.native.languages import LanguageList
from kernel_gateway.dialects.native.models import (
    CreateSession,
    Execute,
    Failure,
    Interrupted,
    Result,
    SessionInfo,
    SessionList,
)
from kernel_gateway.dialects.native.overview import LiveSessions, Overview, Tenants
from kernel_gateway.dialects.native.ports import LinkInfo, NewLink
from kernel_gateway.dialects.native.replay import AskReplay, CellReplayed, ReplayEnded, ReplayFailed, ReplayReport
from kernel_gateway.dialects.native.sessions import Complete
from kernel_gateway.dialects.native.stream import CodeFrame, DebugFrame, InputFrame, InterruptFrame
from kernel_gateway.dialects.native.tenant_limits import ChangeLimits, TenantLimits
from kernel_gateway.dialects.native.tenant_removal import RemovedTenant
from kernel_gateway.dialects.native.tools import ToolAnswer
from kernel_gateway.http.debugging import DebugCommand
from kernel_gateway.http.usage_report import UsageReport
from sessions.kernels.completion import Completion
from sessions.kernels.variables import VariableDetail, VariableList
from sessions.model.errors import SessionNotFound

_ID = "8c1f52d09a7b4e0f8c1f52d09a7b4e0f"
_TIME = "2026-11-25T09:30:00Z"
_FRAME = {"frameId": 0, "name": "<module>", "line": 2, "source": "this cell", "text": "x / 0"}
_LANGUAGE = {
    "name": "python",
    "display_name": "Python 3",
    "aliases": ["py"],
    "kernelspec": "python3",
    "version": "3.12.3",
    "packages": {"numpy": "2.3.5", "pandas": "2.3.3"},
}
_SESSION = {
    "name": "report",
    "id": _ID,
    "language": "python",
    "state": "idle",
    "incarnation": 1,
    "created_at": _TIME,
    "last_activity": _TIME,
    "idle_timeout": 900.0,
    "on_idle": "auto",
    "sleep_problem": None,
    "checkpoints": "manual",
    "checkpoint_problem": None,
    "image": None,
    "limits": {"memory": 268435456, "cpus": 0.5, "processes": 32, "disk": 67108864, "output": 1048576},
    "network": "none",
}
_CHECKPOINT = {"name": "loaded", "created_at": _TIME, "bytes": 97517568, "automatic": False, "after_cell": 3}
_OUTPUT = {"output_type": "stream", "name": "stdout", "text": "42\n"}
_ENDED = {
    "status": "ok",
    "execution_count": 1,
    "duration_ms": 4.2,
    "state": "new",
    "state_reason": None,
    "session_id": _ID,
    "incarnation": 1,
    "truncated": False,
    "omitted_bytes": 0,
    "replayed": False,
    "error": None,
}
_BY_ID = {
    "id": "fec07dd14ac0d78fb9e88ad5bb1e2db3",
    "session_id": _ID,
    "status": "done",
    "created_at": _TIME,
    "result": _ENDED,
    "error": None,
}
_DEBUG = {
    "state": "stopped",
    "reason": "breakpoint",
    "description": None,
    "execution": _BY_ID["id"],
    "frames": [_FRAME],
    "variables": [{"name": "x", "value": "1", "type": "int"}],
    "value": None,
    "breakpoints": [{"line": 2, "verified": True, "message": ""}],
    "log": [],
    "error": None,
}
_ERROR = {
    "code": "SB011",
    "name": "SessionNotFound",
    "message": "there is no session 'report' any more: the session was idle for 300 s",
    "resolution": SessionNotFound().resolution,
    "details": {"session": "report"},
}
_FILE = {"name": "sales.csv", "type": "file", "size": 1024, "modified": 1795599685.3}
_KEY = {
    "id": "9af153f7",
    "tenant": "team-a",
    "role": "user",
    "name": "nightly job",
    "created_at": _TIME,
    "expires_at": "2999-12-31T00:00:00Z",
    "expired": False,
    "last_used_at": None,
}
_EXECUTION = {
    "seq": 89,
    "execution": "c8e4d0a1aef94feeb70138e8a8ddb3f8",
    "tenant": "team-a",
    "session": "report",
    "language": "python",
    "code_sha256": "18d6e1cac2a8adaf25577cca14db7753507f4f03a288124ce9fe2d60babd7bb0",
    "key_id": "9af153f7",
    "address": "203.0.113.7",
    "dialect": "native",
    "request_id": "e14c2d94f2b0236a",
    "began_at": _TIME,
    "ended_at": _TIME,
    "outcome": "ok",
    "duration_ms": 4.2,
    "error": None,
    "output_bytes": 3,
    "memory": 53477376,
}
_OVERVIEW: dict[str, Any] = {
    "ready": True,
    "trouble": None,
    "golden_images": {"on": True, "detail": "proven on this engine"},
    "sleep": {"on": True, "detail": "proven on this engine"},
    "state_disk": {"used": 53687091200, "max": 107374182400},
    "sleep_disk": {"used": 536870912, "max": 4294967296},
    "memory": {"used": 1073741824, "max": 17179869184},
    "sessions": {"starting": 0, "idle": 2, "busy": 1, "asleep": 0, "dead": 0, "closed": 0},
    "sandboxes": 0,
    "warm_kernels": 1,
    "alerts": [],
}
_LIVE = {
    "tenant": "team-a",
    "name": "report",
    "language": "python",
    "state": "idle",
    "created_at": _TIME,
    "idle_seconds": 12.5,
    "memory_bytes": 53477376,
    "container": "4f0d3c5a9e21b6d8",
    "executions": 3,
}
_USAGE = {
    "tenant": "team-a",
    "cells": 1250,
    "cell_seconds": 3811.25,
    "output_bytes": 1048576,
    "memory_gib_hours": 18.5,
    "disk_gib_hours": 9.25,
}
_LIMITS = {
    "sessions": {"value": 5, "most": 50, "source": "admin"},
    "memory": {"value": 268435456, "most": 536870912, "source": "settings"},
    "cpus": {"value": 1.0, "most": 1.0, "source": "gateway"},
    "disk": {"value": 268435456, "most": 268435456, "source": "gateway"},
    "timeout": {"value": 600.0, "most": 600.0, "source": "gateway"},
    "images": {"value": [], "most": [], "source": "gateway"},
    "egress": {"value": False, "most": False, "source": "gateway"},
}
_TENANT = {
    "tenant": "team-a",
    "sessions": {"used": 1, "max": 5},
    "executions": {"used": 0, "max": 10},
    "queued": {"used": 0, "max": 20},
    "execution_seconds": {"used": 31.4, "max": 3600},
    "output_bytes": {"used": None, "max": None},
    "upload_bytes": {"used": None, "max": None},
    "limits": _LIMITS,
}

_VARIABLE = {
    "name": "df",
    "type": "pandas.DataFrame",
    "preview": "1 rows × 2 columns: ['city', 'sales']",  # noqa: RUF001 - the sign of a product
    "shape": [1, 2],
    "bytes": 160,
}

_REPLAYED = {
    "type": "cell",
    "number": 2,
    "status": "ok",
    "state": "preserved",
    "skipped": None,
    "error": None,
    "same": False,
    "differences": [{"where": "stdout", "before": "42\n", "after": "43\n"}],
}
_REPLAY = {
    "type": "end",
    "session": "report-2",
    "session_id": _ID,
    "same": 7,
    "different": 1,
    "skipped": 0,
    "missing": 0,
}

_LINK = f"/v1/ports/team-a/report/8501/1769851800..{'0123456789abcdef' * 4}/"

EXAMPLES: Mapping[type[BaseModel], Any] = MappingProxyType(
    {
        CreateSession: {"name": "report", "limits": {"memory": "256m", "cpus": 0.5}, "idle_timeout": 900},
        Execute: {"code": "print(6 * 7)", "timeout": 20, "idempotency_key": "step-1"},
        TakeCheckpoint: {"name": "loaded"},
        RollBack: {"to": "loaded"},
        Branch: {"as": "report-b", "from": "loaded"},
        CheckpointInfo: _CHECKPOINT,
        CheckpointList: {"checkpoints": [_CHECKPOINT]},
        VariableList: {"variables": [_VARIABLE], "total": 1},
        VariableDetail: _VARIABLE
        | {"columns": [{"name": "city", "type": "str"}, {"name": "sales", "type": "int64"}], "rows": [["Oslo", "120"]]},
        DebugCommand: {"command": "launch", "code": "x = 1\nx / 0", "breakpoints": [{"line": 2, "condition": "x > 0"}]},
        DebugInfo: _DEBUG,
        AskReplay: {"from": "report", "as": "report-2", "seed": 7},
        CellReplayed: _REPLAYED,
        ReplayEnded: _REPLAY,
        ReplayFailed: {"type": "error", "error": _ERROR},
        ReplayReport: _REPLAY | {"cells": [_REPLAYED]},
        Move: {"from": "sales.csv", "to": "data/sales.csv"},
        MakeDirectory: {"path": "data/raw"},
        NewLink: {"port": 8501, "seconds": 600},
        LinkInfo: {"path": _LINK, "url": f"https://gateway.example{_LINK}", "expires_at": "2026-01-31T09:30:00Z"},
        CreateKey: {"tenant": "team-a", "name": "nightly job", "expires_at": "2999-12-31"},
        ChangeLimits: {"sessions": 5, "memory": "256m", "timeout": None},
        CodeFrame: {"code": "name = input('who? ')", "id": "cell-1"},
        InputFrame: {"input": "Ada"},
        Answer: {"input": "Ada", "question": 2},
        ToolAnswer: {"tool_call": "9f86d081884c7d65", "value": ["row 1", "row 2"]},
        DebugFrame: {"command": "next", "id": "step-1"},
        InterruptFrame: {"interrupt": True},
        LanguageList: {"languages": [_LANGUAGE]},
        SessionInfo: _SESSION,
        SessionList: {"sessions": [_SESSION]},
        Result: _ENDED | {"outputs": [_OUTPUT]},
        Failure: {"error": _ERROR | {"request_id": "e14c2d94f2b0236a"}},
        Interrupted: {"interrupted": True},
        Complete: {"code": "df.descr", "cursor": 8},
        Completion: {"matches": ["describe"], "start": 3, "end": 8},
        ExecutionSummary: _BY_ID | {"status": "queued", "result": None},
        ExecutionDetail: _BY_ID | {"outputs": [_OUTPUT], "outputs_kept": True},
        ExecutionList: {"executions": [_BY_ID], "truncated": False},
        FileEntry: _FILE,
        FileList: {"entries": [_FILE], "truncated": False},
        KeyList: {"keys": [_KEY]},
        NewKey: _KEY | {"key": "the-secret-that-is-shown-once"},
        AuditPage: {"executions": [_EXECUTION], "next": None},
        Overview: _OVERVIEW,
        LiveSessions: {"sessions": [_LIVE]},
        UsageReport: {"since": _TIME, "until": None, "tenants": [_USAGE]},
        TenantLimits: _LIMITS,
        Tenants: {"tenants": [_TENANT], "window": 3600.0},
        RemovedTenant: {"keys": 2, "sessions": 3, "sandboxes": 0, "templates": 1, "files": 0},
        StartedEvent: {"type": "started", "execution_count": 1, "id": 1},
        OutputEvent: {"type": "output", "output": _OUTPUT, "id": 2},
        UpdateEvent: {
            "type": "update_display_data",
            "display_id": "progress",
            "data": {"text/plain": "50 %"},
            "metadata": {},
            "id": 3,
        },
        ClearEvent: {"type": "clear_output", "wait": True, "id": 4},
        InputEvent: {"type": "input_request", "prompt": "who? ", "password": False, "id": "cell-1"},
        ToolCallEvent: {
            "type": "tool_call",
            "call": "9f86d081884c7d65",
            "name": "search",
            "arguments": {"query": "tea"},
            "id": "cell-1",
        },
        StoppedEvent: {
            "type": "stopped",
            "reason": "breakpoint",
            "description": None,
            "line": 2,
            "frame": _FRAME,
            "id": "cell-1",
        },
        ContinuedEvent: {"type": "continued", "id": "cell-1"},
        DebugEvent: {"type": "debug", **_DEBUG, "id": "step-1"},
        ErrorEvent: {"type": "error", "error": _ERROR, "id": "cell-1"},
        ResultEvent: {"type": "result", **_ENDED, "id": 5},
    }
)
