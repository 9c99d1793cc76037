"""Opens connections to servers in sessions and sandboxes, within limits. Each counts as a use by a client."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from kernel_image.protocol import PORTS_TOOL
from sessions.backends.base import KernelHandle
from sessions.backends.relay import Relay, RelayConnection, Words
from sessions.guest.tools import ToolRunner
from sessions.model.errors import InvalidRequest, PortNotOpen, PortsUnavailable, QuotaExceeded
from sessions.model.values import SessionKey
from sessions.ports.limits import PortLimits
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session
from sessions.tenants.shares import Shares
from sessions.tenants.traffic import NO_CHARGE, Charge

#: pauses in seconds between two attempts to connect: a server may be just about to listen
PAUSES = (0.1, 0.2, 0.4, 0.8)
#: containers whose ports are remembered
REMEMBERED = 1000
#: seconds for which a relay without connections waits for the next one. No kernel can sleep while its relay runs.
LINGER = 3.0
_PORT = struct.Struct(">H")
_WORDS = Words(
    missing=partial(
        PortsUnavailable,
        "the kernel's image is older than this gateway, and has no tool that reaches servers: build it anew",
    ),
    refused=PortNotOpen,
    ended="the sandbox ended while a server was used",
    broken="the server has broken the connection",
)


def relay_to_ports(container: ToolRunner, charge: Charge = NO_CHARGE, linger: float = LINGER) -> Relay:
    """Start the tool that connects to a container's servers.

    Args:
        container: the container.
        charge: what the container's tenant is charged with for the tool's frames.
        linger: seconds for which the tool without connections waits for the next one.
    """
    return Relay(partial(container.run_tool, PORTS_TOOL, ""), _WORDS, linger=linger, charge=charge)


async def connect(relay: Relay, port: int) -> RelayConnection:
    """Connect to a port of a container's loopback address.

    Raises:
        PortNotOpen: when nothing listens there.
        PortsUnavailable: when the container's image has no such tool.
        ConnectionFailed: when the container has ended.
    """
    connection = relay.begin(_PORT.pack(port))
    try:
        await connection.opened
    except BaseException:
        connection.close()
        raise
    return connection


class Ports:
    """All connections to servers."""

    def __init__(self, charge: Callable[[str], Charge], limits: PortLimits, share: float, refusal: str = "") -> None:
        """Begin without connections.

        Args:
            charge: returns what a tenant is charged with for the bytes of its servers.
            limits: how many connections there may be at a time.
            share: part of what other tenants leave which one tenant may use, from 0 to 1.
            refusal: why no server can be reached here. Empty means that they can.
        """
        self._charge = charge
        self._refusal = refusal
        self._relays: dict[str, Relay] = {}
        self._owners: Counter[SessionKey] = Counter()
        self._tenants = Shares(limits.in_all, share, least=1)
        self._limits = limits
        #: the container that has last answered on a port of a sandbox; the oldest are forgotten
        self._answered: dict[tuple[str, int], str] = {}

    @property
    def used(self) -> int:
        """Number of open connections."""
        return int(self._tenants.used)

    @asynccontextmanager
    async def open(self, owner: Session | Sandbox, port: int) -> AsyncIterator[RelayConnection]:
        """Connect to a port of a session or sandbox inside the `with` block. A sleeping session wakes.

        Raises:
            InvalidRequest: when there is no such port, or it is one of a kernel's own.
            QuotaExceeded: when there are too many connections.
            PortNotOpen: when nothing listens on the port.
            PortsUnavailable: when this gateway, or the kernel's image, cannot reach servers.
            SessionError: when the session was ended, or its container could not be started.
        """
        if self._refusal:
            raise PortsUnavailable(self._refusal)
        if not 0 < port < 1 << 16:
            raise InvalidRequest("a port is a number from 1 to 65535", field="port")
        key = owner.key
        self._require_room(key)
        self._count(key, 1)
        try:
            with owner.use():
                connection = await self._connect(owner, port)
                try:
                    yield connection
                finally:
                    connection.close()
        finally:
            self._count(key, -1)

    def _require_room(self, key: SessionKey) -> None:
        tenants = self._tenants
        counts = (
            ("the session has", self._owners[key], self._limits.per_owner),
            ("the gateway has", tenants.used, tenants.most),
            ("the tenant has", tenants.of(key.tenant), min(self._limits.per_tenant, tenants.share_of(key.tenant))),
        )
        for who, count, most in counts:
            if count >= most:
                raise QuotaExceeded(f"{who} {count} connections to servers, as many as it may have", max=most)

    def _count(self, key: SessionKey, change: int) -> None:
        self._tenants.add(key.tenant, change)
        self._owners[key] += change
        if not self._owners[key]:
            del self._owners[key]

    async def _connect(self, owner: Session | Sandbox, port: int) -> RelayConnection:
        for pause in PAUSES:
            try:
                return await self._try_containers(owner, port)
            except PortNotOpen:
                await asyncio.sleep(pause)
        return await self._try_containers(owner, port)

    async def _try_containers(self, owner: Session | Sandbox, port: int) -> RelayConnection:
        containers = await self._containers(owner)
        for container in containers:
            if port in container.connection_info.ports:
                raise InvalidRequest(f"port {port} is one of the kernel's own", field="port")
        last = self._answered.get((str(owner.key), port))
        for container in sorted(containers, key=lambda each: each.id != last):
            try:
                connection = await connect(self._relay(container, owner.key.tenant), port)
            except PortNotOpen:
                continue
            self._remember(owner.key, port, container)
            return connection
        raise PortNotOpen(port=port)

    async def _containers(self, owner: Session | Sandbox) -> list[KernelHandle]:
        """Return the containers of a session or sandbox, in which a server may listen; each has its own network."""
        if isinstance(owner, Session):
            return [await owner.ensure_container()]
        found = [owner.container, *(session.container for session in owner.sessions() if session.alive)]
        present = {each.id: each for each in found if each is not None}
        return list(present.values()) or [await owner.ensure_container()]

    def _relay(self, container: KernelHandle, tenant: str) -> Relay:
        relay = self._relays.get(container.id)
        if relay is None or relay.leaving:
            relay = self._relays[container.id] = relay_to_ports(container, self._charge(tenant))
            ended = relay

            def forget() -> None:
                if self._relays.get(container.id) is ended:
                    del self._relays[container.id]

            relay.when_ended(forget)
        return relay

    def _remember(self, key: SessionKey, port: int, container: KernelHandle) -> None:
        self._answered.pop((str(key), port), None)
        self._answered[str(key), port] = container.id
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def close(self) -> None:
        """End all connections."""
        for relay in self._relays.values():
            relay.leave()
