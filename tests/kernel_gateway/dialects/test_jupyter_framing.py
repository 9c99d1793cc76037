"""Jupyter messages in WebSocket frames: messages survive encoding and decoding, and invalid frames are refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_gateway.dialects.jupyter.framing import V1, decode, encode
from sessions.kernels.messages import Message
from sessions.model.errors import InvalidRequest

HEADER = {"msg_id": "m1", "msg_type": "execute_request"}
PARTS = (json.dumps(HEADER).encode(), b"{}", b'{"a": 1}', b'{"code": "1+1"}')
WAYS = [V1, None]


def message(buffers: tuple[bytes, ...] = ()) -> Message:
    return Message("iopub", HEADER, {}, {"a": 1}, {"code": "1+1"}, buffers, 0, PARTS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("buffers", [(), (b"one",), (b"", bytes(range(256)))])
def test_an_encoded_message_is_decoded_unchanged(way: str | None, buffers: tuple[bytes, ...]) -> None:
    frame, binary = encode(message(buffers), way)
    assert binary is (way == V1 or bool(buffers))
    request = decode(frame if binary else frame.decode(), way)
    assert (request.channel, request.header, request.buffers) == ("iopub", HEADER, buffers)
    assert [json.loads(part) for part in request.parts] == [json.loads(part) for part in PARTS]


def test_the_binary_subprotocol_passes_parts_on_unchanged() -> None:
    frame, _ = encode(message((b"buffer",)), V1)
    assert decode(frame, V1).parts == PARTS
    count, first = struct.unpack_from("<QQ", frame)
    assert (count, first) == (7, 8 * 8)  # channel, four parts, a buffer, and the end of the frame


def test_the_legacy_form_repeats_id_and_type_at_the_top_level() -> None:
    frame, _ = encode(message(), None)
    value = json.loads(frame)
    assert {name: value[name] for name in ("msg_id", "msg_type", "channel", "buffers")} == {
        **HEADER,
        "channel": "iopub",
        "buffers": [],
    }
    assert value["content"] == {"code": "1+1"}


@pytest.mark.parametrize("more", [{}, {"buffers": {}}, {"buffers": []}, {"metadata": None}, {"channel": None}])
def test_missing_fields_of_a_message_are_empty(more: dict[str, Any]) -> None:
    request = decode(json.dumps({"header": HEADER} | more), None)
    assert request.channel == "shell"
    assert [json.loads(part) for part in request.parts[1:]] == [{}, {}, {}]


def v1(*offsets: int, tail: bytes = b"") -> bytes:
    return struct.pack(f"<Q{len(offsets)}Q", len(offsets), *offsets) + tail


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BAD: dict[str, tuple[str | bytes, str | None]] = {
    "empty text": ("", None),
    "no object": ("[]", None),
    "no header": ("{}", None),
    "a header of another kind": ('{"header": "x"}', None),
    "no type": ('{"header": {"msg_id": "1"}}', None),
    "an id that is a number": ('{"header": {"msg_id": 1, "msg_type": "x"}}', None),
    "an id that is too long": (json.dumps({"header": HEADER | {"msg_id": "x" * 300}}), None),
    "content that can be read and not be written": (json.dumps({"header": HEADER, "content": deep(300)}), None),
    "a header that can be read and not be written": (
        encode(replace(message(), parts=(json.dumps(HEADER | deep(300)).encode(), *PARTS[1:])), V1)[0],
        V1,
    ),
    "too many values": (json.dumps({"header": HEADER, "content": {"a": [[]] * 200_000}}), None),
    "content of another kind": (json.dumps({"header": HEADER, "content": [1]}), None),
    "nothing": (b"", None),
    "two bytes": (b"\0\1", None),
    "no parts": (struct.pack(">I", 0), None),
    "many parts": (struct.pack(">I", 2**32 - 1), None),
    "a part outside": (struct.pack(">II", 1, 2**31), None),
    "text on the binary way": ("{}", V1),
    "nothing on the binary way": (b"", V1),
    "no offsets": (v1(), V1),
    "too few parts": (v1(24, 24, tail=b""), V1),
    "offsets that go back": (v1(64, 63, 66, 67, 68, 69, tail=b"{}" * 20), V1),
    "offsets into the head": (v1(0, 1, 2, 3, 4, 5, tail=b"{}" * 20), V1),
    "offsets beyond the end": (v1(56, 56, 56, 56, 56, 2**63), V1),
    "very many offsets": (struct.pack("<Q", 2**64 - 1), V1),
}


@pytest.mark.parametrize(("frame", "way"), BAD.values(), ids=BAD)
def test_an_invalid_frame_is_refused(frame: str | bytes, way: str | None) -> None:
    with pytest.raises(InvalidRequest):
        decode(frame, way)


@given(st.binary(max_size=200), st.sampled_from(WAYS))
def test_random_bytes_are_refused(frame: bytes, way: str | None) -> None:
    try:
        decode(frame, way)
    except InvalidRequest:
        return
    raise AssertionError("random bytes are no message")
