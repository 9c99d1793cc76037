"""How the kernel publishes: whoever has something to say sends it itself, in place of a thread of its own.

In ipykernel every message and every flush is handed to the thread `IOPub`, some ten times per cell. Each of these
changes of threads costs little on bare metal and a lot in gVisor. That thread is still there for what has no thread to
do it: it welcomes subscribers, flushes what was printed a while ago, and sends for the control channel, which must not
wait while a cell waits for its reader.

For the same reason system calls are saved: libzmq makes sixteen of them for a message that finds its thread asleep.
So what a request says before and after its code runs leaves at once (`Publisher.hold`).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import count, repeat, takewhile
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.thread import CONTROL_THREAD_NAME
from jupyter_client import session as sessions
from jupyter_client.jsonutil import json_clean
from zmq.backend.cython import _zmq

#: characters of stream text per message: a huge one would be refused by whoever bounds the size of messages
PIECE = 256 * 1024

# pyzmq's own function runs the handlers of signals between two frames, and so may raise in the middle of a message.
_library = ctypes.CDLL(_zmq.__file__)  # libzmq's functions are reached through it
_send = _library.zmq_send
_send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = -1


class Outgoing:
    """A message that leaves whole and once, whatever the handlers of signals raise meanwhile."""

    def __init__(self, frames: Sequence[Any]) -> None:
        """Take what it consists of."""
        self.frames = [frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]
        self._flags = [zmq.SNDMORE] * (len(self.frames) - 1) + [0]
        #: what `zmq_send` said of each frame that has left
        self._sent: list[int] = []

    @property
    def gone(self) -> bool:
        """Whether it has left."""
        return len(self._sent) == len(self.frames)

    def send(self, socket: zmq.Socket[bytes]) -> None:
        """Send what has not left yet.

        The loop over the frames is in C, where no handler runs, and notes what has left. Only the first frame may have
        to wait, and is given up when a signal comes; then nothing was sent, and the handler runs, and it may raise.

        Raises:
            zmq.ZMQError: the socket is closed.
        """
        while not self.gone:
            rest = slice(len(self._sent), None)
            frames, flags = self.frames[rest], self._flags[rest]
            results = map(_send, repeat(socket.underlying), frames, map(len, frames), flags)
            self._sent.extend(takewhile(_FAILED.__ne__, results))
            if not self.gone and zmq.zmq_errno() != errno.EINTR:
                raise zmq.ZMQError


#: sends one message
Send = Callable[[Outgoing], None]


def in_control_thread() -> bool:
    """Whether this is the control channel's thread: what it has to say, another one says soon."""
    return threading.current_thread().name == CONTROL_THREAD_NAME


class Process:
    """Which process this is, without asking the system for each message."""

    pid = os.getpid()
    #: whether it is a fork of the kernel, whose sockets are not its own
    forked = False

    @classmethod
    def note_fork(cls) -> None:
        """Know that this is another one from now on."""
        cls.pid, cls.forked = os.getpid(), True


os.register_at_fork(after_in_child=Process.note_fork)


# Dates of requests stay text. Else orjson would ask for their offset, which is in Python, and crashes when a signal's
# handler raises there.
sessions.extract_dates = lambda obj: obj  # type: ignore[attr-defined]


