"""Makes a kernel's memory fit to be written: no socket of it may remember connections that are closed.

gVisor's releases before April 2026 keep, in an epoll instance, pointers from a socket to others that were found not
ready together with it, even when those are closed. After a restore, closed ones that are still pointed to count as
ready. Then libzmq, which has freed what they stand for, ends with a segmentation fault (exit code 139), whenever that
image is restored. A socket forgets its neighbours at its next event. The connections of a kernel are closed before it
is written, so only those sockets are left that listen. Each gets an event alone: a connection that is reset at once.
Source: google/gvisor, commit 5d85724 ("vfs: clear temporary notReady lists").
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from sessions.connection_info import ConnectionInfo

#: seconds for a connection; the sandbox is on this machine
_TIMEOUT = 1.0
#: seconds between two connections, so that the kernel handles one after the other; measured with it: none of 80 images
#: could not be restored
_PAUSE = 0.005
_RESET = struct.pack("ii", 1, 0)


def refresh(info: ConnectionInfo) -> None:
    """Connect to each port on which a kernel listens, and reset the connection. Blocks for about 0.03 s.

    Raises:
        OSError: when it cannot be reached.
    """
    for port in (info.shell_port, info.iopub_port, info.stdin_port, info.control_port, info.hb_port):
        with suppress(ConnectionRefusedError), socket.create_connection((info.ip, port), _TIMEOUT) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        time.sleep(_PAUSE)
