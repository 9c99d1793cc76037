"""Sandboxes: sessions of one tenant that share their files, and programs beside them.

A sandbox has a workspace, and a container of its own without a kernel that holds it: files are reached and programs
run there. Each of its sessions is a kernel in another container on the same workspace. It is culled as a whole.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from sessions.activity import Activity
from sessions.backends.base import KernelHandle, Launch
from sessions.errors import QuotaExceeded, SandboxNotFound, SessionClosed, SessionError, SessionExists, SessionNotFound
from sessions.kernelspecs import KernelSpec
from sessions.models import Limits, SessionKey, SessionSpec
from sessions.processes import ProcessResult, run_process
from sessions.registry import Registry
from sessions.session import Session
from sessions.surroundings import Surroundings
from sessions.tasks import spawn
from sessions.tools import ask
from sessions.workspace import sandbox_path

log = structlog.get_logger()

#: what runs in a sandbox's own container
NO_KERNEL = KernelSpec("none", "no kernel", argv=())
#: how many ended sandboxes are remembered, so that who asks is told when and why
REMEMBERED = 1000
#: seconds a container must have lasted for another one to take its place before it is needed
LASTING = 10.0
#: seconds for the container to answer after its memory ran out
PULSE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a sandbox is to be made."""

    #: the name of what it was made from
    template: str
    #: of each of its containers; `disk` of the workspace
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    #: seconds without activity after which it is culled
    idle_timeout: float = 300.0
    #: seconds after which it is ended in any case; 0: no limit
    lifetime: float = 0.0
    #: seconds that anything in it may run
    max_execute_timeout: float = 600.0
    #: the id of what it was made from
    template_id: str = ""


