"""Random bodies, messages, names and headers for E2B's three services: each request is served or refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.values import VALUE, as_text, fields, harmless
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import raw
from tests.kernel_gateway.e2b import Box, boxed

pytestmark = pytest.mark.full

AT_LENGTH = settings(max_examples=60, suppress_health_check=list(HealthCheck))
#: failures that a client can cause: what is not there, no sandbox, the gateway is busy, a workspace is full
ALLOWED = {501, 502, 503, 507}

TEXT = st.text(max_size=20)
NUMBER = st.integers() | st.floats() | st.sampled_from([0, 1, 300, -1, 2**63, 1e308])
PATH = TEXT | st.sampled_from(["", "a", "/", "..", "/etc/passwd", "/home/user/a", "/tmp/a", "a" * 5000, "a/b"])
ENV = st.dictionaries(st.from_regex(r"\A[A-Z_]{1,8}\Z") | TEXT, TEXT, max_size=3)
PROCESS = fields({}, {"pid": NUMBER, "tag": TEXT})
INPUT = fields({}, {"stdin": st.sampled_from(["YQ==", "", "!"]) | TEXT, "pty": TEXT})
SIZE = fields({}, {"cols": NUMBER, "rows": NUMBER})
PROGRAM = fields({"cmd": st.sampled_from(["/bin/true", "/absent", ""])}, {"cwd": PATH, "envs": ENV})

#: by path: port and bodies
BODIES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "/execute": (
        "49999",
        fields({"code": TEXT.map(harmless)}, {"language": TEXT, "context_id": TEXT, "env_vars": ENV}),
    ),
    "/contexts": ("49999", fields({}, {"language": TEXT, "cwd": PATH})),
    "/filesystem.Filesystem/Stat": ("49983", fields({"path": PATH})),
    "/filesystem.Filesystem/ListDir": ("49983", fields({"path": PATH}, {"depth": NUMBER})),
    "/filesystem.Filesystem/MakeDir": ("49983", fields({"path": PATH})),
    "/filesystem.Filesystem/Move": ("49983", fields({"source": PATH, "destination": PATH})),
    "/filesystem.Filesystem/Remove": ("49983", fields({"path": PATH})),
    "/process.Process/List": ("49983", fields({})),
    "/process.Process/SendInput": ("49983", fields({"process": PROCESS, "input": INPUT})),
    "/process.Process/CloseStdin": ("49983", fields({"process": PROCESS})),
    "/process.Process/SendSignal": (
        "49983",
        fields({"process": PROCESS, "signal": st.just("SIGNAL_SIGTERM") | NUMBER}),
    ),
    "/process.Process/Update": ("49983", fields({"process": PROCESS, "pty": fields({"size": SIZE})})),
}
MESSAGES = {
    "/process.Process/Start": fields({"process": PROGRAM}, {"tag": TEXT, "stdin": st.booleans()}),
    "/process.Process/Connect": fields({"process": PROCESS}),
    "/process.Process/StreamInput": fields(
        {}, {"start": fields({"process": PROCESS}), "data": fields({"input": INPUT})}
    ),
}


@pytest.fixture
def box(fuzzed: Gateway) -> Iterator[Box]:
    with boxed(fuzzed) as box:
        yield box


def served(box: Box, path: str, port: str, body: bytes | None, **headers: str) -> None:
    named = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": port, "X-Access-Token": box.token} | headers
    sent = tuple((name, value.encode("utf-8", "surrogatepass")) for name, value in named.items())
    answer = raw(box.gateway, "GET" if body is None else "POST", path, headers=sent, body=body)
    assert answer.status_code < 500 or answer.status_code in ALLOWED, answer
    assert b"Traceback" not in answer.content


@pytest.mark.parametrize("path", BODIES)
@AT_LENGTH
@given(data=st.data())
def test_any_body_is_served_or_refused(box: Box, path: str, data: st.DataObject) -> None:
    port, bodies = BODIES[path]
    known = bodies.map(as_text).map(str.encode)
    body = data.draw(known | known | known | VALUE.map(json.dumps).map(str.encode) | st.binary(max_size=30))
    served(box, path, port, body)


@pytest.mark.parametrize("path", MESSAGES)
@AT_LENGTH
@given(data=st.data())
def test_any_stream_of_messages_is_served_or_refused(box: Box, path: str, data: st.DataObject) -> None:
    sent = b""
    for _ in range(data.draw(st.integers(0, 2))):
        message = data.draw(MESSAGES[path].map(as_text).map(str.encode) | st.binary(max_size=30))
        sent += struct.pack(">BI", data.draw(st.sampled_from([0, 0, 0, 1, 2])), len(message)) + message
    served(box, path, "49983", sent + data.draw(st.just(b"") | st.binary(max_size=8)))


FORMS = st.sampled_from(
    [
        "application/octet-stream",
        "multipart/form-data; boundary=B",
        "multipart/form-data; boundary=" + "B" * 300,
        "multipart/form-data",
    ]
)
PARTS = st.lists(
    st.sampled_from(
        [
            b"--B\r\n",
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
            b'Content-Disposition: form-data; name="file"; filename="../../x"\r\n\r\n',
            b"content\r\n",
            b"\r\n--B--\r\n",
        ]
    )
    | st.binary(max_size=20),
    max_size=8,
).map(b"".join)


@AT_LENGTH
@given(path=PATH, kind=FORMS, body=PARTS, encoding=st.sampled_from(["identity", "gzip", "br"]), user=TEXT)
def test_any_upload_is_served_or_refused(  # noqa: PLR0917 - hypothesis gives them by name
    box: Box, path: str, kind: str, body: bytes, encoding: str, user: str
) -> None:
    query = quote(path.encode("utf-8", "surrogatepass"), safe="")
    more = quote(user.encode("utf-8", "surrogatepass"), safe="")
    headers = {"Content-Type": kind, "Content-Encoding": encoding}
    served(box, f"/files?path={query}&username={more}", "49983", body, **headers)
    served(box, f"/files?path={query}", "49983", None)
    served(
        box,
        f"/files?path={query}&signature={more}&signature_expiration={more}",
        "49983",
        None,
        **{"X-Access-Token": ""},
    )


@AT_LENGTH
@given(
    body=fields(
        {"templateID": st.just("absent") | TEXT},
        {"timeout": NUMBER, "metadata": ENV, "envVars": ENV, "autoPause": VALUE, "network": VALUE, "mcp": VALUE},
    ),
    query=TEXT,
)
def test_any_request_to_the_control_plane_is_served_or_refused(fuzzed: Gateway, body: Any, query: str) -> None:
    key = (("X-API-Key", KEYS["alice"].encode()), ("User-Agent", b"e2b-python-sdk/2"))
    told = quote(query.encode("utf-8", "surrogatepass"), safe="")
    for method, path, sent in (
        ("POST", "/v2/sandboxes", as_text(body).encode()),
        ("POST", f"/sandboxes/{told}/timeout", as_text(body).encode()),
        ("GET", f"/sandboxes/{told}", None),
        ("GET", f"/v2/sandboxes?metadata={told}&limit={told}&nextToken={told}", None),
        ("GET", f"/v2/sandboxes?metadata={told}&startedAfter={told}&state={told}&order={told}", None),
    ):
        answer = raw(fuzzed, method, path, headers=key, body=sent)
        assert answer.status_code < 500 or answer.status_code in ALLOWED, answer
