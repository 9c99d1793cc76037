"""Random WebSocket frames: each is answered, refused, or ends its own socket, and the gateway does not fail."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tornado.httpclient import HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from kernel_gateway.dialects.jupyter.framing import V1
from tests.fuzz.conftest import FUZZED
from tests.fuzz.values import VALUE, as_text, fields, harmless, nested
from tests.gateways import KEYS, Gateway

pytestmark = pytest.mark.full

#: sockets of each test, and frames that each sends
EXAMPLES = 150
FRAMES = 8
AT_LENGTH = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
#: the gateway's close codes for a frame that is too large or no message
REFUSED = {1003, 1007, 1009}

# -- frames -----------------------------------------------------------------------------------------------------

CODE = st.text(max_size=30).map(harmless)
CELL = {
    "id": st.text(max_size=200) | st.integers(),
    "timeout": st.floats() | st.integers(),
    "stdin": st.lists(st.text(max_size=5), max_size=3),
    "arguments": st.dictionaries(st.text(max_size=5), VALUE, max_size=3),
    "idempotency_key": st.text(max_size=300),
    "on_disconnect": st.sampled_from(["continue", "interrupt"]),
    "store_history": st.booleans(),
}
NATIVE = (
    fields({"code": CODE}, CELL)
    | fields({"input": st.text(max_size=20)})
    | fields({"interrupt": st.booleans()})
    | VALUE
)


#: frames of the native stream, as text or bytes
STREAM_FRAME = NATIVE.map(as_text) | NATIVE.map(as_text).map(str.encode) | st.binary(max_size=40) | st.text(max_size=40)

HEADER = fields(
    {
        "msg_id": st.text(min_size=1, max_size=258),
        "msg_type": st.sampled_from(
            [
                "execute_request",
                "kernel_info_request",
                "comm_info_request",
                "complete_request",
                "input_reply",
                "interrupt_request",
                "comm_open",
            ]
        ),
    },
    {
        "session": st.text(max_size=10),
        "version": st.text(max_size=5),
        "date": st.text(max_size=10),
    },
)
CONTENT = fields(
    {},
    {
        "code": CODE,
        "silent": st.booleans(),
        "store_history": st.booleans(),
        "user_expressions": st.just({}),
        "allow_stdin": st.booleans(),
        "value": st.text(max_size=10),
        "cursor_pos": st.integers(),
        "target_name": st.text(max_size=10),
        "comm_id": st.text(max_size=10),
        "data": VALUE,
    },
)
CHANNEL = st.sampled_from(["shell", "control", "stdin", "iopub", "hb", ""]) | st.text(max_size=8)
MESSAGE = st.fixed_dictionaries(
    {"header": HEADER},
    optional={
        "channel": CHANNEL | VALUE,
        "parent_header": HEADER | VALUE,
        "metadata": VALUE,
        "content": CONTENT | VALUE,
        "buffers": VALUE,
    },
)


def offsets(parts: list[bytes], number: str, *, shift: list[int]) -> bytes:
    """Return a binary frame, with each of its offsets moved by a little."""
    size = struct.calcsize(number)
    places = [size * (len(parts) + 2)]
    for part in parts:
        places.append(places[-1] + len(part))
    moved = [max(0, place + by) for place, by in zip(places, shift + [0] * len(places), strict=False)]
    return b"".join([struct.pack(f"{number[0]}{len(moved) + 1}{number[1]}", len(moved), *moved), *parts])


PART = VALUE.map(as_text).map(str.encode) | HEADER.map(as_text).map(str.encode) | st.binary(max_size=20)
SHIFT: st.SearchStrategy[list[int]] = st.just([]) | st.lists(st.integers(-3, 3), max_size=7)
V1_FRAME = (
    st.builds(
        lambda channel, header, rest, shift: offsets(
            [channel.encode("utf-8", "replace"), header, *rest], "<Q", shift=shift
        ),
        CHANNEL,
        HEADER.map(as_text).map(str.encode),
        st.lists(PART, max_size=5),
        SHIFT,
    )
    | st.binary(max_size=60)
    | st.text(max_size=20)
)
LEGACY_FRAME = (
    MESSAGE.map(as_text)
    | st.builds(
        lambda message, rest, shift: offsets([message, *rest], ">I", shift=shift),
        MESSAGE.map(as_text).map(str.encode),
        st.lists(st.binary(max_size=9), max_size=3),
        SHIFT,
    )
    | VALUE.map(json.dumps)
    | st.binary(max_size=60)
)


# -- sockets ----------------------------------------------------------------------------------------------------


async def opened(gateway: Gateway, path: str, subprotocol: str | None = None) -> WebSocketClientConnection:
    url = f"{gateway.url.replace('http', 'ws', 1)}{path}"
    request = HTTPRequest(url, headers={"Authorization": f"Bearer {KEYS['alice']}"})
    return await websocket_connect(request, subprotocols=[subprotocol] if subprotocol else None)


async def thrown(gateway: Gateway, path: str, frames: list[str | bytes], subprotocol: str | None = None) -> int | None:
    """Send frames until the gateway closes the socket; return its close code, or None."""
    connection = await opened(gateway, path, subprotocol)
    try:
        with suppress(WebSocketClosedError, StreamClosedError):
            for frame in frames:
                await connection.write_message(frame, binary=isinstance(frame, bytes))
            connection.close()  # the gateway answers this after all frames before it
        async with asyncio.timeout(60):
            while await connection.read_message() is not None:
                pass
        return connection.close_code
    finally:
        connection.close()


def some(frame: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(frame, min_size=1, max_size=FRAMES)


@AT_LENGTH
@given(frames=some(STREAM_FRAME))
@example(frames=[json.dumps({"code": "pass", "arguments": {"a": nested(1, 900)}})])
def test_the_native_stream_answers_or_closes(fuzzed: Gateway, frames: list[str | bytes]) -> None:
    code = asyncio.run(thrown(fuzzed, f"/v1/sessions/{FUZZED}/stream", frames))
    assert code is None or code in REFUSED


@pytest.fixture
def channels(fuzzed: Gateway) -> str:
    """The path of the channels of the session."""
    kernel = next(item for item in fuzzed.call("GET", "/api/kernels").json())
    return f"/api/kernels/{kernel['id']}/channels"


@AT_LENGTH
@given(frames=some(V1_FRAME))
def test_binary_channels_answer_or_close(fuzzed: Gateway, channels: str, frames: list[str | bytes]) -> None:
    code = asyncio.run(thrown(fuzzed, channels, frames, V1))
    assert code is None or code in REFUSED


@AT_LENGTH
@given(frames=some(LEGACY_FRAME))
@example(frames=[json.dumps({"header": {"msg_id": "a", "msg_type": "comm_open"}, "content": {"a": nested(1, 900)}})])
def test_legacy_channels_answer_or_close(fuzzed: Gateway, channels: str, frames: list[str | bytes]) -> None:
    code = asyncio.run(thrown(fuzzed, channels, frames))
    assert code is None or code in REFUSED
