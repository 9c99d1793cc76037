"""Which sandboxes there are, and which have ended."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from sessions.errors import SandboxNotFound, SessionExists, ShuttingDown
from sessions.models import SandboxSpec, SessionKey
from sessions.registry import Registry
from sessions.sandbox import Sandbox
from sessions.surroundings import Surroundings
from sessions.tasks import spawn, together

#: how many ended sandboxes are remembered, so that who asks is told when and why
REMEMBERED = 1000


class Sandboxes:
    """All sandboxes of all tenants."""

    def __init__(self, registry: Registry, around: Surroundings) -> None:
        """Begin empty.

        Args:
            registry: where their sessions are.
            around: what they share with sessions.
        """
        self._registry = registry
        self._around = around
        self._sandboxes: dict[SessionKey, Sandbox] = {}
        self._ended: OrderedDict[SessionKey, Sandbox] = OrderedDict()
        self._closing = False

    def restore(self) -> None:
        """Know the sandboxes that an earlier gateway has left; their containers are still to be taken over."""
        for record in self._around.ledger.sandboxes():
            self._sandboxes[record.key] = Sandbox(record.key, record.spec, self._registry, self._around, record)

    def all(self) -> list[Sandbox]:
        """Every sandbox that has not ended, oldest first."""
        return list(self._sandboxes.values())

    def of(self, tenant: str) -> list[Sandbox]:
        """A tenant's sandboxes, those that have ended first."""
        every = [*self._ended.values(), *self._sandboxes.values()]
        return [sandbox for sandbox in every if sandbox.key.tenant == tenant]

    def find(self, key: SessionKey) -> Sandbox:
        """A sandbox, also one that has ended and is remembered.

        Raises:
            SandboxNotFound: there is none of this key; other tenants' are not told apart from none.
        """
        sandbox = self._sandboxes.get(key) or self._ended.get(key)
        if sandbox is None:
            raise SandboxNotFound(f"there is no sandbox {key.name!r}", sandbox=key.name)
        return sandbox

    def get(self, key: SessionKey) -> Sandbox:
        """A sandbox that can be used.

        Raises:
            SandboxNotFound: there is none, or it has ended; the message says why.
        """
        sandbox = self.find(key)
        if sandbox.ended_at is not None:
            raise SandboxNotFound(f"the sandbox has ended: {sandbox.end_reason}", sandbox=key.name)
        sandbox.touch()
        return sandbox

    async def create(self, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox and start its own container.

        Raises:
            SessionExists: there is one of this key.
            QuotaExceeded: the tenant has as many as it may.
            SessionError: its container could not be started; the sandbox is not kept.
        """
        if self._closing:
            raise ShuttingDown
        if key in self._sandboxes:
            raise SessionExists(f"a sandbox {key.name!r} exists already", sandbox=key.name)
        self._around.quotas.admit_session(sum(other.tenant == key.tenant for other in self._sandboxes))
        sandbox = self._sandboxes[key] = Sandbox(key, spec, self._registry, self._around)
        self._ended.pop(key, None)
        starting = spawn(self._first_start(sandbox), f"first start of sandbox {key}")
        await asyncio.shield(starting)
        return sandbox

    async def _first_start(self, sandbox: Sandbox) -> None:
        """A sandbox whose container does not start is not kept, whoever waits for it or has left."""
        try:
            await sandbox.ensure_holder()
        except BaseException:
            if self._sandboxes.get(sandbox.key) is sandbox:
                del self._sandboxes[sandbox.key]
            await sandbox.close("it could not be started")
            raise

    def end(self, key: SessionKey, reason: str = "it was stopped") -> asyncio.Future[None]:
        """End a sandbox and free all it has. It can no longer be used when this returns.

        Args:
            key: which.
            reason: what whoever asks for it later is told.

        Returns:
            what to await until all is freed; who gives up waiting does not stop it.

        Raises:
            SandboxNotFound: there is none.
        """
        sandbox = self.find(key)
        if self._sandboxes.pop(key, None) is not None:
            self._around.ledger.end_sandbox(key)
            self._ended[key] = sandbox
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
        return sandbox.close(reason)

    async def forget(self, key: SessionKey) -> Sandbox:
        """End a sandbox and remember nothing of it.

        Returns:
            it, as it was.

        Raises:
            SandboxNotFound: there is none.
        """
        sandbox = self.find(key)
        await self.end(key, "it was deleted")
        self._ended.pop(key, None)
        return sandbox

    async def close(self) -> None:
        """End all sandboxes, and make no more.

        Raises:
            ExceptionGroup: not all that they had could be freed.
        """
        self._closing = True
        # Those too that were ended a moment ago: what they have must be freed while there is a backend.
        every = [*self._ended, *self._sandboxes]
        await together(*(self.end(key, "the gateway was stopped") for key in every))
