"""The control plane: creates, lists, pauses and ends sandboxes, and changes their lifetimes."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from http import HTTPStatus
from typing import ClassVar

from kernel_gateway.dialects.e2b.base import ControlHandler
from kernel_gateway.dialects.e2b.lists import ListQuery
from kernel_gateway.dialects.e2b.models import (
    NO_VOLUMES,
    Connect,
    NetworkChange,
    NewSandbox,
    Pause,
    Refresh,
    Timeout,
    access_model,
    asked_of,
    lifetime,
    sandbox_model,
)
from kernel_gateway.dialects.e2b.snapshots import snapshot_for
from kernel_gateway.dialects.e2b.templates import NO_BUILDS
from kernel_gateway.dialects.e2b.tokens import new_id, new_secret
from kernel_gateway.errors import NotSupported
from kernel_gateway.identity.auth import Caller
from sessions.model.errors import SessionExists
from sessions.model.values import SessionKey
from sessions.sandbox.sandbox import Sandbox


def _at_least(seconds: float, sandbox: Sandbox) -> float:
    """Return the sandbox's lifetime, lengthened if necessary so that the sandbox lives `seconds` from now on."""
    return max(sandbox.spec.lifetime, sandbox.age() + seconds)


class SandboxesHandler(ControlHandler):
    """`/v2/sandboxes`, and `/sandboxes` of early SDKs."""

    def get(self) -> None:
        """List one page of the tenant's sandboxes, newest first unless the client asks for the other order."""
        query = {name: ",".join(self.get_query_arguments(name)) for name in self.request.query_arguments}
        own = [each for each in self.gateway.sandboxes.of(self.tenant) if each.spec.secret and self._lives(each)]
        page, token = ListQuery.of(query).page(own)
        if token:
            self.set_header("X-Next-Token", token)
        self.finish_json([sandbox_model(sandbox) for sandbox in page])

    def _lives(self, sandbox: Sandbox) -> bool:
        if self.gateway.sandboxes.pause_at_end(sandbox):
            return not sandbox.closed
        return not sandbox.closed and not 0 < sandbox.spec.lifetime <= sandbox.age()

    async def post(self) -> None:
        """Create a sandbox. A repeated request with the same idempotency key returns the same sandbox."""
        body = self.body(NewSandbox)
        body.refuse_what_is_not_there()
        snapshots = self.gateway.sandboxes.snapshots
        snapshot = snapshot_for(body.templateID, snapshots, self.tenant, self.tenant_settings)
        spec = body.spec(self.tenant_settings, self.caller.key_id, snapshot)
        asked = self.request.headers.get("Idempotency-Key")
        seed = None
        if asked is not None:
            seed = hashlib.sha256(f"{self.tenant}:{asked}".encode("utf-8", "surrogatepass")).digest()
        key = SessionKey(self.tenant, new_id(seed))
        try:
            if snapshot is None:
                sandbox = await self.gateway.sandboxes.create(key, spec)
            else:
                sandbox = await self.gateway.sandboxes.continue_from(snapshot.moment, key, spec)
        except SessionExists:
            sandbox = self.sandbox(key.name)
            await sandbox.ensure_container()
        else:
            lives = lifetime(body.timeout, self.gateway.settings)
            sandbox.amend(lifetime=sandbox.age() + lives)  # the time counts from now, when the sandbox can be used
            self.gateway.sandboxes.check_lifetime(sandbox)
        self.set_status(HTTPStatus.CREATED)
        self.finish_json(access_model(sandbox))


class OneSandboxHandler(ControlHandler):
    """`/sandboxes/{id}`."""

    def get(self, sandbox_id: str) -> None:
        """Describe the sandbox. The answer has its tokens, which SDKs up to 2.3 read here when they connect."""
        sandbox = self.sandbox(sandbox_id)
        self.finish_json(access_model(sandbox) | sandbox_model(sandbox))

    async def delete(self, sandbox_id: str) -> None:
        """End the sandbox. When the answer is sent, it can no longer be used."""
        await self.gateway.sandboxes.end(self.sandbox(sandbox_id).key, "it was killed")
        self.set_status(HTTPStatus.NO_CONTENT)


