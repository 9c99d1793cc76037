"""The composition root: settings → backend → pool → registry → dialects → server. Only this module knows them all."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import structlog
from prometheus_client import Metric
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.routing import PathMatches, Rule
from tornado.web import Application, RequestHandler

from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.dialects.agentrun.models import DEFAULT_TEMPLATE
from kernel_gateway.fair_loop import FairLoop
from kernel_gateway.gateway import Gateway
from kernel_gateway.http.access_log import request_ended
from kernel_gateway.http.handlers import MAX_BODY, BaseHandler, NotFoundHandler
from kernel_gateway.identity import auth
from kernel_gateway.identity.keystore import KeyStore
from kernel_gateway.identity.origins import Origins
from kernel_gateway.identity.user_tokens import UserTokens
from kernel_gateway.isolation import kernelspecs, make_backend
from kernel_gateway.journal import Journal
from kernel_gateway.observe import logs
from kernel_gateway.observe.alerts import AlertWatch
from kernel_gateway.observe.looplag import LoopLag
from kernel_gateway.observe.metrics import Metrics
from kernel_gateway.own_address import leads_here
from kernel_gateway.state_dir import instance_id, lock, mark_sandboxed, stored_word
from kernel_gateway.wire.incoming import Incoming
from kernel_gateway.wire.listener import Listener
from kernel_gateway.wire.open_sockets import OpenSockets
from kernel_gateway.wire.server import serve
from sessions import providers
from sessions.checkpoints.writing import KernelMemory
from sessions.file_store.store import FileStore
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.checkpoint import OnIdle
from sessions.model.egress import EgressTenants
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.tasks import forever, log_failure, spawn
from sessions.model.values import SessionSpec, Timeouts
from sessions.ports.ports import Ports
from sessions.programs.runs import ProgramRunner
from sessions.providers.manager import ProviderManager, Rules
from sessions.providers.settings import Deployment, ProviderSettings
from sessions.providers.store import ProviderStore
from sessions.replay.replay import Replays
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.registry import Registry
from sessions.session.services import SessionServices
from sessions.session.session import Session
from sessions.store.audit import Audit
from sessions.store.key_file import KeyFile
from sessions.store.ledger import Ledger
from sessions.store.sync import Syncer
from sessions.store.templates import Templates
from sessions.store.tenant_limits import TenantLimitStore
from sessions.store.usage_store import Held, UsageStore
from sessions.tenants.audit_disk import AuditDisk
from sessions.tenants.budget import Budget
from sessions.tenants.kept_bytes import KeptBytes
from sessions.tenants.memory import PromisedMemory
from sessions.tenants.quotas import Quotas
from sessions.tenants.sleep_disk import SleepDisk
from sessions.tenants.traffic import LoopTime
from sessions.tenants.workspaces import WorkspaceDisk
from sessions.tools.servers import NoToolServers, ToolServers
from sessions.upkeep.culler import Culler
from sessions.upkeep.recovery import Recovery
from sessions.upkeep.strays import Strays

log = structlog.get_logger()

#: seconds between two runs of the culler, and of the pool's upkeep
CULL_INTERVAL = 5.0
#: seconds between two deletions of old audit records
AUDIT_INTERVAL = 600.0
#: seconds between two looks whether the certificate's file has been renewed
CERTIFICATE_INTERVAL = 60.0
DAY = 86400.0
#: seconds that cells may take to end before the stopping gateway leaves them to the next one
SOON = 1.0
#: seconds for the answers of these cells' clients to be sent before their connections are closed
ANSWERS = 0.1
#: seconds that cells may take to end after the stopping gateway has interrupted them
INTERRUPT_TIMEOUT = 5.0
#: kernels that may start at the same time. The kernel computes for half of a start, and the engine works for the other
#: half, so more starts at once save hardly any time
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
#: one step of stopping the gateway; `_run_step` awaits an awaitable result
Step = Callable[[], object]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Paths(PathMatches):
    """Matches the requests to one path that belong to one dialect."""

    def __init__(self, pattern: str, serves: Callable[[HTTPServerRequest], bool] | None) -> None:
        super().__init__(pattern)
        self._serves = serves

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return the parts of the path, or None if another route must serve the request."""
        found = super().match(request)
        return found if found is None or self._serves is None or self._serves(request) else None


