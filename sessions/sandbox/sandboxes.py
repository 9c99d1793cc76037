"""All sandboxes, and the sandboxes that have ended last."""

from __future__ import annotations

import asyncio
from collections import Counter

from sessions.model.errors import SandboxNotFound, SessionExists
from sessions.model.values import SandboxSpec, SessionKey
from sessions.sandbox.sandbox import Sandbox, launch_for
from sessions.session.owner import End, Owners
from sessions.session.registry import Registry
from sessions.session.services import SessionServices

#: number of ended sandboxes that are remembered, over all tenants, to report when and why they ended
REMEMBERED = 1000


class Sandboxes(Owners[Sandbox]):
    """All sandboxes of all tenants."""

    def __init__(self, registry: Registry, services: SessionServices) -> None:
        """Begin empty.

        Args:
            registry: contains the sandboxes' sessions.
            services: services that sessions and sandboxes share.
        """
        super().__init__(services, beside=registry)
        self._registry = registry
        self._ended: dict[SessionKey, Sandbox] = {}

    def restore(self) -> None:
        """Add the sandboxes that an earlier gateway has left; their containers are taken over later."""
        for record in self._services.ledger.sandboxes():
            self._add(Sandbox(record.key, record.spec, self._registry, self._services, record=record))

    def of(self, tenant: str) -> list[Sandbox]:
        """Return the sandboxes of one tenant: first those that have ended, then the others."""
        return [*(ended for key, ended in self._ended.items() if key.tenant == tenant), *super().of(tenant)]

    def find(self, key: SessionKey) -> Sandbox:
        """Return a sandbox, also a remembered sandbox that has ended.

        Raises:
            SandboxNotFound: when there is no sandbox with this key. A sandbox of another tenant gives the same error.
        """
        sandbox = self._present.get(key) or self._ended.get(key)
        if sandbox is None:
            raise SandboxNotFound(f"there is no sandbox {key.name!r}", sandbox=key.name)
        return sandbox

    def get(self, key: SessionKey) -> Sandbox:
        """Return a sandbox that can be used.

        Raises:
            SandboxNotFound: when there is no sandbox with this key, or it has ended; the message says why it ended.
        """
        sandbox = self.find(key)
        self.check_lifetime(sandbox)
        if sandbox.end is not None:
            raise SandboxNotFound(f"the sandbox has ended: {sandbox.end.reason}", sandbox=key.name)
        sandbox.touch()
        return sandbox

    def check_lifetime(self, sandbox: Sandbox) -> None:
        """Begin the pause or the end of a sandbox whose lifetime is over, without waiting for the culler."""
        if not self.pause_at_end(sandbox) and sandbox.end is None and 0 < sandbox.spec.lifetime <= sandbox.age():
            self.end(sandbox.key, f"it reached its maximum lifetime of {sandbox.spec.lifetime:g} s")

    def pause_at_end(self, sandbox: Sandbox) -> bool:
        """Begin the pause of a sandbox whose lifetime is over, if its client wants that.

        Returns:
            whether the sandbox is paused, for this reason or another.
        """
        over = sandbox.spec.auto_pause and not sandbox.closed and 0 < sandbox.spec.lifetime <= sandbox.age()
        if over and not sandbox.pausing.paused and sandbox.left_container is None:
            sandbox.pausing.begin()
        return sandbox.pausing.paused

    async def create(self, key: SessionKey, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox, and start its own container unless there is a warm one.

        Raises:
            SessionExists: when there is a sandbox with this key.
            InvalidRequest: when the sandbox would have more than the tenant's own limits allow.
            QuotaExceeded: when the tenant has the maximum of sessions and sandboxes.
            SessionError: when its container could not be started; the sandbox is not kept.
        """
        if key in self._present:
            raise SessionExists(f"a sandbox {key.name!r} exists already", sandbox=key.name)
        self._services.own_limits(key.tenant).check(spec.limits)
        self._admit(key.tenant, spec.limits.disk)
        warm = self._services.kernels.take_sandbox(launch_for(key, spec))
        sandbox = Sandbox(key, spec, self._registry, self._services, warm=warm)
        self._ended.pop(key, None)
        await self._start(sandbox)
        return sandbox

    def end(self, key: SessionKey, reason: str = "it was stopped") -> asyncio.Future[None]:
        """End a sandbox and free all its resources. No client can use it when this method returns.

        Args:
            key: key of the sandbox.
            reason: why it ends, for clients that use the sandbox later.

        Returns:
            a future that is done when everything is freed. Cancelling the future does not stop the work.

        Raises:
            SandboxNotFound: when there is no sandbox with this key.
        """
        sandbox = self.find(key)
        if key not in self._present:
            return sandbox.close()
        self._ended[key] = sandbox
        if len(self._ended) > REMEMBERED:  # forget the oldest of the tenant with the most, as in `store/ended.py`
            tenant = Counter(ended.tenant for ended in self._ended).most_common(1)[0][0]
            del self._ended[next(ended for ended in self._ended if ended.tenant == tenant)]
        self._remove(sandbox, reason)
        return sandbox.close()

    def _record_end(self, owner: Sandbox, end: End) -> None:  # noqa: ARG002 - `_ended` remembers it
        self._services.ledger.end_sandbox(owner.key)

    async def forget(self, key: SessionKey) -> Sandbox:
        """End a sandbox and forget it.

        Returns:
            the sandbox, for its last data.

        Raises:
            SandboxNotFound: when there is no sandbox with this key.
        """
        sandbox = self.find(key)
        await self.end(key, "it was deleted")
        self._ended.pop(key, None)
        return sandbox
