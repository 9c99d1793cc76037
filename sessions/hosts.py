"""The hosts of one kind, which is sessions or sandboxes. Each is started exactly once, and ends exactly once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from sessions.errors import SessionClosed, ShuttingDown
from sessions.host import End, Host
from sessions.models import SessionKey
from sessions.services import SessionServices
from sessions.tasks import gather_all, spawn

H = TypeVar("H", bound=Host)


class Hosts(ABC, Generic[H]):
    """The only mutable map from keys to hosts of this kind, of all tenants."""

    def __init__(self, services: SessionServices, beside: Hosts[Any] | None = None) -> None:
        """Begin empty.

        Args:
            services: services that hosts share.
            beside: hosts of another kind, which count for the same quota of a tenant; None: there are none yet.
        """
        self._services = services
        #: the hosts of all kinds
        self.kinds: list[Hosts[Any]] = [] if beside is None else beside.kinds
        self.kinds.append(self)
        self._present: dict[SessionKey, H] = {}
        self._closing = False
        #: those that have ended and are being freed; not every caller waits for the end that it has asked for
        self._ending: set[H] = set()

    def all(self) -> list[H]:
        """Return all that have not ended, oldest first."""
        return list(self._present.values())

    def of(self, tenant: str) -> list[H]:
        """Return those of one tenant, oldest first."""
        return [host for key, host in self._present.items() if key.tenant == tenant]

    def taken(self, tenant: str) -> list[Host]:
        """Return what a tenant has of its quota: its sessions and sandboxes that have not ended."""
        return [host for kind in self.kinds for host in kind.all() if host.key.tenant == tenant]

    def _admit(self, tenant: str, disk: int) -> None:
        """Allow a tenant one more.

        Args:
            tenant: name of the tenant.
            disk: bytes of its own workspace; 0: it has none.

        Raises:
            ShuttingDown: when the gateway is being stopped.
            QuotaExceeded: when the tenant has as many as it may have, or its part of the disk.
        """
        if self._closing:
            raise ShuttingDown
        present = self.taken(tenant)
        self._services.quotas.admit_session(len(present), min((host.idle_left() for host in present), default=0.0))
        self._services.workspaces.admit(tenant, disk)

    def _add(self, host: H) -> None:
        """Add a host; its workspace counts until everything of it is freed."""
        self._present[host.key] = host
        self._services.workspaces.hold(host.key.tenant, host.disk)

    async def _start(self, host: H) -> None:
        """Add a new host, and start its container.

        Raises:
            SessionClosed: when it was ended meanwhile.
            SessionError: when its container could not be started; the host is not kept.
        """
        self._add(host)
        # The start continues when its client leaves.
        await asyncio.shield(spawn(self._first_start(host), f"first start of {host.key}"))
        if host.closed:  # between the end of the start and this caller's turn in the event loop
            raise SessionClosed

    async def _first_start(self, host: H) -> None:
        try:
            await host.start()
        except BaseException:
            if self._present.get(host.key) is host:
                self._remove(host, "it could not be started")
            await host.close()
            raise

    @abstractmethod
    def end(self, key: SessionKey, reason: str) -> asyncio.Future[None]:
        """End a host and free everything it has. No client can use it when this returns.

        Args:
            key: key of the host.
            reason: why, for clients that return later.

        Returns:
            a future that is done when everything is freed; cancelling it does not stop that.

        Raises:
            SessionError: when there is none.
        """

    def _remove(self, host: H, reason: str, *, asked: bool = False) -> None:
        """Begin the end of a host; `close` of the host waits for it.

        Args:
            host: a present host.
            reason: why, for clients that return later.
            asked: True if a client has asked for it.
        """
        del self._present[host.key]
        end = host.begin_end(reason, asked=asked)
        self._record_end(host, end)
        self._ending.add(host)
        end.freed.add_done_callback(lambda _: self._freed(host))

    def _freed(self, host: H) -> None:
        self._ending.discard(host)
        self._services.workspaces.release(host.key.tenant, host.disk)

    @abstractmethod
    def _record_end(self, host: H, end: End) -> None:
        """Record the end of a host for the next gateway."""

    async def close(self) -> None:
        """End all hosts, and make no more.

        Raises:
            ExceptionGroup: when not everything they had could be freed.
        """
        self._closing = True
        for host in self.all():
            self._remove(host, "the gateway was stopped")
        await gather_all(*(host.close() for host in self._ending))
