"""Limits the rate of log lines of one kind: whoever can cause a line could otherwise fill the disk of the log.

What is left out is counted, and a line says how much and of which kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NoReturn

import structlog

log = structlog.get_logger()

#: seconds after which lines of each kind are written again
WINDOW = 10.0
#: lines of a kind in that time
MOST = 100
#: the same for the requests and cells of a tenant, who has shown a key
MOST_OF_TENANT = 1000
#: the event of the line about lines that were left out
LEFT_OUT = "log lines left out"
#: fields that make a kind; all have closed sets of values
_KIND = ("event", "level", "status", "tenant")


class LineLimit(logging.Filter):
    """Decides which lines are written: a processor of structlog, and a filter of the standard library's handlers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin a window.

        Args:
            clock: returns seconds that only grow.
        """
        super().__init__()
        self.left_out = 0
        self._clock = clock
        self._end = clock() + WINDOW
        self._lines: Counter[Hashable] = Counter()
        self._most: dict[Hashable, int] = {}
        self._fields: dict[Hashable, structlog.typing.EventDict] = {}

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Pass a line of structlog on, or drop it.

        Raises:
            structlog.DropEvent: when too many of its kind were written.
        """
        if event["event"] != LEFT_OUT:
            fields = {name: event[name] for name in _KIND if name in event}
            if not self.admits(fields, MOST_OF_TENANT if event.get("tenant") else MOST):
                raise structlog.DropEvent
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line of another library is written; those of one place in its code are of one kind."""
        fields = {"logger": record.name, "level": record.levelname.lower(), "line": record.lineno}
        return self.admits(fields, MOST)

    def admits(self, fields: structlog.typing.EventDict, most: int) -> bool:
        """Count a line, and return whether it is written.

        Args:
            fields: its kind.
            most: lines of this kind in a window.
        """
        if self._clock() >= self._end:
            self.next_window()
        kind = tuple(fields.values())
        self._lines[kind] += 1
        if self._lines[kind] <= most:
            return True
        self._fields[kind], self._most[kind] = fields, most
        self.left_out += 1
        return False

    def next_window(self) -> None:
        """Write what was left out of the window that ends, and begin the next one."""
        self._end = self._clock() + WINDOW
        lines, fields, most = self._lines, self._fields, self._most
        self._lines, self._fields, self._most = Counter(), {}, {}
        for kind, told in fields.items():
            of = {f"of_{name}": value for name, value in told.items()}
            log.warning(LEFT_OUT, lines=lines[kind] - most[kind], seconds=WINDOW, **of)

    async def run(self) -> NoReturn:
        """Report in time, also when nothing else is logged."""
        while True:
            await asyncio.sleep(WINDOW)
            self.next_window()
