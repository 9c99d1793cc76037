"""A sandbox: sessions of one tenant that share their files, and programs beside them.

It has a workspace, and a container of its own without a kernel that holds it: files are reached and programs
run there. Each of its sessions is a kernel in another container on the same workspace. It is culled as a whole.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from functools import partial

import structlog

from sessions.activity import Activity
from sessions.backends.base import KernelHandle, Launch
from sessions.commands import run_command
from sessions.errors import (
    LedgerUnavailable,
    NotInitialized,
    QuotaExceeded,
    SessionClosed,
    SessionError,
    SessionNotFound,
)
from sessions.kernelspecs import KernelSpec
from sessions.ledger import Place, SandboxRecord
from sessions.models import ExecuteRequest, Limits, SandboxSpec, SessionKey, SessionSpec
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
#: seconds a container must have lasted for another one to take its place before it is needed
LASTING = 10.0
#: seconds for the container to answer after its memory ran out
PULSE_TIMEOUT = 5.0


class Sandbox:
    """One tenant's sandbox."""

    def __init__(
        self,
        key: SessionKey,
        spec: SandboxSpec,
        registry: Registry,
        around: Surroundings,
        record: SandboxRecord | None = None,
    ) -> None:
        """Make a sandbox that has no container yet.

        Args:
            key: whose, and which.
            spec: how it is to be made.
            registry: where its sessions are.
            around: what it shares with the others.
            record: what an earlier gateway has left of it; its container is waited for, see `take_over`.
        """
        now = around.ledger.clock()
        self.key = key
        self.spec = spec
        self.workspace = record.workspace if record else uuid.uuid4().hex
        #: seconds since 1970
        self.created_at = record.created_at if record else now
        self.ended_at: float | None = None
        #: why it has ended
        self.end_reason: str | None = None
        #: what became of files that a client may count on; None: they are all there
        self.loss: str | None = record.loss if record else None
        #: where an earlier gateway has left its container; None: nowhere, or it was taken over
        self.left_at = record.place if record else None
        self._registry = registry
        self._around = around
        self._activity = Activity(around.clock, max(0.0, now - self.created_at))
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

    def charge_upload(self, size: int) -> None:
        """Count bytes of a file that is sent to it; see `Quotas.charge_upload`."""
        self._around.quotas.charge_upload(self.key.tenant, size)

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
        if self.left_at is not None:
            raise NotInitialized("the gateway was restarted and has not taken its sandboxes over yet")
        if self._holder is not None:
            return self._holder
        if self._starting is None:
            self._starting = spawn(self._start(), f"start sandbox {self.key}")
        # The start goes on for the others when one of its callers leaves.
        holder = await asyncio.shield(self._starting)
        if self.ended_at is not None:  # between the start's end and the waiter's turn
            raise SessionClosed("the sandbox was ended")
        return holder

    async def _start(self) -> KernelHandle:
        try:
            launch = Launch(NO_KERNEL, self.limits, self.spec.env, self.workspace, shared=True)
            holder = await self._around.kernels.hold(launch)
            if self.ended_at is not None:
                await holder.kill()
                raise SessionClosed("the sandbox was ended")
            try:
                self._write_down(holder)
            except LedgerUnavailable:
                await holder.kill()
                raise
            self._hold(holder)
            return holder
        finally:
            self._starting = None

    def _hold(self, holder: KernelHandle) -> None:
        self._holder = holder
        holder.on_out_of_memory = lambda: self._suspect(holder)
        spawn(self._mourn(holder, self._around.clock()), f"watch sandbox {self.key}")

    def _write_down(self, holder: KernelHandle | None) -> None:
        """Let a gateway that comes after this one know of the sandbox.

        Raises:
            LedgerUnavailable: it cannot be written.
        """
        place = Place(holder.id, holder.connection_info, self.workspace) if holder else None
        self._around.ledger.keep(SandboxRecord(self.key, self.spec, self.workspace, self.created_at, place, self.loss))

    async def take_over(self, holder: KernelHandle | None) -> None:
        """Go on with the container that an earlier gateway has left; None: it is gone.

        Sessions are taken over before: one that lives has held the workspace meanwhile.
        """
        self.left_at = None
        if self.ended_at is not None:
            if holder is not None:
                await holder.kill()
            await self._around.kernels.delete_workspace(self.workspace)
        elif holder is not None:
            self._hold(holder)
        else:
            self._lost("its container ended while the gateway was away")

    def _lost(self, why: str) -> bool:
        """Its own container is gone, and with it the workspace, unless a session has held it.

        Returns:
            whether files were lost.
        """
        if any(session.alive for session in self.sessions()):
            return False
        self.loss = f"the sandbox's files were lost: {why}"
        log.warning("files of a sandbox lost", tenant=self.key.tenant, sandbox=self.key.name, reason=why)
        with suppress(LedgerUnavailable):  # logged there
            self._write_down(None)
        return True

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
        if self.ended_at is not None or self._lost(f"its container ended ({ended.reason.value})"):
            return
        if self._around.clock() - began >= LASTING:
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
        """Run a shell command in its own container; see `run_command`."""
        with self._activity.use():
            request = ExecuteRequest(command, min(seconds, self.spec.max_execute_timeout))
            run = partial(run_process, self, command, cwd, self.spec.env, request.timeout)
            return await run_command(self._around, self.key, request, run)

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
        for session in self.sessions():
            self._registry.end(session.key, reason)
        # Those too that were ended before: one whose kernel is just being started would make the workspace again.
        await self._registry.freed(self.workspace)
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._holder is not None:
            await self._holder.kill()
        if self.left_at is None:  # else whoever takes over removes it
            await self._around.kernels.delete_workspace(self.workspace)
