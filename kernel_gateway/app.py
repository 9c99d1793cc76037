"""The composition root: settings → backend → pool → registry → dialects → server. Only here all of them are known."""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import structlog
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

from kernel_gateway import auth, logs, tls
from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.handlers import MAX_BODY, Gateway, NotFoundHandler
from kernel_gateway.hosts import PlainHosts
from kernel_gateway.metrics import Metrics
from kernel_gateway.origins import Origins
from sessions.backends import docker
from sessions.backends.base import KERNEL_IMAGE, Backend, Finding
from sessions.backends.docker import DockerBackend, DockerSettings, engine_answers
from sessions.backends.process import ProcessBackend
from sessions.culler import Culler
from sessions.execution import Patience
from sessions.kernelspecs import KernelSpecs
from sessions.models import ExecuteRequest, ExecutionResult, SessionKey, SessionSpec
from sessions.pool import Pool
from sessions.quotas import Quotas, TenantLimits
from sessions.readiness import Readiness
from sessions.registry import Registry
from sessions.sandboxes import Sandboxes
from sessions.surroundings import Surroundings
from sessions.tasks import spawn
from sessions.templates import Templates

log = structlog.get_logger()

#: seconds between two looks of the culler
CULL_INTERVAL = 5.0
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class AlreadyRunning(Exception):
    """Another gateway uses this state directory."""


def make_backend(settings: Settings, instance: str) -> Backend:
    """The backend that the settings ask for; `auto` takes the strongest that is there."""
    if settings.isolation == "process":
        return ProcessBackend()
    if settings.isolation == "auto" and settings.loopback and not engine_answers():
        return ProcessBackend()
    return DockerBackend(DockerSettings(settings.runtime, settings.image, settings.network, instance))


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at what the settings' isolation needs. Containers it needs for that are labelled as nobody's."""
    if settings.isolation == "process":
        yield Finding("isolation", None, detail=ProcessBackend.isolation)
        return
    yield from docker.examine(DockerSettings(settings.runtime, settings.image, settings.network, "doctor"))


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
        self.pool = Pool(self.backend, self.readiness, settings.limits, settings.pool_size)
        around = Surroundings(
            kernels=self.pool,
            quotas=Quotas(TenantLimits(settings.max_sessions_per_tenant, settings.max_concurrent_per_tenant)),
            clock=time.monotonic,
            observe=self._observe,
            patience=Patience(),
        )
        defaults = SessionSpec(
            limits=settings.limits,
            idle_timeout=settings.idle_timeout,
            max_execute_timeout=settings.max_execute_timeout,
        )
        self.registry = Registry(self.specs, defaults, around)
        self.sandboxes = Sandboxes(self.registry, around)
        self.templates = Templates(self.state_dir / "templates.db")
        #: the key made for this start, and its file; None when the settings bring keys
        self.local_key: tuple[str, Path] | None = None
        self.port = settings.port
        self._server: HTTPServer | None = None
        #: the certificate that clients see; None without TLS
        self.certificate: Path | None = None
        self._background: list[asyncio.Task[None]] = []

    def _observe(self, key: SessionKey, request: ExecuteRequest, result: ExecutionResult) -> None:
        self.metrics.execution_ended(key, request, result)
        logs.execution_ended(key, request, result)

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
            auth.Keys(keys, self.settings.access_keys),
            self.metrics,
            lambda: self.readiness.trouble,
            self.pool.depth,
            self._hosts(),
            Origins(self.settings.allowed_origins),
        )

    def _hosts(self) -> frozenset[str]:
        """The names it answers to; empty: all."""
        hosts = {name.lower() for name in self.settings.allowed_hosts}
        return frozenset(hosts | {*LOOPBACK_NAMES, self.settings.host} if self.settings.loopback else hosts)

    def _tls(self) -> ssl.SSLContext | None:
        self.certificate = self.settings.tls_certificate
        if self.certificate is None and self.settings.tls:
            self.certificate = tls.own_certificate(
                self.state_dir, self._hosts() | {*LOOPBACK_NAMES, self.settings.host}
            )
        return tls.context(self.certificate) if self.certificate else None

    async def start(self) -> Self:
        """Listen, prove the sandbox, and begin to keep kernels warm.

        A sandbox that is not ready does not keep the gateway from listening: `/readyz` and every call that needs
        a kernel say what is missing, and it is tried again.

        Raises:
            OSError: the address cannot be listened on, or the certificate cannot be used.
        """
        gateway = self._gateway()
        application = Application(
            [route for dialect in DIALECTS for route in dialect.routes(gateway)],
            default_handler_class=NotFoundHandler,
            default_handler_args={"gateway": gateway},
            log_function=logs.request_ended,
            websocket_max_message_size=MAX_BODY,
            websocket_ping_interval=20,
            websocket_ping_timeout=20,
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
            spawn(Culler(self.registry, self.sandboxes, self.settings.max_lifetime).run(CULL_INTERVAL), "culler"),
        ]
        self.pool.keep_warm(self.specs.find(self.registry.defaults.language))
        return self

    async def stop(self) -> None:
        """Take no more requests, end all sessions, and free everything."""
        for task in self._background:
            task.cancel()
        if self._server is not None:
            self._server.stop()
        await self.sandboxes.close()
        await self.registry.close()
        if self._server is not None:
            await self._server.close_all_connections()
        await self.pool.close()
        await self.backend.close()
        self.templates.close()
        self._lock.close()


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
