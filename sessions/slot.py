"""A session's kernel, its start, its replacement and its end; and the notice that the next execution reports."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from sessions.asleep import SleepImage
from sessions.backends.base import KernelHandle
from sessions.errors import KernelDied, LedgerUnavailable, SessionClosed, SessionError
from sessions.identity import Identity
from sessions.kernels.kernel import Kernel
from sessions.models import StateChange
from sessions.notices import StateNotice
from sessions.services import SessionServices
from sessions.sleeper import Sleeper
from sessions.slot_listener import SlotListener
from sessions.states import MOVES, State
from sessions.store.session_records import ContainerRecord, SessionRecord
from sessions.tasks import Shared, log_failure, spawn


class KernelSlot:
    """Holds the kernel of a session, and replaces it."""

    def __init__(
        self, identity: Identity, services: SessionServices, notice: StateNotice, left: ContainerRecord | None
    ) -> None:
        """Begin without a kernel.

        Args:
            identity: identity of the session.
            services: services that sessions share.
            notice: about the variables, for the first execution.
            left: the kernel that an earlier gateway has left, for `take_over`.
        """
        self.identity = identity
        self.key = identity.key
        self.sleeper = Sleeper(identity.key, services, left)
        self._state = State.STARTING if self.sleeper.image is None else State.ASLEEP
        #: notice about the variables that the next execution reports
        self.notice = notice
        #: the kernel that an earlier gateway has left; None: there was none, or it was taken over
        self.left_container = left if self.sleeper.image is None else None
        self.kernel: Kernel | None = None
        self.listener: SlotListener
        self._services = services
        #: order to start the next kernel
        self.launch = identity.launch(left.workspace if left else identity.spec.workspace)
        self._exit_watch: asyncio.Task[None] | None = None
        self._start: Shared[None] = Shared(f"start {identity.key}")

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the session is doing."""
        return State.CLOSED if self.listener.closed else self._state

    def move(self, state: State) -> None:
        """Change to a state that may follow the present one. To `closed` it comes only by the session's end.

        Raises:
            RuntimeError: when it may not follow, which is a defect.
        """
        if state not in MOVES[self.state] or state is State.CLOSED:
            raise RuntimeError(f"session {self.key} cannot go from {self.state} to {state}")
        self._state = state

    def announce(self, change: StateChange, reason: str | None) -> None:
        """Set what the next execution reports about the variables."""
        self.notice = replace(self.notice, change=change, reason=reason)

    def become_idle(self) -> None:
        """Become idle after a cell, unless the kernel or the session has ended with it."""
        if self.state is State.BUSY:
            self.move(State.IDLE)

    @property
    def alive(self) -> bool:
        """Whether there is a running kernel."""
        return self.kernel is not None and self.kernel.alive

    # -- a kernel -------------------------------------------------------------------------------------------

    async def ensure(self) -> Kernel:
        """Return the kernel, started if there is none. Concurrent callers get the same one.

        Raises:
            SessionClosed: when the session was ended.
            SessionError: when no kernel could be started.
        """
        # Check again after each wait: the session or its kernel may end before this caller's turn in the event loop.
        while not self.listener.closed:
            await self.sleeper.falling.wait()
            if self.kernel is None:
                if self.state in {State.DEAD, State.ASLEEP}:
                    self.move(State.STARTING)
                await self.replace()
            elif self.kernel.alive:
                return self.kernel
            elif self._exit_watch is not None:  # the kernel has just ended: first let `_watch_exit` handle that
                await asyncio.shield(self._exit_watch)
        raise SessionClosed

    async def replace(self, change: StateChange | None = None, reason: str | None = None) -> None:
        """Replace the kernel: wait for the one that is being started, or start one.

        Args:
            change: change of the variables that the next execution reports; None: the present notice stays.
            reason: reason in that notice.

        Raises:
            SessionClosed: when the session was ended.
            SessionError: when no kernel could be started; the present one stays.
        """
        await self._start.run(partial(self._start_kernel, change, reason))
        if self.listener.closed:
            raise SessionClosed

    async def _start_kernel(self, change: StateChange | None, reason: str | None) -> None:
        try:
            await self._acquire(change, reason)
        except BaseException:
            if self.state is State.STARTING:
                self.move(State.DEAD if self.sleeper.image is None else State.ASLEEP)
            raise

    async def _acquire(self, change: StateChange | None, reason: str | None) -> None:
        woken = await self.sleeper.wake(self.launch)
        if woken is None and self.sleeper.loss:
            self.announce(StateChange.LOST, self.sleeper.loss)
        kernel = woken or await self._services.kernels.acquire(self.launch)
        self.launch = kernel.launch  # its workspace is the session's, even if the session has ended meanwhile
        if self.listener.closed:
            await kernel.kill(SessionClosed())
            raise SessionClosed
        notice = replace(self.notice, incarnation=self.notice.incarnation + (woken is None))
        if change is not None:
            notice = replace(notice, change=change, reason=reason)
        try:
            self.record(kernel, notice)
        except LedgerUnavailable:
            await kernel.kill(SessionClosed())
            raise
        old = self.kernel
        self.notice = notice
        self._install(kernel)
        await self.sleeper.forget()
        if old is not None:
            await old.kill(KernelDied("the session was restarted while the cell ran"))

    def _install(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.listener.connected(kernel)
        kernel.attach(self.listener)
        self._exit_watch = spawn(self._watch_exit(kernel), f"watch kernel of {self.key}")
        if self.state is State.DEAD:  # the kernel that this one replaces ended while it started
            self.move(State.STARTING)
        if self.state is State.STARTING:
            self.move(State.IDLE)

    async def _watch_exit(self, kernel: Kernel) -> None:
        cause = await kernel.wait()
        if kernel is self.kernel and not self.listener.closed:
            self.kernel = None
            self._lost(cause)
        self.listener.ended(kernel, cause)

    def _lost(self, cause: SessionError) -> None:
        if self.state is not State.DEAD:  # a client that came before the takeover has tried to start a kernel
            self.move(State.DEAD)
        self.announce(StateChange.LOST, cause.message)
        self.listener.disconnected(cause)

    # -- across restarts of the gateway ---------------------------------------------------------------------

    async def take_over(self, handle: KernelHandle | None, note: str) -> Kernel | None:
        """Continue with the kernel that an earlier gateway has left.

        Args:
            handle: handle of the kernel; None: the kernel is gone.
            note: reason that the next execution reports, unless variables were lost.

        Returns:
            the kernel; None: there is none to continue with.
        """
        self.left_container = None
        kernel: Kernel | None = None
        lost: SessionError = KernelDied("the kernel could not be taken over when the gateway was restarted")
        with log_failure(f"taking over the kernel of {self.key}"):
            try:
                if handle is None:
                    raise KernelDied("the kernel ended while the gateway was away")
                kernel = await Kernel.take_over(self.launch, handle)
            except SessionError as error:
                lost = error
        if self.listener.closed:
            if kernel is not None:
                await kernel.kill(SessionClosed())
            await self._delete_files()
            return None
        if kernel is None:
            self._lost(lost)
            return None
        self._install(kernel)
        if self.notice.change is StateChange.PRESERVED:
            self.announce(StateChange.PRESERVED, note)
        return kernel

    def reported(self) -> None:
        """Record that a cell of the present kernel has reported the notice: the next gateway must not repeat it."""
        if self.kernel is not None and not self.listener.closed:
            with suppress(LedgerUnavailable):  # then it is reported twice
                self.record(self.kernel, self.notice)

    def record(self, kernel: Kernel, notice: StateNotice, image: SleepImage | None = None) -> ContainerRecord:
        """Record the kernel for the next gateway, asleep if it has an image."""
        info, of = kernel.handle.connection_info, self.identity
        container = ContainerRecord(kernel.handle.id, info, str(kernel.launch.workspace), image)
        if not of.spec.throwaway:  # the next gateway reaps a container without a record
            self._services.ledger.keep(SessionRecord(of.key, of.spec, of.created_at, of.id, container, notice))
        return container

    # -- the end --------------------------------------------------------------------------------------------

    async def free(self, cause: SessionError) -> None:
        """End the kernel, also one that is being started, and delete its files unless they belong to a sandbox."""
        await self.sleeper.falling.wait()
        if self.kernel is not None:
            await self.kernel.kill(cause)
        await self._start.wait()
        await self.sleeper.forget()
        if self.left_container is None:  # else `take_over` deletes them
            await self._delete_files()

    async def _delete_files(self) -> None:
        """Delete the kernel's files unless they belong to a sandbox."""
        if self.launch.workspace is not None and not self.identity.spec.in_sandbox:
            await self._services.kernels.delete_workspace(self.launch.workspace)
