"""How much a kernel has sent that has not come out as messages.

libzmq's limits count messages and bound each frame. A kernel that speaks the protocol by itself can send one message
of endless small frames, or many large messages faster than they are read, and all of it lies in our memory. The
host's own TCP knows how many bytes have come in; the difference to what was taken out is what lies there.

The same the other way: what clients send to a kernel that does not read lies in our memory until TCP says it is there.

Source: `struct tcp_info` of Linux, `tcpi_bytes_acked` and `tcpi_bytes_received` (since 4.1).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

#: bytes on the wire per frame besides its own: ZMTP's head and CurveZMQ's box; more than that makes no difference
FRAME_BYTES = 64
#: acknowledged by the peer, and received from it
_BYTES = struct.Struct("120xQQ")


class Backlog:
    """One channel's."""

    def __init__(self, host: str, port: int) -> None:
        """Count what comes from the kernel's port.

        Args:
            host: the kernel's address.
            port: the channel's.
        """
        self._peer = (host, port)
        self._descriptor: int | None = None
        self._taken = 0
        self._sent = 0
        #: of those, bytes that the kernel is known to have taken
        self._acknowledged = 0

    def connected(self, descriptor: int) -> None:
        """Begin anew: libzmq has connected, by this descriptor of its own."""
        self._descriptor = descriptor
        self._taken = 0
        self._sent -= self._acknowledged  # the rest waits for the new one
        self._acknowledged = 0

    def took(self, frames: Sequence[bytes]) -> None:
        """Count a message that was taken out, whole."""
        self._taken += sum(map(len, frames)) + FRAME_BYTES * len(frames)

    def sent(self, frames: Sequence[bytes]) -> None:
        """Count a message that was sent."""
        self._sent += sum(map(len, frames))

    def size(self) -> int:
        """Bytes that lie in our memory, at least; 0 while there is no connection."""
        return max(0, self._bytes()[1] - self._taken)

    def full(self, limit: int) -> bool:
        """Whether more than `limit` bytes wait for a kernel that does not read. What it says of that counts nothing."""
        if self._sent - self._acknowledged > limit:
            self._acknowledged = max(self._acknowledged, self._bytes()[0])
        return self._sent - self._acknowledged > limit

    def _bytes(self) -> tuple[int, int]:
        """Acknowledged and received on the present connection."""
        if self._descriptor is None:
            return 0, 0
        try:
            # A copy for a moment: libzmq closes its own at any time, and a copy that is kept would keep the
            # connection. The number may mean something else by now: no socket, or one with another peer.
            with _copy_of(self._descriptor) as copy:
                if copy.getpeername()[:2] != self._peer:
                    return 0, 0
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
        except OSError:
            return 0, 0  # it is gone
        acknowledged, received = _BYTES.unpack(info) if len(info) == _BYTES.size else (0, 0)
        return int(acknowledged), int(received)


def _copy_of(descriptor: int) -> socket.socket:
    """A socket of our own on the same connection.

    Raises:
        OSError: there is no such descriptor, or it is no socket.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # a failed constructor leaves it open
        raise
