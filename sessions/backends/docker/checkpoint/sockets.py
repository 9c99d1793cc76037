"""What gVisor makes of a sandbox's sockets: those that end when its memory is continued with, and those that listen.

gVisor of 2024 refuses to write a sandbox with a connection to another host. Later releases write it, and cut them.

No socket of a kernel that is written may remember connections that are closed. gVisor's releases before April 2026
keep, in an epoll instance, pointers from a socket to others that were found not ready together with it, even when those
are closed. After a restore, closed ones that are still pointed to count as ready. Then libzmq, which has freed what
they
stand for, ends with a segmentation fault (exit code 139), whenever that image is restored. A socket forgets its
neighbours at its next event. The connections of a kernel are closed before it is written, so only those sockets are
left
that listen. Each gets an event alone: a connection that is reset at once.
Source: google/gvisor, commit 5d85724 ("vfs: clear temporary notReady lists").
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from sessions.backends.docker.engine.engine import Engine
from sessions.model.connection_info import ConnectionInfo

#: states in which a TCP socket has, or asks for, another end. Source: linux/include/net/tcp_states.h
_CONNECTED = {"01", "02", "03", "08"}
#: the loopback's first byte, the last one of the number in `/proc/net/tcp` of a little-endian machine
_LOOPBACK = "7F"


def lead_out(engine: Engine, container: str) -> bool:
    """Return whether a container to whose ports nothing is connected has connections to other hosts. Blocks.

    Raises:
        APIError: when the engine refused.
    """
    made = engine.api.exec_create(container, ["cat", "/proc/net/tcp"], stderr=False)["Id"]
    return found_in(engine.api.exec_start(made).decode(errors="replace"))


def found_in(table: str) -> bool:
    """Return whether a `/proc/net/tcp` shows connections to other hosts."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] in _CONNECTED and fields[2].partition(":")[0][-2:] != _LOOPBACK:  # noqa: PLR2004 - the fourth field is the state
            return True
    return False


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
