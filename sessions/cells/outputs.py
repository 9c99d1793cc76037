"""Jupyter messages in, nbformat outputs out. Pure: no I/O, no clock.

An `OutputArea` holds the outputs of one cell. `add` takes the kernel's iopub messages, keeps the outputs that a
notebook would show in the end, and returns the event for a streaming client.

Only outputs that are kept count towards the limit. Cleared and replaced outputs make room again, so a live display may
run for hours.

Source: nbformat 4.5 (outputs), "Messaging in Jupyter" 5.4 (stream, display_data, clear_output, error).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sessions.cells.packed import Output, PackedOutputs
from sessions.kernels.messages import Message
from sessions.model import exact_json

Event = dict[str, Any]

#: maximum number of outputs, and of further pieces of their text, that are kept of one cell
PIECES_MAX = 100_000
#: bytes that an output takes in memory in addition to its content
OUTPUT_BYTES = 400
#: bytes that a further piece of a stream takes in memory in addition to its text
PIECE_BYTES = 64
#: characters of an error's name, value and traceback that are kept even when the limit is reached
NAME_MAX = 200
VALUE_MAX = 4000
TRACEBACK_MAX = 32_000
#: the mimetypes whose value nbformat allows to be any JSON
JSON_MIME = re.compile(r"application/(.*\+)?json")


def output_size(message: Message) -> int:
    """Return the bytes of output in an iopub message."""
    if message.type == "stream":
        text = message.content.get("text")
        return _size(text) if isinstance(text, str) else 0
    return message.size if message.type in _HANDLERS or message.type == "update_display_data" else 0


@dataclass(slots=True, eq=False)
class _Displays:
    """The displays of a cell that have the same id. An update takes the same time for one display and for many."""

    #: number of the displays, and bytes of their contents
    count: int = 0
    kept: int = 0
    #: indices of the displays that no update has changed yet
    fresh: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has read the outputs of a cell."""

    #: number of times that earlier outputs of the cell were cleared or replaced; -1: the reader has none
    generation: int = -1
    #: number of outputs, and of pieces of text of the last one; 0 pieces if that is no text
    outputs: int = 0
    pieces: int = 0


