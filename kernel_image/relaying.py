"""A program in a sandbox that carries many connections between the gateway and others, until standard input ends.

Standard input and output are frames (`protocol.py`). `ports.py` connects to servers, `toolbox.py` to tools. Standard
library only.

Each end of a connection may send `RELAY_WINDOW` bytes that the other has not taken yet. So a slow reader slows down
only its own connection, and neither side keeps more bytes of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import BinaryIO

from kernel_image.protocol import KEEPALIVE, RELAY_PIECE, RELAY_WINDOW, RelayFrame, relay_frame, take_relay_frames

#: bytes that the other end of a connection has read before the gateway is told that it may send more
BATCH = RELAY_WINDOW // 4
_NUMBER = struct.Struct(">I")


class Connection:
    """One connection: what the gateway sends goes into a socket, and what comes out of it goes to the gateway."""

    def __init__(self, relay: Relay, number: int) -> None:
        """Do nothing yet.

        Args:
            relay: sends the frames.
            number: number of the connection.
        """
        self._relay = relay
        self._number = number
        self._socket: socket.socket | None = None
        self._open = False
        #: monotonic time at which it is refused if it is not open yet
        self.until = math.inf
        #: bytes that the socket has not taken yet; whether they are the last; bytes that it has taken since `MORE`
        self._pending = bytearray()
        self._ending = False
        self._taken = 0
        #: bytes that the gateway still takes, and whether the other end sends no more
        self._credit = RELAY_WINDOW
        self._ended = False

    def connect(self, content: bytes) -> None:
        """Connect to what the gateway has named, and call `use` at once or later, or `drop`."""
        raise NotImplementedError

    def use(self, channel: socket.socket) -> None:
        """Begin to pass on what comes, over this socket."""
        self._socket = channel
        self._open = True
        self._relay.say(RelayFrame.OPENED, self._number)
        self._watch()

    def drop(self, kind: RelayFrame = RelayFrame.BROKEN) -> None:
        """End the connection, and tell the gateway why."""
        self.close()
        self._relay.say(kind, self._number)

    def close(self) -> None:
        """End the connection without a word."""
        self.leave()
        self._relay.forget(self._number)

    def leave(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._relay.watch(self._socket, 0, self)
            self._socket.close()
            self._socket = None

    @property
    def connecting(self) -> bool:
        """Whether the other end has not accepted the connection yet."""
        return not self._open

    # -- frames of the gateway ------------------------------------------------------------------------------

    def send(self, content: bytes) -> None:
        """Pass data on to the other end, as soon as it takes them."""
        self._pending += content
        self._write()

    def end(self) -> None:
        """Tell the other end that no more data follow."""
        self._ending = True
        self._write()

    def more(self, count: int) -> None:
        """Let the other end send more bytes."""
        self._credit += count
        self._watch()

    # -- the other end --------------------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """Do what the socket is ready for."""
        if events & selectors.EVENT_READ:
            self._read()
        if events & selectors.EVENT_WRITE:
            self._write()

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            piece = self._socket.recv(min(RELAY_PIECE, self._credit))
        except BlockingIOError:
            return
        except OSError:
            self.lost()
            return
        if piece:
            self._credit -= len(piece)
            self._relay.say(RelayFrame.DATA, self._number, piece)
            self._watch()
        else:
            self.finished()

    def lost(self) -> None:
        """The other end has broken the connection."""
        self.drop()

    def finished(self) -> None:
        """The other end sends no more."""
        self._ended = True
        self._relay.say(RelayFrame.END, self._number)
        self._watch()

    def _write(self) -> None:
        if self._socket is None or not self._open:
            return
        try:
            while self._pending:
                count = self._socket.send(self._pending[:RELAY_PIECE])
                del self._pending[:count]
                self._taken += count
        except BlockingIOError:
            pass
        except OSError:  # the other end has closed the connection; what it has sent before is still to be read
            self._taken += len(self._pending)
            self._pending.clear()
        if self._taken >= BATCH:
            self._relay.say(RelayFrame.MORE, self._number, _NUMBER.pack(self._taken))
            self._taken = 0
        if self._ending and not self._pending:
            self._ending = False
            with contextlib.suppress(OSError):  # as above
                self._socket.shutdown(socket.SHUT_WR)
        self._watch()

    def _watch(self) -> None:
        if self._socket is None:
            return
        wanted = selectors.EVENT_WRITE if self._pending or not self._open else 0
        if self._open and self._credit and not self._ended:
            wanted |= selectors.EVENT_READ
        self._relay.watch(self._socket, wanted, self)


class Relay:
    """All connections, and the frames from and to the gateway."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, connection: Callable[[Relay, int], Connection]) -> None:
        """Begin without connections.

        Args:
            stdin: frames of the gateway.
            stdout: frames to the gateway.
            connection: makes the connection with a number.
        """
        self._stdin = stdin.fileno()
        self._stdout = stdout
        self._connection = connection
        self._said = time.monotonic()
        self._received = bytearray()
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdin, selectors.EVENT_READ, None)

    def say(self, kind: RelayFrame, number: int, content: bytes = b"") -> None:
        """Send a frame to the gateway."""
        self._stdout.write(relay_frame(kind, number, content))
        self._stdout.flush()
        self._said = time.monotonic()

    def watch(self, channel: socket.socket, events: int, connection: Connection) -> None:
        """Call the connection when its socket is ready for one of `events`. 0 means never."""
        present = self._selector.get_map().get(channel.fileno())
        if not events:
            if present is not None:
                self._selector.unregister(channel)
        elif present is None:
            self._selector.register(channel, events, connection)
        elif present.events != events:
            self._selector.modify(channel, events, connection)

    def forget(self, number: int) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(number, None)

    def run(self) -> None:
        """Serve the connections until standard input ends."""
        self.say(RelayFrame.ALIVE, 0)
        while True:
            connecting = [each for each in self._connections.values() if each.connecting]
            for key, events in self._selector.select(1.0 if connecting else KEEPALIVE):
                if key.data is not None:
                    key.data.ready(events)
                elif not self._read():
                    return
            now = time.monotonic()
            for each in connecting:
                if each.connecting and each.until < now:
                    each.drop(RelayFrame.REFUSED)
            if now - self._said >= KEEPALIVE:
                self.say(RelayFrame.ALIVE, 0)

    def close(self) -> None:
        """Close all connections without a word."""
        for each in list(self._connections.values()):
            each.close()

    def _read(self) -> bool:
        piece = os.read(self._stdin, 4 * RELAY_PIECE)
        self._received += piece
        for kind, number, content in take_relay_frames(self._received):
            self._take(kind, number, content)
        return bool(piece)

    def _take(self, kind: RelayFrame, number: int, content: bytes) -> None:
        if kind == RelayFrame.OPEN:
            self._connections[number] = self._connection(self, number)
            self._connections[number].connect(content)
            return
        present = self._connections.get(number)
        if present is None:  # it has just ended
            return
        if kind == RelayFrame.DATA:
            present.send(content)
        elif kind == RelayFrame.END:
            present.end()
        elif kind == RelayFrame.MORE:
            present.more(_NUMBER.unpack(content)[0])
        elif kind == RelayFrame.BROKEN:
            present.close()