@dataclass(frozen=True, slots=True)
class Budgets:
    """What the sessions of all tenants share."""

    memory: PromisedMemory
    sleep_disk: SleepDisk
    workspaces: WorkspaceDisk
    files: FileStore

    def held(self) -> Held:
        """Return what each tenant has of it now."""
        on_disk = (self.workspaces, self.sleep_disk, self.files)
        disk = sum((Counter(each.by_tenant()) for each in on_disk), Counter[str]())
        return Held(self.memory.by_tenant(), disk)


def _usual_session(settings: Settings) -> SessionSpec:
    """Return the settings of a session whose client asks for nothing."""
    return SessionSpec(
        limits=settings.limits,
        idle_timeout=settings.idle_timeout,
        max_execute_timeout=settings.max_execute_timeout,
        on_idle=OnIdle(settings.on_idle),
    )


class Service:
    """One running gateway."""

    def __init__(self, settings: Settings) -> None:
        """Build all parts without starting them.

        Raises:
            AlreadyRunning: when another gateway uses this state directory.
        """
        self.settings = settings
        self.state_dir = settings.state_dir.expanduser()
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock(self.state_dir)
        self.metrics = Metrics()
        self.specs = kernelspecs(settings)
        self.backend = make_backend(
            settings,
            instance_id(self.state_dir),
            stored_word(self.state_dir / "egress"),
            self.specs,
            KeyFile(settings.secrets_key_file or self.state_dir / "secrets.key").read_or_make,
        )
        if self.backend.name != "process":
            mark_sandboxed(self.state_dir)
        self.backend.report_restores(self.metrics.pool.restored)
        self.readiness = Readiness(self.backend)
        self.alerts = AlertWatch(self._collect, time.monotonic)
        self._budgets = Budgets(
            PromisedMemory(settings.total_memory, settings.share),
            SleepDisk(settings.sleep_disk, settings.share),
            WorkspaceDisk(lambda: self.backend.room, settings.share),
            FileStore(self.state_dir, Budget(settings.stored_disk, settings.share), settings.stored_for, time.time),
        )
        starts = StartQueue(
            self.backend,
            self.readiness,
            STARTS_AT_ONCE,
            self.metrics.pool.started,
            memory=self._budgets.memory,
            on_stages=self.metrics.pool.stages,
        )
        self._measure(starts)
        self.pool = self._pool(starts)
        self.tenant_limits = TenantLimitStore(self.state_dir / "tenants.db", settings.most_of, settings.fixed_limits)
        self.quotas = Quotas(
            settings.tenant_limits, time.monotonic, settings.max_concurrent, settings.share, self.tenant_limits.of
        )
        self.audit = Audit(self.state_dir / "audit.db")
        self.usage = UsageStore(self.state_dir / "usage.db")
        self.ledger = Ledger(self.state_dir / "ledger.db")
        self.journal = Journal(self.audit, self.quotas, self.metrics, settings.code_policy, AuditDisk(settings.share))
        self.journal.charge_earlier_executions(settings.quota_window)
        self._loop_time = LoopTime()
        self.fair_loop = FairLoop(self._loop_time)
        self.incoming = Incoming(settings.max_incoming_bytes_per_tenant, settings.max_incoming_bytes, settings.share)
        services = self._shared = self._services(starts)
        self.registry = Registry(self.specs, _usual_session(settings), services)
        self.runner = ProgramRunner(self.registry, self.specs, settings.execute_timeout)
        self.sandboxes = Sandboxes(self.registry, services)
        self.ports = Ports(services.charge, settings.port_limits, settings.share, _no_ports(self.backend.name))
        self.strays = Strays(
            self.backend,
            starts,
            self.pool,
            self.registry,
            self.sandboxes,
            clock=time.monotonic,
            on_found=self.metrics.pool.strays.inc,
        )
        self.readiness.run_after_first_proof(
            Recovery(self.backend, starts, self.registry, self.sandboxes, interrupted=self.audit.interrupted)
        )
        self.templates = Templates(self.state_dir / "templates.db", DEFAULT_TEMPLATE)
        self.keystore = KeyStore(self.state_dir)
        self.provider_store = ProviderStore(self.state_dir, settings.secrets_key_file)
        self.syncer = Syncer(self.state_dir)
        makers = providers.makers(self.runner)
        rules = Rules(
            fallback=settings.fallback_provider, production=not settings.loopback, timeout=settings.execute_timeout
        )
        self.providers = ProviderManager(self.provider_store, makers, rules, own=self.runner, services=services)
        deployment = Deployment(not settings.loopback, lambda url: leads_here(url, self.port))
        self.provider_settings = ProviderSettings(self.provider_store, makers, deployment)
        #: the key of a gateway without configured keys, and the key's file; None if the settings contain keys
        self.local_key: tuple[str, Path] | None = None
        self.port = settings.port
        self._server: HTTPServer | None = None
        self._listener: Listener | None = None
        #: PEM file with the server's certificate; None without TLS
        self.certificate: Path | None = None
        #: loads the certificate anew when its file has been renewed; None without TLS
        self._renewal: Callable[[], Awaitable[None]] | None = None
        self._background: list[asyncio.Task[NoReturn]] = []

    def _measure(self, starts: StartQueue) -> None:
        """Let the metrics read what other objects count."""
        settings, metrics, budgets = self.settings, self.metrics, self._budgets
        metrics.lines_left_out.set_function(lambda: logs.limit.left_out)
        metrics.room.watch_disk(self.state_dir)
        metrics.room.watch_memory(lambda: budgets.memory.promised, settings.total_memory)
        metrics.room.watch_sleep_disk(lambda: budgets.sleep_disk.used, settings.sleep_disk)
        metrics.pool.leftovers.set_function(lambda: self.backend.leftovers)
        metrics.pool.waiting.set_function(lambda: starts.waiting)

    def _pool(self, starts: StartQueue) -> Pool:
        settings = self.settings
        stock = PoolSettings(
            settings.limits, settings.pool_size, settings.pool_max, sandboxes=settings.sandbox_pool_size
        )
        return Pool(self.backend, starts, stock, time.monotonic, observer=self.metrics.pool)

    def _services(self, starts: StartQueue) -> SessionServices:
        """Return what all sessions use."""
        settings = self.settings
        return SessionServices(
            kernels=self.pool,
            quotas=self.quotas,
            clock=time.monotonic,
            journal=self.journal,
            ledger=self.ledger,
            timeouts=Timeouts(),
            kernel_memory=KernelMemory(self.backend, starts, self.pool, self._budgets.sleep_disk),
            observer=self.metrics.pool,
            waiting=self.incoming.take,
            egress=EgressTenants(settings.egress_tenants if settings.egress else ()),
            kept=KeptBytes(settings.max_kept_bytes_per_tenant, settings.max_kept_bytes),
            unread=KeptBytes(settings.max_unread_bytes_per_tenant, settings.max_unread_bytes),
            loop_time=self._loop_time,
            workspaces=self._budgets.workspaces,
            own_limits=self.tenant_limits.of,
            tool_servers=_operator_servers(settings, self.journal),
        )

    def _trouble(self) -> SessionError | None:
        """Return the error that keeps kernels from starting, or None."""
        return self.readiness.trouble or self.syncer.trouble

    def _collect(self) -> list[Metric]:
        """Return the metrics that alerts need."""
        self.metrics.set_trouble(self._trouble())
        return list(self.metrics.registry.collect())

    def _request_ended(self, handler: RequestHandler) -> None:
        """Log and count a request; tornado calls this for every answer."""
        if not isinstance(handler, BaseHandler):
            raise TypeError("the handler is no BaseHandler")
        request_ended(handler)
        self.metrics.request_ended(
            handler.dialect, handler.request.method, handler.get_status(), handler.request.request_time()
        )

    def _gateway(self) -> Gateway:
        keys = dict(self.settings.keys)
        if not keys:
            self.local_key = auth.make_local_key(self.state_dir)
            keys[self.local_key[0]] = auth.LOCAL_TENANT
        return Gateway(
            settings=self.settings,
            registry=self.registry,
            sandboxes=self.sandboxes,
            templates=self.templates,
            specs=self.specs,
            keys=auth.Keys(
                keys,
                self.settings.access_keys,
                self.keystore,
                self.settings.admin_key,
                trusts_local_clients=self._trusts_local_clients(),
            ),
            keystore=self.keystore,
            user_tokens=self._user_tokens(),
            file_store=self._budgets.files,
            tenant_limits=self.tenant_limits,
            audit=self.audit,
            metrics=self.metrics,
            alerts=self.alerts,
            trouble=self._trouble,
            warm_kernels=self.pool.depth,
            count_executions=self.quotas.under_way,
            inventory=lambda: self.backend.inventory,
            golden_images=lambda: self.backend.golden_images,
            sleep=lambda: self.backend.sleep.ability,
            pauses=lambda: self.backend.pauses,
            allowed_hosts=self._allowed_hosts(),
            origins=Origins(self.settings.allowed_origins),
            sockets=OpenSockets(self.settings, self.metrics.connections),
            incoming=self.incoming,
            loop_time=self._loop_time,
            fair_loop=self.fair_loop,
            quotas=self.quotas,
            providers=self.providers,
            provider_settings=self.provider_settings,
            runner=self.runner,
            replays=Replays(self.registry),
            ports=self.ports,
            links_secret=stored_word(self.state_dir / "links"),
        )

    def _user_tokens(self) -> UserTokens | None:
        path = self.settings.librechat_keys
        return None if path is None else UserTokens.of_file(path)

    def _trusts_local_clients(self) -> bool:
        """Return whether clients on this machine may send requests without a key.

        That requires isolated kernels, and settings without keys: with keys, a proxy may run on this machine, and
        remote clients behind the proxy would look like local clients.
        """
        return not self.settings.keys and not self.settings.access_keys and self.backend.name != "process"

    def _allowed_hosts(self) -> frozenset[str]:
        """Return the host names that the gateway answers to. An empty set means all names."""
        hosts = {name.lower() for name in self.settings.allowed_hosts}
        return frozenset(hosts | {*LOOPBACK_NAMES, self.settings.host} if self.settings.loopback else hosts)

    def _tls(self) -> ssl.SSLContext | None:
        if not (self.settings.tls or self.settings.tls_certificate):
            return None
        from kernel_gateway.wire import tls  # noqa: PLC0415 - certificates take a twentieth of a start

        self.certificate = self.settings.tls_certificate
        if self.certificate is None:
            self.certificate = tls.own_certificate(
                self.state_dir, self._allowed_hosts() | {*LOOPBACK_NAMES, self.settings.host}
            )
        served = tls.ServedCertificate(self.certificate)
        self.metrics.room.watch_certificate(lambda: served.end)
        self._renewal = partial(served.load_when_renewed, CERTIFICATE_INTERVAL)
        return served.context

    async def start(self) -> Self:
        """Listen, prove the sandbox, and start to keep kernels warm.

        The gateway listens even if the proof fails. Then `/readyz` and every request that needs a kernel report what is
        missing, and the gateway repeats the proof.

        Raises:
            OSError: when the gateway cannot listen on the address, or cannot use the certificate.
        """
        self.syncer.start()
        self._warn_of_languages()
        gateway = self._gateway()
        application = Application(
            [
                Rule(Paths(path, dialect.serves), handler, arguments | {"dialect": dialect.name})
                for dialect in DIALECTS
                for path, handler, arguments in dialect.routes(gateway)
            ],
            default_handler_class=NotFoundHandler,
            default_handler_args={"gateway": gateway},
            log_function=self._request_ended,
            websocket_max_message_size=MAX_BODY,
            websocket_ping_interval=self.settings.ping_interval,
            websocket_ping_timeout=self.settings.ping_interval,
        )
        self._server, self._listener = serve(
            application,
            self.settings,
            self._tls(),
            self.metrics.connections,
            max_body=MAX_BODY,
            fair_loop=self.fair_loop,
        )
        self.port = self._listener.port
        await self.readiness.check()
        self._background = [
            spawn(self.readiness.run(), "readiness"),
            spawn(logs.limit.run(), "log"),
            spawn(self.alerts.run(), "alerts"),
            spawn(LoopLag(self.metrics.loop_was_late).run(), "loop lag"),
            spawn(self.pool.run(CULL_INTERVAL), "pool"),
            spawn(self._culler.run(CULL_INTERVAL), "culler"),
            spawn(self.keystore.keep_saving_uses(), "last uses of keys"),
            spawn(self._budgets.files.keep_expiring(), "stored files"),
        ]
        if self._renewal is not None:
            self._background.append(spawn(forever(self._renewal), "certificate"))
        age = self.settings.audit_retention * DAY
        self._background.append(spawn(self.usage.keep_counting(self._budgets.held, age), "usage"))
        if age:
            self._background.append(spawn(self.audit.keep_removing_old(age, AUDIT_INTERVAL), "audit retention"))
        default = self.specs.find(self.registry.defaults.language)
        self.pool.keep_warm(default)
        self.pool.keep_sandboxes_warm(default)
        return self

    def _warn_of_languages(self) -> None:
        """Log each language that needs more memory than kernels get, because its sessions will be refused."""
        for spec in self.specs.all:
            if spec.min_memory > self.settings.memory:
                log.warning("memory is too small for a language", language=spec.name, needed=spec.min_memory)

    @property
    def _culler(self) -> Culler:
        longest = 0.0 if self.settings.cull_connected else self.settings.max_idle_timeout
        lifetime = self.settings.max_lifetime
        return Culler(
            self.registry,
            self.sandboxes,
            max_lifetime=lifetime,
            connected_timeout=longest,
            sleep_for=self.settings.sleep_for,
            max_pause=self.settings.max_pause,
            on_sleep=self.metrics.pool.slept,
            strays=self.strays,
        )

    async def drain(self) -> None:
        """Refuse new cells and wait for the running cells.

        Debugged cells are ended at once. Cells of sessions that the next gateway continues with get `SOON` seconds, and
        then run on without a gateway.
        All others get `drain_timeout` seconds, and are then interrupted.

        To stop waiting, a caller may cancel this call and then call `stop`.
        """
        self.journal.close()
        self.readiness.close()
        for session in self.registry.all():
            session.debugger.close()
        if self.kept():
            await self.journal.wait_until_idle(min(SOON, self.settings.drain_timeout))
            self._release_cells()
            await asyncio.sleep(ANSWERS)
        if cells := await self.journal.wait_until_idle(self.settings.drain_timeout):
            log.warning("cells under way are interrupted", cells=cells)
            for session in self.registry.all():
                await session.interrupt()
            await self.journal.wait_until_idle(INTERRUPT_TIMEOUT)

    def kept(self) -> list[Session]:
        """Return the sessions whose kernels run on when this gateway ends, so that the next one continues with them."""
        stays = self.settings.keep_sessions and self.backend.keeps_kernels
        return [session for session in self.registry.all() if not session.spec.throwaway] if stays else []

    def _release_cells(self) -> None:
        for session in self.kept():
            session.release_cells()

    async def stop(self) -> None:
        """Accept no more requests, end all sessions or leave them to the next gateway, and free all resources.

        Every step runs, even if an earlier step has failed; failures are logged.
        """
        async with AsyncExitStack() as stack:
            for step in reversed([*self._stop_steps()]):  # a stack runs its last callback first
                stack.push_async_callback(_run_step, step)

    def _stop_steps(self) -> Iterator[Step]:
        """Yield the steps of stopping the gateway, in order."""
        yield self.readiness.close
        yield from (task.cancel for task in self._background)
        if self._listener is not None:
            yield self._listener.stop
        yield self.ports.close
        if self.settings.keep_sessions:
            yield self._release_cells
            yield from (session.leave for session in self.registry.all())
        else:
            yield self.sandboxes.close
            yield self.registry.close
        if self._server is not None:
            yield self._server.close_all_connections
        yield self.providers.close
        yield self._shared.tool_servers.close
        yield self.pool.close
        yield self.backend.release if self.settings.keep_sessions else self.backend.close
        yield self.syncer.close
        for database in (
            *(self.templates, self.keystore, self.tenant_limits, self._budgets.files),
            *(self.provider_store, self.audit, self.usage, self.ledger),
        ):
            yield database.close
        yield self._lock.close


def _operator_servers(settings: Settings, journal: Journal) -> ToolServers:
    """Return what calls the operator's servers of tools.

    Raises:
        InvalidRequest: when there are servers, and the library that speaks with them is not installed.
    """
    if not settings.tool_servers:
        return NoToolServers()
    try:
        from kernel_gateway.tools.servers import OperatorServers  # noqa: PLC0415 - loads MCP's library for half a second
    except ImportError as error:
        why = f"tool_servers needs `pip install 'sandboxed-kernel-gateway[mcp]'`: {error}"
        raise InvalidRequest(why, field="tool_servers") from error
    return OperatorServers(settings.tool_servers, journal)


def _no_ports(backend: str) -> str:
    """Return why servers of code cannot be reached, or an empty text if they can."""
    if backend != "process":
        return ""
    return "kernels run without a sandbox, so their loopback address is this machine's, where others listen, too"


async def _run_step(step: Step) -> None:
    with log_failure("end of the gateway"):
        outcome = step()
        if isinstance(outcome, Awaitable):
            await outcome
