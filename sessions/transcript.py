"""What was run in a session and what it showed, as a notebook. Pure: messages in, nbformat out.

It is fed every iopub message of the kernel, so it also knows cells that ran over a raw Jupyter channel. An
execution's outputs are its cell's here: messages are taken in once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from sessions.kernelspecs import KernelSpec
from sessions.messages import Message
from sessions.outputs import Event, OutputArea, bundle, count_of, display_id_of, metadata_of

#: bytes of outputs and code kept per session; beyond, the oldest cells go
MAX_BYTES = 32 * 1024**2
MAX_CELLS = 2000
#: what a cell costs besides its text
_CELL_BYTES = 512


@dataclass(slots=True)
class Cell:
    """One cell that was run."""

    area: OutputArea
    code: str = ""
    started: bool = False
    execution_count: int | None = None
    displays: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes it keeps."""
        return len(self.code.encode()) + self.area.size + _CELL_BYTES


class Transcript:
    """The cells of one session, oldest first."""

    def __init__(self, max_output_bytes: int, max_bytes: int = MAX_BYTES) -> None:
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._max_output_bytes = max_output_bytes
        self._max_bytes = max_bytes
        self._size = 0

    def open(self, msg_id: str, code: str) -> Cell:
        """Begin a cell for the execute request `msg_id`."""
        cell = self._cells[msg_id] = Cell(OutputArea(self._max_output_bytes), code)
        self._grow(cell.size)
        return cell

    def resume(self, msg_id: str, code: str) -> None:
        """Go on with a cell that began when nobody listened; nothing is done for one that is known."""
        if msg_id not in self._cells:
            self.open(msg_id, code).started = True

    def forget(self, msg_id: str) -> None:
        """Leave a cell out, because its sender did not want it stored."""
        if cell := self._cells.pop(msg_id, None):
            self._size -= cell.size

    def feed(self, message: Message) -> Event | None:
        """Take in one iopub message.

        Returns:
            the event for a streaming client of the cell that caused it.
        """
        cell = self._cells.get(message.parent_id)
        if message.type == "execute_input":
            return self._input(cell, message)
        if message.type == "update_display_data":
            return self._update(message)
        if cell is None:
            return None
        before = cell.area.size
        event = cell.area.feed(message)
        self._grow(cell.area.size - before)
        if event and (display_id := display_id_of(message)):
            cell.displays.add(display_id)
        return event

    def _input(self, cell: Cell | None, message: Message) -> Event | None:
        if cell is None:
            code = message.content.get("code")
            cell = self.open(message.parent_id, code if isinstance(code, str) else "")
        if cell.started:
            return None
        cell.started = True
        cell.execution_count = count_of(message)
        return {"type": "started", "execution_count": cell.execution_count}

    def _update(self, message: Message) -> Event | None:
        """Change a display wherever it stands, as a notebook does: also below earlier cells."""
        display_id = display_id_of(message)
        if display_id is None:
            return None
        data, metadata = bundle(message), metadata_of(message)
        areas = [cell.area for cell in self._cells.values() if display_id in cell.displays]
        before = sum(area.size for area in areas)
        shown = [area.update(display_id, data, metadata, message.size) for area in areas]
        self._grow(sum(area.size for area in areas) - before)
        if not any(shown):
            return None
        return {"type": "update_display_data", "display_id": display_id, "data": data, "metadata": metadata}

    def _grow(self, size: int) -> None:
        """Count `size` more bytes; the oldest cells go when it is too much in all."""
        self._size += size
        while len(self._cells) > MAX_CELLS or (self._size > self._max_bytes and len(self._cells) > 1):
            self._size -= self._cells.popitem(last=False)[1].size

    def notebook(self, spec: KernelSpec) -> dict[str, Any]:
        """The transcript as an nbformat 4.5 notebook.

        Cells are written in the order in which they were sent; a cell without code is left out.
        """
        # Not before it is needed: beside some other packages its import takes longer than all else of a start.
        import nbformat  # noqa: PLC0415
        from nbformat import v4  # noqa: PLC0415

        cells = [
            v4.new_code_cell(
                cell.code,
                execution_count=cell.execution_count,
                outputs=[nbformat.from_dict(output) for output in cell.area.outputs()],
            )
            for cell in self._cells.values()
            if cell.code
        ]
        metadata = {
            "kernelspec": {"name": spec.jupyter_name, "display_name": spec.display_name, "language": spec.name},
            "language_info": {"name": spec.name},
        }
        book: dict[str, Any] = v4.new_notebook(cells=cells, metadata=metadata)
        return book
