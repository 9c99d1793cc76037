"""What sessions and sandboxes share: tenant, limits, activity, tools in a container, one end; the registries' base."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sessions.backends.base import KernelHandle
from sessions.model.errors import SessionClosed, ShuttingDown
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey, SessionSpec
from sessions.session.services import SessionServices


class Activity:
    """Use of one session or sandbox by clients."""

    def __init__(self, clock: Callable[[], float], age: float = 0.0) -> None:
        """Start with a use at the present time.

        Args:
            clock: function that returns seconds.
            age: seconds since an earlier gateway made the session or sandbox; 0: made now.
        """
        self._clock = clock
        self._last = clock()
        self._began = self._last - age
        #: number of uses under way
        self.users = 0

    def touch(self) -> None:
        """Record that a client has used the session or sandbox."""
        self._last = self._clock()

    def age(self) -> float:
        """Return the seconds since the session or sandbox was made."""
        return self._clock() - self._began

    def idle_for(self) -> float:
        """Return the seconds since a client's last use; 0 during a use."""
        return 0.0 if self.users else self._clock() - self._last

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count a client's use for as long as the context lasts."""
        self.touch()
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.touch()


@dataclass(frozen=True, slots=True)
class End:
    """The end of a session or sandbox."""

    #: why, for clients that return later
    reason: str
    #: True: a client has asked for it, who need not be told of it later
    asked: bool
    #: when, in seconds since 1970
    at: float
    #: frees everything it had
    freed: asyncio.Task[None]


class Host(ABC):
    """One tenant's session or sandbox; a `WorkspaceOwner`."""

    def __init__(
        self, key: SessionKey, spec: SessionSpec | SandboxSpec, created_at: float, services: SessionServices
    ) -> None:
        """Begin its age and its activity.

        Args:
            key: its tenant and name.
            spec: its settings; the limits are for each of its containers.
            created_at: when it was made, perhaps by an earlier gateway, in seconds since 1970.
            services: services that sessions and sandboxes share.
        """
        self.key = key
        self.limits = spec.limits
        #: bytes that its own workspace may have; 0: it has none
        self.disk = 0 if isinstance(spec, SessionSpec) and spec.workspace is not None else spec.limits.disk
        self._idle_timeout = spec.idle_timeout
        self.created_at = created_at
        self._services = services
        self._activity = Activity(services.clock, max(0.0, services.ledger.clock() - created_at))
        #: its end; None: it was not ended
        self.end: End | None = None

    # -- activity -------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Note that a client has used it."""
        self._activity.touch()

    def charge_upload(self, size: int) -> None:
        """Count bytes of a file that is sent to it; see `Quotas.charge_upload`."""
        self._services.quotas.charge_upload(self.key.tenant, size)

    def age(self) -> float:
        """Return the seconds since it was made."""
        return self._activity.age()

    @property
    def in_use(self) -> bool:
        """Whether a client uses it now."""
        return self._activity.users > 0

    @abstractmethod
    def idle_for(self) -> float:
        """Return the seconds since a client last used it; 0 while one does."""

    def idle_left(self) -> float:
        """Return the seconds until it is ended as idle, if no client uses it."""
        return max(0.0, self._idle_timeout - self.idle_for())

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self.end is not None

    # -- its container --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start its container if there is none. A client that waits for it uses the host.

        Raises:
            SessionError: when it could not be started.
        """
        with self._activity.use():
            await self.ensure_container()

    @abstractmethod
    async def ensure_container(self) -> KernelHandle:
        """Return the container that tools run in, started if there is none.

        Raises:
            SessionError: when it could not be started.
        """

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools; see `KernelHandle.run_tool`."""
        with self._activity.use():
            container = await self.ensure_container()
            async with aclosing(container.run_tool(name, argument, stdin)) as output:
                async for piece in output:
                    yield piece

    # -- the end --------------------------------------------------------------------------------------------

    def close(self, reason: str = "it was ended") -> asyncio.Future[None]:
        """End it and free everything it has. Idempotent; no client can use it when this returns.

        Args:
            reason: why, for clients that return later.

        Returns:
            a future that is done when everything is freed, for each caller; cancelling it does not stop that.
        """
        return asyncio.shield(self.begin_end(reason).freed)

    def begin_end(self, reason: str, *, asked: bool = False) -> End:
        """Do as `close`, and return the end.

        Args:
            reason: as for `close`.
            asked: True if a client has asked for it.
        """
        if self.end is None:
            at = max(self.created_at, self._services.ledger.clock())  # the machine's clock may have been set back
            self.end = End(reason, asked, at, spawn(self._free(reason), f"end {self.key}"))
            self._refuse(reason)
        return self.end

    def _refuse(self, reason: str) -> None:  # noqa: B027 - a sandbox has no clients that wait
        """Refuse the clients that use it at this moment; later ones see that it is closed."""

    @abstractmethod
    async def _free(self, reason: str) -> None:
        """Free everything it has."""


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
