"""The pause of a sandbox: it keeps memory, processes and files until a client resumes it, and nothing in it runs.

First all containers are frozen. Where kernels can sleep, they are then written to disk one after the other, and their
containers end; so does the sandbox's own container if nothing runs in it. What cannot be written stays frozen.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import structlog

from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle
from sessions.model.checkpoint import InUse
from sessions.model.errors import InvalidRequest, SandboxNotFound, SessionClosed, SessionError
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey
from sessions.sandbox.commands import Commands
from sessions.sandbox.occupants import occupants
from sessions.sandbox.watchers import Watchers
from sessions.session.session import Session

log = structlog.get_logger()

#: seconds in which interrupted cells, and tools that have lost their client, may end. What has not ended then is frozen
#: with its container. A tool for ports ends after 3 s without a connection.
QUIET = 5.0
#: seconds between two checks whether the cells have ended
LOOK = 0.02
#: seconds in which the end of a command that was killed just before the pause may become known
JUST_ENDED = 0.5
#: seconds for a container to list its processes
LIST_TIMEOUT = 10.0
#: characters of a command that are shown
SHOWN = 100
UNKNOWN = "what runs in it is not known"


class Pausable(Protocol):
    """The part of a sandbox that `Pausing` uses."""

    key: SessionKey
    spec: SandboxSpec
    commands: Commands
    watchers: Watchers

    @property
    def container(self) -> KernelHandle | None:
        """Its own container, if there is one."""

    @property
    def pauses(self) -> Ability:
        """Whether containers can be frozen."""

    @property
    def can_sleep(self) -> bool:
        """Whether its kernels can be written to disk, where its files are already."""

    async def end_container(self) -> None:
        """End its own container. The next use starts another one."""

    def amend(self, **changes: Any) -> None:
        """Change fields of the sandbox's spec."""

    def age(self) -> float:
        """Return the seconds since the sandbox was made."""

    def sessions(self) -> Sequence[Session]:
        """Return the sandbox's sessions."""


