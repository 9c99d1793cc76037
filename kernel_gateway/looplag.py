"""How late the event loop is, and what holds it up: while it stands still nobody is served and no deadline holds.

A task asks every `BEAT` seconds how late it is woken. A loop that stands still cannot tell why, so a thread looks
at what it is doing when the beat is overdue, and writes that down. No value of a variable is in it.
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

from sessions.tasks import forever, going_on

log = structlog.get_logger()

#: seconds between two looks
BEAT = 0.1
#: seconds without a beat that are written down
STALL = 1.0
#: calls of the stack that are told, the innermost ones
FRAMES_MAX = 20


class LoopLag:
    """Watches the loop in which it runs."""

    def __init__(self, late: Callable[[float], None], stall: float = STALL) -> None:
        """Begin with `run`.

        Args:
            late: told at each beat how many seconds too late it came.
            stall: seconds without a beat that are written down.
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
            log.warning("the event loop goes on", stalled_s=round(waited, 3))

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        """In a thread of its own: write down once for each stall what the loop does."""
        told = 0.0
        while not self._ended.wait(BEAT):
            beat = self._beat
            if beat == told or time.monotonic() - beat < self._stall:
                continue
            told = beat
            with going_on("loop lag"):  # what is looked at goes on meanwhile, and may change in the middle of a look
                task = asyncio.current_task(loop)
                log.warning(
                    "the event loop stands still",
                    task=task.get_name() if task else None,
                    stack=_stack(thread),
                )


def _stack(thread: int) -> list[str]:
    """Where a thread is, from the outside in: file, line and function."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - the documented way to see another thread
    return [
        f"{summary.filename}:{summary.lineno} {summary.name}"
        for summary in traceback.extract_stack(frame)[-FRAMES_MAX:]
    ]
