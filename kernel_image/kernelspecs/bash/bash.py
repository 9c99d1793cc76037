# noqa: INP001 - beside a program
"""One Bash that runs cells.

It is an interactive Bash, because only that returns to its prompt when a command is interrupted, and keeps its state.
It has no terminal. It reads the kernel's lines from its standard input: for each cell one line that evaluates the code,
which is in a file in memory, and reports the status on a pipe. The code's own standard input is empty.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

#: bytes that are read at a time: as many as a pipe holds
PIPE = 64 * 1024
#: milliseconds between two looks at whether Bash is still there, while a background process holds its pipes open
LOOK = 1000
#: the first line that Bash reads: no prompts, no history, and its errors to the kernel from now on
BEGIN = "PS1= PS2= PROMPT_COMMAND=; unset HISTFILE; set +o history +o histexpand; exec 2>&{err} {err}>&-\n"
#: runs the cell; takes a prompt away that the cell may have set, as `activate` does
CELL = 'IFS= read -rd "" -u {code} __cell; eval "$__cell" 0</dev/null; {status}; PS1= PS2=\n'
#: reports its own number, and the status of the last command; without quotes, because an interrupt may cut a line
STATUS = r"printf {number}\ %d\\n $? >&{report}"
#: a report
REPORT = re.compile(rb"(\d{1,18}) (\d{1,3})")

#: takes the name of a stream, `stdout` or `stderr`, and text
Publish = Callable[[str, str], None]


class BashEnded(Exception):
    """Bash has ended in a cell, and its state with it."""


class Text:
    """What one stream has printed, as text: a character may arrive in two parts."""

    def __init__(self, publish: Callable[[str], None]) -> None:
        """Publish all text with this function."""
        self._publish = publish
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Publish more of the text."""
        if text := self._decoder.decode(data, final):
            self._publish(text)


class Bash:
    """One running Bash."""

    def __init__(self) -> None:
        """Start it, in the kernel's directory and with its environment."""
        self._code = os.memfd_create("cell")
        self._lines_end, self._lines = os.pipe()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        self._reports, self._report = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],  # noqa: S607 - the user's PATH decides, as for cells
            stdin=self._lines_end,
            stdout=out,
            stderr=subprocess.DEVNULL,  # for its complaint about the missing terminal
            pass_fds=(self._code, self._report, err),
        )
        for end in (self._lines_end, out, err, self._report):
            os.close(end)
        #: number of the newest line that reports a status
        self._newest = 0
        #: held while a cell ends, and while it is interrupted; a signal's handler may need it where it is held
        self._lock = threading.RLock()
        self._running = False
        self._write(BEGIN.format(err=err))

    def _write(self, line: str) -> None:
        os.write(self._lines, line.encode())

    def _status(self) -> str:
        self._newest += 1
        return STATUS.format(number=self._newest, report=self._report)

    def run(self, code: str, publish: Publish) -> int:
        """Run a cell.

        Args:
            code: code of the cell.
            publish: takes what the cell prints, as it prints it.

        Returns:
            the status of the cell's last command; 130 if it was interrupted.

        Raises:
            BashEnded: when Bash has ended; the argument is its exit status.
        """
        if "\0" in code:
            publish("stderr", "bash: a cell cannot contain the character NUL\n")
            return 2
        os.ftruncate(self._code, 0)
        os.pwrite(self._code, code.encode(), 0)
        os.lseek(self._code, 0, os.SEEK_SET)
        with self._lock:
            first = self._newest + 1
            self._running = True
            self._write(CELL.format(code=self._code, status=self._status()))
            self.ask_status()
        texts = {self._out: Text(partial(publish, "stdout")), self._err: Text(partial(publish, "stderr"))}
        try:
            return self._wait(texts, first)
        finally:
            self._running = False
            for end, text in texts.items():
                printed = bool(select.select([end], [], [], 0)[0])
                text.add(os.read(end, PIPE) if printed else b"", final=True)

    def ask_status(self) -> None:
        """Have the status reported again: an interrupt discards the rest of the line that Bash is at.

        An interrupt that Bash notices while it reads takes the empty line before.
        """
        with self._lock, suppress(BrokenPipeError):  # it has ended, which `_wait` notices
            self._write(f"\n{self._status()}\n")

    def interrupt(self, send: Callable[[], None]) -> None:
        """Interrupt the cell, if one runs; another thread may be running it.

        Args:
            send: sends SIGINT to Bash.
        """
        with self._lock:
            if self._running:
                send()
                self.ask_status()

    def set(self, env: Mapping[str, str | None]) -> None:
        """Set environment variables; None removes one."""
        for name, value in env.items():
            self._write(f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n")

    def _wait(self, texts: Mapping[int, Text], first: int) -> int:
        """Wait for the end of the cell whose lines have this number and higher ones.

        That is the report of the newest line. When Bash reads a line that was written after an interrupt, it has had
        the interrupt, and has printed all that it prints about it.
        """
        poll = select.poll()
        for end in (self._reports, *texts):
            poll.register(end, select.POLLIN)
        reports = b""
        status: int | None = None
        while True:
            ready = dict(poll.poll(LOOK))
            for end in texts.keys() & ready.keys():
                texts[end].add(os.read(end, PIPE))
            if self._reports in ready:
                *lines, reports = (reports + os.read(self._reports, PIPE)).split(b"\n")
                with self._lock:
                    for report in filter(None, (REPORT.fullmatch(line) for line in lines)):
                        number, code = (int(part) for part in report.groups())
                        if status is None and number >= first:
                            status = code
                        if status is not None and number == self._newest:
                            self._running = False
                            return status
            if (ended := self._process.poll()) is not None:
                raise BashEnded(ended if ended >= 0 else 128 - ended)

    def close(self) -> None:
        """Close the pipes of a Bash that has ended."""
        for end in (self._code, self._lines, self._out, self._err, self._reports):
            os.close(end)
