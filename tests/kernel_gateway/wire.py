"""What tests of the API say and hear: raw requests, failures, streams, and waiting for something to become true."""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat import v4
from prometheus_client.parser import text_string_to_metric_families

from kernel_gateway.dialects.native.models import Failure
from tests.gateways import KEYS, Gateway

T = TypeVar("T")

NDJSON = "application/x-ndjson"
SERVER_SENT = "text/event-stream"
#: a session of alice's that tests share when they leave no trace in it
SHARED = "shared"
#: for tests of what happens before a kernel is asked
process_only = pytest.mark.parametrize("gateway", ["process"], indirect=True)

#: a cell that runs until the file `go` is there
WAITS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
#: a cell that runs until it is interrupted, and tells that it has begun by the file `begun`
HANGS = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(300)\n"
#: from now on the kernel takes half a second from an interrupt's message to the interrupt
DAWDLES = """
import asyncio, time
handlers, taken = get_ipython().kernel.control_handlers, 0
async def dawdle(*request, interrupt=handlers['interrupt_request']):
    global taken
    taken += 1
    await asyncio.sleep(0.5)
    await interrupt(*request)
handlers['interrupt_request'] = dawdle
"""
#: a cell that ends when such a message was taken
ENDS_FIRST = "print('begun', flush=True)\nwhile not taken: time.sleep(0.01)\n"


class Response(Protocol):
    """An answer, of this module's client or another."""

    @property
    def status_code(self) -> int: ...
    @property
    def content(self) -> bytes: ...


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status_code: int
    headers: HTTPMessage
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def raw(
    gateway: Gateway,
    method: str,
    target: str,
    *,
    headers: tuple[tuple[str, str | bytes], ...] | None = None,
    body: bytes | None = None,
) -> Answer:
    """One request as it stands, on a connection of its own: nothing is normalised, nothing added but the key.

    Args:
        gateway: to whom.
        method: as it is.
        target: as it is.
        headers: all of them but Host and Content-Length; alice's key when not given.
        body: as it is.
    """
    if headers is None:
        headers = (("Authorization", f"Bearer {KEYS['alice']}"),)
    with closing(HTTPConnection(urlsplit(gateway.url).netloc, timeout=60)) as connection:
        connection.putrequest(
            method, target, skip_host=any(name == "Host" for name, _ in headers), skip_accept_encoding=True
        )
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def failure(response: Response) -> tuple[int, str]:
    """Status and code of a failure, which must have the one form that failures have and tell no internals."""
    assert b"Traceback" not in response.content
    assert len(response.content) < 16 * 1024
    return response.status_code, Failure.model_validate_json(response.content).error.code


def until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """What `condition` gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)
    return value


def scraped(gateway: Gateway) -> str:
    """What `/metrics` says, which needs no key."""
    response = gateway.call("GET", "/metrics", tenant=None)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return response.text


def metric(gateway: Gateway, name: str, **labels: str) -> float:
    """One sample; 0 when there is none yet."""
    samples = [sample for family in text_string_to_metric_families(scraped(gateway)) for sample in family.samples]
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)


@contextmanager
def streamed(
    gateway: Gateway, session: str, code: str, media_type: str = NDJSON, seen: int | None = None, **fields: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    """A cell's events as they come, in either form, after those seen. Leaving early closes the connection."""
    with gateway.call(
        "POST",
        f"/v1/sessions/{session}/execute",
        headers={"Accept": media_type} | ({} if seen is None else {"Last-Event-ID": str(seen)}),
        json={"code": code, **fields},
        stream=True,
    ) as response:
        assert response.status_code == HTTPStatus.OK, response.text
        assert response.headers["Content-Type"] == media_type
        lines = response.iter_lines()
        yield map(json.loads, lines) if media_type == NDJSON else _server_sent(lines)


def _server_sent(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a server-sent stream, each of which must be of the kind it says. Source: WHATWG HTML, 9.2."""
    for line in lines:
        name, kind, data, end = line, next(lines), next(lines), next(lines)
        event = json.loads(data.removeprefix(b"data: "))
        assert (kind.decode(), end) == (f"event: {event['type']}", b"")
        yield {"id": int(name.removeprefix(b"id: "))} | event


def exists(gateway: Gateway, session: str, path: str) -> bool:
    """Whether there is such a file."""
    return gateway.call("GET", f"/v1/sessions/{session}/files/{path}").status_code == HTTPStatus.OK


def write(gateway: Gateway, session: str, path: str, content: bytes = b"") -> None:
    """Write a file."""
    response = gateway.call("PUT", f"/v1/sessions/{session}/files/{path}", data=content)
    assert response.status_code == HTTPStatus.NO_CONTENT, response.text


def is_valid_nbformat(outputs: list[dict[str, Any]]) -> bool:
    """Whether a notebook could hold these outputs."""
    cell = v4.new_code_cell("", outputs=[nbformat.from_dict(output) for output in outputs])
    return not any(nbformat.validator.iter_validate(v4.new_notebook(cells=[cell])))


def size_of_png(encoded: str) -> tuple[int, int]:
    """Width and height. Source: PNG, 11.2.2 IHDR."""
    image = base64.b64decode(encoded, validate=True)
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", image[16:24])
    return width, height


def kernels(gateway: Gateway) -> int:
    """How many kernels it has: in sessions, waiting for one, or none but a sandbox's files."""
    if gateway.isolation == "docker":
        return len(gateway.containers())
    return sum(b"launcher.py" in _command(pid) for pid in children(gateway.process.pid))


def sessions(gateway: Gateway) -> int:
    """How many sessions all tenants have."""
    lists = [gateway.call("GET", "/v1/sessions", tenant=tenant).json()["sessions"] for tenant in KEYS]
    return sum(map(len, lists))


def others(gateway: Gateway) -> int:
    """How many kernels belong to no session, by what the gateway says."""
    told = gateway.call("GET", "/metrics", tenant=None).text
    found = re.findall(r"^kernel_gateway_(?:warm_kernels|sandboxes) (\S+)$", told, re.MULTILINE)
    assert len(found) == 2, told
    return round(sum(map(float, found)))


def children(pid: int) -> list[int]:
    """The processes that a process has started, whichever of its threads did."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended just now
            found += map(int, path.read_text().split())
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it has ended just now
