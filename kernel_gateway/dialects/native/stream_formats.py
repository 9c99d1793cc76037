"""Formats of a streamed execute, and the choice of the format that a client prefers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
_WEIGHT = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")
#: media type of a stream → function that serializes an event
STREAMS: dict[str, Render] = {
    "application/x-ndjson": _ndjson,
    "text/event-stream": sse,
}


def wanted_stream(accept: str) -> str | None:
    """Return the media type of the stream that a client prefers, or None if it prefers one JSON object.

    Args:
        accept: value of the header `Accept`. A weight of 0 excludes a type. Source: RFC 9110, 12.4.2 and 12.5.1.
    """
    weights = dict.fromkeys([*STREAMS, _WHOLE], 0.0)
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        if media_type in weights:
            given = [found[1] for part in parameters if (found := _WEIGHT.fullmatch(part))]
            weights[media_type] = float(given[0]) if given else 1.0
    best = max(STREAMS, key=weights.__getitem__)
    return best if weights[best] and weights[best] >= weights[_WHOLE] else None
