"""How the kernel publishes: each thread sends its own messages, in place of one thread that sends all.

In ipykernel every message and every flush is handed to the thread `IOPub`, some ten times per cell. Each of these
changes of threads costs little on bare metal and a lot in gVisor. The thread `IOPub` remains for work without another
thread: it welcomes subscribers, flushes text printed a while ago, and sends for the control channel, which must not
wait while a cell waits for its reader.

For the same reason system calls are saved: libzmq makes sixteen of them for a message that finds its thread asleep.
So a request's messages before its code runs leave together, and those after it too (`Publisher.hold`).
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

#: characters of stream text per message: a reader that bounds the size of messages would refuse a huge one
PIECE = 256 * 1024
#: bytes from a descriptor that may wait to be sent. Whoever reads more sends them first, at the pace of the client.
UNSENT = 4 * 1024 * 1024

# pyzmq's own function runs signal handlers between two frames, and so may raise in the middle of a message.
_library = ctypes.CDLL(_zmq.__file__)  # libzmq's functions are reached through it
_send = _library.zmq_send
_send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = -1


class Outgoing:
    """A message that leaves whole and once, even when signal handlers raise meanwhile."""

    def __init__(self, frames: Sequence[Any]) -> None:
        """Set the frames of the message."""
        self.frames = [frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]
        self._flags = [zmq.SNDMORE] * (len(self.frames) - 1) + [0]
        #: results of `zmq_send`, one for each frame that has left
        self._sent: list[int] = []

    @property
    def gone(self) -> bool:
        """Whether the whole message has left."""
        return len(self._sent) == len(self.frames)

    def send(self, socket: zmq.Socket[bytes]) -> None:
        """Send the frames that have not left yet.

        The loop over the frames is in C, where no signal handler runs, and records each frame that has left. Only the
        first frame may have to wait. A signal ends this wait: nothing was sent, and the handler runs and may raise.

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
    """Return whether this is the control channel's thread: another thread sends its messages soon after."""
    return threading.current_thread().name == CONTROL_THREAD_NAME


class Process:
    """The id of this process, without a system call for each message."""

    pid = os.getpid()
    #: whether this is a fork of the kernel, which must not use the kernel's sockets
    forked = False

    @classmethod
    def note_fork(cls) -> None:
        """Record that this process is a fork."""
        cls.pid, cls.forked = os.getpid(), True


os.register_at_fork(after_in_child=Process.note_fork)


# Dates of requests stay text. Else orjson would call Python code for their offset, and it crashes when a signal handler
# raises there.
sessions.extract_dates = lambda obj: obj  # type: ignore[attr-defined]


def pack(obj: Any) -> bytes:
    """Return a part of a message as JSON; half of a surrogate pair, which is no Unicode, becomes U+FFFD."""
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
        """Send a message; a fork of the kernel sends none, unless `pid` is its own."""
        if Process.forked:
            self.check_pid = True  # off in the kernel's settings
        return super().send(*args, **options)

    @property
    def msg_id(self) -> str:
        """The next message's id."""
        return f"{self.session}_{Process.pid}_{next(self._numbers)}"

    _numbers = count(1)  # several threads send, and each number is given out once


