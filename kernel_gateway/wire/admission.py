"""Decides which connections the gateway accepts, and which of them may have a request.

The number of connections is limited in all, and for each address. A connection is *spare* until a request with a valid
key arrives on it, and again after the answer. When there is no room, the oldest spare connection is closed for a new
one, so clients without a key cannot keep others out. A tenant with a key cannot either: its requests may occupy only
a part of the connections that other tenants leave, however many addresses it has. The last places are reserved for
clients on this machine, so that an operator's probe can always connect.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from kernel_gateway.wire.connections import Connection, connection_of
from kernel_gateway.wire.forwarding import Forwarding
from sessions.model.errors import QuotaExceeded
from sessions.tenants.shares import Shares

#: sixteenths of all places that are reserved for clients on this machine
RESERVED = 1
#: length in bits of the IPv6 prefix that one client usually owns
_NETWORK = 64


@dataclass
class _Peer:
    """The connections of one address."""

    open: int = 0
    #: the connections that may be closed to make room for new ones, oldest first
    spare: dict[Connection, None] = field(default_factory=dict)


class Admission:
    """All open connections, by address."""

    def __init__(self, most: int, most_per_address: int, refused: Callable[[str], None], share: float = 1.0) -> None:
        """Start without connections.

        Args:
            most: maximum number of open connections.
            most_per_address: maximum number of open connections of one address.
            refused: called for each refusal with its reason, `address`, `tenant` or `total`.
            share: part of the connections that other tenants leave which one tenant may occupy with requests, from 0
                to 1.
        """
        self.open = 0
        self._most = most
        self._working = Shares(self._places(), share, least=1)
        self._most_per_address = most_per_address
        self._refused = refused
        self._peers: dict[str, _Peer] = {}
        #: tenants whose requests occupy connections; the other connections are spare
        self._occupants: dict[Connection, str] = {}

    def admit(self, host: str) -> Connection | None:
        """Return a new connection of a client, or None if there is no room for it.

        Args:
            host: IP address of the client.
        """
        address = peer_name(host)
        peer = self._peers.get(address, _Peer())
        if peer.open >= self._most_per_address and not _drop_oldest(peer):
            self._refused("address")
            return None
        places = self._most if ipaddress.ip_address(address).is_loopback else self._places()
        if self.open >= places and not self.make_room():
            self._refused("total")
            return None
        return self._enter(Connection(address))

    def _places(self) -> int:
        """Return how many connections clients on other machines may have."""
        return max(1, self._most * (16 - RESERVED) // 16)

    def _enter(self, connection: Connection) -> Connection:
        self.open += 1
        peer = self._peers.setdefault(connection.address, _Peer())
        peer.open += 1
        peer.spare[connection] = None
        connection.limit_head_time()
        connection.when_assigned(lambda tenant: self._occupy(connection, tenant))
        connection.when_ended(lambda: self._leave(connection))
        return connection

    def _occupy(self, connection: Connection, tenant: str) -> None:
        """Count a connection as occupied by a request of a tenant, so that it is not spare.

        Raises:
            QuotaExceeded: when the tenant occupies its part of all connections; then the connection stays spare.
        """
        if connection.ended:
            return
        self._release(connection)
        if not self._working.fits_share(tenant, 1):
            self._refused("tenant")
            most = self._working.share_of(tenant)
            raise QuotaExceeded(f"at most {most} requests of the tenant at a time", limit="connections", max=most)
        self._working.add(tenant, 1)
        self._occupants[connection] = tenant
        self._peers[connection.address].spare.pop(connection, None)

    def _release(self, connection: Connection) -> None:
        if (tenant := self._occupants.pop(connection, None)) is not None:
            self._working.add(tenant, -1)

    def _leave(self, connection: Connection) -> None:
        self._release(connection)
        peer = self._peers[connection.address]
        peer.spare.pop(connection, None)
        peer.open -= 1
        self.open -= 1
        if not peer.open:
            del self._peers[connection.address]

    def make_room(self) -> bool:
        """Close the oldest spare connection of the address with the most spare ones. Return False if there is none."""
        return bool(self._peers) and _drop_oldest(max(self._peers.values(), key=lambda peer: len(peer.spare)))

    def mark_spare(self, connection: Connection) -> None:
        """Make a connection spare, because it waits for its next request."""
        if connection.ended:
            return
        self._release(connection)
        spare = self._peers[connection.address].spare
        spare.pop(connection, None)
        spare[connection] = None  # the newest is the last
        connection.expect_head()


def _drop_oldest(peer: _Peer) -> bool:
    oldest = next(iter(peer.spare), None)
    if oldest is None:
        return False
    oldest.drop()
    return True


def peer_name(host: str) -> str:
    """Return the address under which a client's connections are counted. For IPv6 it stands for a whole /64 network."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, _NETWORK), strict=False).network_address)


class CountedRequests(HTTPServerConnectionDelegate):
    """Wraps the application: makes waiting connections spare, and limits the time that the head of a request takes."""

    def __init__(self, application: HTTPServerConnectionDelegate, admission: Admission) -> None:
        self._application = application
        self._admission = admission

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wait for a request. Tornado calls this for a new connection, and after each answer."""
        if not isinstance(request_conn, HTTP1Connection):
            raise TypeError("not an HTTP/1 connection")
        connection = connection_of(request_conn.stream)
        self._admission.mark_spare(connection)
        request = self._application.start_request(server_conn, request_conn)
        return _CountedRequest(request, connection)

    def on_close(self, server_conn: object) -> None:
        """Pass on the end of a connection. Tornado calls this."""
        self._application.on_close(server_conn)


class _CountedRequest(Forwarding):
    def __init__(self, request: HTTPMessageDelegate, connection: Connection) -> None:
        super().__init__(request)
        self._connection = connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._connection.end_head_time()
        return super().headers_received(start_line, headers)