def pack(obj: Any) -> bytes:
    """A message's part as JSON; half of a surrogate pair, which is no Unicode, becomes U+FFFD."""
    try:
        return sessions.orjson_packer(obj)
    except UnicodeEncodeError:
        text = json.dumps(json_clean(obj), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class KernelSession(sessions.Session):
    """Makes messages."""

    def __init__(self, **options: Any) -> None:
        """Take the options of jupyter_client's own."""
        super().__init__(**options)
        self.pack = pack

    def send(self, *args: Any, **options: Any) -> dict[str, Any] | None:
        """Send a message; a fork of the kernel sends none, if it is not told otherwise by `pid`."""
        if Process.forked:
            self.check_pid = True  # which the kernel's settings leave out
        return super().send(*args, **options)

    @property
    def msg_id(self) -> str:
        """The next message's id."""
        return f"{self.session}_{Process.pid}_{next(self._numbers)}"

    _numbers = count(1)  # several threads send, and each number is given to one of them


class Publisher(IOPubThread):
    """The thread `IOPub`, and the one place through which messages go to iopub."""

    io_loop: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of ipykernel's own."""
        #: held by who sends. Reentrant: what a signal's handler prints, it prints in the middle of anything.
        self.sending = threading.RLock()
        #: what the main thread wants to send, and with what, while it may wait
        self._held: deque[tuple[Send, Outgoing]] | None = None
        self._main = threading.get_ident()
        super().__init__(*args, **options)

    def hold(self) -> None:
        """Keep what the main thread sends, until `release`, to send it at once."""
        if self._held is None:
            self._held = deque()

    def release(self) -> None:
        """Send what was kept, and hear of new subscribers."""
        if self._held is None:
            return
        with self.sending:
            held = self._held
            while held:  # each stands there until it is sent; one that is sent twice leaves once
                send, message = held[0]
                send(message)
                held.popleft()
            self._held = None
            self.welcome()

    def post(self, send: Send, message: Outgoing) -> None:
        """Send a message, or keep it."""
        if self._held is not None and threading.get_ident() == self._main:
            self._held.append((send, message))
        else:
            send(message)

    def publish(self, message: Outgoing) -> None:
        """Send a message to iopub, or keep it."""
        with self.sending:
            self.post(self._send, message)

    def _send(self, message: Outgoing) -> None:
        if not self.closed:  # nobody is there to hear what a kernel that ends prints
            message.send(self.socket)

    def _is_master_process(self) -> bool:
        return not Process.forked

    def _setup_xpub_listener(self) -> None:
        # No ZMQStream: it would be the only one that may use the socket. Nor tornado, which at its end would close a
        # descriptor that is libzmq's.
        self.io_loop.asyncio_loop.add_reader(self.socket.FD, self.on_edge)

    def on_edge(self) -> None:
        """Look for new subscribers."""
        with self.sending:
            self.welcome()

    def welcome(self) -> None:
        """Hear of new subscribers; sending swallows the edge that tells of them, so a look must follow it."""
        while self.socket.EVENTS & zmq.POLLIN:
            self._handle_subscription(self.socket.recv_multipart())

    def send_multipart(self, msg: Sequence[Any], *args: Any, **options: Any) -> None:
        """Send it now, or, for the control channel, soon."""
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
    """A part of what was printed, and the message that it becomes when its turn comes."""

    def __init__(self, text: str) -> None:
        """Take the text."""
        self.text = text
        self.message: Outgoing | None = None


class Printed(StringIO):
    """What was printed for one parent."""

    #: what has not left yet, once its turn has come
    pieces: deque[Piece] | None = None

    @property
    def gone(self) -> bool:
        """Whether all has left."""
        return self.pieces is not None and not self.pieces

    def cut(self) -> deque[Piece]:
        """What has not left yet."""
        if self.pieces is None:
            text = self.getvalue()
            self.pieces = deque(Piece(text[start : start + PIECE]) for start in range(0, len(text), PIECE))
        return self.pieces


class Stream(OutStream):
    """A stdout or stderr whose text is sent by whoever flushes it, long text as several messages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of ipykernel's own."""
        super().__init__(*args, **options)
        #: the parent of the last text, and its key among the buffers: it is mostly that of the text before
        self._last: tuple[Any, frozenset[Any]] = (None, frozenset())
        self._buffers: defaultdict[frozenset[Any], Printed] = defaultdict(Printed)
        #: what an interrupt kept from being sent
        self._waiting: list[tuple[frozenset[Any], Printed]] = []
        #: when the timer rings, by the monotonic clock
        self._due = 0.0

    def write(self, string: str) -> Any:
        """Keep text until it is flushed, which is soon: 0.2 s at most."""
        if Process.forked or not isinstance(string, str) or self.pub_thread is None or self.echo is not None:
            return super().write(string)
        parent, key = self._last
        if parent is not self.parent_header:
            parent = self.parent_header
            key = frozenset(parent.items())
            self._last = (parent, key)
        with self._buffer_lock:
            self._buffers[key].write(string)
        self._schedule_flush()
        return len(string)

    def _schedule_flush(self) -> None:
        # One timer for all that is printed until it rings: to set it wakes another thread. The clock tells whether it
        # was set, and no flag: an interrupt would leave it standing without a timer.
        now = time.monotonic()
        if now > self._due:
            self._due = now + self.flush_interval
            self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, self._on_timer))

    def _on_timer(self) -> None:
        self._flush()
        self.pub_thread.on_edge()

    def _is_master_process(self) -> bool:
        return not Process.forked

    def flush(self) -> None:
        """Send what there is, in the caller's thread.

        Nothing for the control channel, whose thread asks for it after each request: it has printed nothing, and would
        cut into the line that a cell prints just then.
        """
        if self.pub_thread is not None and not in_control_thread():
            self._flush()

    def _flush(self) -> None:
        if Process.forked:
            super()._flush()
            return
        # Also when there is nothing: another thread may be sending what there was, and a cell must not end before that.
        with self.pub_thread.sending:
            if self._buffers or self._waiting:
                self._send_all()

    def _send_all(self) -> None:
        taken: list[tuple[frozenset[Any], Printed]] = []
        try:
            self._move_to(taken)
            for key, printed in taken:
                pieces = printed.cut()
                while pieces:  # each stands there until it is sent; one that is sent twice leaves once
                    self._publish(key, pieces[0])
                    pieces.popleft()
        finally:
            self._waiting[:0] = [(key, printed) for key, printed in taken if not printed.gone]

    def _move_to(self, taken: list[tuple[frozenset[Any], Printed]]) -> None:
        """Take what was printed away, so that a handler that prints meanwhile does not send it too."""
        with self._buffer_lock:
            taken += self._waiting
            self._waiting = []
            keys = list(self._buffers)
            # In C, where no handler runs: an interrupt finds each text in one place or the other.
            taken.extend(zip(keys, map(self._buffers.pop, keys, repeat(Printed())), strict=True))

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
