"""Prepares a sandbox's sockets for an image, and finds connections that end when the image is restored.

gVisor of 2024 refuses to write a sandbox that has a connection to another host. Later releases write it, and end the
connection at the restore.

Before April 2026, gVisor has a defect. In an epoll instance, a socket keeps pointers to other sockets that were not
ready at the same time, even after those were closed. After a restore, these closed sockets count as ready. libzmq has
freed their data, so it ends with a segmentation fault (exit code 139) each time that the image is restored. A socket
drops its pointers at its next event. All connections of a kernel are closed before it is written, so only listening
sockets are left. Each of them gets an event of its own: a connection that is reset at once.
Source: google/gvisor, commit 5d85724 ("vfs: clear temporary notReady lists").
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from sessions.backends.docker.engine.engine import Engine
from sessions.model.connection_info import ConnectionInfo

#: states in which a TCP socket is connected or is connecting. Source: linux/include/net/tcp_states.h
_CONNECTED = {"01", "02", "03", "08"}
#: first byte of loopback addresses; on a little-endian machine, `/proc/net/tcp` shows it as the last byte
_LOOPBACK = "7F"


def has_outside_connections(engine: Engine, container: str) -> bool:
    """Return whether a container has connections to other hosts. Nothing may be connected to its ports. Blocks.

    Raises:
        APIError: when the engine refused.
    """
    made = engine.api.exec_create(container, ["cat", "/proc/net/tcp"], stderr=False)["Id"]
    return shows_outside_connections(engine.api.exec_start(made).decode(errors="replace"))


def shows_outside_connections(table: str) -> bool:
    """Return whether the content of `/proc/net/tcp` shows connections to other hosts."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] in _CONNECTED and fields[2].partition(":")[0][-2:] != _LOOPBACK:  # noqa: PLR2004 - the fourth field is the state
            return True
    return False


#: seconds to open a connection to the sandbox, which is on this machine
_TIMEOUT = 1.0
#: seconds between two connections, so that the kernel handles them one after the other. With this pause, all of 80
#: images could be restored.
_PAUSE = 0.005
_RESET = struct.pack("ii", 1, 0)


def reset_listeners(info: ConnectionInfo) -> None:
    """Connect to each port on which a kernel listens, and reset the connection. Blocks for about 0.03 s.

    Raises:
        OSError: when the kernel cannot be reached.
    """
    for port in (info.shell_port, info.iopub_port, info.stdin_port, info.control_port, info.hb_port):
        with suppress(ConnectionRefusedError), socket.create_connection((info.ip, port), _TIMEOUT) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        time.sleep(_PAUSE)
