"""Builds and signs, verifies and parses Jupyter messages on the wire. Pure: frames in, values out.

Source: "Messaging in Jupyter", protocol 5.4, wire protocol. A kernel's frames may be hostile. Either they become a
`Message` whose parts have the right JSON types, or `MalformedMessage` gives the reason.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from jupyter_client.session import DELIM, Session

from sessions.model import bounded_json, exact_json
from sessions.model.connection_info import SIGNATURE

#: number of frames: delimiter, signature, header, parent header, metadata, content
_PARTS = 6
#: maximum characters of an id or a type, because the gateway keeps the ids of requests
NAME_MAX = 256
#: maximum levels of JSON in a part; code that serializes it again has limits, too (orjson 254, Python's stack 1000)
DEPTH_MAX = 200
#: levels of a display's content around the value of a media type
_AROUND = 2
#: In a part above so many bytes, at most `SAMPLE_VALUES` values are checked before all brackets are counted.
LONG = 64 * 1024
SAMPLE_VALUES = 100
_CONTAINERS = (dict, list)


class MalformedMessage(Exception):
    """A kernel sent frames that are no Jupyter message."""


class NestedTooDeeply(MalformedMessage):
    """A part has too many levels of JSON."""

    def __init__(self, content: dict[str, Any]) -> None:
        """Keep the value of the part, from which a display may be saved."""
        super().__init__("a part is nested too deeply")
        self.content = content


class TooManyValues(MalformedMessage):
    """A part has so many values that parsing it would block the event loop for too long."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from a kernel."""

    channel: str
    header: dict[str, Any]
    parent: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]
    buffers: tuple[bytes, ...] = ()
    #: bytes on the wire
    size: int = 0
    #: header, parent header, metadata and content as received, each valid JSON
    parts: tuple[bytes, ...] = field(default=(), compare=False, repr=False)

    @property
    def type(self) -> str:
        """The `msg_type` of the header."""
        return str(self.header["msg_type"])

    @property
    def parent_id(self) -> str:
        """The id of the request that caused the message. Empty if the kernel names none."""
        parent = self.parent.get("msg_id")
        return parent if isinstance(parent, str) else ""

    def without_parsed_json(self) -> Message:
        """Return the message without its parsed JSON, which takes half of its memory, to keep it for a client."""
        header = {name: self.header[name] for name in ("msg_id", "msg_type")}
        parent = {"msg_id": self.parent_id}
        return Message(self.channel, header, parent, {}, {}, self.buffers, self.size, self.parts)


class Codec:
    """Signs and verifies the messages of one kernel with its HMAC key."""

    def __init__(self, key: bytes, signature: str = SIGNATURE) -> None:
        self._session = Session(key=key, username="gateway", signature_scheme=signature)

    def request(
        self, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None
    ) -> tuple[str, list[bytes]]:
        """Build and sign one request.

        Returns:
            the request's message id and frames.
        """
        message = self._session.msg(msg_type, content, parent=parent)
        return str(message["header"]["msg_id"]), self._session.serialize(message)

    def sign(self, parts: Sequence[bytes], buffers: Sequence[bytes]) -> list[bytes]:
        """Sign a message that a client has built, and return its frames.

        Args:
            parts: header, parent header, metadata and content.
            buffers: frames after the parts.
        """
        return [DELIM, self._session.sign(list(parts)), *parts, *buffers]

    def parse(self, channel: str, frames: Sequence[bytes]) -> Message:
        """Verify and parse the frames of one message that arrived on `channel`.

        Raises:
            MalformedMessage: when the delimiter is missing, the signature is wrong, or a part is no JSON or has the
                wrong shape.
        """
        try:
            start = frames.index(DELIM)
        except ValueError:
            raise MalformedMessage("no delimiter") from None
        if len(frames) < start + _PARTS:
            raise MalformedMessage("too few frames")
        signature, *parts = frames[start + 1 : start + _PARTS]
        if not hmac.compare_digest(self._session.sign(parts), signature):
            raise MalformedMessage("wrong signature")
        parsed = [_json_object(part) for part in parts[:-1]]
        try:
            parsed.append(_json_object(parts[-1]))
        except NestedTooDeeply as error:
            if channel != "iopub":
                raise
            parsed.append(_without_deep_values(error.content))
        except TooManyValues as error:
            if channel != "iopub":
                raise
            parsed[0], *parsed[3:] = _shown_instead(parsed[0][0], str(error))
        header, parent, metadata, content = (value for value, _ in parsed)
        if not _is_name(header.get("msg_type")) or not _is_name(header.get("msg_id")):
            raise MalformedMessage("header without msg_type or msg_id")
        if isinstance(parent.get("msg_id"), str) and not _is_name(parent["msg_id"]):
            raise MalformedMessage("parent's msg_id is too long")
        buffers = tuple(frames[start + _PARTS :])
        valid = tuple(part for _, part in parsed)
        return Message(channel, header, parent, metadata, content, buffers, sum(map(len, frames)), valid)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= NAME_MAX


def _json_object(part: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        value = exact_json.loads(part)
    except bounded_json.TooManyValues as error:
        raise TooManyValues(error.msg) from None
    except orjson.JSONDecodeError:
        part = part.decode("utf-8", "replace").encode()
        value = _forgiving(part)
    if not isinstance(value, dict):
        raise MalformedMessage("a part is not a JSON object")
    # Counting brackets reads every byte, and a long part usually has only a few long texts. So a few values are checked
    # first.
    told = len(part) > LONG and _flat(value, SAMPLE_VALUES)
    if not told and part.count(b"[") + part.count(b"{") > DEPTH_MAX and not _flat(value):
        raise NestedTooDeeply(value)
    return value, part


def _without_deep_values(content: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return a display's content, in which a text replaces each media type's value that is nested too deeply.

    Raises:
        MalformedMessage: when another part of the content is nested too deeply, too.
    """
    data = content.get("data")
    if isinstance(data, dict):
        text = f"kernel-gateway: this was left out: it is nested more deeply than {DEPTH_MAX - _AROUND} levels"
        values = {mime: value if _flat({mime: value}, depth=DEPTH_MAX - 1) else text for mime, value in data.items()}
        content = content | {"data": values}
    if not _flat(content):
        raise MalformedMessage("a part is nested too deeply")
    return content, exact_json.dumps(content)


def _shown_instead(header: dict[str, Any], why: str) -> list[tuple[dict[str, Any], bytes]]:
    """Return header and content of a line of output, which tells the client that an output was left out."""
    text = f"kernel-gateway: an output was left out: {why}\n"
    shown = {**header, "msg_type": "stream"}, {"name": "stderr", "text": text}
    return [(part, orjson.dumps(part)) for part in shown]


def _flat(value: dict[str, Any], most: float = math.inf, depth: int = DEPTH_MAX) -> bool:
    """Return whether `value` has at most `depth` levels. False also if this needs a look at more than `most` values."""
    level: list[Any] = [value]
    for _ in range(depth):
        most -= sum(map(len, level))
        if most < 0:
            return False
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, _CONTAINERS)]
        if not level:
            return True
    return False


def _forgiving(part: bytes) -> Any:
    # ipykernel forwards bytes that are no UTF-8 (a cell that prints '\udc80') unchanged.
    try:
        return exact_json.loads(part)
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(f"no JSON: {error.msg}") from None
