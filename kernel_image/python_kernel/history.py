"""The history of a kernel's cells, answered from memory.

IPython answers `history_request` and `%history -g` from a database, and writes each cell to it. It also keeps the cells
of the current session in lists, whether there is a database or not. They are all that a new container could know.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.history import HistoryManager

#: a session's number (0: the current one), a cell's number, and its code, or its code and its output's text
Line = tuple[int, int, Any]
#: number of lines that a request without a number gets
TAIL = 10


class History(HistoryManager):
    """IPython's history without a database. `get_range` needs none."""

    def get_tail(  # type: ignore[override]  # its callers name the flags
        self, n: int | None = TAIL, *, raw: bool = True, output: bool = False, include_latest: bool = False
    ) -> list[Line]:
        """Return the last `n` cells, oldest first; without `include_latest`, the last cell is the one that asks."""
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
        """Return the last `n` cells (None: all) whose code fits a pattern with `*` and `?`, oldest first.

        Args:
            pattern: the pattern; it describes the whole code of a cell.
            raw: True: return the code as it was sent; False: as IPython has translated it.
            search_raw: the same for the code that is searched.
            output: True: also return the output's text.
            n: maximum number of cells.
            unique: True: of cells with the same code, return the last one only.
        """
        texts = self.input_hist_raw if search_raw else self.input_hist_parsed
        lines = [line for line in self.get_range(raw=raw, output=output) if fnmatchcase(texts[line[1]], pattern)]
        if unique:
            lines = sorted({texts[line[1]]: line for line in lines}.values(), key=lambda line: line[1])
        return lines if n is None else lines[max(0, len(lines) - n) :]


class RememberingShell(ZMQInteractiveShell):
    """ipykernel's shell with this history."""

    def init_history(self) -> None:
        """Set up the history."""
        self.history_manager = History(shell=self, parent=self)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]  # a list of any configurables