class OutputArea:
    """The outputs of one cell, as a notebook would keep them, with a limit in bytes.

    Text and tracebacks beyond the limit are cut. A display keeps the media types for which there is room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._outputs = PackedOutputs()
        #: bytes of the outputs' contents
        self._kept = 0
        #: number of pieces of text, without the first piece of each output
        self._further_pieces = 0
        #: displays that have an id, by this id
        self._displays: dict[str, _Displays] = {}
        self._max_bytes = max_bytes
        self._clear_pending = False
        #: number of times that outputs were cleared or replaced
        self._generation = 0
        #: beginnings of the names of the errors among the outputs
        self._errors: set[str] = set()
        #: whether an error was kept although the limit was reached
        self._over_limit = False
        #: whether some output was left out, and its bytes. Output that was cleared afterwards does not count.
        self.truncated = False
        self.omitted = 0

    @property
    def size(self) -> int:
        """Bytes that the outputs take in memory."""
        return self._kept + OUTPUT_BYTES * len(self._outputs) + PIECE_BYTES * self._further_pieces

    def add(self, message: Message) -> Event | None:
        """Add one iopub message.

        Returns:
            the event for a streaming client; None when nothing changed.
        """
        handler = _HANDLERS.get(message.type)
        return handler(self, message) if handler else None

    def outputs(self) -> list[Output]:
        """Return the outputs in nbformat's form, without the fields that only this class uses."""
        return [joined(output) for output in self._outputs]

    def packed_outputs(self) -> PackedOutputs:
        """Return the outputs as they are now, for `joined`. The caller may iterate over them while others arrive."""
        return self._outputs.copy()

    def copied_outputs(self) -> PackedOutputs:
        """Return a copy of the outputs, for `joined`. A last line says how much was left out, if anything was."""
        outputs = self.packed_outputs()
        if self.truncated:
            outputs.append({"output_type": "stream", "name": "stderr", "text": [left_out(self.omitted)]})
        return outputs

    def since(self, place: Place) -> tuple[bool, PackedOutputs, Place]:
        """Return what is new to a reader.

        Returns:
            whether the reader must drop the outputs that it has, the further outputs, for `joined`, and the place
            behind them. The first output may be the text by which the reader's last one has grown.
        """
        fresh = place.generation != self._generation
        start = Place(self._generation) if fresh else place
        text = self._outputs.last()
        behind = Place(self._generation, len(self._outputs), 0 if text is None else len(text["text"]))
        return fresh, self._outputs.since(start.outputs, start.pieces), behind

    @property
    def failed(self) -> bool:
        """Whether the outputs show an error."""
        return bool(self._errors)

    @property
    def displays(self) -> Collection[str]:
        """Ids of the displays among the outputs, which count towards the outputs' bytes."""
        return self._displays.keys()

    def update(self, message: Message) -> Event | None:
        """Replace the content of the displays that an `update_display_data` names.

        Returns:
            the event for a streaming client; None when nothing changed.
        """
        display_id = display_id_of(message) or ""
        displays = self._displays.get(display_id)
        if displays is None:
            return None
        room = (self._max_bytes - self._kept + displays.kept) // displays.count
        content, size = self._fitted(_display_content(message), message.size, room, _size(display_id))
        if not content:
            return None
        self._outputs.replace(display_id, displays.fresh, content)
        self._generation += 1
        displays.fresh.clear()
        self._kept += size * displays.count - displays.kept
        displays.kept = size * displays.count
        return {"type": "update_display_data", "display_id": display_id} | content

    def show(self, data: Mapping[str, Any]) -> Event | None:
        """Add a display that no iopub message carries.

        Args:
            data: content of the display by media type.

        Returns:
            the event for a streaming client; None when there was no room for the display.
        """
        forms = _forms(data)
        return self._add_display({"output_type": "display_data"}, {"data": forms, "metadata": {}}, _size_of(forms))

    def fail(self, error: Mapping[str, Any]) -> Event | None:
        """Add the cell's error, unless the outputs show it already. There is always room for this error.

        Args:
            error: content of the cell's reply.

        Returns:
            the event for a streaming client; None when the error is shown already.
        """
        shown = str(error.get("ename", ""))[:NAME_MAX] in self._errors
        return None if shown else self._add_error(error, forced=True)

    def _room(self) -> int:
        """Return the bytes for which there is room. A number below 0 means that no more outputs are kept."""
        if self._clear_pending:
            return self._max_bytes
        few = len(self._outputs) + self._further_pieces < PIECES_MAX
        return self._max_bytes - self._kept if few else -1

    def _leave_out(self, size: int) -> None:
        self.truncated = True
        self.omitted += size

    def _append(self, output: Output, size: int) -> Event:
        if self._clear_pending:
            self._clear()
        event: Event = {"type": "output", "output": joined(output)}
        if display_id := output.get("display_id"):
            displays = self._displays.setdefault(display_id, _Displays())
            displays.fresh.append(len(self._outputs))
            displays.count += 1
            displays.kept += size
            event["display_id"] = display_id
        self._outputs.append(output)
        self._kept += size
        return event

    def _stream(self, message: Message) -> Event | None:
        name, text = message.content.get("name"), message.content.get("text")
        if not isinstance(name, str) or name not in {"stdout", "stderr"} or not isinstance(text, str):
            return None
        size, room = _size(text), self._room()
        if size > room:
            text, whole = _beginning(text, room), size
            size = _size(text)
            self._leave_out(whole - size)
            if not text:
                return None
        last = None if self._clear_pending else self._outputs.last()
        if last is None or last["name"] != name:
            return self._append({"output_type": "stream", "name": name, "text": [text]}, size)
        last["text"].append(text)
        self._further_pieces += 1
        self._kept += size
        return {"type": "output", "output": {"output_type": "stream", "name": name, "text": text}}

    def _display(self, message: Message) -> Event | None:
        output: Output = {"output_type": message.type}
        if message.type == "execute_result":
            output["execution_count"] = count_of(message)
        if display_id := display_id_of(message):
            output["display_id"] = display_id
        return self._add_display(output, _display_content(message), message.size)

    def _add_display(self, output: Output, content: Output, size: int) -> Event | None:
        name = _size(output.get("display_id", ""))
        shown, size = self._fitted(content, size, self._room(), name)
        return self._append(output | shown, size) if shown else None

    def _fitted(self, content: Output, size: int, room: int, name: int) -> tuple[Output, int]:
        """Return as much of a display as there is room for, and its bytes. An empty dict means that nothing fits.

        Args:
            content: data and metadata of the display.
            size: bytes of the display's message.
            room: bytes for which there is room.
            name: bytes of the display's id.
        """
        if size <= room:
            return content, size
        data, omitted = _fitting(content["data"], room - name)
        if content["metadata"]:
            omitted += _size_of(content["metadata"])
        if omitted:  # otherwise the content fits, and only other parts of the message were too large
            self._leave_out(omitted)
        return ({"data": data, "metadata": {}}, name + sum(map(_size_of_form, data.items()))) if data else ({}, 0)

    def _error(self, message: Message) -> Event | None:
        return self._add_error(message.content)

    def _add_error(self, content: Mapping[str, Any], *, forced: bool = False) -> Event | None:
        """Add an error. If it does not fit, the first such error is kept in a short form; `forced` keeps it always."""
        name, traceback = str(content.get("ename", "")), content.get("traceback")
        output = {
            "output_type": "error",
            "ename": name,
            "evalue": str(content.get("evalue", "")),
            "traceback": [str(line) for line in traceback] if isinstance(traceback, list) else [],
        }
        size = _size_of_error(output)
        if size > self._room():
            if self._over_limit and not forced:
                self._leave_out(size)
                return None
            output, whole = _shortened_error(output), size
            size = _size_of_error(output)
            self._over_limit = True
            if size < whole:
                self._leave_out(whole - size)
        event = self._append(output, size)
        self._errors.add(name[:NAME_MAX])
        return event

    def _clear_output(self, message: Message) -> Event | None:
        wait = message.content.get("wait") is True
        if wait:
            self._clear_pending = True
        else:
            self._clear()
        return {"type": "clear_output", "wait": wait}

    def _clear(self) -> None:
        self._generation += 1
        self._outputs.clear()
        self._displays.clear()
        self._errors.clear()
        self._kept = self._further_pieces = self.omitted = 0
        self._clear_pending = self._over_limit = self.truncated = False


