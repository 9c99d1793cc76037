"""Converts outputs to short plain text, for language models and logs: without colours, markup and frames of libraries.

Printed text becomes what a terminal shows at its end, for example only the last state of a progress bar. Long text is
cut before it is searched, so the work does not grow with the length of the output.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.terminal_text import on_terminal, without_escapes
from sessions.cells.outputs import shortened

#: maximum characters of a traceback, of a result, and of printed text
TRACEBACK_MAX = 4000
TEXT_MAX = 10_000
PRINTED_MAX = 50_000
#: printed text is cut to so many characters before it is converted
_READ_MAX = 100_000
#: printed text with more characters is converted in a thread, because it would block the event loop for too long
_QUICK = 10_000
#: number of a traceback's last lines that are converted
_LINES_MAX = 200

#: first line of a frame in IPython's tracebacks
_FRAME = re.compile(r"(?:File (?P<path>.+?):\d+|Cell In\[\d+\], line \d+)(?:, in |\n|$)")
#: frames of installed packages, the standard library and the interpreter
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>")
#: the spaces with which IPython moves the word `Traceback` to the right edge; a match begins only at the first space
_BEFORE_TRACEBACK = re.compile(r"(?<! ) {2,}+(?=Traceback )")
#: IPython writes one of these lines between an exception and the exception that followed from it
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


async def plain_event_in_time(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with plain output. Long text is converted in a thread, so that other clients need not wait."""
    long = event["type"] == "output" and len(event["output"].get("text", "")) > _QUICK
    return await asyncio.to_thread(plain_event, event) if long else plain_event(event)


def plain_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of a streamed execute with plain output."""
    match event["type"]:
        case "output":
            return event | {"output": _plain_piece(event["output"])}
        case "update_display_data":
            return event | {"data": _plain_data(event["data"])}
    return event


def _plain_piece(output: dict[str, Any]) -> dict[str, Any]:
    """Return an output of a streamed execute as plain text.

    Text that overwrites the line before it keeps its carriage return at the beginning.
    """
    plain = plain_output(output)
    if output["output_type"] == "stream" and output["text"].startswith("\r"):
        return plain | {"text": "\r" + plain["text"]}
    return plain


def plain_output(output: dict[str, Any]) -> dict[str, Any]:
    """Return an nbformat output as plain text. Images are kept; all other media types become `text/plain`."""
    match output["output_type"]:
        case "stream":
            return output | {"text": shortened(on_terminal(shortened(output["text"], _READ_MAX)), PRINTED_MAX)}
        case "error":
            return output | {
                "evalue": _plain(output["evalue"], TEXT_MAX),
                "traceback": _plain_traceback(output["traceback"]),
            }
    return output | {"data": _plain_data(output["data"])}


def _plain_data(data: dict[str, Any]) -> dict[str, Any]:
    images = {mime: value for mime, value in data.items() if mime.startswith("image/")}
    text = readable_text(data)
    return images | {"text/plain": _plain(f"<{', '.join(data)}>" if text is None else text, TEXT_MAX)}


def _plain_traceback(lines: list[str]) -> list[str]:
    """Return the last of chained exceptions, with only the frames of the user's own code."""
    lines = [_plain(line, TEXT_MAX) for line in lines[-_LINES_MAX:]]
    last = max((number for number, line in enumerate(lines) if line.strip().startswith(_CHAINED)), default=-1)
    kept: list[str] = []
    for line in lines[last + 1 :]:
        frame = _FRAME.match(line)
        if frame is None or frame["path"] is None or not _LIBRARY.search(frame["path"]):
            kept.append(_BEFORE_TRACEBACK.sub(" ", line))
    if kept and not kept[0].strip("-"):  # a line of dashes
        del kept[0]
    return shortened("\n".join(kept), TRACEBACK_MAX).split("\n")


def _plain(text: str, most: int) -> str:
    return without_escapes(shortened(text, most))
