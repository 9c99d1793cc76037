"""Limits the rate of log lines of each kind. Otherwise a client that can cause log lines could fill the log's disk.

Lines that are left out are counted, and one log line reports their number and kind.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import NoReturn

import structlog

log = structlog.get_logger()

#: length of a window in seconds; in each new window, lines of every kind are written again
WINDOW = 10.0
#: maximum lines of a kind in a window
MOST = 100
#: the same for lines that name a tenant; such a line needs a request with a valid key
MOST_OF_TENANT = 1000
#: event name of the line that reports left-out lines
LEFT_OUT = "log lines left out"
#: lines with the same values of these fields are of one kind; clients cannot invent values for them
_KIND = ("event", "level", "status", "tenant")


class LineLimit(logging.Filter):
    """Decides which lines are written: a processor of structlog, and a filter of the standard library's handlers."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start the first window.

        Args:
            clock: returns monotonic seconds.
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
        """Return whether a library's line is written. All lines from one place in a library's code are of one kind."""
        fields = {"logger": record.name, "level": record.levelname.lower(), "line": record.lineno}
        return self.admits(fields, MOST)

    def admits(self, fields: structlog.typing.EventDict, most: int) -> bool:
        """Count a line, and return whether it is written.

        Args:
            fields: fields that make the line's kind.
            most: maximum lines of this kind in a window.
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
        """Log how many lines were left out of the current window, and start the next window."""
        self._end = self._clock() + WINDOW
        lines, fields, most = self._lines, self._fields, self._most
        self._lines, self._fields, self._most = Counter(), {}, {}
        for kind, told in fields.items():
            of = {f"of_{name}": value for name, value in told.items()}
            log.warning(LEFT_OUT, lines=lines[kind] - most[kind], seconds=WINDOW, **of)

    async def run(self) -> NoReturn:
        """End each window in time, even if nothing else is logged. Runs until cancelled."""
        while True:
            await asyncio.sleep(WINDOW)
            self.next_window()