class Publisher(IOPubThread):
    """The thread `IOPub`, and the only way of messages to iopub."""

    io_loop: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        """Accept the arguments of ipykernel's thread."""
        #: lock of sending. Reentrant: a signal handler may print in the middle of any call.
        self.sending = threading.RLock()
        #: messages of the main thread that are held back, each with its sending function; None: nothing is held back
        self._held: deque[tuple[Send, Outgoing]] | None = None
        #: whether nobody may see these messages before `release`
        self._unseen = False
        self._main = threading.get_ident()
        super().__init__(*args, **options)

    def hold(self, *, unseen: bool = False) -> None:
        """Hold back the main thread's messages until `release` sends them together.

        Args:
            unseen: send none of them before that. Else those to iopub leave as soon as another thread publishes
                something, because it may be the rest of a text that the main thread has flushed.
        """
        if self._held is None:
            self._held = deque()
            self._unseen = unseen

    def release(self) -> None:
        """Send the messages that were held back, and welcome new subscribers."""
        if self._held is None:
            return
        with self.sending:
            self._send_held(self._held)
            self._held = None
            self.welcome()

    def post(self, send: Send, message: Outgoing) -> None:
        """Send a message, or hold it back."""
        if self._held is not None and threading.get_ident() == self._main:
            self._held.append((send, message))
        else:
            send(message)

    def publish(self, message: Outgoing) -> None:
        """Send a message to iopub, or hold it back."""
        with self.sending:
            if self._held and not self._unseen and threading.get_ident() != self._main:
                self._send_held(self._held, self._to_iopub)
            self.post(self._to_iopub, message)

    @staticmethod
    def _send_held(held: deque[tuple[Send, Outgoing]], only: Send | None = None) -> None:
        while held and (only is None or held[0][0] == only):
            send, message = held[0]
            send(message)
            held.popleft()  # not before: sending one twice has no effect

    def _to_iopub(self, message: Outgoing) -> None:
        if not self.closed:  # output of a kernel that ends has no reader
            message.send(self.socket)

    def _is_master_process(self) -> bool:
        return not Process.forked

    def _handle_pipe_msg(self, msg: Sequence[Any]) -> None:
        if isinstance(sys.stdout, Stream):
            sys.stdout.flush()  # a fork displays something: what it has printed before is in the descriptor
        super()._handle_pipe_msg(msg)

    def _setup_xpub_listener(self) -> None:
        # No ZMQStream: nothing else could then use the socket. No tornado either: at its end it would close a
        # descriptor that belongs to libzmq.
        self.io_loop.asyncio_loop.add_reader(self.socket.FD, self.on_edge)

    def on_edge(self) -> None:
        """Welcome new subscribers."""
        with self.sending:
            self.welcome()

    def welcome(self) -> None:
        """Read new subscriptions; sending clears the edge that signals them, so this must follow each sending."""
        while self.socket.EVENTS & zmq.POLLIN:
            self._handle_subscription(self.socket.recv_multipart())

    def send_multipart(self, msg: Sequence[Any], *args: Any, **options: Any) -> None:
        """Send a message now, or soon if it is from the control channel's thread."""
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
    """A part of printed text, and its message, which is made when the text is sent."""

    def __init__(self, text: str) -> None:
        """Set the text."""
        self.text = text
        self.message: Outgoing | None = None


