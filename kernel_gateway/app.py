"""The composition root: settings → backend → pool → registry → dialects → server. Only here all of them are known."""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, NoReturn, Self

import structlog
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from kernel_gateway import auth, logs
from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.handlers import MAX_BODY, BaseHandler, Gateway, NotFoundHandler
from kernel_gateway.hosts import PlainHosts
from kernel_gateway.itself import leads_here
from kernel_gateway.journal import Journal
from kernel_gateway.keystore import KeyStore
from kernel_gateway.looplag import LoopLag
from kernel_gateway.metrics import Metrics
from kernel_gateway.origins import Origins
from sessions import providers
from sessions.audit import Audit
from sessions.backends.base import KERNEL_IMAGE, Backend, Finding
from sessions.backends.process import ProcessBackend
from sessions.culler import Culler
from sessions.execution import Patience
from sessions.kernelspecs import KernelSpecs
from sessions.ledger import Ledger
from sessions.models import SessionSpec
from sessions.pool import Pool, Stock
from sessions.providers.manager import ProviderManager, Rules
from sessions.providers.settings import Premises, ProviderSettings
from sessions.providers.store import ProviderStore
from sessions.quotas import Quotas
from sessions.readiness import Readiness
from sessions.recovery import Recovery
from sessions.registry import Registry
from sessions.runs import OneShot
from sessions.sandboxes import Sandboxes
from sessions.starts import Starts
from sessions.surroundings import Surroundings
from sessions.tasks import going_on, spawn
from sessions.templates import Templates

log = structlog.get_logger()

#: seconds between two looks of the culler, and of the pool
CULL_INTERVAL = 5.0
#: seconds between two looks for records of the audit that are too old
CUT_INTERVAL = 600.0
DAY = 86400.0
#: seconds for cells to end that were interrupted because the gateway is stopped
INTERRUPTED = 5.0
#: kernels that may start at a time: half of a start is computing, half the engine's; more at once end hardly sooner
STARTS_AT_ONCE = 2 * (os.cpu_count() or 1)
#: a part of the gateway's end; what it returns is awaited if it can be
Step = Callable[[], object]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class AlreadyRunning(Exception):
    """Another gateway uses this state directory."""


