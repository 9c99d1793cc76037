"""A session's kernel: its start, replacement, sleep and end; and the notice that the next execution reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from sessions.backends.base import KernelHandle, Launch
from sessions.checkpoints.kept import KeptCheckpoints
from sessions.checkpoints.sleep import Sleeper
from sessions.kernels.kernel import Kernel, KernelListener
from sessions.model.checkpoint import Checkpoint, SleepFailed, SleepImage
from sessions.model.errors import KernelDied, LedgerUnavailable, SessionClosed, SessionError
from sessions.model.stopwatch import Operation, measured
from sessions.model.tasks import ExclusiveWork, SharedWork, log_failure, spawn
from sessions.model.values import StateChange, StateNotice
from sessions.session.record import Identity, Origin, SlotRecord, StartFunction
from sessions.session.services import SessionServices
from sessions.session.states import MOVES, State

T = TypeVar("T")


class SlotListener(KernelListener, Protocol):
    """Gets the messages of a session's kernels, and hears when they start and end."""

    @property
    def closed(self) -> bool:
        """Whether the session was ended."""

    def require_running(self) -> None:
        """Refuse the use of the kernel while the session's sandbox is paused.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """

    def connected(self, kernel: Kernel, cause: SessionError) -> None:
        """The session has a new kernel, in place of the previous one.

        Args:
            kernel: the new kernel.
            cause: why the previous kernel ends, if it still runs.
        """

    def changed(self, notice: StateNotice, returned_to: Checkpoint | None) -> None:
        """Something has become of the variables, and the next execution reports it.

        Args:
            notice: what it is.
            returned_to: checkpoint to which the session has returned. None means that it has not.
        """

    def disconnected(self, cause: SessionError) -> None:
        """The session has no kernel any more: the variables of all earlier cells are gone."""

    def fell_asleep(self) -> None:
        """The kernel sleeps: the session gets it back later, with all variables."""

    def returning(self, kernel: Kernel) -> None:
        """A kernel has ended, and the session returns to a checkpoint. `ended` is called afterwards."""

    def ended(self, kernel: Kernel, cause: SessionError, after: StateNotice | None) -> None:
        """The present kernel or a previous one has ended.

        Args:
            kernel: the kernel.
            cause: why it has ended.
            after: state of the variables after a return to a checkpoint. None means that the variables are lost.
        """


@dataclass(frozen=True, slots=True)
class Replacement:
    """Why a kernel is started, and how."""

    #: change of the variables that the next execution reports. None keeps the present notice.
    change: StateChange | None = None
    #: reason in that notice
    reason: str | None = None
    #: function that starts the kernel. None means that the sleeping kernel wakes, or a new kernel is started.
    start: StartFunction | None = None
    #: checkpoint that `start` returns to. None means that it starts a new kernel.
    checkpoint: Checkpoint | None = None


@dataclass(slots=True)
class PresentKernel:
    """The session's present kernel, until its end is handled."""

    kernel: Kernel
    #: task that waits for the kernel's end and handles it
    watch: asyncio.Task[None] | None = None
    #: state of the variables that the kernel's cells report, if a return to a checkpoint ends the kernel; else None
    after: StateNotice | None = None