class Pausing:
    """Pauses and resumes one sandbox."""

    def __init__(self, sandbox: Pausable) -> None:
        """Change nothing yet."""
        self._sandbox = sandbox
        self._turn = asyncio.Lock()
        #: freezes the containers. None means that no pause has begun.
        self._freezing: asyncio.Task[None] | None = None
        #: whether a part of the paused sandbox may still run, because the last freeze or resume has failed
        self._runs_on = False
        #: why a part of the paused sandbox is still in memory or still runs, for its client; empty if none is or does,
        #: or it is not paused
        self.problem = ""
        #: functions that cut the clients' connections: clients learn of the pause from a broken connection
        self.connections: set[Callable[[], None]] = set()

    @property
    def paused(self) -> bool:
        """Whether the sandbox is paused, or its pause has begun."""
        return self._sandbox.spec.paused_at is not None

    @property
    def paused_for(self) -> float:
        """Seconds since the pause began. 0 means that the sandbox is not paused."""
        since = self._sandbox.spec.paused_at
        return 0.0 if since is None else self._sandbox.age() - since

    def check(self) -> None:
        """Refuse the use of a paused sandbox.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """
        if self.paused:
            raise SandboxNotFound("the sandbox is paused: resume it first", sandbox=self._sandbox.key.name)

    @asynccontextmanager
    async def excluded(self) -> AsyncIterator[None]:
        """Let no pause begin to freeze containers until the end of the `with` block.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """
        async with self._turn:
            self.check()
            yield

    def begin(self) -> asyncio.Task[None]:
        """Begin the pause. No client can use the sandbox when this method returns.

        Returns:
            a task that is done when all containers are frozen, or have ended after their memory was written.

        Raises:
            InvalidRequest: when containers cannot be frozen here.
            LedgerUnavailable: when the pause cannot be recorded; nothing has changed.
        """
        if not self._sandbox.pauses.on:
            raise InvalidRequest(f"this gateway cannot pause a sandbox: {self._sandbox.pauses.detail}")
        if not self.paused:
            self._sandbox.amend(paused_at=self._sandbox.age())
        return self._begin_freeze()

    def try_again(self) -> None:
        """Begin again to freeze the paused sandbox if a part of it may still run. The culler calls this at times."""
        if self.paused and self._runs_on:
            self._begin_freeze()

    def _begin_freeze(self) -> asyncio.Task[None]:
        if self._freezing is None or self._freezing.done():
            self._freezing = spawn(self._freeze(), f"pause {self._sandbox.key}")
        return self._freezing

    async def _freeze(self) -> None:
        async with self._turn:
            if not self.paused:  # resumed before this turn
                return
            try:
                await self._freeze_containers()
            except SessionError as error:
                self._runs_on, self.problem = True, f"a part of it may still run: {error.message}"
                log.warning("a paused sandbox may still run", sandbox=str(self._sandbox.key), reason=error.message)
                raise
            self._runs_on = False

    async def _freeze_containers(self) -> None:
        again = self._runs_on
        if again:
            with suppress(SessionError):  # what still runs must be frozen in any case
                await self._change_containers(lambda container: container.resume())
        for cut in list(self.connections):  # this interrupts the cells of these clients
            cut()
        loop = asyncio.get_running_loop()
        until = loop.time() + QUIET
        while any(session.in_use for session in self._sandbox.sessions()) and loop.time() < until:  # noqa: ASYNC110 - they have no event in common
            await asyncio.sleep(LOOK)
        leaves = self._sandbox.can_sleep
        occupied = await self._occupied() if leaves else ""  # before the freeze, because it asks the container
        await self._change_containers(_freeze_again if again else lambda container: container.pause())
        self.problem = ""
        if leaves:
            await self._leave_memory(occupied)

    # -- from memory to disk --------------------------------------------------------------------------------

    async def _leave_memory(self, occupied: str) -> None:
        """Write the kernels to disk, and end their containers and the sandbox's own. What fails stays frozen."""
        problems = [await self._write(session) for session in self._sandbox.sessions() if session.alive]
        if occupied:
            problems.append(f"its container for files and commands is still in memory: {occupied}")
        else:
            await self._sandbox.end_container()
        self.problem = "; ".join(filter(None, problems))
        if self.problem:
            log.warning("a paused sandbox keeps memory", sandbox=str(self._sandbox.key), reason=self.problem)

    async def _write(self, session: Session) -> str:
        """Let a session sleep whose container is frozen.

        Returns:
            why it is still in memory, frozen again. Empty if it sleeps.

        Raises:
            BackendUnavailable: when the engine does not freeze it again.
        """
        try:
            await session.resume()
        except SessionError as error:
            return _still(session, error.message)
        failure = await _asleep(session)
        if failure and session.alive:
            await session.pause()
            return _still(session, failure)
        return ""

    async def _occupied(self) -> str:
        """Return what runs in the sandbox's own container, which cannot be written to disk. Empty if nothing does."""
        if (container := self._sandbox.container) is None:
            return ""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while commands := self._sandbox.commands.attached():
            if loop.time() > begun + JUST_ENDED:
                return f"command {commands[0].pid} runs ({shlex.join(commands[0].program.argv)[:SHOWN]})"
            await asyncio.sleep(LOOK)
        if self._sandbox.watchers.present:
            return "a client watches directories"
        while True:
            try:
                async with asyncio.timeout(LIST_TIMEOUT):
                    found = await occupants(container)
            except (SessionError, TimeoutError):
                return UNKNOWN
            running = found.processes
            if not running and not found.truncated:
                return ""
            if found.truncated or loop.time() > begun + QUIET:
                return f"process {running[0].pid} runs ({running[0].command[:SHOWN]})" if running else UNKNOWN
            await asyncio.sleep(LOOK)

    # -- the end of the pause -------------------------------------------------------------------------------

    async def resume(self, lifetime: float) -> None:
        """Let the sandbox continue for `lifetime` seconds from now on. One that runs already is not changed.

        Raises:
            BackendUnavailable: when the engine does not answer; the sandbox is still paused.
            ConnectionFailed: when the engine refuses; the sandbox is still paused.
            SessionError: when a kernel could not be woken now: it has no room in memory, or has not answered; the
                sandbox is still paused.
            LedgerUnavailable: when the end of the pause cannot be recorded.
        """
        async with self._turn:  # after a pause that has just begun
            if self.paused:  # several uses may wake it at once
                self._runs_on = True  # if a part of it does not continue, the others do
                await self._change_containers(lambda container: container.resume())
                # All of them now, and not each at its next use: what runs in them beside cells continues, too.
                await _first_failure(_wake(each) for each in self._sandbox.sessions() if each.sleep_image is not None)
                self._sandbox.amend(paused_at=None, lifetime=self._sandbox.age() + lifetime)
                self._runs_on, self.problem = False, ""

    async def _change_containers(self, change: Callable[[KernelHandle | Session], Awaitable[None]]) -> None:
        """Pause or resume all containers, also when this fails for some of them."""
        found: list[KernelHandle | Session] = [each for each in self._sandbox.sessions() if each.alive]
        if (own := self._sandbox.container) is not None:
            found.append(own)
        await _first_failure(change(each) for each in found)


async def _freeze_again(container: KernelHandle | Session) -> None:
    """Freeze a container that may be frozen: the engine refuses to freeze it twice."""
    await container.resume()
    await container.pause()


async def _first_failure(works: Iterable[Awaitable[None]]) -> None:
    """Do all works, also when some of them fail. A client gets one error."""
    try:
        await gather_all(*works)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _asleep(session: Session) -> str:
    """Let a session sleep. Wait for tools in its container, which may still have to notice that their client has left.

    Returns:
        why it does not sleep, for its client. Empty if it sleeps.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + QUIET
    while failure := await session.fall_asleep():
        if session.sleep_problem != InUse.shown or loop.time() > until:
            return session.sleep_problem or failure
        await asyncio.sleep(LOOK)
    return ""


async def _wake(session: Session) -> None:
    with suppress(SessionClosed):
        await session.wake()


def _still(session: Session, reason: str) -> str:
    return f"context {session.key.name} is still in memory: {reason}"
