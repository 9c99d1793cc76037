"""A session's kernel: there is one, the next is being started, or it is gone; and what clients are told of that."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from sessions.backends.base import KernelHandle, Launch
from sessions.errors import KernelDied, LedgerUnavailable, SessionClosed, SessionError
from sessions.kernel import Kernel
from sessions.kernelspecs import KernelSpec
from sessions.ledger import Place, SessionRecord
from sessions.messages import Message
from sessions.models import SessionKey, SessionSpec, StateChange
from sessions.states import MOVES, State
from sessions.surroundings import Surroundings
from sessions.tasks import going_on, spawn

#: what became of the variables, and why
News = tuple[StateChange, str | None]
NO_NEWS: News = (StateChange.PRESERVED, None)


class Occupant(Protocol):
    """Who hears of what the kernel does."""

    def connected(self, kernel: Kernel) -> None:
        """There is a kernel, in place of the one there was."""

    def received(self, message: Message) -> None:
        """The kernel has sent something."""

    def missed(self, kernel: Kernel) -> None:
        """Something that a kernel sent on shell was lost."""

    def disconnected(self, cause: SessionError) -> None:
        """There is no kernel any more."""

    def ended(self, kernel: Kernel, cause: SessionError) -> None:
        """A kernel has ended, be it the present one or one before."""


class Seat:
    """What a session has of kernels, one after the other."""

    def __init__(
        self,
        key: SessionKey,
        spec: SessionSpec,
        kernelspec: KernelSpec,
        around: Surroundings,
        record: SessionRecord | None,
    ) -> None:
        """Begin without a kernel.

        Args:
            key: of the session.
            spec: how it is to be made.
            kernelspec: of its language.
            around: what it shares with the others.
            record: what an earlier gateway has left of it; its kernel is waited for, see `take_over`.
        """
        self.key = key
        self.state = State.STARTING
        #: how many kernels there were
        self.incarnation = record.incarnation if record else 0
        #: seconds since 1970
        self.created_at = record.created_at if record else around.ledger.clock()
        #: where an earlier gateway has left the kernel; None: nowhere, or it was taken over
        self.left_at = record.place if record else None
        #: what the next execution is told of the variables
        self.news: News = (record.change, record.reason) if record else NO_NEWS
        self.kernel: Kernel | None = None
        self.occupant: Occupant
        self._spec = spec
        self._around = around
        workspace = self.left_at.workspace if self.left_at else spec.workspace
        self._launch = Launch(kernelspec, spec.limits, spec.env, workspace, spec.cwd, shared=spec.workspace is not None)
        self._mourner: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    # -- state ----------------------------------------------------------------------------------------------

    def move(self, state: State) -> None:
        """Go on to what may follow.

        Raises:
            RuntimeError: this may not; a defect.
        """
        if state not in MOVES[self.state]:
            raise RuntimeError(f"session {self.key} cannot go from {self.state} to {state}")
        self.state = state

    def rest(self) -> None:
        """A cell has ended; nothing follows when the kernel, or the session, has ended with it."""
        if self.state is State.BUSY:
            self.move(State.IDLE)

    @property
    def closed(self) -> bool:
        """Whether the session was ended."""
        return self.state is State.CLOSED

    @property
    def alive(self) -> bool:
        """Whether there is a kernel that runs."""
        return self.kernel is not None and self.kernel.alive

    # -- a kernel -------------------------------------------------------------------------------------------

    async def ensure(self) -> Kernel:
        """The kernel, started if there is none. Concurrent callers get the same one.

        Raises:
            SessionClosed: the session was ended.
            SessionError: no kernel could be started.
        """
        # Looked at anew after each wait: the session or its kernel may end before it is the waiter's turn.
        while not self.closed:
            if self.kernel is None:
                if self._starting is None and self.state is not State.STARTING:
                    self.move(State.STARTING)
                await self.replace(None)
            elif self.kernel.alive:
                return self.kernel
            elif self._mourner is not None:  # it ended this very moment, and what follows from that comes first
                await asyncio.shield(self._mourner)
        raise SessionClosed

    async def replace(self, news: News | None) -> None:
        """Wait for the kernel that is being started, in place of the one there is; one is started when none is.

        Args:
            news: what the next execution is told; None: what it is told anyway.

        Raises:
            SessionClosed: the session was ended.
            SessionError: no kernel could be started; the one there is stays.
        """
        if self._starting is None:
            self._starting = spawn(self._start(news), f"start {self.key}")
        # The start goes on for the others when one of its callers leaves.
        await asyncio.shield(self._starting)
        if self.closed:
            raise SessionClosed

    async def _start(self, news: News | None) -> None:
        try:
            await self._acquire(news)
        except BaseException:
            if self.state is State.STARTING:
                self.move(State.DEAD)
            raise
        finally:
            self._starting = None

    async def _acquire(self, news: News | None) -> None:
        kernel = await self._around.kernels.acquire(self._launch)
        self._launch = kernel.launch  # its workspace is the session's, even if the session has ended meanwhile
        if self.closed:
            await kernel.kill(SessionClosed())
            raise SessionClosed
        news = news or self.news
        try:
            self._write_down(kernel, self.incarnation + 1, news)
        except LedgerUnavailable:
            await kernel.kill(SessionClosed())
            raise
        old = self.kernel
        self.incarnation += 1
        self._seat(kernel)
        self.news = news
        if old is not None:
            await old.kill(KernelDied("the session was restarted while the cell ran"))

    def _seat(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.occupant.connected(kernel)
        kernel.connection.on_message = self.occupant.received
        kernel.connection.on_loss = lambda: self.occupant.missed(kernel)
        self._mourner = spawn(self._mourn(kernel), f"watch kernel of {self.key}")
        if self.state is State.DEAD:  # the kernel that this one replaces ended while it started
            self.move(State.STARTING)
        if self.state is State.STARTING:
            self.move(State.IDLE)

    async def _mourn(self, kernel: Kernel) -> None:
        cause = await kernel.wait()
        kernel.connection.on_message = lambda _message: None
        if kernel is self.kernel and not self.closed:
            self.kernel = None
            self.move(State.DEAD)
            self.news = (StateChange.LOST, cause.message)
            self.occupant.disconnected(cause)
        self.occupant.ended(kernel, cause)

    # -- what outlives the gateway --------------------------------------------------------------------------

    async def take_over(self, handle: KernelHandle | None, note: str) -> Kernel | None:
        """Go on with the kernel that an earlier gateway has left.

        Args:
            handle: the kernel; None: it is gone.
            note: what the next execution is told, unless there is worse.

        Returns:
            the kernel; None: there is none to go on with.
        """
        self.left_at = None
        kernel: Kernel | None = None
        lost = "the kernel could not be taken over when the gateway was restarted"
        with going_on(f"taking over the kernel of {self.key}"):
            try:
                if handle is None:
                    raise KernelDied("the kernel ended while the gateway was away")
                kernel = await Kernel.take_over(self._launch, handle)
            except SessionError as error:
                lost = error.message
        if kernel is None:
            if self.closed:
                await self._delete_files()
            else:
                self.move(State.DEAD)
                self.news = (StateChange.LOST, lost)
            return None
        if self.closed:
            await kernel.kill(SessionClosed())
            await self._delete_files()
            return None
        self._seat(kernel)
        if self.news[0] is StateChange.PRESERVED:
            self.news = (StateChange.PRESERVED, note)
        return kernel

    def told(self, kernel: Kernel) -> None:
        """An execution of this kernel has told its client the news, which the next gateway need not do again."""
        if kernel is self.kernel and not self.closed:
            with suppress(LedgerUnavailable):  # then they are told twice
                self._write_down(kernel, self.incarnation, self.news)

    def _write_down(self, kernel: Kernel, incarnation: int, news: News) -> None:
        if self._spec.throwaway:
            return  # the next gateway finds a container that does not stand there, and removes it
        place = Place(kernel.handle.id, kernel.handle.connection_info, str(kernel.launch.workspace))
        self._around.ledger.keep(SessionRecord(self.key, self._spec, self.created_at, incarnation, place, *news))

    # -- the end --------------------------------------------------------------------------------------------

    async def free(self, cause: SessionError) -> None:
        """End the kernel, also one that is just being started, and delete its files unless they are a sandbox's."""
        if self.kernel is not None:
            await self.kernel.kill(cause)
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self.left_at is None:  # else who takes over removes what was left
            await self._delete_files()

    async def _delete_files(self) -> None:
        """Delete its files unless they are a sandbox's."""
        if self._launch.workspace is not None and self._spec.workspace is None:
            await self._around.kernels.delete_workspace(self._launch.workspace)
