"""What costs time per unit is bounded in units, and long work lets the event loop serve others."""

from __future__ import annotations

import ast
import asyncio
import importlib
import pkgutil
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from annotated_types import MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from structlog.testing import capture_logs
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

import kernel_gateway.dialects
from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.dialects import native
from kernel_gateway.dialects.e2b import connect
from kernel_gateway.dialects.e2b.connect import Envelopes, ServerStreamHandler
from kernel_gateway.dialects.e2b.models import NewSandbox
from kernel_gateway.dialects.e2b.processes import Config, StreamInputHandler
from kernel_gateway.dialects.jupyter import openapi as jupyter_openapi
from kernel_gateway.http.multipart import Form
from kernel_gateway.http.request_body import validated
from kernel_gateway.identity.refusals import BURST, RATE
from kernel_gateway.wire import large_bodies
from sessions.model import exact_json, units
from sessions.model.errors import InvalidRequest
from sessions.model.tasks import spawn
from sessions.model.values import valid_env
from sessions.policy import ragflow
from sessions.tenants.traffic import LoopTime
from tests.fakes import FakeBackend, until
from tests.test_layers import tree_of


def form(fields: list[int]) -> None:
    """Read a form of so many header fields in each of its parts."""
    parts = (b"--B\r\n" + b"".join(b"X-%d: 1\r\n" % field for field in range(count)) + b"\r\n\r\n" for count in fields)
    Form(b"B", str).write(b"".join(parts))


