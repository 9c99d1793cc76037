"""The transcript of a session: its cells and their outputs. Pure: messages in, nbformat out.

It records all iopub messages of the kernel, so it also contains the cells of channel clients. An execution reads its
outputs from here: each message is recorded only once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sessions.cells.notebook import NotebookCell
from sessions.cells.outputs import Event, OutputArea, count_of, display_id_of
from sessions.cells.timeline import Timeline
from sessions.kernels.messages import Message
from sessions.model.errors import SessionError
from sessions.model.values import StateNotice
from sessions.tenants.kept_bytes import KeptBytes

#: bytes of outputs and code that are kept per session; the oldest cells beyond are dropped
MAX_BYTES = 32 * 1024**2
MAX_CELLS = 2000
#: maximum number of cells whose displays an update changes, the last cells first: an update must not take long
UPDATED_MAX = 100
#: bytes that a cell takes in memory in addition to its text
_CELL_BYTES = 1536


@dataclass(slots=True)
class Entry:
    """One cell of the transcript."""

    #: message id of its execute request
    id: str
    #: number among the session's cells, from 1
    number: int
    area: OutputArea
    code: str = ""
    started: bool = False
    execution_count: int | None = None
    #: ids of the displays by which the transcript finds the cell
    displays: set[str] = field(default_factory=set)
    #: whether its kernel has reported `idle`, or has ended
    ended: bool = False
    #: what has happened to the variables between the cell before and this cell. None means nothing.
    before: StateNotice | None = None
    #: why the gateway ended the cell, or why its kernel ended. None means neither.
    error: SessionError | None = None
    #: names of the environment variables that were set for this cell only
    variables: str = ""
    #: the transcript's revision when the cell last changed
    revision: int = 0

    @property
    def size(self) -> int:
        """Bytes that the cell takes."""
        told = (self.before.reason or "" if self.before else "") + (self.error.message if self.error else "")
        return len(self.code.encode()) + len(told.encode()) + len(self.variables) + self.area.size + _CELL_BYTES


class Transcript:
    """The cells of one session, oldest first."""

    def __init__(
        self,
        max_output_bytes: int,
        max_bytes: int = MAX_BYTES,
        kept: KeptBytes | None = None,
        tenant: str = "",
        timeline: Timeline | None = None,
    ) -> None:
        """Begin without cells.

        Args:
            max_output_bytes: bytes of output that are kept of each cell.
            max_bytes: bytes that are kept of all cells together.
            kept: counts the bytes of all sessions. None means that this session is counted alone.
            tenant: tenant of the session.
            timeline: knows which cells are undone. None means that the session has no checkpoints.
        """
        self._cells: OrderedDict[str, Entry] = OrderedDict()
        #: bytes of output that are kept of each cell
        self.max_output_bytes = max_output_bytes
        self._max_bytes = max_bytes
        self._share = (kept or KeptBytes()).share(tenant, self._drop_oldest)
        #: number of cells recorded so far, including dropped ones
        self._number = 0
        #: message ids of the cells that show a display, by display id
        self._displays: dict[str, dict[str, None]] = {}
        self._timeline = timeline or Timeline()
        #: what has happened to the variables since the last cell. None means nothing.
        self._change: StateNotice | None = None
        #: number of changes so far, by which readers find the cells that have changed
        self.revision = 0

    def _touch(self, *cells: Entry) -> None:
        """Count a change of some cells."""
        self.revision += 1
        for cell in cells:
            cell.revision = self.revision

    def kept(self) -> dict[int, Entry]:
        """Return the cells by their numbers, oldest first."""
        return {cell.number: cell for cell in self._cells.values()}

    @property
    def oldest(self) -> int:
        """Number of the oldest cell that is kept; if none is kept, the number of the next cell."""
        return next((cell.number for cell in self._cells.values()), self._number + 1)

    @property
    def last(self) -> Entry | None:
        """The last cell. None means that no cell is kept."""
        return next(reversed(self._cells.values()), None)

    def undone(self, cell: Entry) -> bool:
        """Return whether a return to a checkpoint has undone a cell."""
        return not self._timeline.has(cell.number)

    def open(self, msg_id: str, code: str, variables: Iterable[str] = ()) -> Entry:
        """Begin a cell for the execute request `msg_id`, with the names of the cell's own environment variables."""
        self._number += 1
        self._timeline.add(self._number)
        self._drop(msg_id)
        area = OutputArea(self.max_output_bytes)
        own = ", ".join(variables)
        cell = Entry(msg_id, self._number, area, code, before=self._change, variables=own)
        self._cells[msg_id] = cell
        self._change = None
        self._touch(cell)
        self._grow(cell.size)
        return cell

    def resume(self, msg_id: str, code: str) -> None:
        """Begin a cell that an earlier gateway started. A cell that is recorded already stays unchanged."""
        if msg_id not in self._cells:
            self.open(msg_id, code).started = True

    def find(self, msg_id: str) -> Entry | None:
        """Return the cell of the execute request `msg_id`. None means that it is no longer kept."""
        return self._cells.get(msg_id)

    def change(self, notice: StateNotice, image: str | None = None) -> None:
        """Record that the variables of later cells are not those that the earlier cells have left.

        Args:
            notice: what has happened. If no cell runs before the next change, only that one is kept.
            image: id of the image of the checkpoint to which the session has returned. None means no return.
        """
        self._change = notice
        if image is not None:
            self._timeline.return_to(image, self.oldest)
            self._touch(*self._cells.values())

    def end(
        self,
        cell: Entry,
        failure: Mapping[str, Any] | None,
        displays: Iterable[Mapping[str, Any]] = (),
        error: SessionError | None = None,
    ) -> list[Event]:
        """Add the error and the displays that only a cell's reply contains.

        Args:
            cell: cell that has ended.
            failure: error of the cell. None means that it has not failed.
            displays: displays, each as its content by media type.
            error: why the gateway ended the cell, or why its kernel ended. Only the notebook shows it.

        Returns:
            the events for a streaming client of the cell.
        """
        before = cell.size
        events = [cell.area.show(data) for data in displays]
        if failure is not None:
            events.append(cell.area.fail(failure))
        self._forget_displays(cell, cell.area.displays)
        cell.error = error
        cell.ended = True
        self._touch(cell)
        if self._cells.get(cell.id) is cell:
            self._grow(cell.size - before)
        return [event for event in events if event]

    def forget(self, msg_id: str) -> None:
        """Drop a cell, because its client did not want it stored."""
        self._drop(msg_id)

    def _drop(self, msg_id: str) -> None:
        cell = self._cells.pop(msg_id, None)
        if cell is None:
            return
        self._touch()
        self._share.grow(-cell.size)
        self._forget_displays(cell)

    def _forget_displays(self, cell: Entry, shown: Collection[str] = ()) -> None:
        """Find a cell no more by displays that it does not show any more: nothing counts the bytes of their ids."""
        if len(cell.displays) == len(shown):  # the ids that are shown are among those by which the cell is found
            return
        for display_id in cell.displays.difference(shown):
            cell.displays.remove(display_id)
            self._displays[display_id].pop(cell.id, None)
            if not self._displays[display_id]:
                del self._displays[display_id]

    def record(self, message: Message) -> Event | None:
        """Record one iopub message.

        Returns:
            the event for a streaming client of the cell that caused it; None when nothing changed.
        """
        cell = self._cells.get(message.parent_id)
        if message.type == "execute_input":
            return self._input(cell, message)
        if message.type == "update_display_data":
            return self._update(message)
        if cell is None:
            return None
        if message.type == "status":
            if message.content.get("execution_state") == "idle" and not cell.ended:
                cell.ended = True
                self._touch(cell)
                self._grow(0)
            return None
        before = cell.area.size
        event = cell.area.add(message)
        self._touch(cell)
        display_id = display_id_of(message)
        if display_id is not None and display_id in cell.area.displays:
            cell.displays.add(display_id)
            self._displays.setdefault(display_id, {})[cell.id] = None
        self._forget_displays(cell, cell.area.displays)  # the message may have cleared the cell
        self._grow(cell.area.size - before)  # this may drop the cell together with its displays
        return event

    def _input(self, cell: Entry | None, message: Message) -> Event | None:
        if cell is None:
            code = message.content.get("code")
            cell = self.open(message.parent_id, code if isinstance(code, str) else "")
        if cell.started:
            return None
        cell.started = True
        cell.execution_count = count_of(message)
        self._touch(cell)
        return {"type": "started", "execution_count": cell.execution_count}

    def _update(self, message: Message) -> Event | None:
        """Change a display in all cells that show it, as a notebook does."""
        showing = self._displays.get(display_id_of(message) or "", {})
        cells = [self._cells[msg_id] for msg_id in islice(reversed(showing), UPDATED_MAX)]
        areas = [cell.area for cell in cells]
        before = sum(area.size for area in areas)
        events = [area.update(message) for area in areas]
        self._touch(*cells)
        self._grow(sum(area.size for area in areas) - before)
        return next((event for event in events if event), None)

    def _grow(self, size: int) -> None:
        """Count `size` more bytes, and drop the oldest cells when the total is too large."""
        self._share.grow(size)
        while len(self._cells) > MAX_CELLS or (self._share.size > self._max_bytes and len(self._cells) > 1):
            self._drop(next(iter(self._cells)))

    def _drop_oldest(self) -> bool:
        """Drop the oldest cell, unless it is the only cell and still runs. Return whether a cell was dropped."""
        oldest = next(iter(self._cells), None)
        if oldest is None or (len(self._cells) == 1 and not self._cells[oldest].ended):
            return False
        self._drop(oldest)
        return True

    def end_all(self) -> None:
        """Mark all cells as ended, because the kernel has ended."""
        running = [cell for cell in self._cells.values() if not cell.ended]
        for cell in running:
            cell.ended = True
        self._touch(*running)
        self._grow(0)

    def close(self) -> None:
        """Drop everything for good: the session has ended."""
        self._cells.clear()
        self._displays.clear()
        self._share.close()

    def cells(self) -> list[NotebookCell]:
        """Return copies of the cells, in the order in which they were sent, for `notebook.notebook`.

        The last one has no code. It stands for the next cell, and says what has happened since the last one.
        """
        cells = [
            NotebookCell(
                cell.number,
                cell.code,
                cell.execution_count,
                cell.area.copied_outputs(),
                cell.before,
                cell.error,
                cell.variables,
                undone=not self._timeline.has(cell.number),
                ended=cell.ended,
            )
            for cell in self._cells.values()
        ]
        return [*cells, NotebookCell(self._number + 1, before=self._change)]
