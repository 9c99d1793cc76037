"""Jupyter messages on the wire: build and sign, verify and parse. Pure: frames in, values out.

Source: "Messaging in Jupyter", protocol 5.4, wire protocol. What comes from a kernel is hostile: a frame
either becomes a `Message` whose parts have the right JSON types, or `MalformedMessage` says why not.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from jupyter_client.session import DELIM, Session

from sessions.models import SIGNATURE

#: delimiter, signature, header, parent header, metadata, content
_PARTS = 6
#: characters of an id or a type; ids of requests are kept
NAME_MAX = 256
#: levels of JSON in a part; whoever writes it again has limits of their own (orjson 254, Python's stack 1000)
DEPTH_MAX = 100
#: bytes of a part, beyond which so many of its values are looked at before its brackets are counted
LONG = 64 * 1024
FEW = 100
_CONTAINERS = (dict, list)


class MalformedMessage(Exception):
    """A kernel sent frames that are no Jupyter message."""


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
    #: header, parent header, metadata and content as they came, each valid JSON
    parts: tuple[bytes, ...] = field(default=(), compare=False, repr=False)

    @property
    def type(self) -> str:
        """`msg_type` of the header."""
        return str(self.header["msg_type"])

    @property
    def parent_id(self) -> str:
        """The id of the request that caused it; empty when the kernel names none."""
        parent = self.parent.get("msg_id")
        return parent if isinstance(parent, str) else ""

    def as_it_came(self) -> Message:
        """The same without what was read in it, which takes as much memory again: for one that waits to be sent on."""
        header = {name: self.header[name] for name in ("msg_id", "msg_type")}
        parent = {"msg_id": self.parent_id}
        return Message(self.channel, header, parent, {}, {}, self.buffers, self.size, self.parts)


class Codec:
    """Signs and checks messages of one kernel with its HMAC key."""

    def __init__(self, key: bytes, signature: str = SIGNATURE) -> None:
        self._session = Session(key=key, username="gateway", signature_scheme=signature)

    def request(
        self, msg_type: str, content: dict[str, Any], parent: dict[str, Any] | None = None
    ) -> tuple[str, list[bytes]]:
        """Build and sign one request.

        Returns:
            its message id, and its frames.
        """
        message = self._session.msg(msg_type, content, parent=parent)
        return str(message["header"]["msg_id"]), self._session.serialize(message)

    def sign(self, parts: Sequence[bytes], buffers: Sequence[bytes]) -> list[bytes]:
        """The frames of a message that a client has built.

        Args:
            parts: header, parent header, metadata and content.
            buffers: what comes after them.
        """
        return [DELIM, self._session.sign(list(parts)), *parts, *buffers]

    def parse(self, channel: str, frames: Sequence[bytes]) -> Message:
        """Verify and parse what came in on `channel`.

        Raises:
            MalformedMessage: no delimiter, a wrong signature, no JSON, or JSON of the wrong shape.
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
        parsed = [_json_object(part) for part in parts]
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
        value = orjson.loads(part)
    except orjson.JSONDecodeError:
        part = part.decode("utf-8", "replace").encode()
        value = _forgiving(part)
    if not isinstance(value, dict):
        raise MalformedMessage("a part is not a JSON object")
    # Counting looks at every byte, and what is long is mostly a few texts.
    told = len(part) > LONG and _flat(value, FEW)
    if not told and part.count(b"[") + part.count(b"{") > DEPTH_MAX and not _flat(value):
        raise MalformedMessage("a part is nested too deeply")
    return value, part


def _flat(value: dict[str, Any], most: float = math.inf) -> bool:
    """Whether it is nested no deeper than it may, and that can be told by looking at `most` values."""
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        most -= sum(map(len, level))
        if most < 0:
            return False
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, _CONTAINERS)]
        if not level:
            return True
    return False


def _forgiving(part: bytes) -> Any:
    # ipykernel passes bytes that are no UTF-8 (a cell printing '\udc80') through as they are.
    try:
        return orjson.loads(part)
    except orjson.JSONDecodeError as error:
        raise MalformedMessage(f"no JSON: {error.msg}") from None
