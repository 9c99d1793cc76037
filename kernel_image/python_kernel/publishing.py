"""Publishes the kernel's messages: each thread sends its own messages, instead of one thread that sends all.

In ipykernel every message and every flush goes through the thread `IOPub`, about ten times per cell. Each of these
changes of threads takes little time on bare metal, and much in gVisor. The thread `IOPub` still does the work that no
other thread does: it welcomes subscribers, flushes text that was printed a while ago, and sends for the control
channel, which must not wait while a cell waits for its reader.

System calls are saved for the same reason: libzmq makes sixteen of them for a message if its thread sleeps. So a
request's messages before its code runs are sent together, and so are those after it (`Publisher.hold`).
"""

from __future__ import annotations

import codecs
import ctypes
import errno
import json
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import StringIO, UnsupportedOperation
from itertools import count, repeat, takewhile
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.thread import CONTROL_THREAD_NAME
from jupyter_client import session as sessions
from jupyter_client.jsonutil import json_clean
from zmq.backend.cython import _zmq

from .descriptors import Cells, Descriptor, print_by_lines

#: maximum characters of stream text in a message, because a reader may refuse very large messages
PIECE = 256 * 1024
#: maximum characters of printed text and bytes from a descriptor that wait to be sent. A thread that has written or
#: read more sends them before it continues, so a slow reader slows down the output instead of filling the memory
UNSENT = 4 * 1024 * 1024

# pyzmq's own function runs signal handlers between two frames, so it may raise in the middle of a message.
_library = ctypes.CDLL(_zmq.__file__)  # this library exports libzmq's functions
_send = _library.zmq_send
_send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = -1


class Outgoing:
    """A message that is sent completely and once, even if signal handlers raise meanwhile."""

    def __init__(self, frames: Sequence[Any]) -> None:
        """Set the frames of the message."""
        self.frames = [frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]
        self._flags = [zmq.SNDMORE] * (len(self.frames) - 1) + [0]
        #: results of `zmq_send`, one for each sent frame
        self._sent: list[int] = []

    @property
    def gone(self) -> bool:
        """True if the whole message was sent."""
        return len(self._sent) == len(self.frames)

    def send(self, socket: zmq.Socket[bytes]) -> None:
        """Send the frames that were not sent yet.

        The loop over the frames runs in C, where no signal handler runs, and records each sent frame. Only the first
        frame may have to wait. A signal ends this wait: then nothing was sent, and the signal's handler may raise.

        Raises:
            zmq.ZMQError: when the socket is closed.
        """
        while not self.gone:
            rest = slice(len(self._sent), None)
            frames, flags = self.frames[rest], self._flags[rest]
            results = map(_send, repeat(socket.underlying), frames, map(len, frames), flags)
            self._sent.extend(takewhile(_FAILED.__ne__, results))
            if not self.gone and zmq.zmq_errno() != errno.EINTR:
                raise zmq.ZMQError


#: a function that sends one message
Send = Callable[[Outgoing], None]


def in_control_thread() -> bool:
    """Return whether this is the control channel's thread, whose messages another thread sends."""
    return threading.current_thread().name == CONTROL_THREAD_NAME


class Process:
    """The id of this process, stored to save a system call for each message."""

    pid = os.getpid()
    #: True in a fork of the kernel, which must not use the kernel's sockets
    forked = False

    @classmethod
    def note_fork(cls) -> None:
        """Record that this process is a fork."""
        cls.pid, cls.forked = os.getpid(), True


os.register_at_fork(after_in_child=Process.note_fork)


# Dates of requests stay text. Otherwise orjson would call Python code for their offset, and orjson crashes if a signal
# handler raises there.
sessions.extract_dates = lambda obj: obj  # type: ignore[attr-defined]