class Sandbox:
    """One tenant's sandbox."""

    def __init__(self, key: SessionKey, spec: SandboxSpec, registry: Registry, around: Surroundings) -> None:
        self.key = key
        self.spec = spec
        self.workspace = uuid.uuid4().hex
        #: seconds since 1970
        self.created_at = time.time()
        self.ended_at: float | None = None
        #: why it has ended
        self.end_reason: str | None = None
        #: what became of files that a client may count on; None: they are all there
        self.loss: str | None = None
        self._registry = registry
        self._around = around
        self._activity = Activity(around.clock)
        self._holder: KernelHandle | None = None
        self._starting: asyncio.Task[KernelHandle] | None = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def limits(self) -> Limits:
        """What may be used in each of its containers."""
        return self.spec.limits

    # -- activity -------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Note that a client has used it."""
        self._activity.touch()

    def age(self) -> float:
        """Seconds since it was made."""
        return self._activity.age()

    def idle_for(self) -> float:
        """Seconds since a client last used it or one of its sessions; 0 while one does."""
        return min([self._activity.idle_for(), *(session.idle_for() for session in self.sessions())])

    # -- its own container ----------------------------------------------------------------------------------

    async def ensure_holder(self) -> KernelHandle:
        """Its own container, started if there is none. Concurrent callers get the same one.

        Raises:
            SessionClosed: the sandbox was ended.
            SessionError: it could not be started.
        """
        if self.ended_at is not None:
            raise SessionClosed("the sandbox was ended")
        if self._holder is not None:
            return self._holder
        if self._starting is None:
            self._starting = spawn(self._start(), f"start sandbox {self.key}")
        # The start goes on for the others when one of its callers leaves.
        return await asyncio.shield(self._starting)

    async def _start(self) -> KernelHandle:
        try:
            launch = Launch(NO_KERNEL, self.limits, self.spec.env, self.workspace, shared=True)
            holder = await self._around.kernels.hold(launch)
            if self.ended_at is not None:
                await holder.kill()
                raise SessionClosed("the sandbox was ended")
            self._holder = holder
        finally:
            self._starting = None
        holder.on_out_of_memory = lambda: self._suspect(holder)
        spawn(self._mourn(holder, self._around.clock()), f"watch sandbox {self.key}")
        return holder

    def _suspect(self, holder: KernelHandle) -> None:
        spawn(self._check_pulse(holder), "pulse after memory ran out")

    async def _check_pulse(self, holder: KernelHandle) -> None:
        """Memory ran out in there. When the container itself is what was hit it may hang instead of ending."""
        try:
            async with asyncio.timeout(PULSE_TIMEOUT):
                # Not by way of the sandbox: no client has used it.
                await ask(holder, "files", {"op": "stat", "path": ""})
        except QuotaExceeded:
            return  # it is at work for as many as it may be
        except (TimeoutError, SessionError):
            await holder.kill()

    async def _mourn(self, holder: KernelHandle, began: float) -> None:
        ended = await holder.wait()
        self._holder = None
        if self.ended_at is not None:
            return
        if not any(session.alive for session in self.sessions()):
            # Nobody else has held the workspace meanwhile, and so it is empty.
            self.loss = f"the sandbox's files were lost: its container ended ({ended.reason.value})"
            log.warning("files of a sandbox lost", tenant=self.key.tenant, sandbox=self.key.name, reason=ended.reason)
        elif self._around.clock() - began >= LASTING:
            await self.ensure_holder()  # a session holds the workspace for now, and may end at any time

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Run one of the image's tools in its own container; see `KernelHandle.run_tool`."""
        with self._activity.use():
            holder = await self.ensure_holder()
            async with aclosing(holder.run_tool(name, argument, stdin)) as output:
                async for piece in output:
                    yield piece

    async def run(self, command: str, cwd: str, seconds: float) -> ProcessResult:
        """Run a shell command in its own container; it counts as an execution of its tenant.

        Raises:
            QuotaExceeded: the tenant has too many executions under way.
            SessionError: as `run_process` does.
        """
        with self._around.quotas.execution(self.key.tenant):
            return await run_process(self, command, cwd, self.spec.env, min(seconds, self.spec.max_execute_timeout))

    # -- its sessions ---------------------------------------------------------------------------------------

    def sessions(self) -> list[Session]:
        """Its sessions, oldest first."""
        of_tenant = self._registry.of(self.key.tenant)
        return [session for session in of_tenant if session.spec.workspace == self.workspace]

    def session(self, name: str) -> Session:
        """One of its sessions.

        Raises:
            SessionNotFound: it has none of this name.
        """
        self.touch()
        for session in self.sessions():
            if session.key.name == name:
                return session
        raise SessionNotFound(f"the sandbox has no session {name[:64]!r}", session=name[:64])

    async def create_session(self, language: str, cwd: str) -> Session:
        """Make a session on its workspace and start its kernel in a directory there.

        Raises:
            InvalidRequest: the directory is not allowed.
            SessionError: as `Registry.create` does.
        """
        with self._activity.use():
            key = SessionKey(self.key.tenant, str(uuid.uuid4()))
            return await self._registry.create(key, self._session_spec(language, sandbox_path(cwd)))

    async def default_session(self, language: str) -> Session:
        """Its session for whoever names only a language, made on first use.

        Raises:
            SessionError: as `Registry.create` does.
        """
        with self._activity.use():
            spec = self._session_spec(language, "")
            name = uuid.uuid5(uuid.UUID(self.workspace), self._registry.language(language))
            return await self._registry.obtain(SessionKey(self.key.tenant, str(name)), spec)

    def _session_spec(self, language: str, cwd: str) -> SessionSpec:
        if self.ended_at is not None:
            raise SessionClosed("the sandbox was ended")
        return SessionSpec(
            language,
            self.limits,
            self.spec.env,
            self.spec.idle_timeout,
            self.spec.max_execute_timeout,
            cwd,
            self.workspace,
        )

    # -- its end --------------------------------------------------------------------------------------------

    def close(self, reason: str) -> asyncio.Future[None]:
        """End it with all its sessions and files. Idempotent; it can no longer be used when this returns.

        Returns:
            what to await until all is freed, also for whoever comes second; who gives up waiting does not stop it.
        """
        if self._ending is None:
            self.ended_at, self.end_reason = time.time(), reason
            self._ending = spawn(self._free(reason), f"end sandbox {self.key}")
        return asyncio.shield(self._ending)

    async def _free(self, reason: str) -> None:
        await asyncio.gather(*(self._registry.end(session.key, reason) for session in self.sessions()))
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._holder is not None:
            await self._holder.kill()
        await self._around.kernels.delete_workspace(self.workspace)


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
            raise SessionClosed("the gateway is shutting down")
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
        """End all sandboxes, and make no more."""
        self._closing = True
        # Those too that were ended a moment ago: what they have must be freed while there is a backend.
        every = [*self._ended, *self._sandboxes]
        await asyncio.gather(*(self.end(key, "the gateway was stopped") for key in every))
