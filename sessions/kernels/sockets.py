"""Makes the ZMQ sockets to a kernel."""

from __future__ import annotations

import functools

import zmq

from sessions.model.connection_info import ConnectionInfo

CHANNELS = ("shell", "control", "stdin", "iopub")
#: messages that libzmq may hold for the gateway; then TCP blocks the kernel, whose iopub waits (XPUB_NODROP)
RECEIVE_QUEUE = 8
#: seconds of silence before the system probes the kernel's host, seconds between two probes, and number of probes that
#: may stay unanswered. The system sends them and not the gateway, so a stopped gateway does not end kernels.
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 4, zmq.TCP_KEEPALIVE_INTVL: 2, zmq.TCP_KEEPALIVE_CNT: 4}
#: milliseconds that one attempt to connect may take
CONNECT_TIMEOUT = 3000
#: milliseconds between two attempts to connect
RECONNECT = 25


@functools.cache
def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return libzmq's context with its maximum of sockets: a kernel needs twelve, and the default is only 1,023."""
    shared = zmq.Context()
    shared.set(zmq.MAX_SOCKETS, shared.get(zmq.SOCKET_LIMIT))
    return shared


def monitor_of(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket that gets the events of another socket's connections from now on."""
    return socket.get_monitor_socket(
        zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
    )


class Sockets:
    """Makes the sockets to one kernel."""

    def __init__(self, info: ConnectionInfo, max_message_bytes: int) -> None:
        """Make the gateway's keys for this kernel.

        Args:
            info: addresses at which the kernel listens or will listen.
            max_message_bytes: maximum bytes of a frame. A larger frame ends the connection.
        """
        self._info = info
        self._max_message_bytes = max_message_bytes
        self._keys = zmq.curve_keypair() if info.curve_publickey else None

    def make(self, channel: str) -> zmq.Socket[bytes]:
        """Make the socket of a channel. It is not connected yet.

        Raises:
            zmq.ZMQError: when there are no sockets left.
        """
        socket: zmq.Socket[bytes] = context().socket(zmq.SUB if channel == "iopub" else zmq.DEALER)
        socket.linger = 0
        socket.maxmsgsize = self._max_message_bytes
        socket.rcvhwm = RECEIVE_QUEUE
        # The gateway connects before the kernel listens. If the pauses between attempts grew, its start would take a
        # sixth longer.
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT, 0
        socket.connect_timeout = CONNECT_TIMEOUT
        if channel == "iopub":
            socket.subscribe(b"")
            for option, value in KEEPALIVE.items():  # only here, because on other channels sent data prevents probes
                socket.setsockopt(option, value)
        else:
            socket.identity = b"gateway"  # on stdin, the kernel sends questions to the identity of the shell request
        if self._info.curve_publickey and self._keys:
            socket.curve_serverkey = self._info.curve_publickey
            socket.curve_publickey, socket.curve_secretkey = self._keys
        return socket
