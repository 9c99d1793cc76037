"""Connects the gateway with servers that code has started, with the same user as user code, until standard input ends.

It has no argument. Standard input and output are frames (`protocol.py`), which carry many connections at a time. The
program connects only to the sandbox's own loopback address, where servers on `127.0.0.1`, `::1` and `0.0.0.0` listen.
Standard library only.

Each end of a connection may send `PORT_WINDOW` bytes that the other has not taken yet. So a slow reader slows down only
its own connection, and neither side keeps more bytes of it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import time
from typing import BinaryIO

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.processes import KEEPALIVE
from kernel_image.protocol import PORT_PIECE, PORT_WINDOW, PortFrame, port_frame, take_port_frames

#: the sandbox's own addresses, in the order in which they are tried
LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
#: bytes that a server has read before the gateway is told that it may send more
BATCH = PORT_WINDOW // 4
#: seconds in which a server accepts a connection
CONNECT_TIMEOUT = 5.0
_NUMBER = struct.Struct(">I")


class Connection:
    """One connection to a server."""

    def __init__(self, ports: Ports, number: int, port: int) -> None:
        """Do nothing yet.

        Args:
            ports: sends the frames.
            number: number of the connection.
            port: port of the server.
        """
        self._ports = ports
        self._number = number
        self._port = port
        self._addresses = list(LOOPBACK)
        self._socket: socket.socket | None = None
        self._open = False
        self.until = time.monotonic() + CONNECT_TIMEOUT
        #: bytes that the server has not taken yet; whether they are the last; bytes that it has taken since `MORE`
        self._pending = bytearray()
        self._ending = False
        self._taken = 0
        #: bytes that the gateway still takes, and whether the server sends no more
        self._credit = PORT_WINDOW
        self._ended = False

    def connect(self) -> None:
        """Connect to the first of the sandbox's addresses where the server listens."""
        self._leave()
        while self._addresses:
            family, address = self._addresses.pop(0)
            try:
                self._socket = socket.socket(family, socket.SOCK_STREAM)
                self._socket.setblocking(False)  # noqa: FBT003 - the function's own signature
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket.connect((address, self._port))
            except BlockingIOError:
                self._watch()
                return
            except OSError:  # refused, or the sandbox has no such address
                self._leave()
            else:
                self._opened(self._socket)
                return
        self.drop(PortFrame.REFUSED)

    def _opened(self, channel: socket.socket) -> None:
        if channel.getsockname() == channel.getpeername():  # nobody listens, and the system has chosen the same port
            self.connect()
            return
        self._open = True
        self._ports.say(PortFrame.OPENED, self._number)
        self._watch()

    def drop(self, kind: PortFrame = PortFrame.BROKEN) -> None:
        """End the connection, and tell the gateway why."""
        self.close()
        self._ports.say(kind, self._number)

    def close(self) -> None:
        """End the connection without a word."""
        self._leave()
        self._ports.forget(self._number)

    def _leave(self) -> None:
        if self._socket is not None:
            self._ports.watch(self._socket, 0, self)
            self._socket.close()
            self._socket = None

    @property
    def connecting(self) -> bool:
        """Whether the server has not accepted the connection yet."""
        return not self._open

    # -- frames of the gateway ------------------------------------------------------------------------------

    def send(self, content: bytes) -> None:
        """Pass data on to the server, as soon as it takes them."""
        self._pending += content
        self._write()

    def end(self) -> None:
        """Tell the server that no more data follow."""
        self._ending = True
        self._write()

    def more(self, count: int) -> None:
        """Let the server send more bytes."""
        self._credit += count
        self._watch()

    # -- the server -----------------------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """Do what the socket is ready for."""
        if self._socket is None:
            return
        if not self._open:
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.connect()
            else:
                self._opened(self._socket)
            return
        if events & selectors.EVENT_READ:
            self._read()
        if events & selectors.EVENT_WRITE:
            self._write()

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            piece = self._socket.recv(min(PORT_PIECE, self._credit))
        except BlockingIOError:
            return
        except OSError:
            self.drop()
            return
        if piece:
            self._credit -= len(piece)
            self._ports.say(PortFrame.DATA, self._number, piece)
        else:
            self._ended = True
            self._ports.say(PortFrame.END, self._number)
        self._watch()

    def _write(self) -> None:
        if self._socket is None or not self._open:
            return
        try:
            while self._pending:
                count = self._socket.send(self._pending[:PORT_PIECE])
                del self._pending[:count]
                self._taken += count
        except BlockingIOError:
            pass
        except OSError:  # the server has closed the connection; what it has sent before is still to be read
            self._taken += len(self._pending)
            self._pending.clear()
        if self._taken >= BATCH:
            self._ports.say(PortFrame.MORE, self._number, _NUMBER.pack(self._taken))
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
        self._ports.watch(self._socket, wanted, self)


class Ports:
    """All connections, and the frames from and to the gateway."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        """Begin without connections."""
        self._stdin = stdin.fileno()
        self._stdout = stdout
        self._said = time.monotonic()
        self._received = bytearray()
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdin, selectors.EVENT_READ, None)

    def say(self, kind: PortFrame, number: int, content: bytes = b"") -> None:
        """Send a frame to the gateway."""
        self._stdout.write(port_frame(kind, number, content))
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
        self.say(PortFrame.ALIVE, 0)
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
                    each.drop(PortFrame.REFUSED)
            if now - self._said >= KEEPALIVE:
                self.say(PortFrame.ALIVE, 0)

    def _read(self) -> bool:
        piece = os.read(self._stdin, 4 * PORT_PIECE)
        self._received += piece
        for kind, number, content in take_port_frames(self._received):
            self._take(kind, number, content)
        return bool(piece)

    def _take(self, kind: PortFrame, number: int, content: bytes) -> None:
        if kind == PortFrame.OPEN:
            self._connections[number] = Connection(self, number, int.from_bytes(content, "big"))
            self._connections[number].connect()
            return
        present = self._connections.get(number)
        if present is None:  # it has just ended
            return
        if kind == PortFrame.DATA:
            present.send(content)
        elif kind == PortFrame.END:
            present.end()
        elif kind == PortFrame.MORE:
            present.more(_NUMBER.unpack(content)[0])
        elif kind == PortFrame.BROKEN:
            present.close()


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Serve connections until the end of standard input."""
    Ports(stdin, stdout).run()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
