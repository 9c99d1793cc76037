"""Random bodies, names and paths in all dialects: each request is served or refused, and the gateway does not fail."""

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.conftest import FUZZED
from tests.fuzz.values import VALUE, as_text, fields, harmless
from tests.gateways import Gateway
from tests.kernel_gateway.calls import raw

pytestmark = pytest.mark.full

EXAMPLES = 60
AT_LENGTH = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
BOX = "/sandboxes/boxed"
#: answers that a client can cause: the gateway is busy, a session ends meanwhile, a workspace is full
BUSY = {503, 507}

TEXT = st.text(max_size=20)
CODE = TEXT.map(harmless)
SECONDS = st.floats(0.001, 5) | st.integers(1, 5)
NUMBER = SECONDS | st.floats() | st.integers() | st.sampled_from([1e308, -1, 2**63, 10**400, 1e-320])
NAME = st.from_regex(r"\A[a-z][A-Za-z0-9._-]{0,70}\Z") | TEXT
PATH = (
    st.from_regex(r"\A[a-c](/[a-c]){0,2}\Z")
    | st.text("ab/.~%\\\0\n ü\ud800", max_size=30)
    | st.sampled_from(["", "/", "..", "/etc/passwd", "a" * 5000, "../../x", "/home/user/a", "/tmp/a"])
)
ENV = st.dictionaries(st.from_regex(r"\A[A-Z_]{1,8}\Z") | TEXT, TEXT, max_size=3)
SIZE = NUMBER | st.sampled_from(["64m", "1g", "0", "1e3", "-1m", "1" * 400 + "g"])
LIMITS = fields({}, {"memory": SIZE, "cpus": NUMBER, "processes": NUMBER, "disk": SIZE, "output": SIZE})
ENCODING = st.sampled_from(["utf-8", "ascii", "latin-1", "base64", "hex", "idna", "utf-16"]) | TEXT
LANGUAGE = st.just("python") | TEXT
PROGRAM = CODE.map(lambda code: base64.b64encode(str(code).encode("utf-8", "replace")).decode())
TEMPLATE = st.sampled_from(["code-interpreter-v1", "made"])

#: by request: its bodies
BODIES: dict[str, st.SearchStrategy[Any]] = {
    f"POST /v1/sessions/{FUZZED}/execute": fields(
        {"code": CODE},
        {
            "timeout": NUMBER,
            "stdin": st.lists(TEXT, max_size=3),
            "arguments": st.dictionaries(TEXT, VALUE, max_size=2),
            "idempotency_key": TEXT,
            "on_disconnect": st.sampled_from(["continue", "interrupt"]),
            "store_history": st.booleans(),
            "wait": st.booleans(),
            "language": LANGUAGE,
        },
    ),
    "POST /v1/sessions": fields(
        {}, {"name": NAME, "language": LANGUAGE, "limits": LIMITS, "env": ENV, "idle_timeout": NUMBER, "cwd": PATH}
    ),
    "POST /api/kernels": fields({}, {"name": LANGUAGE, "kernel_id": NAME, "path": PATH, "cwd": PATH, "env": ENV}),
    "POST /api/sessions": fields(
        {"path": PATH, "type": TEXT}, {"name": TEXT, "kernel": fields({}, {"id": TEXT, "name": LANGUAGE})}
    ),
    "POST /sandboxes": fields(
        {"templateName": TEMPLATE},
        {"sandboxId": NAME, "sandboxIdleTimeoutSeconds": NUMBER, "nasConfig": st.none() | VALUE},
    ),
    "POST /2025-09-10/templates": fields(
        {"templateName": st.just("made") | NAME, "templateType": st.just("CodeInterpreter")},
        {
            "cpu": NUMBER,
            "memory": NUMBER,
            "diskSize": NUMBER,
            "sandboxIdleTimeoutInSeconds": NUMBER,
            "sandboxTTLInSeconds": NUMBER,
            "environmentVariables": ENV,
        },
    ),
    f"POST {BOX}/contexts": fields({}, {"language": LANGUAGE, "cwd": PATH}),
    f"POST {BOX}/contexts/execute": fields(
        {"code": CODE},
        {"contextId": NAME, "language": LANGUAGE, "timeout": NUMBER, "arguments": st.dictionaries(TEXT, VALUE)},
    ),
    f"POST {BOX}/files": fields(
        {"path": PATH, "content": TEXT},
        {"mode": st.sampled_from(["644", "0777", "4755"]) | TEXT, "encoding": ENCODING, "createDir": st.booleans()},
    ),
    f"POST {BOX}/filesystem/mkdir": fields({"path": PATH}, {"parents": st.booleans(), "mode": TEXT}),
    f"POST {BOX}/filesystem/move": fields({"source": PATH, "destination": PATH}),
    f"POST {BOX}/filesystem/remove": fields({"path": PATH}),
    f"POST {BOX}/processes/cmd": fields({"command": st.just(":")}, {"cwd": PATH, "timeout": NUMBER}).map(
        lambda body: body | {"command": ":"}
    ),
    "POST /run": fields({"code_b64": PROGRAM}, {"language": LANGUAGE, "arguments": st.dictionaries(TEXT, VALUE)}).map(
        lambda body: body | {"code_b64": ""}
    ),
}


