"""Connects the gateway with servers that code has started, with the same user as user code, until standard input ends.

It has no argument. Standard input and output are the frames of a relay (`relaying.py`), which opens a connection to a
port: two bytes. The program connects only to the sandbox's own loopback address, where servers on `127.0.0.1`, `::1`
and `0.0.0.0` listen. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import BinaryIO

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.protocol import RelayFrame
from kernel_image.relaying import Connection, Relay

#: the sandbox's own addresses, in the order in which they are tried
LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
#: seconds in which a server accepts a connection
CONNECT_TIMEOUT = 5.0


class ServerConnection(Connection):
    """One connection to a server."""

    _port = 0
    _addresses: list[tuple[socket.AddressFamily, str]]

    def connect(self, content: bytes) -> None:
        """Connect to the first of the sandbox's addresses where the server listens."""
        self._port = int.from_bytes(content, "big")
        self._addresses = list(LOOPBACK)
        self.until = time.monotonic() + CONNECT_TIMEOUT
        self._try_next()

    def _try_next(self) -> None:
        self.leave()
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
            except OSError:  # refused, or the system has no such addresses
                self.leave()
            else:
                self._connected(self._socket)
                return
        self.drop(RelayFrame.REFUSED)

    def _connected(self, channel: socket.socket) -> None:
        peer = None
        with contextlib.suppress(OSError):  # the server has closed the connection already
            peer = channel.getpeername()
        if peer in {None, channel.getsockname()}:  # the same: nobody listens, and the system has chosen this port
            self._try_next()
        else:
            self.use(channel)

    def ready(self, events: int) -> None:
        """Do what the socket is ready for."""
        if self._socket is None or not self.connecting:
            super().ready(events)
        elif self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._try_next()
        else:
            self._connected(self._socket)


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Serve connections until the end of standard input."""
    Relay(stdin, stdout, ServerConnection).run()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