class Printed(StringIO):
    """The printed text of one parent, and what its descriptor has shown in between."""

    #: parts that have not left yet; None before sending starts
    pieces: deque[Piece] | None = None

    def __init__(self) -> None:
        """Begin without text."""
        super().__init__()
        #: what was read from the descriptor, each with the length of the text before it
        self._read: list[tuple[int, bytes]] = []

    @property
    def gone(self) -> bool:
        """Whether all of the text has left."""
        return self.pieces is not None and not self.pieces

    def take(self, pieces: Iterable[bytes]) -> None:
        """Add what is read from the descriptor, in C, where no signal handler runs between reading and keeping."""
        self._read.extend(zip((self.tell(),), pieces, strict=True))

    def decoded(self, half: bytes) -> tuple[str, bytes]:
        """Return all of the text, and the beginning of a character whose rest has not been read yet.

        Args:
            half: beginning of a character that was read before.
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
    """A stdout or stderr whose text is sent by the flushing thread, long text as several messages."""

    #: the cells that run
    cells = Cells()

    def __init__(self, *args: Any, watchfd: bool = True, **options: Any) -> None:
        """Accept the arguments of ipykernel's stream, and read the descriptor, too, unless `watchfd` is False."""
        self._descriptor: Descriptor | None = None
        super().__init__(*args, watchfd="force" if watchfd else False, **options)
        #: parent of the last text, and its key in the buffers: the parent is mostly the same for the next text
        self._last: tuple[Any, frozenset[Any]] = (None, frozenset())
        self._buffers: defaultdict[frozenset[Any], Printed] = defaultdict(Printed)
        #: text whose sending was interrupted
        self._waiting: list[tuple[frozenset[Any], Printed]] = []
        #: monotonic time of the timer's end
        self._due = 0.0
        #: monotonic time of the end of the last look at the descriptor, or of a write soon behind it
        self._looked = 0.0
        #: bytes read from the descriptor since the last flush
        self._unsent = 0
        #: beginning of a character that the descriptor has not completed; it stays until the next bytes are read
        self._half = b""
        #: in a fork: the beginning of a line
        self._line = ""
        if self._descriptor is not None:
            thread = threading.Thread(target=self._watch, name=f"descriptor of {self.name}", daemon=True)
            # As in ipykernel's own threads: the debugger stops none of them.
            vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
            thread.start()

    def _setup_stream_redirects(self, name: str) -> None:
        number = getattr(sys, name).fileno()
        self._original_stdstream_copy = os.dup(number)  # the application's log goes there
        print_by_lines(name)
        self._descriptor = Descriptor(number)

    def fileno(self) -> int:
        """Return the descriptor that child processes get as `stdout=sys.stdout`: their output is the cell's, too."""
        if self._descriptor is None:
            raise UnsupportedOperation("fileno")
        return self._descriptor.number

    def close(self) -> None:
        """Take no more text. The descriptor stays as it is."""
        self.pub_thread = None

    def write(self, string: str) -> Any:
        """Keep text until it is flushed, at most 0.2 s later, behind what was written to the descriptor before."""
        begun = time.monotonic()  # before anything else: what is written quickly must be told from what is not
        if not isinstance(string, str) or self.pub_thread is None or self.echo is not None:
            return super().write(string)
        if Process.forked:
            return self._write_in_fork(string)
        with self._buffer_lock:
            if self._descriptor is not None and begun - self._looked > self._descriptor.quick:
                self._take()
            self._buffers[self._key(self.parent_header)].write(string)
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
        """Take what the descriptor holds by now, never more than a pipe holds: a flood keeps no cell from ending."""
        if self._descriptor is None or not (size := self._descriptor.look()):
            return
        key = self._key(self.cells.owner(self.parent_header))
        with suppress(BlockingIOError):  # a signal handler has printed, and taken it, meanwhile
            self._buffers[key].take(self._descriptor.read(size))
            self._unsent += size

    def _write_in_fork(self, string: str) -> int:
        """Write whole lines to the descriptor, as a child process does at a terminal: the kernel reads them."""
        self.session.pid = Process.pid  # as in ipykernel: from now on what this fork displays is sent, too
        lines, end, self._line = (self._line + string).rpartition("\n")
        self._write_descriptor(lines + end)
        return len(string)

    def _write_descriptor(self, text: str) -> None:
        if self._descriptor is not None:
            self._descriptor.write(text)

    def _schedule_flush(self) -> None:
        # One timer for all text that is printed until it ends, because setting it wakes another thread. The clock shows
        # whether it is set. A flag would not do: an interrupt could leave it set without a timer.
        now = time.monotonic()
        if now > self._due:
            self._due = now + self.flush_interval
            self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, self._on_timer))

    def _on_timer(self) -> None:
        self._flush()
        self.pub_thread.on_edge()

    def flush(self) -> None:
        """Send the printed text, in the caller's thread, and what was written to the descriptor before.

        Do nothing in the control channel's thread, which flushes after each request: it has printed nothing, and a
        flush would cut the line that a cell is printing.
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
        # Also without text: another thread may be sending earlier text, and a cell must not end before that.
        with self.pub_thread.sending:
            if self._buffers or self._waiting:
                self._send_all()

    def _send_all(self) -> None:
        taken: list[tuple[frozenset[Any], Printed]] = []
        try:
            self._move_to(taken)
            for key, printed in taken:
                pieces = self._cut(printed)
                while pieces:  # each stays listed until it is sent; sending one twice has no effect
                    self._publish(key, pieces[0])
                    pieces.popleft()
        finally:
            self._waiting[:0] = [(key, printed) for key, printed in taken if not printed.gone]

    def _move_to(self, taken: list[tuple[frozenset[Any], Printed]]) -> None:
        """Take the printed text away, so that a signal handler that prints meanwhile does not send it too."""
        with self._buffer_lock:
            taken += self._waiting
            self._waiting = []
            self._unsent = 0
            keys = list(self._buffers)
            # In C, where no signal handler runs: an interrupt leaves each text in one of the two places.
            taken.extend(zip(keys, map(self._buffers.pop, keys, repeat(Printed())), strict=True))

    def _cut(self, printed: Printed) -> deque[Piece]:
        """Return the parts of a text that have not left yet."""
        if printed.pieces is not None:
            return printed.pieces
        text, half = printed.decoded(self._half)
        pieces = deque(Piece(text[start : start + PIECE]) for start in range(0, len(text), PIECE))
        # In C, where no signal handler runs: a text is decoded once, and half a character is used once.
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
