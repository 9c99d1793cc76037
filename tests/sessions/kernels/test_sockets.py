from __future__ import annotations

from contextlib import closing, suppress

import zmq

from sessions.kernels.sockets import Sockets, context
from sessions.model.connection_info import ConnectionInfo

PIECE = b"x" * 256 * 1024
#: messages that libzmq holds at most without a limit of ours, at each end
DEFAULT_QUEUE = 1000
#: messages of this size that both ends of a connection hold, queues and buffers of the system together
HELD = 200


def held_for(socket: zmq.Socket[bytes]) -> int:
    """Return how many messages a kernel can send to a gateway that does not read."""
    with closing(context().socket(zmq.XPUB)) as kernel:
        kernel.linger = 0
        kernel.sndhwm = 1
        kernel.setsockopt(zmq.XPUB_NODROP, 1)
        port = kernel.bind_to_random_port("tcp://127.0.0.1")
        socket.connect(f"tcp://127.0.0.1:{port}")
        assert kernel.poll(10_000)
        kernel.recv()  # the subscription
        kernel.sndtimeo = 500
        sent = 0
        with suppress(zmq.Again):
            while sent < DEFAULT_QUEUE:
                kernel.send(PIECE)
                sent += 1
        return sent


def test_few_messages_are_held_for_a_gateway_that_does_not_read() -> None:
    info = ConnectionInfo("tcp", "127.0.0.1", 1, 2, 3, 4, 5, key=b"k")
    with closing(Sockets(info, 2**20).make("iopub")) as ours, closing(Sockets(info, 2**20).make("iopub")) as plain:
        assert held_for(ours) < HELD
        plain.rcvhwm = DEFAULT_QUEUE
        assert held_for(plain) > 2 * HELD
