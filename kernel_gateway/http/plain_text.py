"""Converts outputs to short plain text, for language models and logs: without colours, markup and frames of libraries.

Printed text becomes what a terminal shows at its end, for example only the last state of a progress bar. Long text is
cut before it is searched, so the work does not grow with the length of the output. What is cut off is counted.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from kernel_gateway.http.readable_text import readable_text
from kernel_gateway.http.terminal_text import on_terminal, without_escapes
from sessions.cells.outputs import shortened, without_middle

#: maximum characters of a traceback, of a result, and of printed text
TRACEBACK_MAX = 4000
TEXT_MAX = 10_000
PRINTED_MAX = 50_000
#: of longer printed text, only so many characters at its two ends are converted
_READ_MAX = 100_000
#: printed text with more characters is converted in a thread, because it would block the event loop for too long
_QUICK = 10_000
#: outputs of a result that are converted without a thread
_QUICK_OUTPUTS = 100
#: number of a traceback's last lines that are converted
_LINES_MAX = 200

#: first line of a frame in IPython's tracebacks
_FRAME = re.compile(r"(?:File (?P<path>.+?):\d+|Cell In\[\d+\], line \d+)(?:, in |\n|$)")
#: frames of installed packages (also of compiled ones), the standard library, the interpreter and our own kernel
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|\.(?:pyx|pxi)$|/lib/python3|/python_kernel/|^<frozen|^<string>")
#: the spaces with which IPython moves the word `Traceback` to the right edge; a match begins only at the first space
_BEFORE_TRACEBACK = re.compile(r"(?<! ) {2,}+(?=Traceback )")
#: IPython writes one of these lines between an exception and the exception that followed from it
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


class PlainText:
    """Converts the outputs of one cell."""

    def __init__(self) -> None:
        #: bytes of text that were cut off until now
        self.omitted = 0

    def counted(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a cell's result. What was cut off from its outputs is counted, too."""
        omitted = result["omitted_bytes"] + self.omitted
        return result | {"truncated": result["truncated"] or self.omitted > 0, "omitted_bytes": omitted}

    async def event_in_time(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with plain output.

        Long text is converted in a thread, so that other clients need not wait.
        """
        long = event["type"] == "output" and len(event["output"].get("text", "")) > _QUICK
        return await asyncio.to_thread(self.event, event) if long else self.event(event)

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event of a streamed execute with plain output."""
        match event["type"]:
            case "output":
                return event | {"output": self._piece(event["output"])}
            case "update_display_data":
                return event | {"data": self._data(event["data"])}
        return event

    def _piece(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return an output of a streamed execute as plain text.

        Text that overwrites the line before it keeps its carriage return at the beginning.
        """
        plain = self.output(output)
        if output["output_type"] == "stream" and output["text"].startswith("\r"):
            return plain | {"text": "\r" + plain["text"]}
        return plain

    def output(self, output: dict[str, Any]) -> dict[str, Any]:
        """Return an nbformat output as plain text. Images are kept; all other media types become `text/plain`."""
        match output["output_type"]:
            case "stream":
                return output | {"text": self._printed(output["text"])}
            case "error":
                return output | {
                    "evalue": self._text(output["evalue"]),
                    "traceback": self._traceback(output["traceback"]),
                }
        return output | {"data": self._data(output["data"])}

    def _printed(self, text: str) -> str:
        if len(text) <= _READ_MAX:
            return self._shortened(on_terminal(text), PRINTED_MAX)
        first = on_terminal(text[: _READ_MAX // 2])[: PRINTED_MAX // 2]
        last = on_terminal(text[len(text) - _READ_MAX // 2 :])[-(PRINTED_MAX // 2) :]
        self.omitted += _size(text) - _size(first) - _size(last)
        return without_middle(first, last, len(text) - len(first) - len(last))

    def _data(self, data: dict[str, Any]) -> dict[str, Any]:
        images = {mime: value for mime, value in data.items() if mime.startswith("image/")}
        text = readable_text(data)
        return images | {"text/plain": self._text(f"<{', '.join(data)}>" if text is None else text)}

    def _traceback(self, lines: list[str]) -> list[str]:
        """Return an exception, and those from which it followed, with only the frames of the user's own code.

        Of an earlier exception that no line of that code has seen, nothing is kept.
        """
        kept: list[str] = []
        part: list[str] = []
        seen = False
        for line in (self._text(line) for line in lines[-_LINES_MAX:]):
            if line.strip().startswith(_CHAINED):
                kept += [*part, line] if seen else []
                part, seen = [], False
                continue
            frame = _FRAME.match(line)
            own = frame is not None and (frame["path"] is None or not _LIBRARY.search(frame["path"]))
            seen = seen or own
            if (frame is None or own) and line.strip("-"):  # IPython writes a line of dashes before the first exception
                part.append(_BEFORE_TRACEBACK.sub(" ", line))
        return self._shortened("\n".join(kept + part), TRACEBACK_MAX).split("\n")

    def _text(self, text: str) -> str:
        return without_escapes(self._shortened(text, TEXT_MAX))

    def _shortened(self, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        self.omitted += _size(text[most // 2 : len(text) - most // 2])
        return shortened(text, most)


async def plain_outputs(outputs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return outputs in nbformat's form as plain text, and the bytes of text that were cut off.

    Outputs with much text are converted in a thread, so that other clients need not wait.
    """
    plain = PlainText()

    def converted() -> list[dict[str, Any]]:
        return list(map(plain.output, outputs))

    quick = len(outputs) <= _QUICK_OUTPUTS and sum(map(_length, outputs)) <= _QUICK
    plain_ones = converted() if quick else await asyncio.to_thread(converted)
    return plain_ones, plain.omitted


def _length(output: dict[str, Any]) -> int:
    """Return the characters of an output that are converted. An output that is more than text counts as long."""
    match output["output_type"]:
        case "stream":
            return len(output["text"])
        case "error":
            return len(output["evalue"]) + sum(map(len, output["traceback"]))
    texts = [value for mime, value in output["data"].items() if not mime.startswith("image/")]
    return sum(len(text) if isinstance(text, str) else _QUICK + 1 for text in texts)


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
