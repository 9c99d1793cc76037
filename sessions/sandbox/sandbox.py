"""A sandbox: sessions of one tenant that share their files, and shell commands on these files.

A sandbox has a workspace, and a container of its own without a kernel. Files are accessed and commands run in this
container. Each session is a kernel in another container on the same workspace. A sandbox is culled as a whole.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch
from sessions.guest.paths import directory_path
from sessions.guest.tools import responds_within
from sessions.guest.workspace import make_directory
from sessions.kernels.warm_sandbox import WarmSandbox
from sessions.model.errors import (
    FileExists,
    InvalidRequest,
    LedgerUnavailable,
    NotInitialized,
    SessionClosed,
    SessionError,
    SessionNotFound,
)
from sessions.model.kernelspecs import NO_KERNEL
from sessions.model.tasks import SharedWork, spawn
from sessions.model.values import ExecuteRequest, SandboxSpec, SessionKey, SessionSpec, StateChange
from sessions.sandbox import moments
from sessions.sandbox.commands import Commands
from sessions.sandbox.moments import Moments
from sessions.sandbox.pausing import Pausing
from sessions.sandbox.recorded import RecordedCommands
from sessions.sandbox.watchers import Watchers
from sessions.session.owner import Owner
from sessions.session.registry import Registry
from sessions.session.services import SessionServices
from sessions.session.session import Session
from sessions.store.session_records import ContainerRecord, Moment, MomentSession, SandboxRecord

log = structlog.get_logger()
#: a container that has ended is replaced at once if it ran for these seconds; otherwise on the next use
LASTING = 10.0
#: seconds for the container to answer after it ran out of memory
PULSE_TIMEOUT = 5.0
#: permissions of a directory that is made because a kernel shall start in it
DIRECTORY_MODE = 0o755


def launch_for(key: SessionKey, spec: SandboxSpec, workspace: str | None = None) -> Launch:
    """Return the order to start the own container of a sandbox. Without a workspace, it gets a new one."""
    return Launch(NO_KERNEL, spec.limits, spec.env, workspace, shared=True, tenant=key.tenant, image=spec.image)


class Sandbox(Owner):
    """One tenant's sandbox."""

    def __init__(
        self,
        key: SessionKey,
        spec: SandboxSpec,
        registry: Registry,
        services: SessionServices,
        *,
        record: SandboxRecord | None = None,
        warm: WarmSandbox | None = None,
        moment: Moment | None = None,
    ) -> None:
        """Make a sandbox that has no container yet.

        Args:
            key: tenant and name of the sandbox.
            spec: settings of the sandbox.
            registry: contains the sandbox's sessions.
            services: services that sessions and sandboxes share.
            record: record of the sandbox that an earlier gateway has left, whose container `take_over` gets. None means
                a new sandbox.
            warm: workspace and container of a new sandbox. None means that it begins with a new workspace.
            moment: moment of another sandbox, which a new sandbox continues from. None means that it begins empty.
        """
        super().__init__(key, spec, record.created_at if record else services.ledger.clock(), services)
        self.spec = spec
        self._warm = warm
        self._moment = moment
        kept = record or warm
        self.workspace = kept.workspace if kept else uuid.uuid4().hex
        #: order to start its own container
        self.launch = launch_for(key, spec, self.workspace)
        #: why files of clients were lost. None means that no files were lost.
        self.loss: str | None = record.loss if record else None
        #: the container that an earlier gateway has left. None means that there was none, or that it was taken over.
        self.left_container = record.container if record else None
        #: whether an earlier gateway was killed before all sessions of the moment continued
        self.unfinished = record.unfinished if record else False
        self._registry = registry
        self._container: KernelHandle | None = None
        self._start: SharedWork[KernelHandle] = SharedWork(f"start sandbox {key}")
        #: shell commands in its own container
        self.commands = Commands(self, services, self._activity)
        #: commands in its own container whose output is kept
        self.recorded = RecordedCommands(self, self.commands)
        #: directories that clients watch
        self.watchers = Watchers(self)
        self.pausing = Pausing(self)
        #: copies of the sandbox
        self.moments = Moments(self, services)

    def idle_for(self) -> float:
        """Return the seconds since a client last used the sandbox or one of its sessions. Returns 0 during a use."""
        return min([self._activity.idle_for(), *(session.idle_for() for session in self.sessions())])

    @property
    def container(self) -> KernelHandle | None:
        """Its own container. None means that it has no container now."""
        return self._container

    @property
    def running(self) -> list[ExecuteRequest]:
        """The commands that run in its own container."""
        return self.commands.under_way

    @property
    def can_sleep(self) -> bool:
        """Whether its kernels can be written to disk, where its files are already."""
        return self._services.kernels.keeps_files and self._services.kernel_memory.ability.on

    @property
    def pauses(self) -> Ability:
        """Whether it can be paused."""
        return self._services.kernels.pauses

    # -- its own container ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start its own container, and the kernels of the moment that it continues from, if there is one."""
        await super().start()
        if (moment := self._moment) is not None:
            with self._activity.use():
                for session in moment.sessions:
                    await self._continue(session)
                self._moment = None
                self._record(self._container)

    async def _continue(self, session: MomentSession) -> None:
        name = self.default_name(session.language) if session.default else str(uuid.uuid4())
        notice = replace(session.notice, incarnation=0)
        if notice.change is StateChange.PRESERVED:
            notice = notice.with_reason("the sandbox began as a copy of another one")
        spec = self._session_spec(session.language, session.cwd)
        start = moments.starts(session, self._services)
        await self._registry.begin_with(SessionKey(self.key.tenant, name), spec, start, notice)

    async def wake(self) -> None:
        """Resume the sandbox if it is paused and its client wants that any use wakes it. Otherwise change nothing.

        Raises:
            NotInitialized: when the gateway was restarted and has not taken its sandboxes over yet.
            SessionError: as in `Pausing.resume`.
        """
        if self.pausing.paused and self.spec.wake_lifetime:
            self._require_taken_over()
            await self.pausing.resume(self.spec.wake_lifetime)

    def _require_open(self) -> None:
        if self.closed:
            raise SessionClosed("the sandbox was ended")

    def _require_taken_over(self) -> None:
        if self.left_container is not None:
            raise NotInitialized("the gateway was restarted and has not taken its sandboxes over yet")

    async def ensure_container(self) -> KernelHandle:
        """Return its own container, and start one if there is none. Concurrent callers get the same container.

        Raises:
            SessionClosed: when the sandbox was ended.
            SessionError: when the container could not be started.
        """
        self._require_open()
        self._require_taken_over()
        await self.moments.over()
        self.pausing.check()
        if self._container is not None:
            return self._container
        container = await self._start.run(self._start_container)
        self._require_open()  # it may have ended between the end of the start and this caller's turn in the event loop
        return container

    async def _start_container(self) -> KernelHandle:
        warm, self._warm = self._warm, None
        if self._moment is not None:
            await moments.unpack(self._moment, self.launch, self._services)
        container = warm.container if warm else await self._services.kernels.start_container(self.launch)
        try:
            self._record(container)
        except SessionError:
            await container.kill()
            raise
        self._attach(container)
        return container

    async def end_container(self) -> None:
        """End its own container, in which nothing runs. The next use starts another one on the same files."""
        container = self._container
        if container is not None:
            await container.kill()
            self._left(container)

    def _left(self, container: KernelHandle) -> None:
        if self._container is container:  # else it has another one already
            self._container = None

    def _attach(self, container: KernelHandle) -> None:
        self._container = container
        container.attach(self, self.key.tenant)
        spawn(self._watch_exit(container, self._services.clock()), f"watch sandbox {self.key}")

    def _record(self, container: KernelHandle | None) -> None:
        """Record the sandbox in the ledger, for the next gateway.

        Raises:
            LedgerUnavailable: when the ledger cannot be written.
            SessionClosed: when the sandbox was ended: it must have no record any more.
        """
        self._require_open()
        left = ContainerRecord(container.id, container.connection_info, self.workspace) if container else None
        unfinished = self._moment is not None
        self._services.ledger.keep(
            SandboxRecord(self.key, self.spec, self.workspace, self.created_at, left, self.loss, unfinished)
        )

    def amend(self, **changes: Any) -> None:
        """Change fields of its spec, also in the ledger.

        Raises:
            SessionError: when they cannot be recorded, or the sandbox was ended; nothing has changed.
        """
        before, self.spec = self.spec, replace(self.spec, **changes)
        try:
            self._record(self._container)
        except SessionError:
            self.spec = before
            raise

    async def take_over(self, container: KernelHandle | None) -> None:
        """Continue with the container that an earlier gateway has left.

        The sessions must have been taken over before: the container of a running session preserves the workspace.

        Args:
            container: the container. None means that it is gone.
        """
        self.left_container = None
        if self.closed:
            if container is not None:
                await container.kill()
            await self._services.kernels.delete_workspace(self.workspace)
        elif container is not None:
            self._attach(container)
        else:
            self._lost("its container ended while the gateway was away")

    def _lost(self, why: str) -> bool:
        """Record that its own container has ended, and find out whether the files in the workspace are lost.

        A workspace in memory is lost with its last container. The containers of running sessions preserve it.

        Returns:
            True if files were lost.
        """
        if self._services.kernels.keeps_files or any(session.alive for session in self.sessions()):
            return False
        self.loss = f"the sandbox's files were lost: {why}"
        log.warning("files of a sandbox lost", tenant=self.key.tenant, sandbox=self.key.name, reason=why)
        with suppress(LedgerUnavailable):  # the ledger has logged it
            self._record(None)
        return True

    def on_out_of_memory(self, container: KernelHandle) -> None:
        """Kill the container if it does not answer: a container without memory may hang instead of ending."""
        spawn(self._check_pulse(container), "pulse after memory ran out")

    async def _check_pulse(self, container: KernelHandle) -> None:
        # Directly, and not through the sandbox: this is no use by a client.
        if not await responds_within(container, PULSE_TIMEOUT):
            await container.kill()

    async def _watch_exit(self, container: KernelHandle, began: float) -> None:
        ended = await container.wait()
        self._left(container)
        if self.closed or self._lost(f"its container ended ({ended.reason.value})"):
            return
        if not self._services.kernels.keeps_files and self._services.clock() - began >= LASTING:
            # Only the container of a session preserves the workspace now, and it may end at any time.
            await self.ensure_container()

    # -- its sessions ---------------------------------------------------------------------------------------

    def sessions(self) -> list[Session]:
        """Return its sessions, oldest first."""
        of_tenant = self._registry.of(self.key.tenant)
        return [session for session in of_tenant if session.spec.workspace == self.workspace]

    def session(self, name: str) -> Session:
        """Return one of its sessions.

        Raises:
            SessionNotFound: when the sandbox has no session with this name.
        """
        self.touch()
        self.pausing.check()
        if found := [session for session in self.sessions() if session.key.name == name]:
            return found[0]
        raise SessionNotFound(f"the sandbox has no session {name[:64]!r}", session=name[:64])

    async def create_session(self, language: str, cwd: str) -> Session:
        """Make a session on the sandbox's workspace, and start its kernel in any directory of its container.

        Raises:
            InvalidRequest: when the directory is no text or too long, or is a file.
            SessionError: as in `Registry.create`.
        """
        with self._activity.use():
            key = SessionKey(self.key.tenant, str(uuid.uuid4()))
            spec = self._session_spec(language, directory_path(cwd))
            if spec.cwd and not spec.cwd.startswith("/"):  # `/tmp` is the new container's own, and empty
                try:
                    await make_directory(self, spec.cwd, DIRECTORY_MODE)
                except FileExists:
                    told = f"cwd is no directory: there is a file at {spec.cwd[:64]!r}"
                    raise InvalidRequest(told, field="cwd") from None
            return await self.moments.start(partial(self._registry.create, key, spec))

    async def default_session(self, language: str) -> Session:
        """Return the session for requests that name only a language. It is made on first use.

        Raises:
            SessionError: as in `Registry.create`.
        """
        with self._activity.use():
            key = SessionKey(self.key.tenant, self.default_name(language))
            spec = self._session_spec(language, "")
            return await self.moments.start(partial(self._registry.get_or_create, key, spec))

    def default_name(self, language: str) -> str:
        """Return the name of the session for requests that name only a language, also if it was not made yet.

        Raises:
            InvalidRequest: when there is no such language.
        """
        return str(uuid.uuid5(uuid.UUID(self.workspace), self._registry.language(language)))

    def _session_spec(self, language: str, cwd: str) -> SessionSpec:
        self._require_open()
        self.pausing.check()
        of = self.spec
        return SessionSpec(
            language, self.limits, of.env, of.idle_timeout, of.max_execute_timeout, cwd, self.workspace, of.image
        )

    # -- its end --------------------------------------------------------------------------------------------

    async def _free(self, reason: str) -> None:
        await self.commands.close()
        self.recorded.clear()
        for session in self.sessions():
            self._registry.end(session.key, reason)
        # Wait also for sessions that ended before: a kernel that is still being started would make the workspace again.
        await self._registry.freed(self.workspace)
        await self._start.wait()
        container = self._warm.container if self._warm is not None else self._container
        if container is not None:
            await container.kill()
        await self.watchers.close()
        if self.left_container is None:  # else `take_over` deletes it
            await self._services.kernels.delete_workspace(self.workspace)
