"""Runs tools until standard input ends, each as a fork or a thread of this program: both start sooner than Python.

It has no argument. Standard input and output are the frames of a relay (`relaying.py`), which opens a connection to a
tool: the name of its module. A connection's data are the tool's standard input and output; the input begins with the
tool's argument, after its length (`FRAME_FORMAT`). Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, NoReturn

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.protocol import FILES_TOOL, FRAME_FORMAT, RelayFrame
from kernel_image.relaying import Connection, Relay

Tool = Callable[[str, BinaryIO, BinaryIO], None]
#: tools that run as threads, which start in a millisecond: they start no process and use no signal. In gVisor, a fork
#: takes 30 ms, and its first touch of each page of memory takes time as well.
THREADS = {FILES_TOOL}
_LENGTH = struct.Struct(FRAME_FORMAT)


class ToolConnection(Connection):
    """One tool. It is not ended by a signal: it ends when it finds its input or output closed."""

    def connect(self, content: bytes) -> None:
        """Start the tool."""
        name = content.decode()
        own, tools = socket.socketpair()
        try:
            tool: Tool = importlib.import_module(f"kernel_image.{name}").main
            if name in THREADS:
                threading.Thread(target=_run, args=(tool, tools)).start()
            elif os.fork() == 0:
                _become(tool, tools)
            else:
                tools.close()
        except (ImportError, OSError, RuntimeError):  # the image has no such tool, or a limit is reached
            own.close()
            tools.close()
            self.drop(RelayFrame.REFUSED)
        else:
            own.setblocking(False)  # noqa: FBT003 - the function's own signature
            self.use(own)

    def lost(self) -> None:
        """The tool has ended, and has not read all its input."""
        self.finished()


def _run(tool: Tool, channel: socket.socket) -> None:
    """Run a tool in this thread."""
    try:
        with channel.makefile("rb") as stdin, channel.makefile("wb") as stdout:
            tool(_argument(channel.fileno()), stdin, stdout)
    except ConnectionError:  # the gateway has closed the connection
        pass
    finally:
        with contextlib.suppress(OSError):  # as above
            channel.shutdown(socket.SHUT_RDWR)  # a tool that is being forked may have a copy of it open
        channel.close()


def _become(tool: Tool, channel: socket.socket) -> NoReturn:
    """Run a tool in this process, and end the process."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a tool waits for its own children
        for number in (0, 1):
            os.dup2(channel.fileno(), number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # among others, what the tools that are threads have opened
        argument = _argument(0)
        stdin, stdout = open(0, "rb"), open(1, "wb")  # noqa: SIM115 - a thread of the tool may still use them
        with contextlib.suppress(ConnectionError):  # as above
            tool(argument, stdin, stdout)
            stdout.flush()
    except BaseException:  # noqa: BLE001 - what Python itself does at the end of a program
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _argument(channel: int) -> str:
    """Read the tool's argument, and nothing of what follows it."""
    return _exactly(channel, *_LENGTH.unpack(_exactly(channel, _LENGTH.size))).decode()


def _exactly(channel: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (piece := os.read(channel, size - len(content))):
            raise ConnectionError("the argument has no end")
        content += piece
    return content


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run tools until the end of standard input, and wait for their ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the forks
    relay = Relay(stdin, stdout, ToolConnection)
    relay.run()
    relay.close()
    with contextlib.suppress(ChildProcessError):  # all forks have ended; Python itself waits for the threads
        while True:
            os.wait()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
