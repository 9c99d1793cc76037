"""A session's kernel: its start, replacement, sleep and end; and the notice that the next execution reports."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from sessions.backends.base import KernelHandle, Launch
from sessions.checkpoints.kept import Snapshots
from sessions.checkpoints.sleep import Sleeper
from sessions.kernels.kernel import Kernel, KernelListener
from sessions.model.checkpoint import SleepFailed
from sessions.model.errors import KernelDied, LedgerUnavailable, SessionClosed, SessionError
from sessions.model.stopwatch import Operation, measured
from sessions.model.tasks import Shared, log_failure, spawn
from sessions.model.values import StateChange, StateNotice
from sessions.session.record import Beginning, Identity, SlotRecord, Start
from sessions.session.services import SessionServices
from sessions.session.states import MOVES, State


class SlotListener(KernelListener, Protocol):
    """Gets the messages of a session's kernels, and their beginnings and ends."""

    @property
    def closed(self) -> bool:
        """Whether the session was ended."""

    def connected(self, kernel: Kernel) -> None:
        """The session has a new kernel, in place of the previous one."""

    def disconnected(self, cause: SessionError) -> None:
        """The session has no kernel any more: the variables of all earlier cells are gone."""

    def fell_asleep(self) -> None:
        """The session has no kernel any more, and gets it again with all variables."""

    def returning(self, kernel: Kernel) -> None:
        """A kernel has ended, and the session returns to a checkpoint; `ended` follows."""

    def ended(self, kernel: Kernel, cause: SessionError, after: StateNotice | None) -> None:
        """A kernel has ended, the present or a previous one; `after`: what became of the variables; None: lost."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a kernel is started for."""

    #: change of the variables that the next execution reports; None: the present notice stays
    change: StateChange | None = None
    #: reason in that notice
    reason: str | None = None
    #: starts the kernel; None: it wakes, or is a new one
    start: Start | None = None


@dataclass(slots=True)
class Held:
    """A kernel of the session, until its end is handled."""

    kernel: Kernel
    #: handles its end
    watch: asyncio.Task[None] | None = None
    #: what its cells report, because it ends with a return to a checkpoint; None: it does not
    after: StateNotice | None = None


