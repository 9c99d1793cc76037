"""Answers requests for the history of cells from memory, without a database.

IPython answers `history_request` and `%history -g` from a database, and writes each cell to it. It also keeps the cells
of the current session in lists. In a new container a database could contain no other cells.
"""

from __future__ import annotations

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


class RememberingShell(ZMQInteractiveShell):
    """ipykernel's shell with the history in memory."""

    def init_history(self) -> None:
        """Set up the history."""
        self.history_manager = History(shell=self, parent=self)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]  # a list of any configurables