def ragflow_strict(tokens: int) -> None:
    if problems := ragflow.problems("a\n" * (tokens // 2) + "a" * (tokens % 2), "python"):
        raise InvalidRequest(problems[0])


#: bound → reads so many units
READERS: dict[str, Callable[[int], object]] = {
    "ENV_NAMES": lambda count: valid_env({f"a{number}": "" for number in range(count)}),
    "METADATA_PAIRS": lambda count: validated(
        NewSandbox, {"templateID": "base", "metadata": {str(number): "" for number in range(count)}}
    ),
    "ARGUMENTS": lambda count: validated(Config, {"args": [""] * count}),
    "FORM_PARTS": lambda count: form([1] * count),
    "FORM_FIELDS": lambda count: form([5] * (count // 5) + [count % 5]),
    "CODE_TOKENS": ragflow_strict,
}
#: bound → its test
ELSEWHERE = {"HEAD_FIELDS": "test_a_head_of_too_many_fields_is_refused"}
BOUNDS = {name: value for name, value in vars(units).items() if name.isupper()}


@pytest.mark.parametrize("bound", READERS)
def test_the_first_unit_too_many_is_refused(bound: str) -> None:
    READERS[bound](BOUNDS[bound])
    with pytest.raises(InvalidRequest):
        READERS[bound](BOUNDS[bound] + 1)


def test_every_bound_has_a_test() -> None:
    assert BOUNDS.keys() == READERS.keys() | ELSEWHERE.keys()
    assert set(ELSEWHERE.values()) <= globals().keys()


# -- the models of requests ------------------------------------------------------------------------------------

#: fields with any number of units → why they cost no more than to parse them, which `bounded_json.py` bounds
COLLECTIONS = {
    **dict.fromkeys(
        ["env", "envs", "envVars", "env_vars", "environmentVariables"], "valid_env counts before it looks at any"
    ),
    "stdin": "no line is looked at before the kernel asks for it",
    "arguments": "passed on as JSON",
    "config": "only the fields of the provider's schema are looked at",
    "images": "an admin sends them, and they are compared as sets",
    **dict.fromkeys(["allowOut", "ossConfiguration"], "refused unless it is empty"),
}


def read_models() -> Iterator[type[BaseModel]]:
    """Yield all models that a request's body is read as, and those of their fields."""
    for module in pkgutil.walk_packages(kernel_gateway.dialects.__path__, "kernel_gateway.dialects."):
        names = vars(importlib.import_module(module.name))
        for node in ast.walk(tree_of(module.name)):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in {"body", "message_of", "validated"} and node.args:
                model = names.get(ast.unparse(node.args[0]))
                if isinstance(model, type) and issubclass(model, BaseModel):
                    yield from with_parts(model)


def with_parts(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for part in parts_of(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from with_parts(part)


def parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in annotation.metadata if isinstance(annotation, FieldInfo) else get_args(annotation):
        yield from parts_of(part)


def unbounded(model: type[BaseModel]) -> set[str]:
    """Return the fields of a model that may have any number of units."""
    return {
        name
        for name, field in model.model_fields.items()
        if any(getattr(part, "__origin__", part) in {list, dict, set, tuple} for part in parts_of(field.annotation))
        and not any(isinstance(part, MaxLen) for part in [*parts_of(field.annotation), *field.metadata])
    }


def test_every_collection_in_a_request_is_bounded_or_costs_nothing() -> None:
    models = set(read_models())
    assert len(models) > 20
    found = {name for model in models for name in unbounded(model)}
    assert found == COLLECTIONS.keys()


def test_a_collection_without_a_bound_is_found() -> None:
    class Next(BaseModel):
        names: list[str] | None = None

    assert unbounded(Next) == {"names"}


# -- streams of messages ---------------------------------------------------------------------------------------

EMPTY = struct.pack(">BI", 0, 0)


def test_a_request_of_one_message_is_not_read_beyond_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    class Counted(Envelopes):
        def read(self, chunk: bytes) -> Iterator[bytes]:
            for message in super().read(chunk):
                read.append(message)
                yield message

    monkeypatch.setattr(connect, "Envelopes", Counted)
    handler = ServerStreamHandler.__new__(ServerStreamHandler)
    handler._received = bytearray(EMPTY)
    assert handler.message() == b""
    handler._received = bytearray(EMPTY * 1000)
    with pytest.raises(InvalidRequest):
        handler.message()
    assert len(read) == 2


async def ticks() -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(0)
        yield


async def test_many_small_messages_let_others_be_served() -> None:
    handler = StreamInputHandler.__new__(StreamInputHandler)
    handler._envelopes = Envelopes()
    reading = spawn(handler._take(EMPTY * 10_000), "reading")
    served = 0
    async for _ in ticks():
        served += 1
        if reading.done():
            break
    reading.result()
    assert served > 10


# -- large bodies, and heads -----------------------------------------------------------------------------------


@pytest.fixture
async def service(backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    keys = {"keys": {"key-0001": "acme", "key-0002": "other"}, "admin_key": "admin-key-000001"}
    settings = Settings.model_validate({"state_dir": tmp_path, "port": 0, "pool_size": 0, **keys})
    service = await Service(settings).start()
    yield service
    await service.stop()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Make it slow to parse large JSON, and return when each text was: beginning and end."""
    times: list[tuple[float, float]] = []

    def slow(text: bytes) -> Any:
        if len(text) >= large_bodies.LARGE:
            began = time.perf_counter()
            time.sleep(0.02)
            times.append((began, time.perf_counter()))
        return orjson.loads(text)

    monkeypatch.setattr(exact_json, "loads", slow)
    return times


LIST = "GET /v1/sessions HTTP/1.1\r\nX-API-Key: "


async def answer(service: Service, head: str, body: bytes = b"") -> bytes:
    """Send a request and return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    writer.write(
        f"{head}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    )
    async with asyncio.timeout(60):
        told = await reader.read()
    writer.close()
    return told


async def test_large_bodies_are_parsed_one_by_one_and_others_are_served_between(
    service: Service, parsed: list[tuple[float, float]]
) -> None:
    body = orjson.dumps({"unknown": "x" * large_bodies.LARGE})
    head = "POST /v1/sessions HTTP/1.1\r\nX-API-Key: key-0001"
    answers = await asyncio.gather(*(answer(service, head, body) for _ in range(8)))
    assert all(told.startswith(b"HTTP/1.1 400 ") and b"unknown" in told for told in answers)
    assert len(parsed) == 8
    assert all(begin - end > 0.01 for (_, end), (begin, _) in pairwise(parsed))


async def test_large_messages_of_sockets_are_parsed_one_by_one_too(
    service: Service, parsed: list[tuple[float, float]]
) -> None:
    url = f"ws://127.0.0.1:{service.port}/v1/sessions/s1/stream"
    clients = [await websocket_connect(HTTPRequest(url, headers={"X-API-Key": "key-0001"})) for _ in range(8)]
    for client in clients:
        await client.write_message(orjson.dumps({"unknown": "x" * large_bodies.LARGE}).decode())
    for client in clients:
        async with asyncio.timeout(60):
            assert "unknown" in str(await client.read_message())
        client.close()
    assert len(parsed) == 8
    assert all(begin - end > 0.01 for (_, end), (begin, _) in pairwise(parsed))


async def test_small_messages_of_a_socket_count_and_are_read_when_the_tenant_has_time_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, waits = list[tuple[str, float]](), iter([0.0, 1.0])  # the upgrade, and the first message
    monkeypatch.setattr(LoopTime, "spend", lambda _self, tenant, seconds: told.append((tenant, seconds)))
    monkeypatch.setattr(LoopTime, "wait", lambda _self, _tenant: next(waits, 0.0))
    url = f"ws://127.0.0.1:{service.port}/v1/sessions/s1/stream"
    client = await websocket_connect(HTTPRequest(url, headers={"X-API-Key": "key-0001"}))
    for _ in range(2):
        await client.write_message("no JSON")
    async with asyncio.timeout(60):
        assert "JSON" in str(await client.read_message())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.read_message()  # the second one waits
    assert {tenant for tenant, _ in told} == {"acme"}
    assert sum(seconds for _, seconds in told) > 0
    async with asyncio.timeout(60):
        assert "JSON" in str(await client.read_message())
    client.close()


@pytest.fixture
def beyond_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two tenants, one of them the admin's, have taken more than their share of the event loop."""
    monkeypatch.setattr(LoopTime, "wait", lambda _self, tenant: 0.3 if tenant in {"acme", "admin"} else 0.0)


async def test_requests_with_a_key_count_and_others_do_not(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[str, float]]()
    monkeypatch.setattr(LoopTime, "spend", lambda _self, tenant, seconds: told.append((tenant, seconds)))
    for head in ("GET /healthz HTTP/1.1", "GET /v1/sessions HTTP/1.1\r\nX-API-Key: guess"):
        await answer(service, head)
    assert told == []
    await answer(service, f"{LIST}key-0001")
    assert {tenant for tenant, _ in told} == {"acme"}
    assert 0 < sum(seconds for _, seconds in told) < 1


@pytest.mark.usefixtures("beyond_share")
@pytest.mark.parametrize(
    "head",
    [
        "POST /v1/sessions/none/interrupt HTTP/1.1\r\nX-API-Key: key-0001",
        "DELETE /v1/sessions/none/executions/none HTTP/1.1\r\nX-API-Key: key-0001",
        "POST /api/kernels/none/interrupt HTTP/1.1\r\nX-API-Key: key-0001",
        "GET /healthz HTTP/1.1",
        "GET /v1/sessions HTTP/1.1\r\nX-API-Key: key-0002",
        "GET /v1/admin/keys HTTP/1.1\r\nX-API-Key: admin-key-000001",
    ],
)
async def test_requests_beyond_a_tenants_share_begin_late_and_urgent_ones_and_others_do_not(
    service: Service, head: str
) -> None:
    late = spawn(answer(service, f"{LIST}key-0001"), "late")
    await asyncio.sleep(0.05)
    assert (await answer(service, head)).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 "))
    assert not late.done()
    assert (await late).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("beyond_share")
async def test_requests_beyond_a_tenants_share_begin_one_by_one(service: Service) -> None:
    began = time.perf_counter()
    await asyncio.gather(*(answer(service, f"{LIST}key-0001") for _ in range(4)))
    assert time.perf_counter() - began >= 4 * 0.3


@pytest.mark.usefixtures("beyond_share")
async def test_requests_whose_clients_leave_wait_no_longer(service: Service) -> None:
    writers = [(await asyncio.open_connection("127.0.0.1", service.port))[1] for _ in range(10)]
    for writer in writers:
        writer.write(f"{LIST}key-0001\r\nHost: localhost\r\n\r\n".encode())
    waiting = service.fair_loop._sharing
    await until(lambda: waiting.running == 1 and waiting.waiting >= 5)
    for writer in writers:
        writer.close()
    await until(lambda: waiting.waiting == waiting.running == 0, seconds=1)


async def test_a_flood_of_unknown_keys_is_answered_late_and_a_valid_key_is_not(service: Service) -> None:
    head = "GET /v1/sessions HTTP/1.1\r\nX-API-Key: "
    began = time.perf_counter()
    answers = await asyncio.gather(*(answer(service, f"{head}guess-{number}") for number in range(2 * BURST)))
    assert all(told.startswith(b"HTTP/1.1 401 ") for told in answers)
    assert time.perf_counter() - began > (BURST - 1) / RATE
    guess = spawn(answer(service, f"{head}guess"), "guess")
    assert (await answer(service, f"{head}key-0001")).startswith(b"HTTP/1.1 200 ")
    assert (await guess).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("key", ["", "\r\nX-API-Key: key-0001"])
async def test_a_flood_of_unknown_paths_is_answered_late(service: Service, key: str) -> None:
    began = time.perf_counter()
    answers = await asyncio.gather(*(answer(service, f"GET /none HTTP/1.1{key}") for _ in range(2 * BURST)))
    assert all(told.startswith(b"HTTP/1.1 404 ") for told in answers)
    assert time.perf_counter() - began > (BURST - 1) / RATE


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/api/swagger.json"])
async def test_a_description_that_needs_no_key_is_made_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    first = await answer(service, f"GET {path} HTTP/1.1")
    assert first.startswith(b"HTTP/1.1 200 ")
    monkeypatch.delattr(native, "openapi")
    monkeypatch.delattr(jupyter_openapi, "description")
    assert (await answer(service, f"GET {path} HTTP/1.1")).partition(b"\r\n\r\n")[2] == first.partition(b"\r\n\r\n")[2]


async def test_clients_that_leave_before_their_refusals_harm_nobody(service: Service) -> None:
    with capture_logs() as logs:
        for number in range(BURST + 10):
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-API-Key: guess-%d\r\n\r\n" % number)
            await writer.drain()
            writer.close()
        await until(lambda: sum(line["event"] == "request" for line in logs) == BURST + 10)
    assert {line["log_level"] for line in logs} <= {"info", "warning"}


async def test_a_client_that_leaves_while_its_large_body_waits_harms_nobody(service: Service) -> None:
    body = orjson.dumps({"unknown": "x" * large_bodies.LARGE})
    head = "POST /v1/sessions HTTP/1.1\r\nX-API-Key: key-0001"
    leaving = [spawn(answer(service, head, body), "client") for _ in range(8)]
    await asyncio.sleep(0)
    for client in leaving[:7]:
        client.cancel()
    for client in leaving[:7]:
        with suppress(asyncio.CancelledError):
            await client
    assert (await leaving[7]).startswith(b"HTTP/1.1 400 ")
    assert (await answer(service, head, body)).startswith(b"HTTP/1.1 400 ")


async def test_a_head_of_too_many_fields_is_refused(service: Service) -> None:
    ours = 3  # Host, Content-Length and Connection
    fields = [f"X-{number}: 1" for number in range(units.HEAD_FIELDS - ours)]
    assert (await answer(service, "\r\n".join(["GET /healthz HTTP/1.1", *fields]))).startswith(b"HTTP/1.1 200 ")
    assert (await answer(service, "\r\n".join(["GET /healthz HTTP/1.1", *fields, "X: 1"]))).startswith(b"HTTP/1.1 400 ")
