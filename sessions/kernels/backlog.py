"""Measures the bytes between the gateway and a kernel that libzmq holds in the gateway's memory.

libzmq limits the number of messages and the size of a frame. A hostile kernel can send one message of endless small
frames, or large messages faster than the gateway reads them, and libzmq keeps all of them in memory. The host's TCP
counts the received bytes. The difference to the bytes of the messages that were read is in memory.

It is the same in the other direction: if a kernel does not read, the messages of clients to it are in memory until TCP
acknowledges them.

Source: `struct tcp_info` of Linux, `tcpi_bytes_acked` and `tcpi_bytes_received` (since 4.1).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

#: bytes on the wire per frame besides its content: ZMTP's head and CurveZMQ's box; too large a value does no harm
FRAME_BYTES = 64
#: form of two fields of `tcp_info`: bytes acknowledged by the peer, and bytes received from it
_BYTES = struct.Struct("120xQQ")
#: value of SO_LINGER with which the close of a socket sends a reset. Source: socket(7)
_AT_ONCE = struct.pack("ii", 1, 0)


class Backlog:
    """The backlog of one channel."""

    def __init__(self, host: str, port: int) -> None:
        """Count the bytes of one port of a kernel.

        Args:
            host: address of the kernel.
            port: port of the channel.
        """
        self._peer = (host, port)
        self._descriptor: int | None = None
        self._taken = 0
        self._sent = 0
        #: sent bytes that the kernel has acknowledged
        self._acknowledged = 0

    def connected(self, descriptor: int) -> None:
        """Start counting again for a new connection of libzmq, which has the given descriptor."""
        self._descriptor = descriptor
        self._taken = 0
        self._sent -= self._acknowledged  # all other bytes are sent on the new connection
        self._acknowledged = 0

    def count_received(self, frames: Sequence[bytes]) -> None:
        """Count a complete message that was read."""
        self._taken += sum(map(len, frames)) + FRAME_BYTES * len(frames)

    def count_sent(self, frames: Sequence[bytes]) -> None:
        """Count a message that was sent."""
        self._sent += sum(map(len, frames))

    def reset_when_closed(self) -> None:
        """Let the connection end with a reset when libzmq closes it, so that the kernel's side ends at once, too."""
        if self._descriptor is None:
            return
        with suppress(OSError), _copy_of(self._descriptor) as copy:  # the connection may have ended already
            if copy.getpeername()[:2] == self._peer:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def size(self) -> int:
        """Return a lower bound of the received bytes in the gateway's memory. 0 without a connection."""
        return max(0, self._bytes()[1] - self._taken)

    def unacknowledged(self, above: int) -> int:
        """Return the sent bytes that the kernel has not acknowledged.

        Up to `above` bytes, the result may be too large, because the system is asked only above that.
        """
        if self._sent - self._acknowledged > above:
            self._acknowledged = max(self._acknowledged, self._bytes()[0])
        return max(0, self._sent - self._acknowledged)

    def _bytes(self) -> tuple[int, int]:
        """Return the bytes acknowledged and received on the present connection."""
        if self._descriptor is None:
            return 0, 0
        try:
            # A copy of the descriptor is used, because libzmq may close its own at any time. The copy is closed again,
            # or it would keep the connection open. The number may by now belong to a file or to another connection.
            with _copy_of(self._descriptor) as copy:
                if copy.getpeername()[:2] != self._peer:
                    return 0, 0
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
        except OSError:
            return 0, 0  # the connection has ended
        acknowledged, received = _BYTES.unpack(info) if len(info) == _BYTES.size else (0, 0)
        return int(acknowledged), int(received)


def _copy_of(descriptor: int) -> socket.socket:
    """Return the gateway's own socket on the same connection.

    Raises:
        OSError: when the descriptor does not exist, or is no socket.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # a failed constructor leaves the descriptor open
        raise


#: bytes for each kernel that do not count for its tenant, because the gateway itself sends messages, too
FREE = 64 * 1024
#: seconds between two checks of how much a kernel has read
INTERVAL = 0.25


class Unsent:
    """The bytes that wait for one kernel, on all its channels."""

    def __init__(self, backlogs: Collection[Backlog], hold: Callable[[int], bool]) -> None:
        """Begin without waiting bytes.

        Args:
            backlogs: backlogs of the kernel's channels.
            hold: adds bytes to the tenant's count, or subtracts them if the argument is negative. Returns False, and
                adds nothing, if the tenant would then have too many.
        """
        self._backlogs = backlogs
        self._hold = hold
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, count: int) -> bool:
        """Count the bytes of a message that is about to be sent. Return False if the tenant would have too many."""
        return self._set(self._waiting() + count - FREE)

    def _waiting(self) -> int:
        return sum(backlog.unacknowledged(FREE // 4) for backlog in self._backlogs)

    def _set(self, count: int) -> bool:
        change = max(0, count) - self._held
        if change and not self._hold(change):
            return False
        self._held += change
        if self._held and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._look)
        return True

    def _look(self) -> None:
        self._timer = None
        self._set(min(self._held, self._waiting() - FREE))

    def close(self) -> None:
        """Subtract all bytes from the tenant's count, because the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            self._hold(-self._held)
            self._held = 0
