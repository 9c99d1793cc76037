"""Runs one program with the same user as user code, and passes its input and output on while it runs.

The only argument is JSON with `argv`, `cwd`, `env`, `stdin` (true if the program has an input), `timeout` in seconds,
and, for a program with a terminal, `size` in columns and rows.
Standard output is lines of JSON: `{"pid": …}` after the program's start, then `{"stdout": …}`, `{"stderr": …}` or
`{"pty": …}` with base64, `{}` as a keep-alive, and at the program's end `{"code": …, "timed_out": …}`. If the program
cannot be started, the only line is `{"error": …}`.
Standard input is lines of JSON, too: `{"data": …}` with base64, `{"close": true}`, and `{"size": [columns, rows]}`. At
the end of standard input, as at the timeout, the program and all its descendants are killed. Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import selectors
import signal
import struct
import sys
import termios
import time
from typing import IO, Any, BinaryIO

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.commands import Command, discard
from kernel_image.file_names import name_of
from kernel_image.processes import LAST_OUTPUT, environment
from kernel_image.protocol import KEEPALIVE, MARK

#: maximum bytes of one read
PIECE = 64 * 1024
#: bytes of input that the program has not read yet, above which this tool reads no more input
INPUT_MAX = 64 * 1024
#: bytes of output that are passed on after the program's end: at least what two pipes hold. Source: pipe(7), 1 MiB each
LAST_BYTES = 2 * 1024**2


class Attached:
    """A running program with its streams."""

    def __init__(self, request: dict[str, Any], stdin: BinaryIO, stdout: BinaryIO) -> None:
        """Start the program.

        Raises:
            OSError: when the program cannot be started.
            RuntimeError: when the limit of processes is reached; threads count as processes.
        """
        self._stdin = stdin.fileno()
        self._stdout = stdout
        self._lines = bytearray()
        self._pending = bytearray()
        self._closing = False
        #: monotonic time of the last line, and bytes of output that were passed on
        self._said = time.monotonic()
        self._passed = 0
        self._selector = selectors.DefaultSelector()
        #: the program's outputs that are still open, by their key in the lines of JSON
        self._outputs: dict[str, IO[bytes]] = {}
        self._terminal: int | None = None
        env = {**environment(), **request["env"], MARK: os.getcwd()}
        if request.get("size"):
            self._terminal, program = os.openpty()
            self._resize(request["size"])
            env["TERM"] = request["env"].get("TERM", "xterm-256color")
            self.command = Command(request["argv"], request["cwd"] or None, env, terminal=program)
            self._outputs["pty"] = os.fdopen(self._terminal, "rb", buffering=0)
            self._input: int | None = os.dup(self._terminal)
        else:
            self.command = Command(request["argv"], request["cwd"] or None, env, takes_input=request["stdin"])
            process = self.command.process
            self._outputs |= {"stdout": self.command.pipes[0], "stderr": self.command.pipes[1]}
            self._input = os.dup(process.stdin.fileno()) if process.stdin else None
            if process.stdin:
                process.stdin.close()
        if self._input is not None:
            os.set_blocking(self._input, False)
        self._woken, wake = os.pipe()
        try:
            self.command.watch(lambda: os.close(wake))
        except RuntimeError:
            self.command.end()
            raise
        self._selector.register(self._stdin, selectors.EVENT_READ, "stdin")
        self._selector.register(self._woken, selectors.EVENT_READ, "end")
        for name, output in self._outputs.items():
            self._selector.register(output, selectors.EVENT_READ, name)

    def say(self, value: dict[str, Any]) -> None:
        """Write a line of JSON."""
        self._stdout.write(json.dumps(value).encode() + b"\n")
        self._stdout.flush()
        self._said = time.monotonic()

    def run(self, deadline: float) -> None:
        """Pass input and output on until the program ends, or is killed at the deadline.

        Args:
            deadline: monotonic time at which the program is killed.
        """
        self.say({"pid": self.command.process.pid})
        while (left := deadline - time.monotonic()) > 0 and not self.command.ended.is_set():
            self._pass_on(min(left, KEEPALIVE))
        timed_out = not self.command.ended.is_set()
        if timed_out:
            self.command.end()
        self._pass_last_on()
        for output in self._outputs.values():
            if self._terminal is None:
                discard(output)
        self.command.ended.wait(LAST_OUTPUT)
        self.say({"code": self.command.returned, "timed_out": timed_out})

    def _pass_last_on(self) -> None:
        """Pass on what the outputs still hold. However slowly the client takes it, it gets all of it.

        A background process may hold the outputs open, and write for ever. So the time without output is limited, and
        the output is.
        """
        left, most = LAST_OUTPUT, self._passed + LAST_BYTES
        while self._outputs and left > 0 and self._passed < most:
            left -= self._pass_on(left)

    def _pass_on(self, seconds: float) -> float:
        """Wait at most `seconds` for input or output, and pass it on. Return for how many seconds it has waited."""
        began = time.monotonic()
        ready = self._selector.select(seconds)
        waited = time.monotonic() - began
        for key, _ in ready:
            match key.data:
                case "end":
                    self._selector.unregister(self._woken)
                case "stdin":
                    self._read_lines()
                case "input":
                    self._write_input()
                case name:
                    self._read_output(name)
        if time.monotonic() - self._said >= KEEPALIVE:  # also while there is input, but no output
            self.say({})
        return waited

    def _read_output(self, name: str) -> None:
        output = self._outputs[name]
        try:
            piece = os.read(output.fileno(), PIECE)
        except OSError:  # no process has the terminal open any more
            piece = b""
        if piece:
            self._passed += len(piece)
            self.say({name: base64.b64encode(piece).decode()})
        else:
            self._selector.unregister(output)
            del self._outputs[name]

    def _read_lines(self) -> None:
        piece = os.read(self._stdin, PIECE)
        if not piece:
            self.command.end()
            os._exit(0)
        self._lines += piece
        *lines, rest = self._lines.split(b"\n")
        self._lines = bytearray(rest)
        for line in lines:
            self._take(json.loads(line))
        self._write_input()

    def _take(self, told: dict[str, Any]) -> None:
        match told:
            case {"data": str(data)}:
                self._pending += base64.b64decode(data, validate=True)
            case {"close": True}:
                self._closing = True
            case {"size": size}:
                self._resize(size)

    def _resize(self, size: list[int]) -> None:
        if self._terminal is not None:
            columns, rows = size
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _write_input(self) -> None:
        """Write as much input as the program accepts. Read no more input while too much of it waits."""
        if self._input is None:
            self._pending.clear()
            return
        try:
            while self._pending:
                del self._pending[: os.write(self._input, self._pending[:PIECE])]
        except BlockingIOError:
            pass
        except OSError:  # the program has closed its input
            self._pending.clear()
        if self._closing and not self._pending:
            self._end_input()
            return
        self._watch("input", self._input, selectors.EVENT_WRITE, wanted=bool(self._pending))
        self._watch("stdin", self._stdin, selectors.EVENT_READ, wanted=len(self._pending) <= INPUT_MAX)

    def _end_input(self) -> None:
        if self._input is None:
            return
        self._watch("input", self._input, selectors.EVENT_WRITE, wanted=False)
        if self._terminal is not None:  # a terminal ends its input with a character. Source: termios(3), VEOF
            with contextlib.suppress(OSError):
                os.write(self._input, b"\x04")
        os.close(self._input)
        self._input = None
        self._watch("stdin", self._stdin, selectors.EVENT_READ, wanted=True)

    def _watch(self, name: str, descriptor: int, event: int, *, wanted: bool) -> None:
        watched = descriptor in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(descriptor, event, name)
        elif watched and not wanted:
            self._selector.unregister(descriptor)


def main(argument: str, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run the program that the JSON text `argument` describes."""
    request = json.loads(argument)
    request["cwd"] = name_of(request["cwd"])
    began = time.monotonic()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        attached = Attached(request, stdin, stdout)
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else errno.EAGAIN
        word = "directory" if getattr(error, "filename", None) == request["cwd"] else "failed"
        stdout.write(json.dumps({"error": word, "reason": os.strerror(number or 0)}).encode() + b"\n")
        return
    attached.run(began + request["timeout"])
    stdout.flush()
    os._exit(0)  # a thread may still wait for processes in the background


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
