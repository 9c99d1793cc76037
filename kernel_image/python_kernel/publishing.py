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

#: sends one message
Send = Callable[[Sequence[Any]], None]
#: characters of stream text per message: a huge one would be refused by whoever bounds the size of messages
PIECE = 256 * 1024

# pyzmq's own function runs the handlers of signals between two frames, and so may raise in the middle of a message.
_library = ctypes.CDLL(_zmq.__file__)  # libzmq's functions are reached through it
_send = _library.zmq_send
_send.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = -1


def send_whole(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    """Send a message that no signal's handler can cut into two.

    The loop over the frames is in C, where no handler runs. Only the first frame may have to wait, and is given up when
    a signal comes; then nothing was sent, and the handler runs, and it may raise.

    Raises:
        zmq.ZMQError: the socket is closed.
    """
    parts = [frame if isinstance(frame, bytes) else bytes(frame) for frame in frames]
    sent, flags = 0, [zmq.SNDMORE] * (len(parts) - 1) + [0]
    while sent < len(parts):
        results = map(_send, repeat(socket.underlying), parts[sent:], map(len, parts[sent:]), flags[sent:])
        sent += len(list(takewhile(_FAILED.__ne__, results)))
        if sent < len(parts) and zmq.zmq_errno() != errno.EINTR:
            raise zmq.ZMQError


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
        self._held: deque[tuple[Send, Sequence[Any]]] | None = None
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
            while held:  # each stands there until it is sent
                send, frames = held[0]
                send(frames)
                held.popleft()
            self._held = None
            self.welcome()

    def post(self, send: Send, frames: Sequence[Any]) -> None:
        """Send a message, or keep it."""
        if self._held is not None and threading.get_ident() == self._main:
            self._held.append((send, frames))
        else:
            send(frames)

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
        if self.closed or Process.forked:
            super()._really_send(msg, *args, **options)
            return
        with self.sending:
            self.post(self._send, msg)

    def _send(self, frames: Sequence[Any]) -> None:
        send_whole(self.socket, frames)


class Stream(OutStream):
    """A stdout or stderr whose text is sent by whoever flushes it, long text as several messages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of ipykernel's own."""
        super().__init__(*args, **options)
        #: the parent of the last text, and its key among the buffers: it is mostly that of the text before
        self._last: tuple[Any, frozenset[Any]] = (None, frozenset())

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
        # One timer for all that is printed until it rings: to set it wakes another thread.
        if not self._flush_pending:
            self._flush_pending = True
            self.pub_thread.schedule(lambda: self._io_loop.call_later(self.flush_interval, self._on_timer))

    def _on_timer(self) -> None:
        self._flush_pending = False
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
            waiting = deque(self._pieces() if self._buffers else ())
            try:
                while waiting:
                    self._publish(*waiting[0])
                    waiting.popleft()
            finally:
                if waiting:  # somebody who waited for the reader was interrupted
                    self._put_back(waiting)

    def _pieces(self) -> list[tuple[frozenset[Any], str]]:
        with self._buffer_lock:
            taken, self._buffers = self._buffers, defaultdict(StringIO)
        texts = [(key, buffer.getvalue()) for key, buffer in taken.items()]
        return [(key, text[start : start + PIECE]) for key, text in texts for start in range(0, len(text), PIECE)]

    def _publish(self, key: frozenset[Any], text: str) -> None:
        message = self.session.msg("stream", {"name": self.name, "text": text}, parent=dict(key))
        for hook in self._hooks:
            message = hook(message)
            if message is None:
                return
        self.session.send(self.pub_thread, message, ident=self.topic)

    def _put_back(self, pieces: Sequence[tuple[frozenset[Any], str]]) -> None:
        with self._buffer_lock:
            printed, self._buffers = self._buffers, defaultdict(StringIO)
            for key, text in [*pieces, *((key, buffer.getvalue()) for key, buffer in printed.items())]:
                self._buffers[key].write(text)
