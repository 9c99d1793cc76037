"""The API's description is valid, and describes exactly the operations that exist."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel
from tornado.web import RequestHandler

from kernel_gateway.dialects import native
from kernel_gateway.dialects.native.admin import AuditPage, CreateKey, KeyList, NewKey
from kernel_gateway.dialects.native.events import Event, _Event
from kernel_gateway.dialects.native.examples import EXAMPLES
from kernel_gateway.dialects.native.executions import ExecutionDetail, ExecutionList, ExecutionSummary
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
from kernel_gateway.dialects.native.ports import LinkedPortHandler
from kernel_gateway.dialects.native.replay import CellReplayed, ReplayEnded, ReplayFailed
from kernel_gateway.dialects.native.stream import CodeFrame, DebugFrame, InputFrame, InterruptFrame
from kernel_gateway.dialects.native.stream_formats import STREAMS
from kernel_gateway.dialects.native.tenant_limits import TenantLimits
from kernel_gateway.dialects.native.tenant_removal import RemovedTenant
from kernel_gateway.dialects.native.tools import ToolAnswer
from kernel_gateway.gateway import Gateway as Parts
from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.openapi import Operation
from kernel_gateway.http.usage_report import UsageReport
from tests.gateways import Gateway
from tests.kernel_gateway.calls import streamed
from tests.kernel_gateway.sockets import connected

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")
ROUTES = [(pattern, cast("type[BaseHandler]", handler)) for pattern, handler, _ in native.routes(cast("Parts", None))]
OPERATIONS = [(operation.method, operation.path) for operation in native.OPERATIONS]
#: types of all events
EVENTS = {get_args(kind.model_fields["type"].annotation)[0] for kind in _Event.__subclasses__()}


@cache
def described() -> dict[str, Any]:
    """Return the description, which tests do not change."""
    return native.openapi()


def implemented(handler: type[RequestHandler]) -> set[str]:
    """Return the methods of a handler, without the preflight method that every handler has."""
    return {
        method
        for method in METHODS
        if getattr(handler, method.lower())
        not in {getattr(RequestHandler, method.lower()), getattr(BaseHandler, method.lower())}
    }


@cache
def serving(path: str) -> tuple[str, type[BaseHandler]]:
    """Return the first route that matches a path of the description."""
    concrete = re.sub(r"{\w+}", "x", path)
    return next((pattern, handler) for pattern, handler in ROUTES if re.fullmatch(pattern, concrete))


def test_the_description_is_valid() -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(described()).iter_errors()] == []


def test_the_validator_finds_a_missing_field() -> None:
    broken = copy.deepcopy(described())
    del broken["paths"]["/v1/sessions"]["get"]["responses"]["200"]["description"]
    assert list(OpenAPIV31SpecValidator(broken).iter_errors())


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_described_operation_is_implemented(method: str, path: str) -> None:
    _, handler = serving(path)
    assert method in implemented(handler)
    assert method.lower() in described()["paths"][path]


@pytest.mark.parametrize(("pattern", "handler"), ROUTES, ids=[pattern for pattern, _ in ROUTES])
def test_every_implemented_method_is_described(pattern: str, handler: type[BaseHandler]) -> None:
    here = {method for method, path in OPERATIONS if serving(path)[0] == pattern}
    assert here == implemented(handler)


def test_every_operation_is_in_the_tables_of_a_page() -> None:
    docs = Path(__file__).parents[3] / "docs"
    tables = "".join((docs / page).read_text() for page in ("api.md", "tenants.md"))
    rows = "\n".join(re.findall(r"^\| `.*", tables, re.MULTILINE)).replace("…/", "/v1/sessions/{name}/")
    named = {
        ("GET" if method == "WS" else method, re.sub(r"{\w+}", "{}", path))
        for methods, path in re.findall(r"`((?:[A-Z]+`, `)*[A-Z]+) (/[^`?]*)", rows)
        for method in re.findall(r"[A-Z]+", methods)
    }
    assert {(method, re.sub(r"{\w+}", "{}", path)) for method, path in OPERATIONS} <= named


def test_each_operation_has_an_id_of_its_own() -> None:
    ids = [operation["operationId"] for path in described()["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids) == len(native.OPERATIONS)


@pytest.mark.parametrize("operation", native.OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_each_operation_is_described_in_full(operation: Operation) -> None:
    shown = described()["paths"][operation.path][operation.method.lower()]
    in_path = [parameter["name"] for parameter in shown.get("parameters", []) if parameter["in"] == "path"]
    assert in_path == re.findall(r"{(\w+)}", operation.path)
    assert shown["summary"]
    assert shown["responses"]["default"]["content"]["application/json"]
    assert str(operation.status.value) in shown["responses"]
    assert (operation.method in {"POST", "PUT"} and operation.body is not None) <= ("requestBody" in shown)
    handler = serving(operation.path)[1]
    assert (shown.get("security") == []) == (handler.public or issubclass(handler, LinkedPortHandler))


def test_bodies_that_clients_send_refuse_unknown_fields() -> None:
    for name in ("ChangeLimits", "CreateKey", "CreateSession", "Execute", "LimitsBody"):
        assert schemas()[name]["additionalProperties"] is False


def test_the_description_names_the_header_to_resume_a_stream_and_on_disconnect() -> None:
    parameters = described()["paths"]["/v1/sessions/{name}/execute"]["post"]["parameters"]
    assert {each["name"] for each in parameters if each["in"] == "header"} == {"Last-Event-ID", "X-Request-Id"}
    field = described()["components"]["schemas"]["Execute"]["properties"]["on_disconnect"]
    assert (field["enum"], field["default"]) == (["continue", "interrupt"], "continue")


def test_an_answer_of_another_form_is_described_with_its_status() -> None:
    answers = described()["paths"]["/v1/sessions/{name}/execute"]["post"]["responses"]
    forms = {status: answers[status]["content"]["application/json"]["schema"]["$ref"] for status in ("200", "202")}
    names = {status: form.rpartition("/")[2] for status, form in forms.items()}
    assert names == {"200": Result.__name__, "202": ExecutionSummary.__name__}


def test_events_and_frames_are_described() -> None:
    shown = described()
    execute = shown["paths"]["/v1/sessions/{name}/execute"]["post"]["responses"]["200"]["content"]
    assert set(STREAMS) < set(execute)
    assert all(execute[media_type]["schema"] == {"$ref": "#/components/schemas/Event"} for media_type in STREAMS)
    frames = shown["paths"]["/v1/sessions/{name}/stream"]["get"]["x-websocket"]
    assert frames["receive"] == {"$ref": "#/components/schemas/Event"}
    assert [frame["$ref"].rsplit("/")[-1] for frame in frames["send"]["oneOf"]] == [
        "CodeFrame",
        "InputFrame",
        "ToolAnswer",
        "DebugFrame",
        "InterruptFrame",
    ]
    assert "SB005" in shown["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["enum"]


SHOWS = """
from IPython.display import clear_output, display
shown = display(1, display_id="d")
shown.update(2)
print("text"); clear_output(wait=True); input("? "); 1 / 0
"""


async def test_real_events_are_as_described(started: Callable[[str], Gateway]) -> None:
    async with connected(started("process"), "described") as socket:
        await socket.send(code=SHOWS, timeout=60, id="a cell")
        events = await socket.until("input_request")
        await socket.send(input=None)
        events += await socket.until("result")
        await socket.send(code="import tools; tools.search()", tools=[{"name": "search"}])
        events += await socket.until("tool_call")
        await socket.send(tool_call=events[-1]["call"], value=None)
        events += await socket.until("result")
        await socket.send(code="1", debug={"breakpoints": [{"line": 1}]})
        events += await socket.until("stopped")
        await socket.send(command="continue", id="go on")
        events += await socket.until("result")
        events += [] if events[-2]["type"] == "debug" else [await socket.event()]
        await socket.send(code=SHOWS, timeout=-1)
        events += await socket.until("error")
    assert {Event.model_validate(event).root.type for event in events} == EVENTS
    with streamed(started("process"), "described", "1") as lines:
        assert [Event.model_validate(line).root.id for line in lines] == [1, 2, 3]


def test_the_description_is_served_without_a_key(started: Callable[[str], Gateway]) -> None:
    response = started("process").call("GET", "/v1/openapi.json", tenant=None)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.json() == described()


# -- examples --------------------------------------------------------------------------------------------------


def schemas() -> dict[str, Any]:
    """Return the models of the description, by name."""
    models: dict[str, Any] = described()["components"]["schemas"]
    return models


def problems(model: str, value: object) -> list[str]:
    """Return what keeps a value from being as a model of the description says."""
    validator = OAS31Validator({"$ref": f"#/components/schemas/{model}", "components": {"schemas": schemas()}})
    return [problem.message for problem in validator.iter_errors(value)]


def shape(value: Any) -> Any:
    """Return the names in a JSON value, without the values; of a list, those of its first item."""
    if isinstance(value, dict):
        return {name: shape(below) for name, below in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def test_everything_that_is_sent_has_an_example_that_is_as_described() -> None:
    sent = {each for operation in native.OPERATIONS for each in (operation.answer, operation.body) if each}
    sent |= {each for operation in native.OPERATIONS for each in operation.further.values()}
    sent |= {Failure, CodeFrame, InputFrame, InterruptFrame, ToolAnswer, DebugFrame, *_Event.__subclasses__()}
    sent |= {CellReplayed, ReplayEnded, ReplayFailed}  # the events of a streamed replay
    assert set(EXAMPLES) == sent
    for model in sent:
        (example,) = schemas()[model.__name__]["examples"]
        assert (model.__name__, problems(model.__name__, example)) == (model.__name__, [])
    assert problems("SessionInfo", EXAMPLES[SessionInfo] | {"incarnation": "first"}), "control"


def test_sizes_are_described_as_clients_may_write_them() -> None:
    assert problems("LimitsBody", {"memory": "256m", "disk": 1024}) == []
    assert problems("LimitsBody", {"memory": "plenty"})
    assert problems("LimitsBody", {"memory": 0})


def test_numbers_in_a_query_are_described_as_numbers() -> None:
    parameters = described()["paths"]["/v1/admin/audit"]["get"]["parameters"]
    types = {each["name"]: each["schema"]["type"] for each in parameters if each["in"] == "query"}
    assert {name for name, kind in types.items() if kind == "integer"} == {"limit", "before"}


def test_real_answers_have_the_form_of_their_examples(started: Callable[[str], Gateway]) -> None:
    serving = started("process")
    admin = {"Authorization": f"Bearer {serving.admin_key()}"}
    name = EXAMPLES[CreateSession]["name"]
    session, file = f"/v1/sessions/{name}", f"/v1/sessions/{name}/files/{EXAMPLES[Move]['from']}"
    key = serving.call("POST", "/v1/admin/keys", headers=admin, tenant=None, json=EXAMPLES[CreateKey])
    calls: list[tuple[type[BaseModel], str, str, Any]] = [
        (SessionInfo, "POST", "/v1/sessions", EXAMPLES[CreateSession]),
        (SessionInfo, "GET", session, None),
        (SessionList, "GET", "/v1/sessions", None),
        (Result, "POST", f"{session}/execute", EXAMPLES[Execute]),
        (ExecutionList, "GET", f"{session}/executions", None),
        (ExecutionDetail, "GET", f"{session}/executions/{EXAMPLES[ExecutionDetail]['id']}", None),
        (Interrupted, "POST", f"{session}/interrupt", None),
        (FileEntry, "POST", f"{session}/mkdir", EXAMPLES[MakeDirectory]),
        (FileEntry, "POST", f"{session}/move", EXAMPLES[Move]),
        (FileList, "GET", f"{session}/files/data?list", None),
        (AuditPage, "GET", f"/v1/admin/audit?limit=1&session={name}", None),
        (Overview, "GET", "/v1/admin/overview", None),
        (LiveSessions, "GET", "/v1/admin/sessions", None),
        (Tenants, "GET", "/v1/admin/tenants", None),
        (UsageReport, "GET", "/v1/admin/usage", None),
        (TenantLimits, "GET", "/v1/admin/tenants/alice/limits", None),
        (RemovedTenant, "DELETE", "/v1/admin/tenants/none", None),
        (KeyList, "GET", "/v1/admin/keys", None),
        (Failure, "GET", "/v1/sessions/none", None),
    ]
    try:
        assert shape(key.json()) == shape(EXAMPLES[NewKey])
        for model, method, path, body in calls:
            if method == "POST" and path.endswith("move"):
                assert serving.call("PUT", file, data=b"a,b\n").status_code == 204
            tenant, headers = (None, admin) if "/admin/" in path else ("alice", {})
            answer = serving.call(method, path, json=body, tenant=tenant, headers=headers).json()
            assert (path, shape(answer)) == (path, shape(EXAMPLES[model]))
            assert problems(model.__name__, answer) == []
        languages = serving.call("GET", "/v1/languages").json()
        assert problems("LanguageList", languages) == []
        assert languages["languages"][0].keys() == EXAMPLES[LanguageList]["languages"][0].keys()
    finally:
        serving.call("DELETE", session)
        serving.call("DELETE", f"/v1/admin/keys/{key.json()['id']}", headers=admin, tenant=None)


def test_the_page_names_every_field_of_an_execute_and_every_event() -> None:
    page = Path("docs/api.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named >= Execute.model_fields.keys() | EVENTS
