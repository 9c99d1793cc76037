"""The listener: accepts connections, and pauses while the process or the machine has no file descriptor left.

Without descriptors, tornado's own listener would try again at once and log each attempt. That uses a whole processor
and writes 5 MB of log per second.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus

import orjson
import structlog
from tornado.httpserver import HTTPServer

from kernel_gateway.errors import TooManyConnections
from kernel_gateway.wire.admission import Admission
from kernel_gateway.wire.connections import PlainStream, TlsStream

log = structlog.get_logger()

#: connections that the system holds until the listener accepts them. A client beyond this number tries again after a
#: second
BACKLOG = 1024
#: connections that the listener accepts before the event loop serves others
BATCH = 32
#: length in seconds of a pause, and seconds after a pause without another pause until the shortage counts as over
PAUSE, CALM = 0.5, 3.0
#: milliseconds after which the system disconnects a client that has acknowledged nothing of what was sent
UNREAD_MS = 120_000
#: errors of accept(2) when descriptors or memory are short; any other error concerns only one connection
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """The listening sockets of one server."""

    def __init__(
        self, server: HTTPServer, admission: Admission, tls: ssl.SSLContext | None, paused: Callable[[], None]
    ) -> None:
        """Begin without sockets.

        Args:
            server: serves the accepted connections.
            admission: decides which connections are accepted.
            tls: TLS context for https. None means plain http.
            paused: called when a shortage of descriptors begins.
        """
        self._server = server
        self._admission = admission
        self._tls = tls
        self._paused = paused
        self._sockets: list[socket.socket] = []
        self._resumption: asyncio.TimerHandle | None = None
        #: timer that ends a shortage of descriptors; None if there is no shortage
        self._recovery: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port of the first socket."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections on these listening sockets."""
        self._sockets += sockets
        self._resume()

    def stop(self) -> None:
        """Accept no more connections. Open connections stay open."""
        self._silence()
        if self._recovery is not None:
            self._recovery.cancel()
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.add_reader(listening, self._accept, listening)

    def _silence(self) -> None:
        if self._resumption is not None:
            self._resumption.cancel()
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BATCH):
            try:
                peer, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._wait(error)
                    return
                continue
            self._take(peer, address)

    def _wait(self, error: OSError) -> None:
        if self._recovery is None:
            self._paused()
            log.warning("new connections wait: no file descriptor is left", error=error.strerror)
        else:
            self._recovery.cancel()
        for _ in range(BATCH):
            self._admission.make_room()
        self._silence()
        loop = asyncio.get_running_loop()
        self._resumption = loop.call_later(PAUSE, self._resume)
        self._recovery = loop.call_later(PAUSE + CALM, self._recover)

    def _recover(self) -> None:
        self._recovery = None
        log.warning("connections are accepted again")

    def _take(self, peer: socket.socket, address: tuple[str, int]) -> None:
        connection = self._admission.admit(address[0])
        if connection is None:
            self._refuse(peer)
            return
        try:
            peer.settimeout(0)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            if self._tls is not None:
                peer = self._tls.wrap_socket(peer, server_side=True, do_handshake_on_connect=False)
        except OSError:  # the client has left already
            peer.close()
            connection.report_end()
            return
        stream = PlainStream(peer) if self._tls is None else TlsStream(peer)
        connection.attach(stream)
        self._server.handle_stream(stream, address)

    def _refuse(self, peer: socket.socket) -> None:
        """Close a connection, without TLS after an answer. With TLS an answer would need a handshake first."""
        peer.settimeout(0)
        if self._tls is None:
            with suppress(OSError):
                peer.send(REFUSAL)
        peer.close()


def _refusal() -> bytes:
    body = orjson.dumps({"error": TooManyConnections().as_dict()})
    status = HTTPStatus.SERVICE_UNAVAILABLE
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Retry-After: 5",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


#: answer to a client whose connection is refused
REFUSAL = _refusal()
