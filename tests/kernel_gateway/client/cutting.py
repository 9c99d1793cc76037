"""A way to a gateway that breaks connections."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

from tests.gateways import Gateway


class Cutter(socketserver.ThreadingTCPServer):
    """Passes all on, but breaks a connection when its answer has the next of `cuts`, once for each."""

    daemon_threads = True

    def __init__(self, gateway: Gateway) -> None:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        self.there = (host, int(port))
        self.cuts: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Connection)

    @property
    def url(self) -> str:
        """The address for a client."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Connection(socketserver.BaseRequestHandler):
    """One connection of a client, and one to the gateway."""

    server: Cutter

    def handle(self) -> None:
        with socket.create_connection(self.server.there) as there:
            requests = threading.Thread(target=self._pass_on, args=(self.request, there, []))
            requests.start()
            self._pass_on(there, self.request, self.server.cuts)
            requests.join()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, cuts: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # the other direction has ended
            while (piece := source.recv(65536)) and not (cuts and cuts[0] in piece):
                target.sendall(piece)
            if piece:
                cuts.pop(0)
        for each in (source, target):
            with contextlib.suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cutter(gateway: Gateway) -> Iterator[Cutter]:
    """A way to the gateway, until the end of the block."""
    with Cutter(gateway) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
