"""Changes the ends of cells: errors, `exit()`, and forks of the kernel.

- IPython formats each frame of a traceback with its source. For the thousands of frames of an endless recursion that
  takes seconds and hundreds of kilobytes. Here the number of frames is limited.
- For each frame, IPython asks `inspect` for the frame's module, which looks up the files of all modules that were
  imported since the last error. After pandas and sklearn that takes a second of a first error in gVisor, and four on a
  busy machine. Here `inspect` is told the modules.
- For a frame of a cell, IPython shows the line that it ran last, for example the end of a `finally`. Here it is the
  line of the error.
- An interrupt of a cell that stands at a breakpoint is raised in the debugger, which waits there. Here its traceback
  ends in the cell's code.
- IPython prints exception groups and wrong uses of magics to stderr, so a client that waits for an error message gets
  none. Here they are errors.
- IPython's `exit()` does not end the cell, but ends the kernel soon afterwards, with all variables. Here it ends the
  cell, like `sys.exit()`.
- A fork of the kernel that reaches the end of its cell would continue as a second kernel. Here it ends.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

from IPython.core.autocall import ZMQExitAutocall
from IPython.core.error import UsageError
from IPython.core.ultratb import AutoFormattedTB, FrameInfo  # type: ignore[attr-defined]  # what IPython itself uses
from traitlets import default

from . import descriptors
from .history import RememberingShell
from .publishing import Process

#: exceptions that an interrupt raises in code
INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)
#: maximum frames of a traceback that is shown completely
WHOLE = 100
#: number of frames at each end of a longer traceback that are shown
ENDS = 10
#: maximum earlier exceptions that are shown with an exception, which was raised in their handlers
CHAINED = 10


class Tracebacks(AutoFormattedTB):
    """IPython's tracebacks with limits for frames and chained exceptions."""

    #: number of exceptions of the current chain that were shown
    _shown = 0

    def structured_traceback(self, *args: Any, **options: Any) -> list[str]:
        """Return the lines that describe an error, and the errors in whose handlers it was raised."""
        self._shown = 0
        lines: list[str] = super().structured_traceback(*args, **options)
        if self._shown > CHAINED:
            lines.insert(1, "[... earlier exceptions are left out]\n")
        return lines

    def get_parts_of_chained_exception(
        self, evalue: BaseException | None
    ) -> tuple[type, BaseException, TracebackType] | None:
        """Return the exception in whose handler this one was raised, or None."""
        parts: tuple[type, BaseException, TracebackType] | None = super().get_parts_of_chained_exception(evalue)
        if parts is not None:
            self._shown += 1
        return None if self._shown > CHAINED else parts

    def get_records(self, etb: TracebackType, context: int, tb_offset: int) -> Any:
        """Return the frames to show. The frames in the middle of a long traceback become one line."""
        steps = list(_walk(etb))
        if len(steps) <= WHOLE:
            return self._records(steps, etb, context, tb_offset)
        from stack_data.core import RepeatedFrames  # noqa: PLC0415 - IPython also imports it only for the first error

        steps = [step for step in steps if not _of_ipython(step)] or steps
        first, last = self._each(steps[:ENDS], context), self._each(steps[ENDS:][-ENDS:], context)
        shown = {id(record.frame) for record in first + last}
        hidden: list[Any] = [step for step in steps if id(step.tb_frame) not in shown]
        middle = RepeatedFrames(hidden, [(step.tb_frame.f_code, step.tb_lineno) for step in hidden])
        return [*first, FrameInfo._from_stack_data_FrameInfo(middle), *last]  # noqa: SLF001 - IPython uses the same method

    def _records(self, steps: list[TracebackType], etb: TracebackType, context: int, tb_offset: int) -> list[Any]:
        with _modules_told(steps):
            records: list[Any] = super().get_records(etb, context, tb_offset)
        _point_at_errors(records, steps)
        return records

    def _each(self, steps: list[TracebackType], context: int) -> list[FrameInfo]:
        chain: TracebackType | None = None
        for step in reversed(steps):
            chain = TracebackType(chain, step.tb_frame, step.tb_lasti, step.tb_lineno)
        records = self._records(steps, chain, context, 0) if chain else []
        return [record for record in records if record.frame is not None]  # leave out IPython's own summaries of frames