@pytest.fixture
def box(fuzzed: Gateway) -> Gateway:
    """The gateway, with a sandbox of the AgentRun dialect."""
    made = fuzzed.call("POST", "/sandboxes", json={"templateName": "code-interpreter-v1", "sandboxId": "boxed"})
    assert made.status_code in {200, 409}, made.text
    return fuzzed


def served(gateway: Gateway, method: str, target: str, body: bytes | None = None) -> None:
    """Send a request; it may be refused."""
    answer = raw(gateway, method, target, body=body)
    refused = {*BUSY, HTTPStatus.NOT_IMPLEMENTED}  # 501: Jupyter's answer for an unknown kernelspec
    assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR or answer.status_code in refused, answer.content
    assert answer.status_code == HTTPStatus.OK or b"Traceback" not in answer.content  # a cell's own may be in a result


@pytest.mark.parametrize("request_line", BODIES)
@AT_LENGTH
@given(data=st.data())
def test_any_body_is_served_or_refused(box: Gateway, request_line: str, data: st.DataObject) -> None:
    method, _, target = request_line.partition(" ")
    known = BODIES[request_line].map(as_text).map(str.encode)
    body = data.draw(known | known | known | VALUE.map(json.dumps).map(str.encode) | st.binary(max_size=30))
    served(box, method, target, body)


ANY_NAME = NAME | st.binary(max_size=12) | st.sampled_from(["..", ".", "%", "a" * 65, "%2e%2e", FUZZED])
TARGETS = [
    "GET /v1/sessions/{}",
    "DELETE /v1/sessions/{}",
    "POST /v1/sessions/{}/interrupt",
    "POST /v1/sessions/{}/restart",
    "GET /v1/sessions/{}/notebook",
    "GET /v1/sessions/{}/files/",
    "GET /api/kernels/{}",
    "DELETE /api/sessions/{}",
    "GET /api/kernelspecs/{}",
    "GET /kernelspecs/python/{}",
    "GET /sandboxes/{}",
    "GET /sandboxes/{}/contexts",
    "GET /2025-09-10/templates/{}",
    "DELETE /2025-09-10/templates/{}",
    f"GET /v1/sessions/{FUZZED}/files/{{}}",
    f"PUT /v1/sessions/{FUZZED}/files/{{}}",
    f"DELETE /v1/sessions/{FUZZED}/files/a/{{}}",
    f"GET {BOX}/files?path={{}}",
    f"GET {BOX}/filesystem?path={{}}&depth={{}}",
    f"GET {BOX}/filesystem/stat?path={{}}",
    f"GET {BOX}/filesystem/download?path={{}}",
]


@pytest.mark.parametrize("request_line", TARGETS)
@AT_LENGTH
@given(name=ANY_NAME | PATH, plain=st.booleans())
def test_any_name_and_any_path_is_served_or_refused(
    box: Gateway, request_line: str, name: str | bytes, *, plain: bool
) -> None:
    said = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    told = quote(said, safe="" if not plain else "/.%~")
    method, _, target = request_line.partition(" ")
    served(box, method, target.replace("{}", told), b"x" if method in {"PUT", "POST"} else None)
