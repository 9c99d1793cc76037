# noqa: INP001 - beside a program
"""One Bash that runs cells.

It is an interactive Bash, because only that returns to its prompt when a command is interrupted, and keeps its state.
It has no terminal. It reads one line for each cell from its standard input: the line evaluates the code, which is in a
file in memory, with an empty standard input and the cells' own pipes. Bash's own output, outside of cells, is one more
pipe, which only the kernel reads: prompts, traces of the kernel's lines, and the reports.

The kernel's words in between must not depend on what a cell has set, and must not be noticed. So they call no command
but `eval`: a function, an alias, or a trap could take the place of any other, and `set -x` would show it. A report is
the error message of a redirection that fails: it says the status and the last argument, and Bash writes it whatever
the options, traps, functions and aliases are.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import secrets
import select
import shlex
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType

#: bytes that are read at a time: as many as a pipe holds
PIPE = 64 * 1024
#: the kernel's descriptors in Bash begin here, beyond those that scripts choose
PRIVATE = 230
#: a redirection that always fails, with a report as its error message. A condition neither ends a shell that has
#: `set -e` nor counts as an error for the ERR trap, and a group that does not run is no command for the DEBUG trap.
REPORT = 'if {{ \\:; }} 2>&{own} </dev/null/{mark}" {number} {status} {last}"/{mark}; then \\:; fi'
#: the status of the last command; that of a command behind `!`
STATUS, INVERTED = "$?", "${PIPESTATUS[0]-1}"
#: Ends the last line of the code, although a backslash may join it with the next one. Behind a text that ends within
#: quotes, as of `eval` in a cell, Bash knows no keyword before the next empty line.
BLANK = "\n\n"
#: gives the cell the status of the cell before; only a subshell of a list's first part may fail without consequences
BEFORE = "(\\exit {status}) &>/dev/null && \\:; "
#: evaluates words; the variables are there for this command only
EVALUATE = '{env} _="$(</proc/self/fd/{last})" \\eval {words} </dev/null >&{out} 2>&{err}'
#: Runs a cell. Code that is complete is followed by a report: so `_` is known, and the status of `eval` is always zero,
#: which no option or trap notices. Incomplete code would take the report for its own text, so it is first parsed, as a
#: part of a command that does not run.
CELL = """\
if \\eval $'if {{ \\\\:; }} </dev/null/_; then (\\n'{code}$'\\n\\n)\\nfi' &>/dev/null; then {complete}; \
else ! {incomplete}; fi; {report}
"""

#: takes the name of a stream, `stdout` or `stderr`, and text
Publish = Callable[[str, str], None]


class BashEnded(Exception):
    """Bash has ended in a cell, and its state with it."""


class Text:
    """What one stream has printed, as text: a character may arrive in two parts."""

    def __init__(self, publish: Callable[[str], None], hidden: Sequence[bytes] = ()) -> None:
        """Publish all text with a function.

        Args:
            publish: takes the text.
            hidden: texts that are left out, each on one line.
        """
        self._publish = publish
        self._hidden = hidden
        #: the last line, if it may become a hidden text
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Publish more of the text."""
        data = self._held + data
        for words in self._hidden:
            data = data.replace(words, b"")
        begun = data[data.rfind(b"\n") + 1 :]
        self._held = begun if not final and any(words.startswith(begun) for words in self._hidden) else b""
        if text := self._decoder.decode(data.removesuffix(self._held), final):
            self._publish(text)