def make_backend(settings: Settings, instance: str) -> Backend:
    """The backend that the settings ask for; `auto` takes the strongest that is there."""
    if settings.isolation == "process":
        return ProcessBackend()
    from sessions.backends import docker  # noqa: PLC0415 - the engine's client takes a tenth of a start

    if settings.isolation == "auto" and settings.loopback and not docker.engine_answers():
        return ProcessBackend()
    return docker.DockerBackend(docker.DockerSettings(settings.runtime, settings.image, settings.network, instance))


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at what the settings' isolation needs. Containers it needs for that are labelled as nobody's."""
    if settings.isolation == "process":
        yield Finding("isolation", None, detail=ProcessBackend.isolation)
        return
    from sessions.backends import docker  # noqa: PLC0415 - as above

    yield from docker.examine(docker.DockerSettings(settings.runtime, settings.image, settings.network, "doctor"))


class Service:
    """One running gateway."""

    def __init__(self, settings: Settings) -> None:
        """Put the parts together; nothing is started yet.

        Raises:
            AlreadyRunning: another gateway uses this state directory.
        """
        self.settings = settings
        self.state_dir = settings.state_dir.expanduser()
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(self.state_dir)
        self.metrics = Metrics()
        self.specs = KernelSpecs(KERNEL_IMAGE / "kernelspecs")
        self.backend = make_backend(settings, _instance(self.state_dir))
        self.readiness = Readiness(self.backend)
        starts = Starts(self.backend, self.readiness, STARTS_AT_ONCE, self.metrics.pool.started)
        self.metrics.pool.waiting.set_function(lambda: starts.waiting)
        stock = Stock(settings.limits, settings.pool_size, settings.pool_max)
        self.pool = Pool(self.backend, starts, stock, time.monotonic, self.metrics.pool)
        self.quotas = Quotas(settings.tenant_limits, time.monotonic, settings.max_concurrent)
        self.audit = Audit(self.state_dir / "audit.db")
        self.ledger = Ledger(self.state_dir / "ledger.db")
        self.journal = Journal(self.audit, self.quotas, self.metrics, settings.code_policy)
        self.journal.remember(settings.quota_window)
        around = Surroundings(
            kernels=self.pool,
            quotas=self.quotas,
            clock=time.monotonic,
            witness=self.journal,
            ledger=self.ledger,
            patience=Patience(),
        )
        defaults = SessionSpec(
            limits=settings.limits,
            idle_timeout=settings.idle_timeout,
            max_execute_timeout=settings.max_execute_timeout,
        )
        self.registry = Registry(self.specs, defaults, around)
        self.runner = OneShot(self.registry, self.specs, settings.execute_timeout)
        self.sandboxes = Sandboxes(self.registry, around)
        self.readiness.first = Recovery(self.backend, self.registry, self.sandboxes, self.audit.interrupted)
        self.templates = Templates(self.state_dir / "templates.db")
        self.keystore = KeyStore(self.state_dir)
        self.provider_store = ProviderStore(self.state_dir, settings.secrets_key_file)
        makers = providers.makers(self.runner)
        rules = Rules(
            fallback=settings.fallback_provider, production=not settings.loopback, timeout=settings.execute_timeout
        )
        self.providers = ProviderManager(self.provider_store, makers, rules, own=self.runner, around=around)
        premises = Premises(not settings.loopback, lambda url: leads_here(url, self.port))
        self.provider_settings = ProviderSettings(self.provider_store, makers, premises)
        #: the key made for this start, and its file; None when the settings bring keys
        self.local_key: tuple[str, Path] | None = None
        self.port = settings.port
        self._server: HTTPServer | None = None
        #: the certificate that clients see; None without TLS
        self.certificate: Path | None = None
        self._background: list[asyncio.Task[NoReturn]] = []

    def _request_ended(self, handler: RequestHandler) -> None:
        """Called by tornado for every answer."""
        if not isinstance(handler, BaseHandler):
            raise TypeError("a handler that is none of ours")
        logs.request_ended(handler)
        self.metrics.request_ended(
            handler.dialect, handler.request.method, handler.get_status(), handler.request.request_time()
        )

    def _gateway(self) -> Gateway:
        keys = dict(self.settings.keys)
        if not keys:
            self.local_key = auth.make_local_key(self.state_dir)
            keys[self.local_key[0]] = auth.LOCAL_TENANT
        return Gateway(
            self.settings,
            self.registry,
            self.sandboxes,
            self.templates,
            self.specs,
            auth.Keys(
                keys,
                self.settings.access_keys,
                self.keystore,
                self.settings.admin_key,
                trusts_neighbours=self._trusts_neighbours(),
            ),
            self.keystore,
            self.audit,
            self.metrics,
            lambda: self.readiness.trouble,
            self.pool.depth,
            self.quotas.under_way,
            self._hosts(),
            Origins(self.settings.allowed_origins),
            self.quotas,
            self.providers,
            self.provider_settings,
            self.runner,
        )

    def _trusts_neighbours(self) -> bool:
        """Whether who is on this machine may need no key: nobody was given one, and what runs is kept in.

        Where keys were given there may be a proxy on this machine, and whoever comes through it looks like a neighbour.
        """
        return not self.settings.keys and not self.settings.access_keys and self.backend.name != "process"

    def _hosts(self) -> frozenset[str]:
        """The names it answers to; empty: all."""
        hosts = {name.lower() for name in self.settings.allowed_hosts}
        return frozenset(hosts | {*LOOPBACK_NAMES, self.settings.host} if self.settings.loopback else hosts)

    def _tls(self) -> ssl.SSLContext | None:
        if not (self.settings.tls or self.settings.tls_certificate):
            return None
        from kernel_gateway import tls  # noqa: PLC0415 - certificates take a twentieth of a start

        self.certificate = self.settings.tls_certificate
        if self.certificate is None:
            self.certificate = tls.own_certificate(
                self.state_dir, self._hosts() | {*LOOPBACK_NAMES, self.settings.host}
            )
        return tls.context(self.certificate)

    async def start(self) -> Self:
        """Listen, prove the sandbox, and begin to keep kernels warm.

        A sandbox that is not ready does not keep the gateway from listening: `/readyz` and every call that needs
        a kernel say what is missing, and it is tried again.

        Raises:
            OSError: the address cannot be listened on, or the certificate cannot be used.
        """
        gateway = self._gateway()
        application = Application(
            [
                (path, handler, arguments | {"dialect": dialect.name})
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
        self._server = HTTPServer(
            PlainHosts(application),
            ssl_options=self._tls(),
            max_body_size=MAX_BODY,
            idle_connection_timeout=120,
            body_timeout=300,
            max_header_size=32768,
        )
        sockets = bind_sockets(self.settings.port, self.settings.host)
        self.port = sockets[0].getsockname()[1]
        self._server.add_sockets(sockets)
        await self.readiness.check()
        self._background = [
            spawn(self.readiness.run(), "readiness"),
            spawn(LoopLag(self.metrics.loop_was_late).run(), "loop lag"),
            spawn(self.pool.run(CULL_INTERVAL), "pool"),
            spawn(Culler(self.registry, self.sandboxes, self.settings.max_lifetime).run(CULL_INTERVAL), "culler"),
        ]
        if self.settings.audit_retention:
            age = self.settings.audit_retention * DAY
            self._background.append(spawn(self.audit.keep_short(age, CUT_INTERVAL), "audit retention"))
        self.pool.keep_warm(self.specs.find(self.registry.defaults.language))
        return self

    async def drain(self) -> None:
        """Begin nothing new, and let what runs end; it is interrupted when that takes too long.

        Who is cancelled here has lost patience, and may go on with `stop`.
        """
        self.journal.close()
        self.readiness.close()
        if cells := await self.journal.quiet(self.settings.drain_timeout):
            log.warning("cells under way are interrupted", cells=cells)
            for session in self.registry.all():
                await session.interrupt()
            await self.journal.quiet(INTERRUPTED)

    async def stop(self) -> None:
        """Take no more requests, end all sessions or leave them to the next gateway, and free everything.

        Each step is taken, whatever becomes of those before it; what fails is logged.
        """
        async with AsyncExitStack() as stack:
            for step in reversed([*self._last_steps()]):  # a stack is left from its top down
                stack.push_async_callback(_take, step)

    def _last_steps(self) -> Iterator[Step]:
        """What is done in the end, first things first."""
        yield self.readiness.close
        yield from (task.cancel for task in self._background)
        if self._server is not None:
            yield self._server.stop
        if self.settings.keep_sessions:
            yield from (session.leave for session in self.registry.all())
        else:
            yield self.sandboxes.close
            yield self.registry.close
        if self._server is not None:
            yield self._server.close_all_connections
        yield self.providers.close
        yield self.pool.close
        yield self.backend.release if self.settings.keep_sessions else self.backend.close
        for database in (self.templates, self.keystore, self.provider_store, self.audit, self.ledger):
            yield database.close
        yield self._lock.close


async def _take(step: Step) -> None:
    with going_on("end of the gateway"):
        outcome = step()
        if isinstance(outcome, Awaitable):
            await outcome


def _locked(state_dir: Path) -> IO[str]:
    """Hold the state directory for this process; the lock goes with the process, however it ends."""
    file = (state_dir / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise AlreadyRunning(f"another gateway uses {state_dir}; give this one its own --state-dir") from None
    return file


def _instance(state_dir: Path) -> str:
    """This installation's id: it tells its own containers from those of others, over restarts."""
    path = state_dir / "instance"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(uuid.uuid4().hex)
    return path.read_text().strip()
