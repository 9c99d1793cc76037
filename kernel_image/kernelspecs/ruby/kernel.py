# noqa: INP001 - a program
"""The Ruby kernel: it has the Python kernel's channels and messages, but runs its cells in one Ruby process.

It is started as `python kernel.py -f CONNECTION_FILE`; with `-f -` it waits for its connection. The first cell starts
Ruby, so Ruby gets the environment and the working directory that the kernel got when it was leased. `cells.rb` runs the
cells, and says how the two talk.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

if __name__ == "__main__":  # no cell imports Python modules in this kernel
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from python_kernel import bundle

    bundle.use(bundle.FILE)
    from python_kernel import imports

    imports.lean()
from IPython.core.error import StdinNotImplementedError
from python_kernel.interpreter import InterpreterKernel, Tell, start, version

#: maximum bytes of one read, as many as a pipe holds
PIPE = 64 * 1024


class RubyEnded(Exception):
    """Ruby has ended during a cell, so its state is lost. The argument is the return code."""


class Stream:
    """Reads the output of cells from a pipe. A character may arrive in two parts."""

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        """Start to read.

        Args:
            name: name of the stream, `stdout` or `stderr`.
            pipe: reading end of the pipe.
        """
        self.name = name
        self.end = pipe.fileno()
        self._pipe = pipe
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, tell: Tell, *, last: bool = False) -> None:
        """Publish the current content of the pipe. `last` is True at the end of a cell."""
        (size,) = struct.unpack("i", fcntl.ioctl(self.end, termios.FIONREAD, struct.pack("i", 0)))
        text = self._decoder.decode(os.read(self.end, min(size, PIPE)) if size else b"", last)
        if text:
            tell("stream", {"name": self.name, "text": text})


class Ruby:
    """A running Ruby process."""

    def __init__(self, lost: Callable[[int], None]) -> None:
        """Start Ruby in the kernel's working directory, with the kernel's environment.

        Args:
            lost: called in another thread with the return code, if Ruby ends while no cell runs.
        """
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        #: reading and writing end of a pipe; the writing end is closed when Ruby has ended
        self._alive, self._ended = os.pipe()
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cells.rb")
        self._process = subprocess.Popen(  # noqa: S603 - the image's own
            ["ruby", "-EUTF-8", program, str(requests), str(answers)],  # noqa: S607 - the user's PATH decides, as for cells
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(requests, answers),
        )
        for end in (requests, answers):
            os.close(end)
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        assert self._process.stderr is not None  # noqa: S101
        self._streams = Stream("stdout", self._process.stdout), Stream("stderr", self._process.stderr)
        self._unread = b""
        self._running = False
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, args=(lost,), name="Ruby", daemon=True).start()

    def _watch(self, lost: Callable[[int], None]) -> None:
        self._process.wait()
        with self._lock:
            os.close(self._ended)
            if not self._running:
                lost(self._process.returncode)

    @property
    def running(self) -> bool:
        """Whether a cell runs."""
        return self._running

    def run(self, code: str, env: Mapping[str, str], tell: Tell, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Run a cell.

        Args:
            code: code of the cell.
            env: environment variables for this cell only.
            tell: publishes the output of the cell while the cell runs.
            ask: asks the client for a line, and returns Ruby's answer.

        Returns:
            the message `end` of `cells.rb`.

        Raises:
            RubyEnded: when Ruby has ended.
        """
        with self._lock:
            self._running = True
        try:
            self._send({"code": code, "env": dict(env)})
            for answer in self._heard(tell):
                if answer["kind"] == "end":
                    return answer
                if answer["kind"] == "input":
                    self._send(ask())
        finally:
            self._running = False
            for stream in self._streams:
                stream.read(tell, last=True)
        raise RubyEnded(self._process.wait())

    def _send(self, request: dict[str, Any]) -> None:
        left = memoryview(json.dumps(request).encode() + b"\n")
        while left:
            try:
                left = left[os.write(self._requests, left) :]
            except BrokenPipeError:  # Ruby has ended, which `_heard` notices
                return

    def _heard(self, tell: Tell) -> Iterator[dict[str, Any]]:
        """Publish what the cell prints, and yield the answers, until Ruby ends."""
        poll = select.poll()
        streams = {stream.end: stream for stream in self._streams}
        for end in (self._answers, self._alive, *streams):
            poll.register(end, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            for end in streams.keys() & ready.keys():
                streams[end].read(tell)
                if ready[end] & select.POLLHUP and not ready[end] & select.POLLIN:
                    poll.unregister(end)
            if ready.get(self._answers, 0) & select.POLLIN:
                self._unread += os.read(self._answers, PIPE)
                *whole, self._unread = self._unread.split(b"\n")
                yield from map(json.loads, whole)
            elif self._alive in ready:
                return


class RubyKernel(InterpreterKernel):  # type: ignore[misc]  # imported through `sys.path` at run time
    """A kernel whose cells are Ruby code."""

    implementation = "ruby"
    banner = "Ruby"
    _ruby: Ruby | None = None

    @property
    def language(self) -> dict[str, str]:
        """The language, with its version."""
        return {
            "name": "ruby",
            "version": version(__file__),
            "mimetype": "text/x-ruby",
            "file_extension": ".rb",
            "codemirror_mode": "ruby",
            "pygments_lexer": "ruby",
        }

    def _send_interrupt_children(self) -> None:
        """Send SIGINT to the kernel's process group, which includes Ruby, if a cell runs."""
        if self._ruby is not None and self._ruby.running:
            super()._send_interrupt_children()

    def run_code(self, code: str, tell: Tell, env: Mapping[str, str]) -> dict[str, Any] | None:
        """Run the code of a cell."""
        if self._ruby is None:
            self._ruby = Ruby(lambda status: self.io_loop.add_callback(self.end, status))
        # Ruby gets the same signal, because it is in the kernel's process group, and ends the cell.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        try:
            ended = self._ruby.run(code, env, tell, self._ask)
        except RubyEnded as lost:
            self.end(int(str(lost)))
        if "error" in ended:
            return dict(ended["error"])
        if ended["result"] is not None:
            data = {"text/plain": ended["result"]}
            tell("execute_result", {"execution_count": self.execution_count, "data": data, "metadata": {}})
        return None

    def _ask(self) -> dict[str, Any]:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return {"input": self.raw_input()}
        except StdinNotImplementedError as refused:
            return {"input": None, "refusal": str(refused)}
        except (EOFError, KeyboardInterrupt):  # at an interrupt, Ruby no longer waits for the answer
            return {"input": None}
        finally:
            signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    start(RubyKernel, sys.argv[1:])