class KernelSlot:
    """Holds the kernel of a session, and replaces it.

    A session has four locks. Who needs several takes them in this order: the turn of its cells (`Turn`), `_replacing`,
    `sleeper.writing`, and the start of a kernel.
    """

    def __init__(
        self,
        identity: Identity,
        services: SessionServices,
        notice: StateNotice,
        beginning: Beginning,
        listener: SlotListener,
    ) -> None:
        """Begin without a kernel.

        Args:
            identity: identity of the session.
            services: services that sessions share.
            notice: about the variables, for the first execution.
            beginning: what there is already.
            listener: gets what the kernels send, and their beginnings and ends.
        """
        left = beginning.left
        self.identity = identity
        self.key = identity.key
        self._services = services
        self._listener = listener
        self.sleeper = Sleeper(identity.key, services.sleeping, services.observer, services.clock, left)
        self._state = State.STARTING if self.sleeper.image is None else State.ASLEEP
        #: notice about the variables that the next execution reports
        self.notice = notice
        #: the kernel that an earlier gateway has left; None: there was none, or it was taken over
        self.left_container = left if self.sleeper.image is None else None
        self._held: Held | None = None
        self.record = SlotRecord(identity, services, notice, beginning, lambda: listener.closed)
        #: earlier moments to which it can return
        self.snapshots = Snapshots(identity.key, services.sleeping, self.record.snapshots, beginning.snapshots)
        #: held while a client has the kernel replaced
        self._replacing = asyncio.Lock()
        #: order to start the next kernel, on the files of the earlier ones
        self.launch = identity.launch(left.workspace if left else identity.spec.workspace)
        self._start: Shared[None] = Shared(f"start {identity.key}")
        self._first_start = beginning.start
        #: the end of the kernel that a return has replaced
        self._leaving: asyncio.Task[None] | None = None

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the session is doing."""
        return State.CLOSED if self._listener.closed else self._state

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
    def kernel(self) -> Kernel | None:
        """The kernel; None: there is none, or its end was noticed."""
        return None if self._held is None else self._held.kernel

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
        while not self._listener.closed:
            await self.sleeper.writing.wait()
            held = self._held
            if held is None:
                await self.replace(Wish())
            elif held.kernel.alive:
                return held.kernel
            elif held.watch is not None:  # the kernel has just ended: first let `_watch_exit` handle that
                await asyncio.shield(held.watch)
        raise SessionClosed

    async def replace(self, wish: Wish) -> None:
        """Replace the kernel: wait for the one that is being started, or start one.

        Args:
            wish: a wish with a start of its own waits until a kernel that is being started for another has started.

        Raises:
            SessionClosed: when the session was ended.
            SessionError: when no kernel could be started; the present one stays.
        """
        while wish.start is not None and self._start.task is not None:
            await self._start.wait()
        await self._left()
        if self._listener.closed:
            raise SessionClosed
        if self.state in {State.DEAD, State.ASLEEP}:
            self.move(State.STARTING)
        await self._start.run(partial(self._start_kernel, wish))
        if self._listener.closed:
            raise SessionClosed

    async def _start_kernel(self, wish: Wish) -> None:
        try:
            with self._measured(wish):
                await self._acquire(wish)
        except BaseException:
            if self.state is State.STARTING:
                self.move(State.DEAD if self.sleeper.image is None else State.ASLEEP)
            raise

    def _measured(self, wish: Wish) -> AbstractContextManager[None]:
        """Measure a return to a checkpoint, and the start of a branch; other starts are measured where they begin."""
        observer = self._services.observer
        if wish.change is StateChange.ROLLED_BACK:
            return measured(Operation.ROLLBACK, observer.stages)
        if wish.start is None and self._first_start is not None:
            return measured(Operation.BRANCH, observer.stages)
        return nullcontext()

    async def _acquire(self, wish: Wish) -> None:
        before, start = self.launch, wish.start or self._first_start
        kernel, woken = (await start(before), False) if start else await self._wake_or_begin(before)
        notice = replace(self.notice, incarnation=self.notice.incarnation + (not woken))
        if wish.change is not None:
            notice = replace(notice, change=wish.change, reason=wish.reason)
        if kernel.cut:
            notice = notice.cut()
        try:
            self.record.kernel(kernel, notice)
        except SessionError:
            await kernel.kill(SessionClosed())
            await self._move_files(kernel.launch, before if before.workspace else kernel.launch)
            raise
        old, is_return = self._held, wish.change is StateChange.ROLLED_BACK
        if old is not None and is_return:
            old.after = notice
        self.notice, self.launch, self._first_start = notice, kernel.launch, None
        self.install(kernel)
        await self.sleeper.forget()
        fresh = wish.change is StateChange.RESTARTED or (start is None and not woken)
        await (self.snapshots.forget_automatic() if fresh else self.snapshots.forget_ahead())
        if old is not None:
            done = "rolled back" if is_return else "restarted"
            cause = KernelDied(f"the session was {done} while the cell ran")
            if is_return and not old.kernel.in_use:
                # The new kernel shares nothing with it, and nobody waits for it: its end takes as long as half a start.
                self._leaving = spawn(
                    self._leave(old.kernel, cause, before, kernel.launch), f"former kernel of {self.key}"
                )
                return
            await old.kernel.kill(cause)
        await self._move_files(before, kernel.launch)

    async def replace_for_client(self, wish: Wish) -> None:
        """Replace the kernel because a client has asked for it. A running cell ends with the old one.

        The new kernel is started beside the old one, whose workspace it may need, and which stays if the start fails.

        Raises:
            SessionError: as `replace`.
        """
        async with self._replacing:
            await self.sleeper.writing.wait()
            await self.replace(wish)

    async def restart(self) -> None:
        """Continue with a fresh kernel, whatever is being started: that one may have the variables.

        Raises:
            SessionError: as `replace`.
        """
        reason = "a restart was asked for"
        await self.replace_for_client(Wish(StateChange.RESTARTED, reason, self._services.kernels.acquire))

    async def _wake_or_begin(self, launch: Launch) -> tuple[Kernel, bool]:
        woken = await self.sleeper.wake(launch)
        if woken is None and self.sleeper.loss:
            self.announce(StateChange.LOST, self.sleeper.loss)
        return woken or await self._services.kernels.acquire(launch), woken is not None

    async def _leave(self, old: Kernel, cause: SessionError, left: Launch, kept: Launch) -> None:
        await old.kill(cause)
        await self._delete_left(left, kept)

    async def _left(self) -> None:
        """Wait until the kernel before a return has ended: a session has no more than two at a time."""
        if self._leaving is not None:
            await asyncio.wait({self._leaving})

    async def _move_files(self, left: Launch, kept: Launch) -> None:
        """Continue on the files of one launch, and delete those of the other."""
        self.launch = kept
        await self._delete_left(left, kept)

    async def _delete_left(self, left: Launch, kept: Launch) -> None:
        if left.workspace is not None and left.workspace != kept.workspace:
            await self._services.kernels.delete_workspace(left.workspace)

    def install(self, kernel: Kernel) -> None:
        """Continue with a kernel."""
        self._held = Held(kernel)
        kernel.connection.charge(self._services.charge(self.key.tenant))
        self._listener.connected(kernel)
        kernel.attach(self._listener)
        self._held.watch = spawn(self._watch_exit(self._held), f"watch kernel of {self.key}")
        if self.state is State.DEAD:  # the kernel that this one replaces ended while it started
            self.move(State.STARTING)
        if self.state is State.STARTING:
            self.move(State.IDLE)

    async def _watch_exit(self, held: Held) -> None:
        cause = await held.kernel.wait()
        after = held.after
        if held is self._held and not self._listener.closed:
            self._held = None
            self.lost(cause)
            after = await self._return(held.kernel, cause)
            if after is not None:  # the usual message says that the variables are lost
                cause = type(cause)(f"{_happened(cause)}; the session is as it was before the cell", **cause.details)
                self._services.observer.rolled_back(crash=True)
        self._listener.ended(held.kernel, cause, after)

    async def _return(self, kernel: Kernel, cause: SessionError) -> StateNotice | None:
        """Return to the moment before the last cell, or after it, if there is a snapshot of it; and its notice."""
        snapshot = self.snapshots.last_moment
        if snapshot is None or self._start.task is not None:  # a client has already asked for another kernel
            return None
        self._listener.returning(kernel)
        try:
            moment = "before" if snapshot in self.snapshots.all else "after"
            reason = f"the session returned to the moment {moment} the last cell: {_happened(cause)}"
            await self.replace(Wish(StateChange.ROLLED_BACK, reason, partial(self.snapshots.restore, snapshot)))
        except SessionError as error:
            self.announce(StateChange.LOST, f"{cause.message}; it could not return to a checkpoint: {error.message}")
            return None
        return self.notice

    def lost(self, cause: SessionError) -> None:
        """Note that the kernel has ended with all variables."""
        if self.state is not State.DEAD:  # a client that came before the takeover has tried to start a kernel
            self.move(State.DEAD)
        self.announce(StateChange.LOST, cause.message)
        self._listener.disconnected(cause)

    def reported(self) -> None:
        """Record that a cell of the present kernel has reported the notice: the next gateway must not repeat it."""
        if self.kernel is not None:
            with suppress(LedgerUnavailable, SessionClosed):  # then it is reported twice, or there is no next gateway
                self.record.kernel(self.kernel, self.notice)

    # -- sleep and takeover ---------------------------------------------------------------------------------

    async def fall_asleep(self) -> str:
        """Write the memory of the idle kernel to disk, and end the kernel. Clients that come meanwhile wait.

        Returns:
            why that was not possible; the kernel goes on then. Empty: it sleeps.
        """
        return await self.sleeper.writing.run(self._fall_asleep)

    async def _fall_asleep(self) -> str:
        kernel = self.kernel
        if kernel is None or self.state is not State.IDLE or self.identity.spec.throwaway:
            return "it has no idle kernel"
        try:
            image = await self.sleeper.take(kernel)
        except SleepFailed as error:
            return str(error)
        if self._listener.closed or self.kernel is not kernel:
            await self.sleeper.give_back(kernel, image)
            return "the kernel was ended or replaced"
        try:
            recorded = self.record.kernel(kernel, self.notice, image)
        except LedgerUnavailable as error:
            await self.sleeper.give_back(kernel, image)
            return error.message
        self._held = None
        self.move(State.ASLEEP)
        self._listener.fell_asleep()
        await self.snapshots.forget_ahead()
        await self.sleeper.begin(kernel, recorded)
        return ""

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
        if self._listener.closed:
            if kernel is not None:
                await kernel.kill(SessionClosed())
            await self.delete_files()
            return None
        if kernel is None:
            self.lost(lost)
            return None
        self.install(kernel)
        if self.notice.change is StateChange.PRESERVED:
            self.announce(StateChange.PRESERVED, note)
        return kernel

    # -- the end --------------------------------------------------------------------------------------------

    async def free(self, cause: SessionError) -> None:
        """End the kernel, also one that is being started, and delete its files unless they belong to a sandbox."""
        await self.sleeper.writing.wait()
        if self.kernel is not None:
            await self.kernel.kill(cause)
        await self._start.wait()
        await self._left()
        await self.sleeper.forget()
        await self.snapshots.clear()
        if self.left_container is None:  # else `take_over` deletes them
            await self.delete_files()

    async def delete_files(self) -> None:
        """Delete the kernel's files unless they belong to a sandbox."""
        if self.launch.workspace is not None and not self.identity.spec.in_sandbox:
            await self._services.kernels.delete_workspace(self.launch.workspace)


def _happened(cause: SessionError) -> str:
    """Return what happened, without what that means for the variables."""
    return cause.message.partition(";")[0]
