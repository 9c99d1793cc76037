"""Base classes of sessions and sandboxes (tenant, limits, activity, container, one end) and of their registries."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sessions.backends.base import KernelHandle
from sessions.model.errors import QuotaExceeded, SessionClosed, ShuttingDown
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey, SessionSpec
from sessions.session.services import SessionServices

#: reason of the end of a session that slept although no client had asked for that
GAVE_WAY = "the session slept, and was ended to make room for a newer one of its tenant"


class Activity:
    """When and how clients use one session or sandbox."""

    def __init__(self, clock: Callable[[], float], age: float = 0.0) -> None:
        """Start with a use at the present time.

        Args:
            clock: function that returns seconds.
            age: seconds since the session or sandbox was made, perhaps by an earlier gateway.
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

    #: why it ended, for clients that return later
    reason: str
    #: whether a client has asked for the end; later clients are not told the reason then
    asked: bool
    #: time of the end in seconds since 1970
    at: float
    #: task that frees all resources
    freed: asyncio.Task[None]


class Owner(ABC):
    """One tenant's session or sandbox; a `WorkspaceOwner`."""

    def __init__(
        self, key: SessionKey, spec: SessionSpec | SandboxSpec, created_at: float, services: SessionServices
    ) -> None:
        """Begin to count age and activity.

        Args:
            key: tenant and name.
            spec: settings. The limits apply to each container.
            created_at: time of creation, perhaps by an earlier gateway, in seconds since 1970.
            services: services that sessions and sandboxes share.
        """
        self.key = key
        self.limits = spec.limits
        #: bytes that its own workspace may have. 0 means that it has no workspace of its own.
        self.disk = 0 if isinstance(spec, SessionSpec) and spec.workspace is not None else spec.limits.disk
        self._idle_timeout = spec.idle_timeout
        self.created_at = created_at
        self._services = services
        self._activity = Activity(services.clock, max(0.0, services.ledger.clock() - created_at))
        #: its end. None means that it was not ended.
        self.end: End | None = None

    # -- activity -------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Record that a client has used it."""
        self._activity.touch()

    def use(self) -> AbstractContextManager[None]:
        """Count a client's use for as long as the context lasts."""
        return self._activity.use()

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
        """Return the seconds since a client last used it. Returns 0 during a use."""

    def idle_left(self) -> float:
        """Return the seconds until it ends as idle if no client uses it before."""
        return max(0.0, self._idle_timeout - self.idle_for())

    @property
    def gives_way_since(self) -> float | None:
        """Time since which it may be ended to make room for its tenant's others, in seconds since 1970; None: never."""
        return None

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self.end is not None

    # -- its container --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start its container if there is none. The wait counts as a use by a client.

        Raises:
            SessionError: when the container could not be started.
        """
        with self._activity.use():
            await self.ensure_container()

    @abstractmethod
    async def ensure_container(self) -> KernelHandle:
        """Return the container that tools run in, and start it if there is none.

        Raises:
            SessionError: when the container could not be started.
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
        """End it and free all its resources. Idempotent. No client can use it when this method returns.

        Args:
            reason: why it ends, for clients that return later.

        Returns:
            a future that is done when everything is freed. Cancelling the future does not stop the work.
        """
        return asyncio.shield(self.begin_end(reason).freed)

    def begin_end(self, reason: str, *, asked: bool = False) -> End:
        """Do the same as `close`, and return the end.

        Args:
            reason: why it ends, for clients that return later.
            asked: whether a client has asked for the end.
        """
        if self.end is None:
            at = max(self.created_at, self._services.ledger.clock())  # the machine's clock may have been set back
            self.end = End(reason, asked, at, spawn(self._free(reason), f"end {self.key}"))
            self._refuse(reason)
        return self.end

    def _refuse(self, reason: str) -> None:  # noqa: B027 - a sandbox has no clients that wait
        """Release the clients that use it now. Later clients see that it is closed."""

    @abstractmethod
    async def _free(self, reason: str) -> None:
        """Free all its resources."""


OwnerT = TypeVar("OwnerT", bound=Owner)


