"""Outputs and events that are kept as JSON: parsed, a list of numbers takes eight times as much memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessions.model import exact_json

#: one output in nbformat's form; the text of a stream is in pieces, and a display may have its id
Output = dict[str, Any]


def pack(value: dict[str, Any]) -> bytes:
    """Return a value as JSON that takes no more memory than its text: orjson leaves 4 KiB free behind short ones."""
    return bytes(memoryview(exact_json.dumps(value)))


def unpack(text: bytes) -> dict[str, Any]:
    """Return a value that was packed."""
    value: dict[str, Any] = exact_json.parse(text)
    return value


class PackedOutputs:
    """A list of outputs. Only the last one is kept as it is, and only if it is a stream, because its text may grow."""

    def __init__(self, outputs: Iterable[Output] = ()) -> None:
        #: outputs; a display whose content was replaced has none, and `_contents` has it
        self._packed: list[bytes] = []
        #: data and metadata of such displays, by their id
        self._contents: dict[str, bytes] = {}
        self._open: Output | None = None
        for output in outputs:
            self.append(output)

    def __len__(self) -> int:
        return len(self._packed) + (self._open is not None)

    def __iter__(self) -> Iterator[Output]:
        """Yield the outputs with their present contents; each is parsed when its turn comes."""
        for text in self._packed:
            output = unpack(text)
            replaced = "display_id" in output and "data" not in output
            yield output | unpack(self._contents[output["display_id"]]) if replaced else output
        if self._open is not None:
            yield self._open

    def last(self) -> Output | None:
        """Return the last output if it is a stream, to be added to."""
        return self._open

    def append(self, output: Output) -> None:
        """Add an output."""
        self.close()
        if output["output_type"] == "stream":
            self._open = output
        else:
            self._packed.append(pack(output))

    def close(self) -> None:
        """Keep the last output as JSON, too."""
        if self._open is not None:
            self._packed.append(pack(self._open))
            self._open = None

    def replace(self, display_id: str, places: Iterable[int], content: Output) -> None:
        """Replace the content of all displays with an id.

        Args:
            display_id: their id.
            places: where those are whose content was never replaced.
            content: data and metadata.
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

    def clear(self) -> None:
        """Drop all outputs."""
        self._packed.clear()
        self._contents.clear()
        self._open = None
