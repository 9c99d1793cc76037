"""All sandboxes, and the last ones that have ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from sessions.errors import SandboxNotFound, SessionExists, ShuttingDown
from sessions.models import SandboxSpec, SessionKey
from sessions.registry import Registry
from sessions.sandbox import Sandbox
from sessions.services import SessionServices
from sessions.tasks import gather_all, spawn

#: number of ended sandboxes that are remembered, to report when and why they ended
REMEMBERED = 1000


class Sandboxes:
    """All sandboxes of all tenants."""

    def __init__(self, registry: Registry, services: SessionServices) -> None:
        """Begin empty.

        Args:
            registry: contains their sessions.
            services: services that sessions and sandboxes share.
        """
        self._registry = registry
        self._services = services
        self._sandboxes: dict[SessionKey, Sandbox] = {}
        self._ended: OrderedDict[SessionKey, Sandbox] = OrderedDict()
        self._closing = False

    def restore(self) -> None:
        """Add the sandboxes that an earlier gateway has left; their containers are taken over later."""
        for record in self._services.ledger.sandboxes():
            self._sandboxes[record.key] = Sandbox(record.key, record.spec, self._registry, self._services, record)

    def all(self) -> list[Sandbox]:
        """Return all sandboxes that have not ended, oldest first."""
        return list(self._sandboxes.values())

    def of(self, tenant: str) -> list[Sandbox]:
        """Return the sandboxes of one tenant, those that have ended first."""
        every = [*self._ended.values(), *self._sandboxes.values()]
        return [sandbox for sandbox in every if sandbox.key.tenant == tenant]

    def find(self, key: SessionKey) -> Sandbox:
        """Return a sandbox, also one that has ended and is remembered.

        Raises:
            SandboxNotFound: when there is none with this key. A sandbox of another tenant gives the same error.
        """
        sandbox = self._sandboxes.get(key) or self._ended.get(key)
        if sandbox is None:
            raise SandboxNotFound(f"there is no sandbox {key.name!r}", sandbox=key.name)
        return sandbox

    def get(self, key: SessionKey) -> Sandbox:
        """Return a sandbox that can be used.

        Raises:
            SandboxNotFound: when there is none, or it has ended; the message says why it ended.
        """
        sandbox = self.find(key)
        if sandbox.ended_at is not None:
            raise SandboxNotFound(f"the sandbox has ended: {sandbox.end_reason}", sandbox=key.name)
        sandbox.touch()
        return sandbox

    async def create(self, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox and start its own container.

        Raises:
            SessionExists: when there is one with this key.
            QuotaExceeded: when the tenant has as many as it may have.
            SessionError: when its container could not be started; the sandbox is not kept.
        """
        if self._closing:
            raise ShuttingDown
        if key in self._sandboxes:
            raise SessionExists(f"a sandbox {key.name!r} exists already", sandbox=key.name)
        self._services.quotas.admit_session(sum(other.tenant == key.tenant for other in self._sandboxes))
        sandbox = self._sandboxes[key] = Sandbox(key, spec, self._registry, self._services)
        self._ended.pop(key, None)
        starting = spawn(self._first_start(sandbox), f"first start of sandbox {key}")
        await asyncio.shield(starting)
        return sandbox

    async def _first_start(self, sandbox: Sandbox) -> None:
        """Start a sandbox's container. If that fails, the sandbox is not kept, even when its client has left."""
        try:
            await sandbox.ensure_container()
        except BaseException:
            if self._sandboxes.get(sandbox.key) is sandbox:
                del self._sandboxes[sandbox.key]
            await sandbox.close("it could not be started")
            raise

    def end(self, key: SessionKey, reason: str = "it was stopped") -> asyncio.Future[None]:
        """End a sandbox and free everything it has. It can no longer be used when this returns.

        Args:
            key: key of the sandbox.
            reason: why, for clients that use the sandbox later.

        Returns:
            a future that is done when everything is freed; cancelling it does not stop that.

        Raises:
            SandboxNotFound: when there is none.
        """
        sandbox = self.find(key)
        if self._sandboxes.pop(key, None) is not None:
            self._services.ledger.end_sandbox(key)
            self._ended[key] = sandbox
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        return sandbox.close(reason)

    async def forget(self, key: SessionKey) -> Sandbox:
        """End a sandbox and forget it.

        Returns:
            the sandbox, for its last data.

        Raises:
            SandboxNotFound: when there is none.
        """
        sandbox = self.find(key)
        await self.end(key, "it was deleted")
        self._ended.pop(key, None)
        return sandbox

    async def close(self) -> None:
        """End all sandboxes, and make no more.

        Raises:
            ExceptionGroup: when not everything they had could be freed.
        """
        self._closing = True
        # Also those that were ended a moment ago: what they have must be freed while there is a backend.
        every = [*self._ended, *self._sandboxes]
        await gather_all(*(self.end(key, "the gateway was stopped") for key in every))
