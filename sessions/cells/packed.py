"""Outputs and events as JSON text, to save memory: a parsed list of numbers takes eight times as much. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessions.model import exact_json

#: one output in nbformat's form, except that a stream's text is a list of pieces, and a display may have a `display_id`
Output = dict[str, Any]


def pack(value: dict[str, Any]) -> bytes:
    """Return a value as JSON, copied into exact memory: orjson reserves 4 KiB more for a short text."""
    return bytes(memoryview(exact_json.dumps(value)))


def unpack(text: bytes) -> dict[str, Any]:
    """Return the value that `pack` has turned into JSON."""
    value: dict[str, Any] = exact_json.parse(text)
    return value


class PackedOutputs:
    """A list of outputs. All are kept as JSON, except a last output that is a stream: its text may grow."""

    def __init__(self, outputs: Iterable[Output] = ()) -> None:
        #: outputs as JSON. A display whose content was replaced has no content here; `_contents` has it.
        self._packed: list[bytes] = []
        #: data and metadata of displays whose content was replaced, by display id
        self._contents: dict[str, bytes] = {}
        self._open: Output | None = None
        for output in outputs:
            self.append(output)

    def __len__(self) -> int:
        return len(self._packed) + (self._open is not None)

    def __iter__(self) -> Iterator[Output]:
        """Yield the outputs with their present contents. Each output is parsed only when it is needed."""
        for text in self._packed:
            output = unpack(text)
            replaced = "display_id" in output and "data" not in output
            yield output | unpack(self._contents[output["display_id"]]) if replaced else output
        if self._open is not None:
            yield self._open

    def last(self) -> Output | None:
        """Return the last output if it is a stream, whose text may grow. Otherwise return None."""
        return self._open

    def append(self, output: Output) -> None:
        """Add an output."""
        self.close()
        if output["output_type"] == "stream":
            self._open = output
        else:
            self._packed.append(pack(output))

    def close(self) -> None:
        """Turn the last output into JSON, too. Its text can no longer grow."""
        if self._open is not None:
            self._packed.append(pack(self._open))
            self._open = None

    def replace(self, display_id: str, places: Iterable[int], content: Output) -> None:
        """Replace the content of all displays with an id.

        Args:
            display_id: id of the displays.
            places: indices of the displays whose content was never replaced before.
            content: new data and metadata.
        """
        for place in places:
            output = unpack(self._packed[place])
            self._packed[place] = pack({key: value for key, value in output.items() if key not in content})
        self._contents[display_id] = pack(content)

    def copy(self) -> PackedOutputs:
        """Return the outputs as they are now. Only text that can grow is copied."""
        copied = PackedOutputs()
        copied._packed = self._packed[:]
        copied._contents = self._contents.copy()
        if self._open is not None:
            copied._open = self._open | {"text": self._open["text"][:]}
        return copied

    def since(self, count: int, pieces: int) -> PackedOutputs:
        """Return the outputs behind the first `count`, and before them the text by which the last of these has grown.

        Args:
            count: number of outputs that the reader has.
            pieces: number of pieces of text that the reader has of its last output; 0 if that is no text.
        """
        later = PackedOutputs()
        if count and pieces:
            last = self._open if self._open is not None and count == len(self) else unpack(self._packed[count - 1])
            if grown := last["text"][pieces:]:
                later._packed.append(pack(last | {"text": grown}))
        later._packed += self._packed[count:]
        later._contents = self._contents.copy()
        if self._open is not None and count < len(self):
            later._open = self._open | {"text": self._open["text"][:]}
        return later

    def clear(self) -> None:
        """Drop all outputs."""
        self._packed.clear()
        self._contents.clear()
        self._open = None