class ConnectHandler(ControlHandler):
    """`/v2/sandboxes/{id}/connect`, and without `/v2`."""

    async def post(self, sandbox_id: str) -> None:
        """Return the data that a client needs to use the sandbox, and let it live at least as long as the client asks.

        A paused sandbox is resumed, and lives exactly as long as the client asks.
        """
        await self.connect(self.sandbox(sandbox_id))

    async def connect(self, sandbox: Sandbox) -> None:
        """Connect the client to this sandbox; see `post`."""
        body = self.body(Connect)
        body.refuse_without_memory()
        asked = lifetime(body.timeout, self.gateway.settings)
        if sandbox.pausing.paused:
            await sandbox.pausing.resume(asked)
            self.set_status(HTTPStatus.CREATED)
        spec = replace(sandbox.spec, lifetime=_at_least(asked, sandbox))
        if not self.gateway.keys.is_still_valid(Caller(self.tenant, key_id=spec.key_id)):
            spec = replace(spec, secret=new_secret(), key_id=self.caller.key_id)
        sandbox.amend(lifetime=spec.lifetime, secret=spec.secret, key_id=spec.key_id)
        self.finish_json(access_model(sandbox))


class ResumeHandler(ConnectHandler):
    """`/sandboxes/{id}/resume`. SDKs up to 2.3 call it before they connect."""

    async def post(self, sandbox_id: str) -> None:
        """Resume a paused sandbox, and let it live as long as the client asks."""
        sandbox = self.sandbox(sandbox_id)
        if sandbox.pausing.paused:
            await self.connect(sandbox)
        else:
            self.conflict("the sandbox is running already")


class PauseHandler(ControlHandler):
    """`/sandboxes/{id}/pause`."""

    async def post(self, sandbox_id: str) -> None:
        """Pause the sandbox: keep its memory and files, close its connections, and interrupt its cells."""
        sandbox = self.sandbox(sandbox_id)
        self.body(Pause).refuse_without_memory()
        if sandbox.pausing.paused:
            self.conflict("the sandbox is paused already")
            return
        await asyncio.shield(sandbox.pausing.begin())
        self.set_status(HTTPStatus.NO_CONTENT)


class TimeoutHandler(ControlHandler):
    """`/sandboxes/{id}/timeout`."""

    def post(self, sandbox_id: str) -> None:
        """Let the sandbox end so many seconds from now as the client asks."""
        self.let_live(sandbox_id, self.body(Timeout).timeout)

    def let_live(self, sandbox_id: str, seconds: int, *, at_least: bool = False) -> None:
        """Let the sandbox end `seconds` from now.

        Args:
            sandbox_id: id of the sandbox.
            seconds: time until the end.
            at_least: True to never make the sandbox end earlier than it would have.

        Raises:
            SandboxNotFound: when the sandbox is paused; early SDKs then resume it.
        """
        sandbox = self.sandbox(sandbox_id)
        sandbox.pausing.check()
        asked = lifetime(seconds, self.gateway.settings)
        sandbox.amend(lifetime=_at_least(asked, sandbox) if at_least else sandbox.age() + asked)
        self.gateway.sandboxes.check_lifetime(sandbox)
        self.set_status(HTTPStatus.NO_CONTENT)


class RefreshHandler(TimeoutHandler):
    """`/sandboxes/{id}/refreshes`, of early SDKs."""

    def post(self, sandbox_id: str) -> None:
        """Let the sandbox live at least so many seconds from now as the client asks."""
        self.let_live(sandbox_id, self.body(Refresh).duration, at_least=True)


class NetworkHandler(ControlHandler):
    """`/sandboxes/{id}/network`."""

    def put(self, sandbox_id: str) -> None:
        """Accept rules that hold already, because the sandbox has no network. Refuse others."""
        body, sandbox = self.body(NetworkChange), self.sandbox(sandbox_id)
        body.check()
        sandbox.amend(asked=asked_of(body, body.allow_internet_access))
        self.set_status(HTTPStatus.NO_CONTENT)


class UnsupportedHandler(ControlHandler):
    """Paths of E2B's control plane that this gateway does not support."""

    #: why, by a name in the path
    reasons: ClassVar[dict[str, str]] = {
        "templates": NO_BUILDS,
        "volumes": NO_VOLUMES,
        "secrets": "sandboxes get no secrets here, because they reach nothing that would want them",
    }

    def prepare(self) -> None:
        """Check the key, and refuse every method."""
        super().prepare()
        if not self.gateway.origins.is_preflight(self.request):
            names = self.request.path.split("/")
            told = (reason for name, reason in self.reasons.items() if name in names)
            raise NotSupported(next(told, f"{self.request.path[:100]}: this gateway has no such call of E2B's API"))
