"""Answers requests for the history of cells from memory, without a database.

IPython answers `history_request` and `%history -g` from a database, and writes each cell to it. It also keeps the cells
of the current session in lists. In a new container a database could contain no other cells.

IPython also keeps every output for `%notebook`: all printed text and all pictures, until the kernel ends. Here it keeps
none, because they would fill the memory of a long session. The gateway exports notebooks with their outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.history import HistoryManager

#: number of the session (0 means the current one), number of the cell, and its code, or its code and its output's text
Line = tuple[int, int, Any]
#: number of cells in the answer if the request has no number
TAIL = 10


class History(HistoryManager):
    """IPython's history without a database. IPython's own `get_range` needs no database."""

    def get_tail(  # type: ignore[override]  # its callers name the flags
        self, n: int | None = TAIL, *, raw: bool = True, output: bool = False, include_latest: bool = False
    ) -> list[Line]:
        """Return the last `n` cells, oldest first. Without `include_latest`, leave out the cell that asks."""
        lines = list(self.get_range(raw=raw, output=output))
        last = len(lines) if include_latest else len(lines) - 1
        return lines[max(0, last - (TAIL if n is None else n)) : max(0, last)]

    def search(  # type: ignore[override]  # as above
        self,
        pattern: str = "*",
        *,
        raw: bool = True,
        search_raw: bool = True,
        output: bool = False,
        n: int | None = None,
        unique: bool = False,
    ) -> list[Line]:
        """Return the last `n` cells whose code matches a pattern with `*` and `?`, oldest first.

        Args:
            pattern: the pattern, which must match the whole code of a cell.
            raw: True to return the code as it was sent, False to return it as IPython has translated it.
            search_raw: the same for the code that is searched.
            output: True to also return the output's text.
            n: maximum number of cells. None means all cells.
            unique: True to return only the last one of several cells with the same code.
        """
        texts = self.input_hist_raw if search_raw else self.input_hist_parsed
        lines = [line for line in self.get_range(raw=raw, output=output) if fnmatchcase(texts[line[1]], pattern)]
        if unique:
            lines = sorted({texts[line[1]]: line for line in lines}.values(), key=lambda line: line[1])
        return lines if n is None else lines[max(0, len(lines) - n) :]


class NoOutputs(dict[int, list[Any]]):
    """The outputs of each cell, by its number, of which none is kept."""

    def __missing__(self, number: int) -> list[Any]:
        """Return a list that is not kept."""
        return []


class RememberingShell(ZMQInteractiveShell):
    """ipykernel's shell with the history of code in memory, and without the outputs."""

    def init_history(self) -> None:
        """Set up the history."""
        self.history_manager = History(shell=self, parent=self)
        self.history_manager.outputs = NoOutputs()  # IPython's own would keep its lists
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]  # a list of any configurables

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002 - IPython's parameter
        """Leave a stream as it is while a cell runs. IPython would copy all that is written to it."""
        yield