class Bash:
    """One running Bash."""

    def __init__(self, lost: Callable[[int], None]) -> None:
        """Start it, in the kernel's directory and with its environment.

        Args:
            lost: called in another thread with the exit status when Bash has ended, unless a cell runs.
        """
        self._code = _private(os.memfd_create("code"))
        self._last = _private(os.memfd_create("last"))
        lines, self._lines = os.pipe()
        self._out, out = _pipe()
        self._err, err = _pipe()
        self._own, own = _pipe()
        #: is at its end when Bash has ended
        self._alive, self._ended = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "+o", "history", "+H", "-i"],  # noqa: S607 - the user's PATH decides, as for cells
            stdin=lines,
            stdout=subprocess.DEVNULL,
            stderr=own,
            pass_fds=(self._code, self._last, out, err, own),
        )
        for end in (lines, out, err, own):
            os.close(end)
        mark = secrets.token_hex(8)
        self._report = partial(REPORT.format, own=own, mark=mark)
        self._reported = re.compile(rb"/dev/null/%b (\d+) (\d+) (?:=(.*?))?/%b:" % (2 * (mark.encode(),)), re.DOTALL)
        self._evaluate = partial(EVALUATE.format, last=self._last, out=out, err=err)
        #: status and last argument of the last cell
        self._status, self._argument = 0, b""
        #: whether the last cell's code was complete and ran to its end
        self._complete = True
        #: number of the newest report that is asked for
        self._newest = 0
        #: held while a cell ends, and while it is interrupted; a signal's handler may need it where it is held
        self._lock = threading.RLock()
        self._running = False
        threading.Thread(target=self._watch, args=(lost,), name="Bash", daemon=True).start()

    def _watch(self, lost: Callable[[int], None]) -> None:
        self._process.wait()
        with self._lock:
            os.close(self._ended)
            if not self._running:
                lost(self._exit_status())

    def _exit_status(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def run(
        self, code: str, publish: Publish, env: Mapping[str, str] = MappingProxyType({}), *, keep: bool = True
    ) -> int:
        """Run a cell.

        Args:
            code: code of the cell.
            publish: takes what the cell prints, as it prints it.
            env: environment variables for this cell alone.
            keep: the next cell finds the status of this one; else that of the one before.

        Returns:
            the status of the cell's last command; 130 if it was interrupted.

        Raises:
            BashEnded: when Bash has ended; the argument is its exit status.
        """
        if "\0" in code:
            publish("stderr", "bash: a cell cannot contain the character NUL\n")
            return 2
        _fill(self._code, code.encode())
        _fill(self._last, self._argument)
        with self._lock:
            number = self._newest = self._newest + 1
            begin = "" if self._complete else "\n"  # as for `BLANK`
            before = BEFORE.format(status=self._status) if self._status else ""
            behind = self._report(number=number, status=STATUS, last="=${_-}")
            self._running = True
            self._write(begin + self._cell(before, behind, env))
        texts = {
            self._out: Text(partial(publish, "stdout")),
            self._err: Text(partial(publish, "stderr"), [words.encode() for words in (before, f"{behind}\n") if words]),
        }
        try:
            status, argument = self._wait(texts, number)
        finally:
            self._running = False
            for end, text in texts.items():
                text.add(_unread(end), final=True)
        self._complete = argument is not None
        if keep:
            self._status, self._argument = status, self._argument if argument is None else argument
        return status

    def _cell(self, before: str, behind: str, env: Mapping[str, str]) -> str:
        words = f'"$(</proc/self/fd/{self._code})"'
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        return CELL.format(
            code=words,
            complete=self._evaluate(env=variables, words=f"{_quoted(before)}{words}{_quoted(BLANK + behind)}"),
            incomplete=self._evaluate(env=variables, words=words),
            report=self._report(number=self._newest, status=INVERTED, last=""),
        )

    def _write(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended, which `_wait` notices
            os.write(self._lines, line.encode())

    def ask_status(self) -> None:
        """Have the status reported again: an interrupt discards the rest of the line that Bash is at.

        An interrupt that Bash notices while it reads takes the empty line before.
        """
        with self._lock:
            self._newest += 1
            self._write(f"\n{self._report(number=self._newest, status=STATUS, last='')}\n")

    def interrupt(self, send: Callable[[], None]) -> None:
        """Interrupt the cell, if one runs; another thread may be running it.

        Args:
            send: sends SIGINT to Bash.
        """
        with self._lock:
            if self._running:
                send()
                self.ask_status()

    def _wait(self, texts: Mapping[int, Text], first: int) -> tuple[int, bytes | None]:
        """Wait for the end of the cell whose report has this number, and those after interrupts higher ones.

        That is the newest report. When Bash reads a line that was written after an interrupt, it has had the interrupt,
        and has printed all that it prints about it.

        Returns:
            the status, and the last argument unless it is unknown.
        """
        poll = select.poll()
        for end in (self._own, self._alive, *texts):
            poll.register(end, select.POLLIN)
        said = b""
        result: tuple[int, bytes | None] | None = None
        while True:
            ready = dict(poll.poll())
            for end in texts.keys() & ready.keys():
                texts[end].add(os.read(end, PIPE))
            if self._own in ready and (more := os.read(self._own, PIPE)):
                said += more
                with self._lock:
                    for report in self._reported.finditer(said):
                        number = int(report[1])
                        if result is None and number >= first:
                            result = int(report[2]), report[3]
                        if result is not None and number == self._newest:
                            self._running = False
                            return result
            elif self._alive in ready:
                raise BashEnded(self._exit_status())


def _private(descriptor: int) -> int:
    """Move a descriptor to where scripts seldom have theirs."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, PRIVATE)
    os.close(descriptor)
    return moved


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe; Bash gets the second one."""
    reading, writing = os.pipe()
    return reading, _private(writing)


def _fill(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _unread(end: int) -> bytes:
    """Return what a pipe holds at this moment: processes in the background may write on."""
    (size,) = struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, struct.pack("i", 0)))
    return os.read(end, size) if size else b""


def _quoted(text: str) -> str:
    """Return text as one word on one line."""
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
