"""Names, numbers and frames that the gateway and the programs in its sandboxes share. Standard library only.

The gateway and the tools import them from here. JavaScript files and kernelspecs repeat some of them; a test compares
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

#: MIME type of the display that contains the outcome of a whole program
RUN_MIME = "application/vnd.kernel-gateway.run+json"
#: type of the message that a kernel publishes after a cell's output, if its `idle` may come before the output
FLUSHED = "flushed"
#: type of the message with which a kernel's prelude says that all output was sent
SETTLED = "settled"
#: type of the request on the control channel that gives a warm kernel its session's environment and directory
LEASE_REQUEST = "lease_request"
#: type of the request on the shell channel that lets a warm kernel import a module ahead of need
PRELOAD_REQUEST = "preload_request"
#: type of the message on iopub by which code calls a function outside of its sandbox, and of its answer on the control
#: channel; see `python_kernel/tools.py`
TOOL_CALL = "tool_call"
TOOL_REPLY = "tool_reply"
#: type of the request on the control channel for the names, types and contents of variables; see
#: `python_kernel/variables.py`
VARIABLES_REQUEST = "variables_request"
#: type of the request on the control channel for the frames of the last uncaught exception; see
#: `python_kernel/post_mortem.py`
FRAMES_REQUEST = "frames_request"
#: field of an `execute_request` with further wishes of the gateway for the cell; see `python_kernel/extras.py`
EXTRAS = "gateway_extras"
#: MIME types that displays have only if the cell's request asks for them: the chart of a figure, the data of a table
CHART_MIME = "application/vnd.kernel-gateway.chart+json"
DATA_MIME = "application/vnd.kernel-gateway.data+json"
#: requested like a MIME type: then images that Pillow saves under a name are also displayed
SAVED_IMAGES = "application/vnd.kernel-gateway.saved-images"
#: requests that only the gateway may send
GATEWAY_REQUESTS = frozenset({LEASE_REQUEST, PRELOAD_REQUEST, TOOL_REPLY, VARIABLES_REQUEST, FRAMES_REQUEST})

#: module names of the tools that run beside a kernel
FILES_TOOL = "files"
PROCESSES_TOOL = "processes"
ATTACHED_TOOL = "attached"
WATCHING_TOOL = "watching"
PORTS_TOOL = "ports"
SEARCHING_TOOL = "searching"
#: module name of the program that runs the tools; see `toolbox.py`
TOOLBOX = "toolbox"
#: seconds after which a tool that runs for long says something, so that the gateway knows that it has not ended
KEEPALIVE = 10.0
#: seconds after which a search is ended
SEARCH_SECONDS = 20.0
#: the directory for files besides the workspace
TEMPORARY = "/tmp"  # noqa: S108
#: format of the length before each piece of an upload of unknown size, for `struct`; an empty piece ends the upload
FRAME_FORMAT = ">I"
#: head of a relay's frame: kind, number of the connection, length of what follows
_RELAY_HEAD = struct.Struct(">BII")
#: maximum bytes that follow a frame's head
RELAY_PIECE = 32 * 1024
#: bytes that each end of a connection may send before the other has taken them
RELAY_WINDOW = 256 * 1024
#: field of a listing that is true if entries were left out
TRUNCATED = "truncated"
#: maximum entries of a watched directory, including those of its subdirectories if these are watched, too
TREE_MAX = 10_000
#: variable in the environment of all processes that the processes tool starts
MARK = "KERNEL_GATEWAY_PROCESS"
#: variable of every kernel with the name of its session
SESSION = "KERNEL_GATEWAY_SESSION"
#: variable with the network policy of a sandbox, and the policy without any network
NETWORK = "KERNEL_NETWORK"
NO_NETWORK = "none"
#: variables for the caches, settings and histories of tools, and their paths in the kernel's private directory. They
#: keep these files out of the home directory, which is the workspace, so no file of the session influences the start of
#: a kernel.
PRIVATE_PLACES = {
    "HISTFILE": ".bash_history",
    "IPYTHONDIR": ".ipython",
    "JUPYTER_CONFIG_DIR": ".jupyter",
    "JUPYTER_DATA_DIR": ".local/share/jupyter",
    "NPM_CONFIG_CACHE": ".npm",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_STATE_HOME": ".local/state",
}
#: variables that a container gives to its kernel and to all commands
SANDBOX_VARIABLES = (
    NETWORK,
    *PRIVATE_PLACES,
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_RETRIES",
    "PYTHONUSERBASE",
)


class RelayFrame(IntEnum):
    """Kinds of frames between the gateway and a relay: one program in a sandbox that carries many connections.

    The gateway opens a connection; what follows the frame's head says to what. The relay answers that it is open or
    refused. Both send data and the end of their data; both let the other send more bytes (four bytes, a number), and
    both may break a connection. The relay says `ALIVE` at its start, and when it has said nothing for some time.
    """

    OPEN = 0
    OPENED = 1
    REFUSED = 2
    DATA = 3
    END = 4
    MORE = 5
    BROKEN = 6
    ALIVE = 7


def relay_frame(kind: RelayFrame, number: int, content: bytes = b"") -> bytes:
    """Return a frame between the gateway and a relay.

    Args:
        kind: kind of the frame.
        number: number of the connection. 0 means none.
        content: what follows the head, at most `RELAY_PIECE` bytes.
    """
    return _RELAY_HEAD.pack(kind, number, len(content)) + content


def take_relay_frames(buffer: bytearray) -> Iterator[tuple[RelayFrame, int, bytes]]:
    """Take all whole frames out of the front of a buffer, and yield kind, number and content of each.

    Raises:
        ValueError: when a frame has an unknown kind, or more than `RELAY_PIECE` bytes.
    """
    while len(buffer) >= _RELAY_HEAD.size:
        kind, number, size = _RELAY_HEAD.unpack_from(buffer)
        if size > RELAY_PIECE:
            raise ValueError("the frame is too long")
        end = _RELAY_HEAD.size + size
        if len(buffer) < end:
            return
        content = bytes(buffer[_RELAY_HEAD.size : end])
        del buffer[:end]
        yield RelayFrame(kind), number, content
