"""A sandbox at one moment: the memory of all its kernels and the files that they share, written to disk together.

All containers of the sandbox are held while memory and files are written, so that they fit together. The container of
the sandbox itself has no kernel, and a command that runs in it cannot be written: its input and output belong to the
gateway. So a moment is refused while a command runs, and a sandbox that continues from the moment gets a new container.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import structlog

from kernel_image.protocol import FILES_TOOL, PORTS_TOOL, PROCESSES_TOOL, WATCHING_TOOL
from sessions.backends.base import KernelHandle, Launch
from sessions.guest.processes import Process
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, SleepFailed
from sessions.model.errors import CheckpointRefused, SessionClosed
from sessions.model.tasks import log_failure, shielded, spawn
from sessions.model.values import ExecuteRequest, SessionKey
from sessions.sandbox.occupants import occupants
from sessions.sandbox.pausing import Pausing
from sessions.session.record import StartFunction
from sessions.session.services import SessionServices
from sessions.session.session import Session
from sessions.store.session_records import Moment, MomentSession

log = structlog.get_logger()
T = TypeVar("T")

#: seconds to wait for the end of running cells
WAIT_MAX = 30.0
#: files of the tools that the gateway runs in a sandbox
_TOOLS = {f"{tool}.py" for tool in (FILES_TOOL, PROCESSES_TOOL, WATCHING_TOOL, PORTS_TOOL)}
#: characters of a command in a message
_SHOWN = 64


class Standing(Protocol):
    """The part of a sandbox that `Moments` uses."""

    key: SessionKey
    launch: Launch
    pausing: Pausing

    @property
    def closed(self) -> bool:
        """Whether it was ended."""

    @property
    def running(self) -> list[ExecuteRequest]:
        """The commands that run."""

    def use(self) -> AbstractContextManager[None]:
        """Count a use for as long as the context lasts."""

    def sessions(self) -> list[Session]:
        """Return its sessions, oldest first."""

    def default_name(self, language: str) -> str:
        """Return the name of the session for requests that name only a language."""

    async def ensure_container(self) -> KernelHandle:
        """Return its own container."""


class Moments:
    """Writes the moments of one sandbox."""

    def __init__(self, sandbox: Standing, services: SessionServices) -> None:
        """Write nothing yet.

        Args:
            sandbox: the sandbox.
            services: services that sessions and sandboxes share.
        """
        self._sandbox = sandbox
        self._services = services
        self._turn = asyncio.Lock()
        #: set while no moment is being written
        self._over = asyncio.Event()
        self._over.set()
        #: number of sessions that are being made, and set while it is 0
        self._starts = 0
        self._started = asyncio.Event()
        self._started.set()

    # -- what waits for a moment ----------------------------------------------------------------------------

    async def over(self) -> None:
        """Wait until no moment is being written.

        Raises:
            SessionClosed: when the sandbox was ended, perhaps during the wait.
        """
        while not self._over.is_set():
            await self._over.wait()
        if self._sandbox.closed:
            raise SessionClosed("the sandbox was ended")

    @contextmanager
    def _starting(self) -> Iterator[None]:
        self._starts += 1
        self._started.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._started.set()

    async def start(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that makes a session when no moment is being written.

        Raises:
            SessionClosed: when the sandbox was ended. It cannot end between this check and the work's first wait.
        """
        await self.over()
        with self._starting():
            return await work()

    # -- a moment -------------------------------------------------------------------------------------------

    async def take(self, wanted: Collection[Session] | None = None) -> Moment:
        """Write the sandbox at a moment when no cell runs. Clients wait meanwhile. The call must not be cancelled.

        Args:
            wanted: sessions whose memory is written. None means all of them.

        Returns:
            the moment. The caller discards it.

        Raises:
            CheckpointRefused: when that is not possible; the sandbox is as it was.
            SandboxNotFound: when the sandbox is paused.
            SessionClosed: when one of the wanted sessions was ended before.
            SessionError: when the sandbox was ended, or a kernel could not be started.
        """
        sandbox = self._sandbox
        async with self._turn, AsyncExitStack() as stack:
            stack.enter_context(sandbox.use())
            container = await sandbox.ensure_container()
            try:
                sessions = await self._stand_still(stack)
                await stack.enter_async_context(sandbox.pausing.excluded())
                await self._require_no_command(container)
                kernels = [
                    (session, await stack.enter_async_context(session.checkpoints.standing())) for session in sessions
                ]
                return await self._write(container, kernels, sessions if wanted is None else wanted)
            except SleepFailed as error:
                log.warning("a sandbox cannot be copied", sandbox=str(sandbox.key), reason=str(error))
                raise CheckpointRefused(f"the sandbox could not be copied: {error.shown}") from error

    async def _stand_still(self, stack: AsyncExitStack) -> list[Session]:
        """Let no cell run and no container start until the stack is closed, and return the sessions."""
        turns: list[Session] = []
        while True:
            await self._take_turns(stack, turns)
            self._over.clear()
            stack.callback(self._over.set)
            await self._started.wait()
            if set(self._sandbox.sessions()) <= set(turns):
                return [session for session in turns if not session.closed]
            self._over.set()

    async def _take_turns(self, stack: AsyncExitStack, turns: list[Session]) -> None:
        try:
            async with asyncio.timeout(WAIT_MAX):
                for session in self._sandbox.sessions():
                    if session not in turns:
                        await stack.enter_async_context(session.checkpoints.turn())
                        turns.append(session)
        except TimeoutError:
            raise CheckpointRefused(
                f"a cell ran longer than {WAIT_MAX:g} s: wait for its end, or interrupt it"
            ) from None

    async def _require_no_command(self, container: KernelHandle) -> None:
        """Check that nothing runs in the sandbox's own container.

        Raises:
            CheckpointRefused: when something does; the message names it.
        """
        told = [request.code for request in self._sandbox.running]
        if not told:
            found = (await occupants(container)).processes
            told = [f"{each.command} (pid {each.pid})" for each in found if not _is_tool(each)]
        if told:
            names = ", ".join(repr(each[:_SHOWN]) for each in told[:3])
            raise CheckpointRefused(
                f"a command that runs cannot be copied: {names}; end it first, or start it from a cell: such processes "
                "are copied"
            )

    async def _write(
        self, container: KernelHandle, kernels: Sequence[tuple[Session, Kernel]], wanted: Collection[Session]
    ) -> Moment:
        sandbox, memory = self._sandbox, self._services.kernel_memory
        written = [(session, kernel) for session, kernel in kernels if session in wanted]
        if len(written) < len(wanted):
            raise SessionClosed("the session was ended before it could be copied")
        others = [container, *(kernel.handle for session, kernel in kernels if session not in wanted)]
        *images, files = await memory.copy_together(sandbox.launch, [kernel for _, kernel in written], others)
        moment = Moment(
            files,
            tuple(
                MomentSession(
                    session.spec.language,
                    session.spec.cwd,
                    default=session.key.name == sandbox.default_name(session.spec.language),
                    notice=session.checkpoints.notice,
                    image=image,
                    info=kernel.handle.connection_info,
                )
                for (session, kernel), image in zip(written, images, strict=True)
            ),
        )
        if sandbox.closed or any(session.closed or not kernel.alive for session, kernel in kernels):
            await discard(moment, self._services)
            if sandbox.closed:
                raise SessionClosed("the sandbox was ended")
            raise CheckpointRefused("the sandbox could not be copied: one of its sessions has ended meanwhile")
        return moment

    # -- a branch of one session ----------------------------------------------------------------------------

    async def branch(self, session: Session, launch: Launch) -> Kernel:
        """Start a kernel that continues from one session's memory, on a copy of the sandbox's files.

        Raises:
            SessionError: as in `take`, or when no kernel could be started.
        """
        services = self._services
        moment = await self.take([session])
        named = replace(launch, workspace=uuid.uuid4().hex)
        try:
            await unpack(moment, named, services)
            return await starts(moment.sessions[0], services)(named)
        except BaseException:
            await shielded(spawn(services.kernels.delete_workspace(str(named.workspace)), "delete workspace"))
            raise
        finally:
            await shielded(spawn(discard(moment, services), "discard a moment"))


