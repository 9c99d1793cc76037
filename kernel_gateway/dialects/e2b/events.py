"""Converts events of an execution to the lines of JSON that E2B's clients read. Pure functions, except for timestamps.

Source: `e2b-dev/code-interpreter`, its server's `messaging.py` and the clients' `models`, read in November 2026.
All text is escaped to ASCII, because the clients split lines at all line breaks of Unicode and decode each chunk of the
connection separately.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kernel_gateway.http.formats import failure_text
from kernel_gateway.http.terminal_text import without_escapes
from kernel_image.protocol import CHART_MIME, DATA_MIME, SAVED_IMAGES
from sessions.cells.outputs import Event, left_out
from sessions.cells.packed import Output
from sessions.model.errors import KernelDied, SessionError
from sessions.model.values import ExecutionResult

#: field of a result, by media type; all other media types are in `extra`
FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    CHART_MIME: "chart",
    DATA_MIME: "data",
    "e2b/chart": "chart",
    "e2b/data": "data",
}
#: additional formats that cells are asked for
FORMATS = (CHART_MIME, DATA_MIME, SAVED_IMAGES, "application/json")
#: maximum characters of text in one event: the time of the JavaScript client grows with the square of a line's length
TEXT_MAX = 64 * 1024

KEEPALIVE: Event = {"type": "keepalive"}
END: Event = {"type": "end_of_execution"}


def line(event: Event) -> bytes:
    """Return an event as a line of ASCII."""
    return json.dumps(event, allow_nan=False).encode() + b"\n"


def events_of(event: Event) -> Iterator[Event]:
    """Yield the client's events for an event of an execution. Clients do not know some events, which yield nothing."""
    match event:
        case {"type": "started", "execution_count": int() as count}:
            yield {"type": "number_of_executions", "execution_count": count}
        case {"type": "output", "output": {"output_type": "stream", "name": name, "text": text}}:
            timestamp = datetime.now(UTC).isoformat()
            for start in range(0, len(text), TEXT_MAX):
                yield {"type": name, "text": text[start : start + TEXT_MAX], "timestamp": timestamp}
        case {"type": "output", "output": {"output_type": "error"} as output}:
            yield error(output["ename"], output["evalue"], without_escapes("\n".join(output["traceback"])))
        case {"type": "output", "output": output}:
            yield _result(output)


def _result(output: Output) -> Event:
    result: Event = {"type": "result"}
    extra: dict[str, Any] = {}
    for mime, value in output["data"].items():
        if mime in FIELDS:
            result[FIELDS[mime]] = _unquoted(value) if mime == "text/plain" else value
        else:
            extra[mime] = value
    return result | {"extra": extra, "is_main_result": output["output_type"] == "execute_result"}


def _unquoted(text: str) -> str:
    """Return a string's representation without the quotes, as clients expect it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def error(name: str, value: str, traceback: str = "") -> Event:
    """Return an error as an event."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def omission(result: ExecutionResult) -> Event:
    """Return an event of the stream stderr that reports left-out output, because clients have no event for that."""
    return {"type": "stderr", "text": left_out(result.omitted), "timestamp": datetime.now(UTC).isoformat()}


def failure_event(failure: SessionError) -> Event:
    """Return the event for a run that the gateway ended or refused."""
    if isinstance(failure, KernelDied):  # clients recognise this name
        return error("ContextRestarting", f"Context was restarted. {failure_text(failure)}")
    return error(failure.name, failure_text(failure))
