"""The common part of sessions and sandboxes: a tenant, limits, activity, tools in a container, and one end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass

from sessions.activity import Activity
from sessions.backends.base import KernelHandle
from sessions.models import SandboxSpec, SessionKey, SessionSpec
from sessions.services import SessionServices
from sessions.tasks import spawn


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
    """One tenant's session or sandbox; a `ToolHost`."""

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
