"""Definition of a dialect, and the parts of the gateway that handlers use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from kernel_gateway.config import Settings
from kernel_gateway.fair_loop import FairLoop
from kernel_gateway.identity.auth import Keys
from kernel_gateway.identity.keystore import KeyStore
from kernel_gateway.identity.origins import Origins
from kernel_gateway.identity.user_tokens import UserTokens
from kernel_gateway.observe.alerts import AlertWatch
from kernel_gateway.observe.metrics import Metrics
from kernel_gateway.wire.incoming import Incoming
from kernel_gateway.wire.open_sockets import OpenSockets
from sessions.backends.abilities import Ability
from sessions.file_store.store import FileStore
from sessions.model.errors import SessionError
from sessions.model.kernelspecs import Inventory, KernelSpecs
from sessions.ports.ports import Ports
from sessions.programs.program import Runner
from sessions.providers.manager import ProviderManager
from sessions.providers.settings import ProviderSettings
from sessions.replay.replay import Replays
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.registry import Registry
from sessions.store.audit import Audit
from sessions.store.templates import Templates
from sessions.store.tenant_limits import TenantLimitStore
from sessions.tenants.quotas import Quotas
from sessions.tenants.traffic import LoopTime

#: pattern of the path, handler, and the handler's arguments
Route = tuple[str, type[RequestHandler], dict[str, Any]]


@dataclass(frozen=True)
class Gateway:
    """The parts of the gateway that handlers use."""

    settings: Settings
    registry: Registry
    sandboxes: Sandboxes
    templates: Templates
    specs: KernelSpecs
    keys: Keys
    keystore: KeyStore
    #: verifies the tokens of LibreChat's users; None: they need a key
    user_tokens: UserTokens | None
    file_store: FileStore
    tenant_limits: TenantLimitStore
    audit: Audit
    metrics: Metrics
    alerts: AlertWatch
    #: returns the error that keeps kernels from starting, or None
    trouble: Callable[[], SessionError | None]
    #: returns the number of warm kernels in the pool
    warm_kernels: Callable[[], int]
    #: returns the number of executions, running or queued
    count_executions: Callable[[], int]
    #: returns the packages and languages installed for kernels; None until the sandbox is proven for the first time
    inventory: Callable[[], Inventory | None]
    #: returns whether new kernels are restored from golden images, and the reason
    golden_images: Callable[[], Ability]
    #: returns whether idle sessions can sleep, and the reason
    sleep: Callable[[], Ability]
    #: returns whether sandboxes can be paused, and the reason
    pauses: Callable[[], Ability]
    #: values of the Host header that the gateway answers to; empty means every value
    allowed_hosts: frozenset[str]
    origins: Origins
    sockets: OpenSockets
    incoming: Incoming
    fair_loop: FairLoop
    #: shares out the event loop among tenants: their kernels' messages, their WebSockets and their requests
    loop_time: LoopTime
    quotas: Quotas
    #: runs one-shot programs with the provider that the settings name
    providers: ProviderManager
    provider_settings: ProviderSettings
    #: runs one-shot programs in this gateway's kernels, even when the settings name another provider
    runner: Runner
    #: runs the cells of sessions and notebooks again
    replays: Replays
    #: connects to servers that code has started
    ports: Ports
    #: secret of signed links to ports
    links_secret: str

    def settings_of(self, tenant: str) -> Settings:
        """Return the settings as a tenant has them now: with its own limits."""
        return self.settings.of_tenant(self.tenant_limits.of(tenant))


@dataclass(frozen=True)
class Dialect:
    """One API of the gateway. A dialect translates; it adds no behaviour."""

    name: str
    #: returns the paths and their handlers; each handler accepts the argument `gateway`
    routes: Callable[[Gateway], list[Route]]
    #: returns whether a request with a matching path belongs to this dialect; None means that every one does
    serves: Callable[[HTTPServerRequest], bool] | None = None