class KernelSlot:
    """Holds the kernel of a session, and replaces it.

    A session has four locks. Code that needs several of them takes them in this order: the turn of the session's cells
    (`Turn`), `_replacing`, `_writing`, and `_start`.
    """

    def __init__(
        self,
        identity: Identity,
        services: SessionServices,
        notice: StateNotice,
        origin: Origin,
        listener: SlotListener,
    ) -> None:
        """Begin without a kernel.

        Args:
            identity: identity of the session.
            services: services that sessions share.
            notice: state of the variables, for the first execution.
            origin: what an earlier gateway has left, or what a branch begins with.
            listener: gets the kernels' messages, and hears when they start and end.
        """
        left = origin.left
        self.identity = identity
        self.key = identity.key
        self._services = services
        self._listener = listener
        self._sleeper = Sleeper(identity.key, services.kernel_memory, services.observer, services.clock, left)
        self._state = State.STARTING if self._sleeper.image is None else State.ASLEEP
        #: state of the variables that the next execution reports
        self.notice = notice
        #: the kernel that an earlier gateway has left; None if there was none, or it was taken over. This is no state:
        #: until it is taken over, the session can be ended, and a start for an early client can fail
        self.left_container = left if self._sleeper.image is None else None
        self._present: PresentKernel | None = None
        self.record = SlotRecord(identity, services, notice, origin, lambda: listener.closed)
        #: the session's checkpoints
        self.checkpoints = KeptCheckpoints(
            identity.key, services.kernel_memory, self.record.checkpoints, origin.checkpoints
        )
        #: held while a client has the kernel replaced
        self._replacing = asyncio.Lock()
        #: writes the kernel's memory
        self._writing = ExclusiveWork(f"memory of {identity.key}")
        #: order to start the next kernel, on the files of the earlier ones
        self.launch = identity.launch(left.workspace if left else identity.spec.workspace)
        self._start: SharedWork[None] = SharedWork(f"start {identity.key}")
        self._first_start = origin.start
        #: task that ends the kernel which a return to a checkpoint has replaced
        self._former_end: asyncio.Task[None] | None = None

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the session is doing."""
        return State.CLOSED if self._listener.closed else self._state

    def move(self, state: State) -> None:
        """Change to another state. Only the session's end leads to `closed`, so this method does not.

        Raises:
            RuntimeError: when the state must not follow the present one, which is a defect.
        """
        if state not in MOVES[self.state] or state is State.CLOSED:
            raise RuntimeError(f"session {self.key} cannot go from {self.state} to {state}")
        self._state = state

    def announce(self, change: StateChange, reason: str | None) -> None:
        """Set the state of the variables that the next execution reports."""
        self.notice = replace(self.notice, change=change, reason=reason)
        if reason is not None:
            self._listener.changed(self.notice, None)

    def become_idle(self) -> None:
        """Become idle after a cell, unless the kernel or the session has ended with it."""
        if self.state is State.BUSY:
            self.move(State.IDLE)

    @property
    def kernel(self) -> Kernel | None:
        """The kernel. None means that there is no kernel, or that its end was handled."""
        return None if self._present is None else self._present.kernel

    @property
    def alive(self) -> bool:
        """Whether there is a running kernel."""
        return self.kernel is not None and self.kernel.alive

    @property
    def reachable(self) -> bool:
        """Whether the kernel takes messages: it neither sleeps nor is being written to disk."""
        return self._sleeper.image is None and self._writing.task is None

    @property
    def sleep_image(self) -> SleepImage | None:
        """The memory of the kernel that sleeps. None means that it does not sleep."""
        return self._sleeper.image

    @property
    def sleep_problem(self) -> str:
        """Why the last attempt to fall asleep failed, for the session's client; empty if it did not fail."""
        return self._sleeper.problem

    # -- a kernel -------------------------------------------------------------------------------------------

    async def ensure(self, *, even_paused: bool = False) -> Kernel:
        """Return the kernel, and start one if there is none. Concurrent callers get the same kernel.

        Args:
            even_paused: True for the sandbox itself, which needs the kernel while it is paused, or about to be.

        Raises:
            SessionClosed: when the session was ended.
            SandboxNotFound: when the session's sandbox is paused.
            SessionError: when no kernel could be started.
        """
        # Check again after each wait: the session or its kernel may end before this caller's turn in the event loop.
        while not self._listener.closed:
            await self._writing.wait()
            if not even_paused:
                self._listener.require_running()
            present = self._present
            if present is None:
                await self.replace(Replacement())
            elif present.kernel.alive:
                return present.kernel
            elif present.watch is not None:  # the kernel has just ended: wait until `_watch_exit` has handled its end
                await asyncio.shield(present.watch)
        raise SessionClosed

    async def replace(self, replacement: Replacement) -> None:
        """Start a kernel in place of the present one. If a start is under way, wait for its kernel instead.

        Args:
            replacement: why and how. If it has its own `start`, this start begins when a start under way has ended.

        Raises:
            SessionClosed: when the session was ended.
            SessionError: when no kernel could be started; the present kernel stays.
        """
        while True:
            await self._former_ended()  # meanwhile another start may begin, and this one must not become part of it
            if replacement.start is None or self._start.task is None:
                break
            await self._start.wait()
        if self._listener.closed:
            raise SessionClosed
        if self.state in {State.DEAD, State.ASLEEP}:
            self.move(State.STARTING)
        await self._start.run(partial(self._start_kernel, replacement))
        if self._listener.closed:
            raise SessionClosed

    async def _start_kernel(self, replacement: Replacement) -> None:
        try:
            with self._measured(replacement):
                await self._start_and_install(replacement)
        except BaseException:
            # A kernel that is not taken over yet may live: `take_over` decides.
            if self.state is State.STARTING and self.left_container is None:
                self.move(State.DEAD if self._sleeper.image is None else State.ASLEEP)
            raise

    def _measured(self, replacement: Replacement) -> AbstractContextManager[None]:
        """Measure a return to a checkpoint and the start of a branch. Other starts are measured by their own code."""
        observer = self._services.observer
        if replacement.change is StateChange.ROLLED_BACK:
            return measured(Operation.ROLLBACK, observer.stages)
        if replacement.start is None and self._first_start is not None:
            return measured(Operation.BRANCH, observer.stages)
        return nullcontext()

    async def _start_and_install(self, replacement: Replacement) -> None:
        before, start = self.launch, replacement.start or self._first_start
        kernel, woken = (await start(before), False) if start else await self._wake_or_begin(before)
        notice = replace(self.notice, incarnation=self.notice.incarnation + (not woken))
        if replacement.change is not None:
            notice = replace(notice, change=replacement.change, reason=replacement.reason)
        if kernel.cut:
            notice = notice.with_cut()
        try:
            self.record.kernel(kernel, notice)
        except SessionError:
            await kernel.kill(SessionClosed())
            await self._move_files(kernel.launch, before if before.workspace else kernel.launch)
            raise
        old, is_return = self._present, replacement.change is StateChange.ROLLED_BACK
        if old is not None and is_return:
            old.after = notice
        self.notice, self.launch, self._first_start = notice, kernel.launch, None
        done = "rolled back" if is_return else "restarted"
        cause = KernelDied(f"the session was {done} while the cell ran")
        self.install(kernel, cause)
        if replacement.change is not None:
            self._listener.changed(notice, replacement.checkpoint)
        await self._sleeper.forget()
        fresh = replacement.change is StateChange.RESTARTED or (start is None and not woken)
        await (self.checkpoints.forget_automatic() if fresh else self.checkpoints.forget_ahead())
        if old is not None:
            if is_return and not old.kernel.in_use:
                # The new kernel shares nothing with the old one, which nobody uses. So nobody has to wait for the old
                # kernel's end, which takes half as long as a start.
                self._former_end = spawn(
                    self._end_former(old.kernel, cause, before, kernel.launch), f"former kernel of {self.key}"
                )
                return
            await old.kernel.kill(cause)
        await self._move_files(before, kernel.launch)

    async def replace_for_client(self, replacement: Replacement) -> None:
        """Replace the kernel because a client has asked for it. A running cell ends with the old kernel.

        The new kernel starts while the old one still runs: the new kernel may need the old one's workspace, and the old
        kernel stays if the start fails.

        Raises:
            SessionError: as `replace`.
        """
        async with self._replacing:
            await self._writing.wait()
            self._listener.require_running()
            await self.replace(replacement)

    async def restart(self) -> None:
        """Continue with a fresh kernel, also if another start is under way: its kernel may have the variables.

        Raises:
            SessionError: as `replace`.
        """
        reason = "a restart was asked for"
        await self.replace_for_client(Replacement(StateChange.RESTARTED, reason, self._services.kernels.acquire))

    async def _wake_or_begin(self, launch: Launch) -> tuple[Kernel, bool]:
        woken = await self._sleeper.wake(launch)
        if woken is None and self._sleeper.loss:
            self.announce(StateChange.LOST, self._sleeper.loss)
        return woken or await self._services.kernels.acquire(launch), woken is not None

    async def _end_former(self, old: Kernel, cause: SessionError, left: Launch, kept: Launch) -> None:
        await old.kill(cause)
        await self._delete_former_files(left, kept)

    async def _former_ended(self) -> None:
        """Wait until the kernel before a return to a checkpoint has ended: a session has two kernels at most."""
        if self._former_end is not None:
            await asyncio.wait({self._former_end})

    async def _move_files(self, left: Launch, kept: Launch) -> None:
        """Continue on the files of one launch, and delete those of the other."""
        self.launch = kept
        await self._delete_former_files(left, kept)

    async def _delete_former_files(self, left: Launch, kept: Launch) -> None:
        if left.workspace is not None and left.workspace != kept.workspace:
            await self._services.kernels.delete_workspace(left.workspace)

    def install(self, kernel: Kernel, cause: SessionError) -> None:
        """Make a kernel the present kernel of the session, and charge its tenant.

        Args:
            kernel: the kernel.
            cause: why the previous kernel ends, if it still runs.
        """
        self._present = PresentKernel(kernel)
        kernel.connection.charge(self._services.charge(self.key.tenant))
        self._listener.connected(kernel, cause)
        kernel.attach(self._listener)
        self._present.watch = spawn(self._watch_exit(self._present), f"watch kernel of {self.key}")
        if self.state is State.DEAD:  # the replaced kernel ended during the start
            self.move(State.STARTING)
        if self.state is State.STARTING:
            self.move(State.IDLE)

    async def _watch_exit(self, present: PresentKernel) -> None:
        cause = await present.kernel.wait()
        after = present.after
        if present is self._present and not self._listener.closed:
            self._present = None
            self.kernel_lost(cause)
            after = await self._return_to_checkpoint(present.kernel, cause)
            if after is not None:  # the message of `cause` says that the variables are lost, which is not true now
                cause = type(cause)(f"{_happened(cause)}; the session is as it was before the cell", **cause.details)
                self._services.observer.rolled_back(crash=True)
        self._listener.ended(present.kernel, cause, after)

    async def _return_to_checkpoint(self, kernel: Kernel, cause: SessionError) -> StateNotice | None:
        """Return to the checkpoint from before the last cell, or from after it, if there is one.

        Returns:
            the state of the variables. None means that the session did not return to a checkpoint.
        """
        checkpoint = self.checkpoints.return_point
        asked = self._start.task is not None or self._replacing.locked()  # a client has asked for another kernel
        if checkpoint is None or asked:
            return None
        self._listener.returning(kernel)
        try:
            moment = "before" if checkpoint in self.checkpoints.all else "after"
            reason = f"the session returned to the moment {moment} the last cell: {_happened(cause)}"
            await self.replace(
                Replacement(StateChange.ROLLED_BACK, reason, partial(self.checkpoints.restore, checkpoint), checkpoint)
            )
        except SessionError as error:
            self.announce(StateChange.LOST, f"{cause.message}; it could not return to a checkpoint: {error.message}")
            return None
        return self.notice

    def kernel_lost(self, cause: SessionError) -> None:
        """Record that the kernel has ended with all variables, and tell the listener."""
        self.move(State.DEAD)
        self.announce(StateChange.LOST, cause.message)
        self._listener.disconnected(cause)

    def record_reported(self) -> None:
        """Record that a cell of the present kernel has reported the notice. The next gateway must not repeat it."""
        if self.kernel is not None:
            # If this fails, the next gateway reports it again, or the session has ended.
            with suppress(LedgerUnavailable, SessionClosed):
                self.record.kernel(self.kernel, self.notice)

    def record_debugged(self, kernel: Kernel) -> None:
        """Record that the debugger of the present kernel is started, before that. The next gateway must know it, too.

        Raises:
            LedgerUnavailable: when the record cannot be written.
            SessionClosed: when the session was ended.
        """
        if not kernel.debugged:
            self.record.kernel(kernel, self.notice, debugged=True)
            kernel.mark_debugged()

    # -- sleep and takeover ---------------------------------------------------------------------------------

    async def while_clients_wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work that writes the kernel's memory. Clients that need the kernel wait until the work has ended."""
        return await self._writing.run(work)

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[Kernel]:
        """Yield the kernel. Until the end of the `with` block, clients wait for it, and nobody replaces it.

        A pause of the session's sandbox may have begun; the caller keeps it from freezing the kernel.

        Raises:
            SessionError: when the session was ended, or no kernel could be started.
        """
        async with self._replacing:
            while True:
                kernel = await self.ensure(even_paused=True)
                async with self._writing.alone():
                    if kernel is self.kernel and kernel.alive and self._start.task is None:
                        yield kernel
                        return

    async def fall_asleep(self) -> str:
        """Write the memory of the idle kernel to disk, and end the kernel. Clients that come meanwhile wait.

        Returns:
            why the kernel could not fall asleep; it continues then. Empty if it sleeps.
        """
        return await self.while_clients_wait(self._fall_asleep)

    async def _fall_asleep(self) -> str:
        kernel = self.kernel
        if kernel is None or self.state is not State.IDLE or self.identity.spec.throwaway:
            return "it has no idle kernel"
        if self._replacing.locked():  # else the session is `asleep` with a kernel that runs
            return "its kernel is being replaced"
        try:
            image = await self._sleeper.take(kernel)
        except SleepFailed as error:
            return str(error)
        if self._listener.closed or self.kernel is not kernel:
            await self._sleeper.resume(kernel, image)
            return "the kernel was ended or replaced"
        try:
            self.record.kernel(kernel, self.notice, image)
        except LedgerUnavailable as error:
            await self._sleeper.resume(kernel, image)
            return error.message
        self._present = None
        self.move(State.ASLEEP)
        self._listener.fell_asleep()
        await self.checkpoints.forget_ahead()
        await self._sleeper.end_kernel(kernel, image)
        return ""

    async def take_over(self, handle: KernelHandle | None, note: str) -> Kernel | None:
        """Continue with the kernel that an earlier gateway has left.

        Args:
            handle: handle of the kernel. None means that the kernel is gone.
            note: reason that the next execution reports, unless the variables are lost.

        Returns:
            the kernel. None means that there is no kernel to continue with.
        """
        left, self.left_container = self.left_container, None
        kernel: Kernel | None = None
        lost: SessionError = KernelDied("the kernel could not be taken over when the gateway was restarted")
        with log_failure(f"taking over the kernel of {self.key}"):
            try:
                if handle is None:
                    raise KernelDied("the kernel ended while the gateway was away")
                kernel = await Kernel.take_over(self.launch, handle)
                if left is not None and left.debugged:
                    kernel.mark_debugged()
            except SessionError as error:
                lost = error
        if self._listener.closed:
            if kernel is not None:
                await kernel.kill(SessionClosed())
            await self.delete_files()
            return None
        if kernel is None:
            self.kernel_lost(lost)
            return None
        self.install(kernel, KernelDied())
        if self.notice.change is StateChange.PRESERVED:
            self.announce(StateChange.PRESERVED, note)
        return kernel

    # -- the end --------------------------------------------------------------------------------------------

    async def free(self, cause: SessionError) -> None:
        """End the kernel, also a kernel that is being started. Delete its files unless they belong to a sandbox."""
        await self._writing.wait()
        if self.kernel is not None:
            await self.kernel.kill(cause)
        await self._start.wait()
        await self._former_ended()
        await self._sleeper.forget()
        await self.checkpoints.clear()
        if self.left_container is None:  # else `take_over` deletes them
            await self.delete_files()

    async def delete_files(self) -> None:
        """Delete the kernel's files unless they belong to a sandbox."""
        if self.launch.workspace is not None and not self.identity.spec.in_sandbox:
            await self._services.kernels.delete_workspace(self.launch.workspace)


def _happened(cause: SessionError) -> str:
    """Return the part of an error's message that says what happened to the kernel, not to the variables."""
    return cause.message.partition(";")[0]
