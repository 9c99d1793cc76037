"""Helpers for tests of the API: raw requests, failures, streams, and waiting until a condition is true."""

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
#: a session of tenant alice that tests share when they leave no trace in it
SHARED = "shared"
#: mark of tests that check requests which do not reach a kernel
process_only = pytest.mark.parametrize("gateway", ["process"], indirect=True)

#: a cell that runs until the file `go` exists
WAITS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
#: a cell that runs until it is interrupted, and creates the file `begun` when it starts
HANGS = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(300)\n"
#: code that makes the kernel wait half a second between an interrupt's message and the interrupt
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
#: a cell that ends when the kernel of `DAWDLES` has received an interrupt's message
ENDS_FIRST = "print('begun', flush=True)\nwhile not taken: time.sleep(0.01)\n"


class Response(Protocol):
    """An answer, of this module's client or another."""

    @property
    def status_code(self) -> int: ...
    @property
    def content(self) -> bytes: ...


@dataclass(frozen=True)
class Answer:
    """The answer to a raw request."""

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
    """Send one request unchanged on a new connection: nothing is normalised, nothing is added but the key.

    Args:
        gateway: gateway that receives the request.
        method: method, sent as it is.
        target: request target, sent as it is.
        headers: all headers except Host and Content-Length; by default alice's key.
        body: body, sent as it is.
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
    """Return status and code of a failure; check that it has the form of a failure and reveals no internals."""
    assert b"Traceback" not in response.content
    assert len(response.content) < 16 * 1024
    return response.status_code, Failure.model_validate_json(response.content).error.code


def until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Return the value of `condition` as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.02)
    return value


def scraped(gateway: Gateway) -> str:
    """Return the text of `/metrics`, which needs no key."""
    response = gateway.call("GET", "/metrics", tenant=None)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return response.text


def metric(gateway: Gateway, name: str, **labels: str) -> float:
    """Return one sample's value; 0 if the sample does not exist yet."""
    samples = [sample for family in text_string_to_metric_families(scraped(gateway)) for sample in family.samples]
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)


@contextmanager
def streamed(
    gateway: Gateway, session: str, code: str, media_type: str = NDJSON, seen: int | None = None, **fields: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield a cell's events as they arrive, in either form, after event `seen`. Leaving early closes the connection."""
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
    """Yield the events of a server-sent stream; check the name of each. Source: WHATWG HTML, 9.2."""
    for line in lines:
        name, kind, data, end = line, next(lines), next(lines), next(lines)
        event = json.loads(data.removeprefix(b"data: "))
        assert (kind.decode(), end) == (f"event: {event['type']}", b"")
        yield {"id": int(name.removeprefix(b"id: "))} | event


def exists(gateway: Gateway, session: str, path: str) -> bool:
    """Return True if the file exists."""
    return gateway.call("GET", f"/v1/sessions/{session}/files/{path}").status_code == HTTPStatus.OK


def write(gateway: Gateway, session: str, path: str, content: bytes = b"") -> None:
    """Write a file."""
    response = gateway.call("PUT", f"/v1/sessions/{session}/files/{path}", data=content)
    assert response.status_code == HTTPStatus.NO_CONTENT, response.text


def is_valid_nbformat(outputs: list[dict[str, Any]]) -> bool:
    """Return True if a notebook could hold these outputs."""
    cell = v4.new_code_cell("", outputs=[nbformat.from_dict(output) for output in outputs])
    return not any(nbformat.validator.iter_validate(v4.new_notebook(cells=[cell])))


def size_of_png(encoded: str) -> tuple[int, int]:
    """Return width and height in pixels. Source: PNG, 11.2.2 IHDR."""
    image = base64.b64decode(encoded, validate=True)
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", image[16:24])
    return width, height


def kernels(gateway: Gateway) -> int:
    """Count the gateway's kernels: those of sessions, warm ones, and those that only hold a sandbox's files."""
    if gateway.isolation == "docker":
        return len(gateway.containers())
    return sum(b"launcher.py" in _command(pid) for pid in children(gateway.process.pid))


def sessions(gateway: Gateway) -> int:
    """Count the sessions of all tenants."""
    lists = [gateway.call("GET", "/v1/sessions", tenant=tenant).json()["sessions"] for tenant in KEYS]
    return sum(map(len, lists))


def others(gateway: Gateway) -> int:
    """Return the number of kernels that belong to no session, according to the gateway's metrics."""
    told = gateway.call("GET", "/metrics", tenant=None).text
    found = re.findall(r"^kernel_gateway_(?:warm_kernels|sandboxes) (\S+)$", told, re.MULTILINE)
    assert len(found) == 2, told
    return round(sum(map(float, found)))


def children(pid: int) -> list[int]:
    """Return the ids of the child processes of a process, whichever thread started them."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended just now
            found += map(int, path.read_text().split())
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # the process has just ended