def _is_tool(process: Process) -> bool:
    """Return whether a process is one of the tools, which need not be copied."""
    words = process.command.split()[:4]
    return words[1:3] == ["-I", "-S"] and words[-1].rpartition("/")[2] in _TOOLS


async def discard(moment: Moment, services: SessionServices) -> None:
    """Delete a moment from disk. A failure is logged: the next gateway deletes what has no record."""
    for image in moment.images:
        with log_failure("removal of a moment of a sandbox"):
            await services.kernel_memory.discard(image)


async def unpack(moment: Moment, launch: Launch, services: SessionServices) -> None:
    """Make the workspace of a launch, which must be new, from the files of a moment.

    Raises:
        CheckpointRefused: when the moment cannot be used any more.
        SessionError: when the files could not be written.
    """
    with _told():
        await services.kernel_memory.unpack(moment.files, launch)


def starts(session: MomentSession, services: SessionServices) -> StartFunction:
    """Return the function that starts a kernel with the memory of a session of a moment."""
    return partial(_continue, session, services)


async def _continue(session: MomentSession, services: SessionServices, launch: Launch) -> Kernel:
    with _told():
        return await services.kernel_memory.continue_as(session.image, session.info, launch)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except CannotWake as error:
        raise CheckpointRefused(f"the copy of the sandbox cannot be used: {error}") from error
