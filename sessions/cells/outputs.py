"""Jupyter messages in, nbformat outputs out. Pure: no I/O, no clock.

An `OutputArea` holds the outputs of one cell. `add` takes the kernel's iopub messages, keeps what a notebook would show
in the end, and returns the event for a streaming client.

Source: nbformat 4.5 (outputs), "Messaging in Jupyter" 5.4 (stream, display_data, clear_output, error).
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from sessions.kernels.messages import Message

Event = dict[str, Any]
Output = dict[str, Any]

#: messages that make up the outputs of one cell; each may be kept until its client reads it
MAX_MESSAGES = 100_000
#: bytes that an output takes in memory besides its content
OUTPUT_BYTES = 800
#: bytes that a further piece of a stream takes besides its text
PIECE_BYTES = 64
#: the mimetypes whose value nbformat allows to be any JSON
JSON_MIME = re.compile(r"application/(.*\+)?json")


def weight(message: Message) -> int:
    """Return the bytes of output in an iopub message."""
    if message.type == "stream":
        text = message.content.get("text")
        return _size(text) if isinstance(text, str) else 0
    return message.size if message.type in _HANDLERS or message.type == "update_display_data" else 0


class OutputArea:
    """The outputs of one cell, as a notebook would keep them, with a limit in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._outputs: list[Output] = []
        self._sizes: list[int] = []
        #: indices of the displays with an id
        self._displays: dict[str, list[int]] = {}
        self._max_bytes = max_bytes
        self._clear_pending = False
        #: some output was left out
        self.truncated = False
        #: bytes added so far, including cleared ones: they bound what is sent to a client
        self._fed = 0
        self._messages = 0
        #: bytes that the outputs take in memory
        self.size = 0

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

    def snapshot(self) -> list[Output]:
        """Return the outputs as they are now, to be finished by `joined`. Only the last one can grow: it is copied."""
        outputs = self._outputs[:]
        if outputs and "text" in outputs[-1]:
            outputs[-1] = outputs[-1] | {"text": outputs[-1]["text"][:]}
        return outputs

    def update(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any], size: int) -> bool:
        """Replace the content of the displays with this id.

        Returns:
            True if there were any, and the limit was not exceeded.
        """
        places = self._displays.get(display_id, [])
        if not places or not self._admit(size * len(places)):
            return False
        for place in places:
            # Another dict: a snapshot keeps the one from before.
            self._outputs[place] = self._outputs[place] | {"data": data, "metadata": metadata}
            self._grow(place, size + OUTPUT_BYTES - self._sizes[place])
        return True

    def _admit(self, size: int) -> bool:
        self._fed += size
        self._messages += 1
        if self._fed > self._max_bytes or self._messages > MAX_MESSAGES:
            self.truncated = True
        return not self.truncated

    def _grow(self, place: int, size: int) -> None:
        self._sizes[place] += size
        self.size += size

    def _append(self, output: Output, size: int) -> Event | None:
        if not self._admit(size):
            return None
        if self._clear_pending:
            self._clear()
        if display_id := output.get("display_id"):
            self._displays.setdefault(display_id, []).append(len(self._outputs))
        self._outputs.append(output)
        self._sizes.append(0)
        self._grow(-1, size + OUTPUT_BYTES)
        return {"type": "output", "output": joined(output)}

    def _stream(self, message: Message) -> Event | None:
        name, text = message.content.get("name"), message.content.get("text")
        if not isinstance(name, str) or name not in {"stdout", "stderr"} or not isinstance(text, str):
            return None
        size = _size(text)
        last = self._outputs[-1] if self._outputs and not self._clear_pending else None
        if last is None or last["output_type"] != "stream" or last["name"] != name:
            return self._append({"output_type": "stream", "name": name, "text": [text]}, size)
        if not self._admit(size):
            return None
        last["text"].append(text)
        self._grow(-1, size + PIECE_BYTES)
        return {"type": "output", "output": {"output_type": "stream", "name": name, "text": text}}

    def _display(self, message: Message) -> Event | None:
        output: Output = {"output_type": message.type, "data": bundle(message), "metadata": metadata_of(message)}
        if message.type == "execute_result":
            output["execution_count"] = count_of(message)
        if display_id := display_id_of(message):
            output["display_id"] = display_id
        return self._append(output, message.size)

    def _error(self, message: Message) -> Event | None:
        content = message.content
        traceback = content.get("traceback")
        return self._append(
            {
                "output_type": "error",
                "ename": str(content.get("ename", "")),
                "evalue": str(content.get("evalue", "")),
                "traceback": [str(line) for line in traceback] if isinstance(traceback, list) else [],
            },
            message.size,
        )

    def _clear_output(self, message: Message) -> Event | None:
        if not self._admit(0):
            return None
        wait = message.content.get("wait") is True
        if wait:
            self._clear_pending = True
        else:
            self._clear()
        return {"type": "clear_output", "wait": wait}

    def _clear(self) -> None:
        self._outputs.clear()
        self._sizes.clear()
        self._displays.clear()
        self.size = 0
        self._clear_pending = False


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


def bundle(message: Message) -> dict[str, Any]:
    """Return the MIME bundle of a display. Values of mimetypes other than JSON become strings."""
    data = message.content.get("data")
    if not isinstance(data, dict):
        return {}
    return {mime: value if JSON_MIME.fullmatch(mime) else _text(value) for mime, value in data.items()}


def metadata_of(message: Message) -> dict[str, Any]:
    """Return a display's metadata."""
    metadata = message.content.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


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
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def joined(output: Output) -> Output:
    """Return one output in nbformat's form: stream text in one piece, no display id."""
    public = {key: value for key, value in output.items() if key != "display_id"}
    if output["output_type"] == "stream":
        public["text"] = "".join(output["text"])
    return public