class Owners(ABC, Generic[OwnerT]):
    """All owners of one kind, of all tenants, by key. No other object keeps such a map."""

    def __init__(self, services: SessionServices, beside: Owners[Any] | None = None) -> None:
        """Begin empty.

        Args:
            services: services that owners share.
            beside: owners of another kind, which count towards the same quota of a tenant. None means that this is the
                first kind.
        """
        self._services = services
        #: the registries of all kinds of owners
        self.kinds: list[Owners[Any]] = [] if beside is None else beside.kinds
        self.kinds.append(self)
        self._present: dict[SessionKey, OwnerT] = {}
        self._closing = False
        #: owners that have ended and are being freed; not every caller that ends an owner waits for that
        self._ending: set[OwnerT] = set()

    def all(self) -> list[OwnerT]:
        """Return all owners that have not ended, oldest first."""
        return list(self._present.values())

    def of(self, tenant: str) -> list[OwnerT]:
        """Return the owners of one tenant, oldest first."""
        return [owner for key, owner in self._present.items() if key.tenant == tenant]

    def taken(self, tenant: str) -> list[Owner]:
        """Return what counts towards a tenant's quota: its sessions and sandboxes that have not ended."""
        return [owner for kind in self.kinds for owner in kind.all() if owner.key.tenant == tenant]

    def giving_way(self, tenant: str) -> list[OwnerT]:
        """Return the owners of one tenant that may be ended to make room for its others, the first to go first."""
        return sorted(
            (owner for owner in self.of(tenant) if owner.gives_way_since is not None),
            key=lambda owner: owner.gives_way_since or 0.0,
        )

    def _admit(self, tenant: str, disk: int, besides: Owner | None = None) -> None:
        """Check that a tenant may have one more owner. If it may not, the first of those that give way is ended.

        Args:
            tenant: name of the tenant.
            disk: bytes of the new owner's workspace. 0 means that it has no workspace of its own.
            besides: owner that does not give way now, because the new one begins with its state.

        Raises:
            ShuttingDown: when the gateway is being stopped.
            QuotaExceeded: when the tenant has the maximum of sessions and sandboxes, or of disk.
        """
        if self._closing:
            raise ShuttingDown
        try:
            self._require_room(tenant, disk)
        except QuotaExceeded:
            going = [(kind, each) for kind in self.kinds for each in kind.giving_way(tenant) if each is not besides]
            if not going:
                raise
            kind, first = going[0]
            kind.end(first.key, GAVE_WAY)
            self._require_room(tenant, disk)  # its disk is free a moment later: then the client tries again

    def _require_room(self, tenant: str, disk: int) -> None:
        present = self.taken(tenant)
        room_in = min((owner.idle_left() for owner in present), default=0.0)
        self._services.quotas.admit_session(tenant, len(present), room_in)
        self._services.workspaces.admit(tenant, disk)

    def _add(self, owner: OwnerT) -> None:
        """Add an owner. Its workspace counts until all its resources are freed."""
        self._present[owner.key] = owner
        self._services.workspaces.hold(owner.key.tenant, owner.disk)

    async def _start(self, owner: OwnerT) -> None:
        """Add a new owner, and start its container.

        Raises:
            SessionClosed: when the owner was ended meanwhile.
            SessionError: when its container could not be started; the owner is not kept.
        """
        self._add(owner)
        # The start continues when its client leaves.
        await asyncio.shield(spawn(self._first_start(owner), f"first start of {owner.key}"))
        if owner.closed:  # between the end of the start and this caller's turn in the event loop
            raise SessionClosed

    async def _first_start(self, owner: OwnerT) -> None:
        try:
            await owner.start()
        except BaseException:
            if self._present.get(owner.key) is owner:
                self._remove(owner, "it could not be started")
            await owner.close()
            raise

    @abstractmethod
    def end(self, key: SessionKey, reason: str) -> asyncio.Future[None]:
        """End an owner and free all its resources. No client can use it when this method returns.

        Args:
            key: key of the owner.
            reason: why it ends, for clients that return later.

        Returns:
            a future that is done when everything is freed. Cancelling the future does not stop the work.

        Raises:
            SessionError: when there is no owner with this key.
        """

    def _remove(self, owner: OwnerT, reason: str, *, asked: bool = False) -> None:
        """Begin the end of an owner. `close` of the owner waits for it.

        Args:
            owner: an owner that has not ended.
            reason: why it ends, for clients that return later.
            asked: whether a client has asked for the end.
        """
        del self._present[owner.key]
        end = owner.begin_end(reason, asked=asked)
        self._record_end(owner, end)
        self._ending.add(owner)
        end.freed.add_done_callback(lambda _: self._freed(owner))

    def _freed(self, owner: OwnerT) -> None:
        self._ending.discard(owner)
        self._services.workspaces.release(owner.key.tenant, owner.disk)

    @abstractmethod
    def _record_end(self, owner: OwnerT, end: End) -> None:
        """Record the end of an owner for the next gateway."""

    async def close(self) -> None:
        """End all owners, and accept no new ones.

        Raises:
            ExceptionGroup: when some resources could not be freed.
        """
        self._closing = True
        for owner in self.all():
            self._remove(owner, "the gateway was stopped")
        await gather_all(*(owner.close() for owner in self._ending))