def pack(obj: Any) -> bytes:
    """Return a part of a message as JSON. A lone surrogate, which is not valid Unicode, becomes U+FFFD."""
    try:
        return sessions.orjson_packer(obj)
    except UnicodeEncodeError:
        text = json.dumps(json_clean(obj), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class KernelSession(sessions.Session):
    """Makes the kernel's messages."""

    def __init__(self, **options: Any) -> None:
        """Accept the options of jupyter_client's session."""
        super().__init__(**options)
        self.pack = pack

    def send(self, *args: Any, **options: Any) -> dict[str, Any] | None:
        """Send a message. A fork of the kernel sends nothing, unless the session's `pid` is that of the fork."""
        if Process.forked:
            self.check_pid = True  # switched off in the kernel's settings
        return super().send(*args, **options)

    @property
    def msg_id(self) -> str:
        """The id for the next message."""
        return f"{self.session}_{Process.pid}_{next(self._numbers)}"

    _numbers = count(1)  # several threads send; each number is used once


class Publisher(IOPubThread):
    """The thread `IOPub`. All messages to iopub go through this object."""

    io_loop: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        """Accept the arguments of ipykernel's thread."""
        #: lock for sending. It is reentrant, because a signal handler may print in the middle of any call.
        self.sending = threading.RLock()
        #: held messages of the main thread, each with its sending function; None if messages are not held
        self._held: deque[tuple[Send, Outgoing]] | None = None
        #: True if no held message may be sent before `release`
        self._unseen = False
        self._main = threading.get_ident()
        super().__init__(*args, **options)

    def hold(self, *, unseen: bool = False) -> None:
        """Hold the main thread's messages until `release` sends them together.

        Args:
            unseen: True to send none of them before `release`. Otherwise the held messages to iopub are sent as soon as
                another thread publishes something, which may be the rest of a text that the main thread has flushed.
        """
        if self._held is None:
            self._held = deque()
            self._unseen = unseen

    def release(self) -> None:
        """Send the held messages, and welcome new subscribers."""
        if self._held is None:
            return
        with self.sending:
            self._send_held(self._held)
            self._held = None
            self.welcome()

    def post(self, send: Send, message: Outgoing) -> None:
        """Send a message, or hold it."""
        if self._held is not None and threading.get_ident() == self._main:
            self._held.append((send, message))
        else:
            send(message)

    def publish(self, message: Outgoing) -> None:
        """Send a message to iopub, or hold it."""
        with self.sending:
            if self._held and not self._unseen and threading.get_ident() != self._main:
                self._send_held(self._held, self._to_iopub)
            self.post(self._to_iopub, message)

    @staticmethod
    def _send_held(held: deque[tuple[Send, Outgoing]], only: Send | None = None) -> None:
        while held and (only is None or held[0][0] == only):
            send, message = held[0]
            send(message)
            held.popleft()  # only now: sending a message twice has no effect, but losing one would

    def _to_iopub(self, message: Outgoing) -> None:
        if not self.closed:  # an ending kernel has no reader
            message.send(self.socket)

    def _is_master_process(self) -> bool:
        return not Process.forked

    def _handle_pipe_msg(self, msg: Sequence[Any]) -> None:
        if isinstance(sys.stdout, Stream):
            sys.stdout.flush()  # a fork displays something; its text before that is in the descriptor
        super()._handle_pipe_msg(msg)

    def _setup_xpub_listener(self) -> None:
        # A ZMQStream would not let others use the socket. Tornado would close a descriptor of libzmq at the end.
        self.io_loop.asyncio_loop.add_reader(self.socket.FD, self.on_edge)

    def on_edge(self) -> None:
        """Welcome new subscribers."""
        with self.sending:
            self.welcome()

    def welcome(self) -> None:
        """Read new subscriptions. Each sending clears the event that signals them, so it must be followed by this."""
        while self.socket.EVENTS & zmq.POLLIN:
            self._handle_subscription(self.socket.recv_multipart())

    def send_multipart(self, msg: Sequence[Any], *args: Any, **options: Any) -> None:
        """Send a message now. A message of the control channel's thread is sent by another thread soon afterwards."""
        if in_control_thread():
            super().send_multipart(msg, *args, **options)
        else:
            self._really_send(msg, *args, **options)

    def _really_send(self, msg: Sequence[Any], *args: Any, **options: Any) -> None:
        if Process.forked:
            super()._really_send(msg, *args, **options)
        else:
            self.publish(Outgoing(msg))


class Piece:
    """A part of printed text, with its message. The message is made when the text is sent."""

    def __init__(self, text: str) -> None:
        """Set the text."""
        self.text = text
        self.message: Outgoing | None = None


class Printed(StringIO):
    """The printed text of one parent message, with the output of the descriptor at its place in the text."""

    #: parts that were not sent yet; None before sending starts
    pieces: deque[Piece] | None = None

    def __init__(self) -> None:
        """Start without text."""
        super().__init__()
        #: output of the descriptor, each piece with the length of the printed text before it
        self._read: list[tuple[int, bytes]] = []

    @property
    def gone(self) -> bool:
        """True if the whole text was sent."""
        return self.pieces is not None and not self.pieces

    def take(self, pieces: Iterable[bytes]) -> None:
        """Read from the descriptor and store the result, both in C, where no signal handler runs in between."""
        self._read.extend(zip((self.tell(),), pieces, strict=True))

    def decoded(self, half: bytes) -> tuple[str, bytes]:
        """Return the whole text, and the beginning of a character that is not complete yet.

        Args:
            half: beginning of a character from the last read.
        """
        text, place = self.getvalue(), 0
        parts: list[str] = []
        for behind, data in self._read:
            characters, used = codecs.utf_8_decode(half + data, "replace", False)  # noqa: FBT003 - the function has no names
            half = (half + data)[used:]
            parts += text[place:behind], characters
            place = behind
        return "".join((*parts, text[place:])), half


class Stream(OutStream):
    """A stdout or stderr whose text is sent by the thread that flushes. Long text becomes several messages."""

    #: the running cells
    cells = Cells()

    def __init__(self, *args: Any, watchfd: bool = True, **options: Any) -> None:
        """Accept the arguments of ipykernel's stream. Unless `watchfd` is False, also read the descriptor."""
        self._descriptor: Descriptor | None = None
        super().__init__(*args, watchfd="force" if watchfd else False, **options)
        #: parent message of the last text, and its key in the buffers; the next text mostly has the same parent
        self._last: tuple[Any, frozenset[Any]] = (None, frozenset())
        self._buffers: defaultdict[frozenset[Any], Printed] = defaultdict(Printed)
        #: texts whose sending was interrupted
        self._waiting: list[tuple[frozenset[Any], Printed]] = []
        #: monotonic time at which the flush timer ends
        self._due = 0.0
        #: monotonic time of the last look at the descriptor, or of a write shortly after it
        self._looked = 0.0
        #: characters written, and bytes read from the descriptor, since the last flush
        self._unsent = 0
        #: beginning of an incomplete character from the descriptor, until the next bytes are read
        self._half = b""
        #: beginning of an incomplete line, only in a fork
        self._line = ""
        if self._descriptor is not None:
            thread = threading.Thread(target=self._watch, name=f"descriptor of {self.name}", daemon=True)
            # As for ipykernel's own threads, this keeps the debugger from stopping the thread.
            vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
            thread.start()

    def _setup_stream_redirects(self, name: str) -> None:
        number = getattr(sys, name).fileno()
        self._original_stdstream_copy = os.dup(number)  # the application's log goes there
        print_by_lines(name)
        self._descriptor = Descriptor(number)

    def fileno(self) -> int:
        """Return the descriptor for child processes with `stdout=sys.stdout`. Their output then belongs to the cell."""
        if self._descriptor is None:
            raise UnsupportedOperation("fileno")
        return self._descriptor.number

    def close(self) -> None:
        """Accept no more text. The descriptor is not closed."""
        self.pub_thread = None

    def write(self, string: str) -> Any:
        """Store text until it is flushed, at most 0.2 s later. Earlier output of the descriptor comes before it."""
        if isinstance(string, str) and len(string) > UNSENT:
            return sum(self.write(string[start : start + UNSENT]) for start in range(0, len(string), UNSENT))
        begun = time.monotonic()  # first, because the time since the last look decides whether a look is needed
        if not isinstance(string, str) or self.pub_thread is None or self.echo is not None:
            return super().write(string)
        if Process.forked:
            return self._write_in_fork(string)
        with self._buffer_lock:
            if self._descriptor is not None and begun - self._looked > self._descriptor.quick:
                self._take()
            self._buffers[self._key(self.parent_header)].write(string)
            self._unsent += len(string)
        self._schedule_flush()
        if self._unsent > UNSENT:
            self._flush()
        self._looked = time.monotonic()
        return len(string)

    def _key(self, parent: dict[str, Any]) -> frozenset[Any]:
        last, key = self._last
        if parent is not last:
            key = frozenset(parent.items())
            self._last = (parent, key)
        return key

    def _watch(self) -> None:
        while self._descriptor is not None and self._descriptor.wait() and not self.closed:
            with self._buffer_lock:
                self._take()
            self._schedule_flush()
            if self._unsent > UNSENT:
                self._flush()

    def _take(self) -> None:
        """Read the current output of the descriptor: at most a full pipe, so a flood cannot prevent a cell's end."""
        if self._descriptor is None or not (size := self._descriptor.look()):
            return
        key = self._key(self.cells.owner(self.parent_header))
        with suppress(BlockingIOError):  # a signal handler has printed meanwhile, and has read the output
            self._buffers[key].take(self._descriptor.read(size))
            self._unsent += size

    def _write_in_fork(self, string: str) -> int:
        """Write complete lines to the descriptor, like a child process on a terminal. The kernel reads them."""
        self.session.pid = Process.pid  # as in ipykernel, displays of this fork are sent from now on
        lines, end, self._line = (self._line + string).rpartition("\n")
        self._write_descriptor(lines + end)
        return len(string)

    def _write_descriptor(self, text: str) -> None:
        if self._descriptor is not None:
            self._descriptor.write(text)

    def _schedule_flush(self) -> None:
        # There is one timer at a time, because setting a timer wakes another thread. The clock shows whether a timer is
        # set. A flag would be wrong if an interrupt came between the flag and the timer.
        now = time.monotonic()
        if now > self._due:
            self._due = now + self.flush_interval
            self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, self._on_timer))

    def _on_timer(self) -> None:
        self._flush()
        self.pub_thread.on_edge()

    def flush(self) -> None:
        """Send the printed text and the earlier output of the descriptor, in the caller's thread.

        In the control channel's thread do nothing. ipykernel flushes there after each request, but that thread prints
        nothing, and a flush would cut the line that a cell is printing.
        """
        if self.pub_thread is not None and not in_control_thread():
            self._flush()

    def _flush(self) -> None:
        if Process.forked:
            line, self._line = self._line, ""
            self._write_descriptor(line)
            return
        with self._buffer_lock:
            self._take()
        # The lock is taken even without text: another thread may be sending earlier text, which must come before the
        # cell's end.
        with self.pub_thread.sending:
            if self._buffers or self._waiting:
                self._send_all()

    def _send_all(self) -> None:
        taken: list[tuple[frozenset[Any], Printed]] = []
        try:
            self._move_to(taken)
            for key, printed in taken:
                pieces = self._cut(printed)
                while pieces:  # a piece is removed after it was sent; sending it twice has no effect
                    self._publish(key, pieces[0])
                    pieces.popleft()
        finally:
            self._waiting[:0] = [(key, printed) for key, printed in taken if not printed.gone]

    def _move_to(self, taken: list[tuple[frozenset[Any], Printed]]) -> None:
        """Move the printed text to `taken`, so that a signal handler that prints meanwhile does not send it, too."""
        with self._buffer_lock:
            taken += self._waiting
            self._waiting = []
            self._unsent = 0
            keys = list(self._buffers)
            # This runs in C, where no signal handler runs, so each text is always in exactly one of the two places.
            taken.extend(zip(keys, map(self._buffers.pop, keys, repeat(Printed())), strict=True))

    def _cut(self, printed: Printed) -> deque[Piece]:
        """Return the parts of a text that were not sent yet."""
        if printed.pieces is not None:
            return printed.pieces
        text, half = printed.decoded(self._half)
        pieces = deque(Piece(text[start : start + PIECE]) for start in range(0, len(text), PIECE))
        # This runs in C, where no signal handler runs, so a text is decoded once, and half a character is used once.
        deque(map(setattr, (printed, self), ("pieces", "_half"), (pieces, half)), maxlen=0)
        return pieces

    def _publish(self, key: frozenset[Any], piece: Piece) -> None:
        if piece.message is None:
            piece.message = self._message(key, piece.text)
        self.pub_thread.publish(piece.message)

    def _message(self, key: frozenset[Any], text: str) -> Outgoing:
        message = self.session.msg("stream", {"name": self.name, "text": text}, parent=dict(key))
        for hook in self._hooks:
            message = hook(message)
            if message is None:
                return Outgoing(())
        return Outgoing(self.session.serialize(message, ident=self.topic))
