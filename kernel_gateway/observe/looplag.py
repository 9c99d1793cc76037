"""Measures the delay of the event loop, and logs what blocks it: a blocked loop serves no client and keeps no deadline.

A task measures every `BEAT` seconds how late it wakes up. A blocked loop cannot log the cause itself, so a thread logs
the loop's task and stack when a beat is overdue. The log contains no values of variables.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import structlog

from sessions.model.tasks import forever, log_failure

log = structlog.get_logger()

#: seconds between two beats
BEAT = 0.1
#: seconds without a beat after which the stack is logged
STALL = 1.0
#: number of the innermost calls of the stack that are logged
FRAMES_MAX = 20


class LoopLag:
    """Watches the event loop in which it runs."""

    def __init__(self, late: Callable[[float], None], stall: float = STALL) -> None:
        """Create the watch; `run` starts it.

        Args:
            late: called at each beat with the seconds by which the beat was late.
            stall: seconds without a beat after which the stack is logged.
        """
        self._late = late
        self._stall = stall
        self._beat = time.monotonic()
        self._ended = threading.Event()

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        self._beat = time.monotonic()
        watcher = threading.Thread(target=self._watch, args=(loop, threading.get_ident()), name="loop lag", daemon=True)
        watcher.start()
        try:
            await forever(self._next_beat)
        finally:
            self._ended.set()

    async def _next_beat(self) -> None:
        await asyncio.sleep(BEAT)
        now = time.monotonic()
        waited, self._beat = now - self._beat, now
        self._late(max(waited - BEAT, 0.0))
        if waited > self._stall:
            log.warning("the event loop runs again", stalled_s=round(waited, 3))

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        """Log the loop's current task and stack once for each stall. Runs in its own thread."""
        told = 0.0
        while not self._ended.wait(BEAT):
            beat = self._beat
            if beat == told or time.monotonic() - beat < self._stall:
                continue
            told = beat
            with log_failure("loop lag"):  # the loop may run on, and change its task and stack while they are read
                task = asyncio.current_task(loop)
                log.warning(
                    "the event loop stands still",
                    task=task.get_name() if task else None,
                    stack=_stack(thread),
                )


def _stack(thread: int) -> list[str]:
    """Return the stack of a thread, outermost call first: file, line and function."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to see another thread
    return [
        f"{summary.filename}:{summary.lineno} {summary.name}"
        for summary in traceback.extract_stack(frame)[-FRAMES_MAX:]
    ]
