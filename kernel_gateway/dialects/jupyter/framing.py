"""Encodes and decodes Jupyter messages in WebSocket frames, in the binary and the legacy format. Pure functions.

Source: "WebSocket kernel wire protocols" of Jupyter Server: the default protocol and
`v1.kernel.websocket.jupyter.org`. The parts of a kernel's message are copied into the frame without parsing them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson

from sessions.kernels.messages import NAME_MAX, Message
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest

#: the binary subprotocol; a connection without a subprotocol uses the legacy format
V1 = "v1.kernel.websocket.jupyter.org"
#: maximum number of parts of one message
PARTS_MAX = 1024
_PARTS = ("header", "parent_header", "metadata", "content")


@dataclass(frozen=True, slots=True)
class Request:
    """A message from a client."""

    channel: str
    header: dict[str, Any]
    #: header, parent header, metadata and content, each as JSON
    parts: tuple[bytes, ...]
    buffers: tuple[bytes, ...]

    @property
    def type(self) -> str:
        """The field `msg_type` of the header."""
        return str(self.header["msg_type"])


def decode(frame: str | bytes, subprotocol: str | None) -> Request:
    """Decode a client's frame.

    Raises:
        InvalidRequest: when the frame is not a valid message.
    """
    if subprotocol == V1:
        if isinstance(frame, str):
            raise InvalidRequest("a text frame on the binary subprotocol")
        channel, *rest = _split(frame, "<Q", has_end_offset=True)
        if len(rest) < len(_PARTS):
            raise InvalidRequest("a frame with too few parts")
        parts, buffers = tuple(rest[: len(_PARTS)]), tuple(rest[len(_PARTS) :])
        return Request(channel.decode("utf-8", "replace"), _header(_json(parts[0])), parts, buffers)
    text, buffers = frame, ()
    if isinstance(frame, bytes):
        text, *rest = _split(frame, ">I", has_end_offset=False)
        buffers = tuple(rest)
    return _legacy(_json(text), buffers)


def _legacy(message: Any, buffers: tuple[bytes, ...]) -> Request:
    if not isinstance(message, dict):
        raise InvalidRequest("the frame is no JSON object")
    values = [message.get(name) or {} for name in _PARTS]
    if not all(isinstance(value, dict) for value in values):
        raise InvalidRequest("a part of the message is no JSON object")
    channel = message.get("channel") or "shell"
    return Request(str(channel), _header(values[0]), tuple(map(_written, values)), buffers)


def _header(header: Any) -> dict[str, Any]:
    names = [header.get(name) for name in ("msg_id", "msg_type")] if isinstance(header, dict) else [None]
    if not all(isinstance(name, str) and 0 < len(name) <= NAME_MAX for name in names):
        raise InvalidRequest("the message's header has no msg_id or no msg_type")
    _written(header)  # check that the header can be serialized, because answers repeat it
    return dict(header)


def _written(value: Any) -> bytes:
    try:
        return exact_json.dumps(value)
    except orjson.JSONEncodeError:  # orjson reads 1024 levels and writes 254
        raise InvalidRequest("the message is nested too deeply") from None


def _json(text: str | bytes) -> Any:
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the frame is no valid JSON: {error.msg}") from None


def _split(frame: bytes, number: str, *, has_end_offset: bool) -> list[bytes]:
    """Split a binary frame into its parts. It has the number of offsets, the offset of each part, and then the parts.

    Args:
        frame: the whole frame.
        number: the `struct` format of the numbers.
        has_end_offset: True if the last offset is the end of the frame.

    Raises:
        InvalidRequest: when the frame is too short, or an offset is wrong.
    """
    one = struct.calcsize(number)
    try:
        (count,) = struct.unpack_from(number, frame)
        if not 1 + has_end_offset <= count <= PARTS_MAX:
            raise InvalidRequest("a frame with no parts, or too many")
        offsets = list(struct.unpack_from(f"{number[0]}{count}{number[1]}", frame, one))
    except struct.error:
        raise InvalidRequest("a frame that is too short") from None
    if not has_end_offset:
        offsets.append(len(frame))
    if offsets != sorted(offsets) or offsets[0] < one * (count + 1) or offsets[-1] > len(frame):
        raise InvalidRequest("a frame with part offsets outside its bounds")
    return [frame[start:end] for start, end in pairwise(offsets)]


def encode(message: Message, subprotocol: str | None) -> tuple[bytes, bool]:
    """Encode a message for a client.

    Returns:
        the frame, and whether it is binary.
    """
    if subprotocol == V1:
        return _joined([message.channel.encode(), *message.parts, *message.buffers], "<Q", has_end_offset=True), True
    named = zip(_PARTS, message.parts, strict=True)
    fields = [b'"%s":%s' % (name.encode(), part) for name, part in named]
    fields += [
        b'"channel":"%s"' % message.channel.encode(),
        b'"msg_id":%s' % orjson.dumps(message.header["msg_id"]),
        b'"msg_type":%s' % orjson.dumps(message.header["msg_type"]),
        b'"buffers":[]',
    ]
    text = b"{%s}" % b",".join(fields)
    if not message.buffers:
        return text, False
    return _joined([text, *message.buffers], ">I", has_end_offset=False), True


def _joined(parts: Sequence[bytes], number: str, *, has_end_offset: bool) -> bytes:
    count = len(parts) + has_end_offset
    offsets = [struct.calcsize(number) * (count + 1)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return b"".join([struct.pack(f"{number[0]}{count + 1}{number[1]}", count, *offsets[:count]), *parts])