def _walk(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _point_at_errors(records: list[Any], steps: list[TracebackType]) -> None:
    """Let each frame show the line that the error has left.

    If there is no file with a frame's code, as for a cell, IPython shows the line that the frame ran last. After an
    `except`, `finally` or `with`, this is another line.
    """
    left = iter(steps)
    for record in records:
        if record.frame is not None:
            record.lineno = next((step.tb_lineno for step in left if step.tb_frame is record.frame), record.lineno)


def _cut_at_debugger(trace: TracebackType | None) -> None:
    """Let a traceback end in the frame that the debugger has stopped, which it names twice."""
    steps = list(_walk(trace))
    own = list(takewhile(lambda step: "pydevd" not in step.tb_frame.f_code.co_filename, steps))
    if own and len(own) < len(steps):
        next(step for step in own if step.tb_frame is own[-1].tb_frame).tb_next = None


def _of_ipython(step: TracebackType) -> bool:
    return str(step.tb_frame.f_globals.get("__name__")).split(".")[0] == "IPython"


@contextmanager
def _modules_told(steps: list[TracebackType]) -> Iterator[None]:
    """Tell `inspect` the modules of these frames, so that it looks for none. A cell belongs to `__main__`."""
    frames = [step.tb_frame for step in steps]
    names = {os.path.abspath(frame.f_code.co_filename): str(frame.f_globals.get("__name__")) for frame in frames}
    told = {file: name for file, name in names.items() if file not in inspect.modulesbyfile}
    inspect.modulesbyfile.update(told)
    try:
        yield
    finally:
        for file in told:
            inspect.modulesbyfile.pop(file, None)


class Exit(ZMQExitAutocall):
    """The objects `exit` and `quit` of cells."""

    def __call__(self, code: Any = None, **_: Any) -> NoReturn:  # type: ignore[override]  # like Python's own `exit`
        """End the cell. IPython's option `keep_kernel` is accepted and ignored, because the kernel is always kept."""
        raise SystemExit if code is None else SystemExit(code)


class EndingShell(RememberingShell):
    """The shell of the kernel, with the changes of this module."""

    #: name and value of the error that was shown last, in the format of a reply
    shown_error: Mapping[str, str] = MappingProxyType({})

    @default("exiter")
    def _default_exiter(self) -> Exit:
        # If a cell raises SystemExit, IPython warns that `exit` should be used.
        warnings.filterwarnings("ignore", message="To exit: use")
        return Exit(self)

    async def run_cell_async(self, *args: Any, **options: Any) -> Any:
        """Run a cell. A fork of the kernel ends together with its cell, with the exit status of a program."""
        result = await super().run_cell_async(*args, **options)
        if Process.forked:
            descriptors.flush()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_status(result.error_before_exec or result.error_in_exec))
        return result

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        self.shown_error = {"ename": etype.__name__, "evalue": str(evalue)}
        if not Process.forked:
            super()._showtraceback(etype, evalue, stb)
        elif etype is not SystemExit:
            print("\n".join(stb), file=sys.stderr)  # a fork sends no other messages

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        """Set up IPython's handlers with our own class of tracebacks."""
        super().init_traceback_handlers(custom_exceptions)
        self.InteractiveTB = Tracebacks(mode=self.xmode, theme_name=self.colors, tb_offset=1)

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **options: Any) -> None:
        """Publish an error. An error with an exception group is formatted like in plain Python."""
        _, error, _ = exc_tuple or sys.exc_info()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not hasattr(error, "__notes__"):
            error.add_note(_room())
        if not isinstance(error, INTERRUPTS):
            self._show(exc_tuple, *args, **options)
            return
        with _uninterrupted():
            _cut_at_debugger(error.__traceback__)
            self._show(exc_tuple, *args, **options)

    def _show(self, exc_tuple: Any, *args: Any, **options: Any) -> None:
        kind, error, trace = exc_tuple or sys.exc_info()
        if not _has_group(error):
            super().showtraceback(exc_tuple, *args, **options)
            return
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # like IPython, for debuggers
        own = next((step for step in _walk(trace) if not _of_ipython(step)), None)
        lines = traceback.format_exception(kind, error, own, limit=-WHOLE)
        self._showtraceback(kind, error, [line.removesuffix("\n") for line in lines])

    def _format_exception_for_storage(self, *_: Any, **__: Any) -> dict[str, Any]:
        # `%notebook` uses this. The error has just been shown; IPython would format it a second time.
        return {**self.shown_error, "traceback": self._last_traceback or []}

    def rehearse(self) -> None:
        """Format an error that nobody sees. This imports the modules that colour code before the first real error."""
        unseen = Tracebacks(mode=self.xmode, theme_name=self.colors)  # `%debug` uses what `InteractiveTB` has formatted
        try:
            _ = 1 / 0
        except ZeroDivisionError as error:
            unseen.structured_traceback(type(error), error, error.__traceback__, tb_offset=0)

    def show_usage_error(self, exc: UsageError) -> None:
        """Publish the error of a magic that was used in a wrong way."""
        self._showtraceback(UsageError, exc, [f"UsageError: {exc}"])


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore interrupts while the error of an interrupt is shown, which can take seconds on a busy machine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _room() -> str:
    """Return a text with the free space of the directories where code may write."""
    places = (os.path.expanduser("~"), "/tmp", "/dev/shm")  # noqa: S108 - no file there is used
    room = {place: os.statvfs(place) for place in places if os.path.isdir(place)}
    sizes = (
        f"{place} {has.f_bavail * has.f_frsize >> 20} of {has.f_blocks * has.f_frsize >> 20}"
        for place, has in room.items()
    )
    return f"MiB that are free: {', '.join(sizes)}"


def _has_group(error: BaseException | None) -> bool:
    for _ in range(CHAINED + 1):
        if isinstance(error, BaseExceptionGroup):
            return True
        error = error and error.__context__
    return False


def _status(error: BaseException | None) -> int:
    """Return the exit status of a program that ends with this error. None means an end without an error."""
    code = error.code if isinstance(error, SystemExit) else error
    return code & 0xFF if isinstance(code, int) else int(code is not None)