_HANDLERS = {
    "stream": OutputArea._stream,  # noqa: SLF001 - this class's own table
    "display_data": OutputArea._display,  # noqa: SLF001
    "execute_result": OutputArea._display,  # noqa: SLF001
    "error": OutputArea._error,  # noqa: SLF001
    "clear_output": OutputArea._clear_output,  # noqa: SLF001
}


def _size(text: str) -> int:
    """Return the bytes of a text as UTF-8. Most text is ASCII, whose size is known without a copy."""
    return len(text) if text.isascii() else len(text.encode())


def _size_of(value: Any) -> int:
    """Return the bytes of a value in a MIME bundle."""
    return _size(value) if isinstance(value, str) else len(exact_json.dumps(value))


def _size_of_form(form: tuple[str, Any]) -> int:
    return _size(form[0]) + _size_of(form[1])


def _size_of_error(output: Output) -> int:
    return sum(map(_size, (output["ename"], output["evalue"], *output["traceback"])))


def _beginning(text: str, most: int) -> str:
    """Return as many whole characters of a text as fit in `most` bytes."""
    return text[: max(most, 0)].encode()[: max(most, 0)].decode(errors="ignore")


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters unchanged. Of a longer text, leave out the middle and say how much."""
    if len(text) <= most:
        return text
    return without_middle(text[: most // 2], text[-(most // 2) :], len(text) - most)


def without_middle(first: str, last: str, left_out: int) -> str:
    """Return the two ends of a text, with a line between them that says how many characters are left out."""
    return f"{first}\n... {left_out} characters left out ...\n{last}"


def left_out(omitted: int) -> str:
    """Return a line that tells readers how many bytes of output were left out. 0 means an unknown number."""
    what = f"{omitted} bytes of output were" if omitted else "some output was"
    return f"\n[kernel-gateway: {what} left out]\n"


def _shortened_error(output: Output) -> Output:
    name, value, traceback = output["ename"][:NAME_MAX], output["evalue"], "\n".join(output["traceback"])
    cut = {"ename": name, "evalue": shortened(value, VALUE_MAX)}
    if len(traceback) > TRACEBACK_MAX:
        cut["traceback"] = shortened(traceback, TRACEBACK_MAX).split("\n")
    return output | cut


def _fitting(data: dict[str, Any], room: int) -> tuple[dict[str, Any], int]:
    """Return the media types of a display that fit in `room` bytes, and the bytes that were left out.

    Small values are kept first. Plain text is cut; a part of any other value would be of no use.
    """
    sizes = dict(zip(data, map(_size_of_form, data.items()), strict=True))
    kept: dict[str, Any] = {}
    left = room
    for mime in sorted(sizes, key=sizes.__getitem__):
        if sizes[mime] <= left:
            kept[mime] = data[mime]
        elif mime == "text/plain" and (text := _beginning(data[mime], left - len(mime))):
            kept[mime] = text
        else:
            continue
        left -= _size_of_form((mime, kept[mime]))
    return {mime: kept[mime] for mime in data if mime in kept}, sum(sizes.values()) - (room - left)


def bundle(message: Message) -> dict[str, Any]:
    """Return the MIME bundle of a display. Values of mimetypes other than JSON become strings."""
    data = message.content.get("data")
    return _forms(data) if isinstance(data, dict) else {}


def _forms(data: Mapping[str, Any]) -> dict[str, Any]:
    return {mime: value if JSON_MIME.fullmatch(mime) else _text(value) for mime, value in data.items()}


def _display_content(message: Message) -> Output:
    metadata = message.content.get("metadata")
    return {"data": bundle(message), "metadata": metadata if isinstance(metadata, dict) else {}}


def display_id_of(message: Message) -> str | None:
    """Return the id by which a display can be updated later."""
    transient = message.content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    return display_id if isinstance(display_id, str) else None


def count_of(message: Message) -> int | None:
    """Return the execution counter of a message, if it has a valid one."""
    count = message.content.get("execution_count")
    return count if type(count) is int and count >= 0 else None


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else exact_json.dumps(value).decode()


def joined(output: Output) -> Output:
    """Return one output in nbformat's form: stream text in one piece, no display id."""
    public = {key: value for key, value in output.items() if key != "display_id"}
    if output["output_type"] == "stream":
        public["text"] = "".join(output["text"])
    return public
