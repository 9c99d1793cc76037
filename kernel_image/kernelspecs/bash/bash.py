# noqa: INP001 - beside a program
"""Runs cells in one Bash process.

Bash is interactive, because only an interactive Bash returns to its prompt after an interrupted command, with its
state. It has no terminal. For each cell, Bash reads one line from its standard input. The line evaluates the cell's
code, which is in a file in memory, with an empty standard input and with the pipes for the output of cells. Another
pipe, which only the kernel reads, gets Bash's own output: prompts, traces of the kernel's lines, and the reports.

The kernel's lines must not depend on settings of a cell, and a cell must not notice them. So they call no command
except `eval`: any other command could be replaced by a function, an alias or a trap, and `set -x` would show it. A
*report* tells the kernel the status and the last argument of a command. It is the error message of a redirection that
always fails; Bash writes it independently of options, traps, functions and aliases.
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

#: maximum bytes of one read, as many as a pipe holds
PIPE = 64 * 1024
#: lowest number of the kernel's descriptors in Bash; scripts usually use lower numbers
PRIVATE = 230
#: a redirection that always fails; its error message is the report. It is in a condition, so it neither ends a shell
#: with `set -e` nor triggers the ERR trap. Its group never runs, so it does not trigger the DEBUG trap.
REPORT = 'if {{ \\:; }} 2>&{own} </dev/null/{mark}" {number} {status} {last}"/{mark}; then \\:; fi'
#: the status of the last command, and the status of a command after `!`
STATUS, INVERTED = "$?", "${PIPESTATUS[0]-1}"
#: Ends the last line of the code, even if the line ends with a backslash. After a text that ends inside quotes, for
#: example in an `eval` of a cell, Bash recognises no keyword before the next empty line.
BLANK = "\n\n"
#: sets the status of the last cell as `$?` for this cell. A subshell in the first part of a list may fail without
#: consequences.
BEFORE = "(\\exit {status}) &>/dev/null && \\:; "
#: evaluates words, with environment variables for this command only
EVALUATE = '{env} _="$(</proc/self/fd/{last})" \\eval {words} </dev/null >&{out} 2>&{err}'
#: Runs a cell. The code is first parsed in a command that does not run, to see whether it is complete. Complete code is
#: evaluated together with a report after it: so the report has `$_`, and the status of `eval` is always zero, which
#: triggers no option or trap. Incomplete code is evaluated alone, because it would swallow the text of the report.
CELL = """\
if \\eval $'if {{ \\\\:; }} </dev/null/_; then (\\n'{code}$'\\n\\n)\\nfi' &>/dev/null; then {complete}; \
else ! {incomplete}; fi; {report}
"""

#: function that publishes text, with the name of its stream, `stdout` or `stderr`
Publish = Callable[[str, str], None]


class BashEnded(Exception):
    """Bash has ended during a cell, so its state is lost. The argument is the return code."""


class Text:
    """Decodes and publishes the output of one stream. A character may arrive in two parts."""

    def __init__(self, publish: Callable[[str], None], hidden: Sequence[bytes] = ()) -> None:
        """Start without output.

        Args:
            publish: publishes text.
            hidden: texts that are left out; each of them is a part of one line.
        """
        self._publish = publish
        self._hidden = hidden
        #: the incomplete last line, if it may be the beginning of a hidden text
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Publish more output. `final` is True at the end of the cell."""
        data = self._held + data
        for words in self._hidden:
            data = data.replace(words, b"")
        begun = data[data.rfind(b"\n") + 1 :]
        self._held = begun if not final and any(words.startswith(begun) for words in self._hidden) else b""
        if text := self._decoder.decode(data.removesuffix(self._held), final):
            self._publish(text)


class Bash:
    """A running Bash process."""

    def __init__(self, lost: Callable[[int], None]) -> None:
        """Start Bash in the kernel's working directory, with the kernel's environment.

        Args:
            lost: called in another thread with the return code, if Bash ends while no cell runs.
        """
        self._code = _private(os.memfd_create("code"))
        self._last = _private(os.memfd_create("last"))
        lines, self._lines = os.pipe()
        self._out, out = _pipe()
        self._err, err = _pipe()
        self._own, own = _pipe()
        #: reading and writing end of a pipe; the writing end is closed when Bash has ended
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
        #: True if the last cell's code was complete and ran to its end
        self._complete = True
        #: number of the newest requested report
        self._newest = 0
        #: held while a cell ends, and while a cell is interrupted. The lock is reentrant, because a signal handler may
        #: take it in the thread that holds it
        self._lock = threading.RLock()
        self._running = False
        threading.Thread(target=self._watch, args=(lost,), name="Bash", daemon=True).start()

    def _watch(self, lost: Callable[[int], None]) -> None:
        self._process.wait()
        with self._lock:
            os.close(self._ended)
            if not self._running:
                lost(self._process.returncode)

    def run(
        self, code: str, publish: Publish, env: Mapping[str, str] = MappingProxyType({}), *, keep: bool = True
    ) -> int:
        """Run a cell.

        Args:
            code: code of the cell.
            publish: publishes the output of the cell while the cell runs.
            env: environment variables for this cell only.
            keep: True if the next cell shall find the status of this cell in `$?`, False to keep the status before it.

        Returns:
            the status of the cell's last command; 130 after an interrupt.

        Raises:
            BashEnded: when Bash has ended.
        """
        if "\0" in code:
            publish("stderr", "bash: a cell cannot contain the character NUL\n")
            return 2
        _fill(self._code, code.encode())
        _fill(self._last, self._argument)
        with self._lock:
            number = self._newest = self._newest + 1
            begin = "" if self._complete else "\n"  # an empty line, for the same reason as in `BLANK`
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
        with suppress(BrokenPipeError):  # Bash has ended, which `_wait` notices
            os.write(self._lines, line.encode())

    def ask_status(self) -> None:
        """Ask Bash for the exit status again: an interrupt discards the rest of its input line.

        An empty line comes first. If Bash notices the interrupt while it reads, it discards only that empty line.
        """
        with self._lock:
            self._newest += 1
            self._write(f"\n{self._report(number=self._newest, status=STATUS, last='')}\n")

    def interrupt(self, send: Callable[[], None]) -> None:
        """Interrupt the running cell, if there is one. Another thread may run it.

        Args:
            send: sends SIGINT to Bash.
        """
        with self._lock:
            if self._running:
                send()
                self.ask_status()

    def _wait(self, texts: Mapping[int, Text], first: int) -> tuple[int, bytes | None]:
        """Wait for the newest report, which is the end of a cell.

        Each interrupt asks for another report, with a higher number. When Bash reads a line that was written after an
        interrupt, it has handled the interrupt, and has printed everything about it.

        Args:
            texts: output of the cell, by descriptor.
            first: number of the report at the end of the cell's code.

        Returns:
            the status, and the last argument, or None if that is unknown.
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
                raise BashEnded(self._process.wait())


def _private(descriptor: int) -> int:
    """Give a descriptor a high number, which scripts seldom use."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, PRIVATE)
    os.close(descriptor)
    return moved


def _pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe. Bash gets the writing end."""
    reading, writing = os.pipe()
    return reading, _private(writing)


def _fill(descriptor: int, content: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _unread(end: int) -> bytes:
    """Return the current content of a pipe. It is read only once, because background processes may write more."""
    (size,) = struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, struct.pack("i", 0)))
    return os.read(end, size) if size else b""


def _quoted(text: str) -> str:
    """Return text as one word of Bash, on one line."""
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
