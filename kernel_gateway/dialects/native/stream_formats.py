"""Formats of a streamed execute, and the choice of the format that a client prefers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_gateway.http.accept import weights
from sessions.model import exact_json

#: function that serializes an event with its number
Render = Callable[[dict[str, Any], int], bytes]


def _ndjson(event: dict[str, Any], number: int) -> bytes:
    return exact_json.dumps({"id": number} | event) + b"\n"


def sse(event: dict[str, Any], number: int) -> bytes:
    """Serialize a server-sent event. Source: WHATWG HTML, 9.2 Server-sent events."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, str(event["type"]).encode(), exact_json.dumps(event))


#: a comment, which clients ignore
SSE_COMMENT = b":\n\n"
#: seconds without an event after which a comment is sent, because proxies drop idle connections. The source of `sse`
#: recommends this number
PAUSE = 15.0


#: media type of an answer that is not a stream
_WHOLE = "application/json"
#: media type of a stream → function that serializes an event
STREAMS: dict[str, Render] = {
    "application/x-ndjson": _ndjson,
    "text/event-stream": sse,
}


def wanted_stream(accept: str) -> str | None:
    """Return the media type of the stream that a client prefers, or None if it prefers one JSON object.

    Args:
        accept: value of the header `Accept`.
    """
    wanted = dict.fromkeys([*STREAMS, _WHOLE], 0.0) | weights(accept)
    best = max(STREAMS, key=wanted.__getitem__)
    return best if wanted[best] and wanted[best] >= wanted[_WHOLE] else None
