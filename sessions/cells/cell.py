"""One cell in flight: its deadline, its interrupts, and its one end.

A cell has ended when *both* its shell reply and its `idle` have arrived. They race on two sockets, and a kernel may
lose, forge or repeat either of them; a cell still ends exactly once. Executions of the API and cells of channel clients
are both cells, and their classes extend this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from sessions.kernels.clock import Timer
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import ConnectionFailed, ExecutionTimeout, KernelDied, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import Status, Timeouts

#: error of a failed cell whose kernel did not name an error
UNNAMED = {"ename": "UnknownError", "evalue": "the kernel has not said why the cell failed", "traceback": []}
#: seconds that a timer may be late. A timer that is later shows that the gateway itself was stopped.
STALL = 1.0
#: seconds to read the messages that arrived while the gateway was stopped, and to notice a kernel's end
CATCH_UP = 0.5


class Cell:
    """One cell that is sent to a kernel."""

    def __init__(self, kernel: Kernel, timeouts: Timeouts, *, exclusive: bool) -> None:
        """Prepare a cell; `start` begins its deadline.

        Args:
            kernel: runs it.
            timeouts: timeouts of its end.
            exclusive: whether the kernel runs no other cell meanwhile. Such a kernel is broken if it does not answer.
        """
        self.kernel = kernel
        #: how the cell ended; None until then
        self.status: Status | None = None
        self.error: SessionError | None = None
        #: set when the kernel no longer runs the cell: the kernel has replied, or the cell has ended
        self.returned = asyncio.Event()
        self.ended = asyncio.Event()
        #: whether some of its output, or its reply, may be lost
        self.incomplete = False
        #: bytes of memory that the kernel used at the cell's end. None means that they are not known.
        self.memory: int | None = None
        self._timeouts = timeouts
        self._exclusive = exclusive
        self._loop = asyncio.get_running_loop()
        #: start and end, in seconds of the kernel's clock
        self._started_at = self._ended_at = kernel.clock.time()
        self._reply: Mapping[str, Any] | None = None
        self._idle = False
        self._output_seen = False  # whether a message of the cell has arrived on iopub
        self._shell_loss = False  # whether a message on shell may be lost
        self._asking = False  # whether a later request was sent, whose answer shows that the reply is lost
        self._interrupted = False
        self._awaits_end = False  # whether the kernel has ended; `kernel_gone` is called later
        #: why the gateway stopped the cell. None means that it did not.
        self._stopped: SessionError | None = None
        self._deadline: Timer | None = None
        self._doubt: Timer | None = None
        #: seconds that are left until the deadline while its clock is stopped
        self._held: float | None = None

    @property
    def duration(self) -> float:
        """Seconds from its start to its end, in which the kernel was not frozen."""
        return self._ended_at - self._started_at

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """The cell's error, in the form of a reply. None means that the cell has not ended, or has not failed."""
        reply = self._reply or {}
        if self.status is not None and reply.get("status") == "error" and isinstance(reply.get("ename"), str):
            return reply
        return UNNAMED if self.status is Status.ERROR else None

    # -- what the kernel sends ------------------------------------------------------------------------------

    def published(self, message: Message) -> None:
        """Take an iopub message of this cell."""
        self._output_seen = True
        if message.type != "status" or self.status is not None:
            return
        self._idle = message.content.get("execution_state") == "idle"
        if self._idle and self._reply is None and self._doubt is None:
            # ipykernel sends no reply for a cell that is interrupted before its first line.
            self._doubt = self._after(self._timeouts.idle, self._doubt_reply)
        self._end_if_complete()

    def replied(self, content: Mapping[str, Any]) -> None:
        """Take the cell's shell reply; later ones are ignored."""
        if self._reply is not None or self.status is not None:
            return
        self._reply = content
        self.returned.set()
        self.cancel_timers()
        if not self._idle:
            self._doubt = self._after(self._timeouts.idle, self._doubt_idle)
        self._end_if_complete()

    def shell_lost(self) -> None:
        """Find out whether a message that was lost on shell was this cell's reply: ask the kernel something else."""
        self._shell_loss = True
        self._doubt_reply()

    def await_end(self) -> None:
        """Wait until `kernel_gone` is called: the kernel has ended, but the state of the variables is not known yet."""
        self._awaits_end = True
        self.returned.set()
        self.cancel_timers()

    def kernel_gone(self, cause: SessionError) -> None:
        """End the cell with its kernel."""
        self._end(self._stopped_status() or Status.DIED, self._stopped or cause)

    def _end_if_complete(self) -> None:
        if self._reply is not None and self._idle:
            self._end(self._status_of_reply(), self._stopped)

    # -- lost messages --------------------------------------------------------------------------------------

    def _doubt_reply(self) -> None:
        if self.status is None and self._reply is None and not self._asking:
            self._asking = True
            spawn(self._unless_closed(self._do_without_reply()), "wait for a reply")

    async def _do_without_reply(self) -> None:
        """End the cell without a reply when the kernel has answered a later request: shell keeps messages in order."""
        await self.kernel.connection.ready()
        if self.status is None and self._reply is None:
            self._miss_reply()

    def _miss_reply(self) -> None:
        self.give_up(incomplete=self._shell_loss)

    def _doubt_idle(self) -> None:
        if self.status is not None:
            return
        if self._exclusive:
            spawn(self._unless_closed(self._do_without_idle()), "wait for idle")
        else:
            # The kernel may run the next cell already, and would answer a request only after that cell.
            self._doubt = self._after(self._timeouts.proof, self.give_up)

    async def _do_without_idle(self) -> None:
        """End the cell without its `idle`, which was lost, or waits behind a lot of output.

        On a busy machine, silence proves nothing. An answer to a later request proves that no more output can follow.
        """
        try:
            async with self.kernel.clock.timeout(self._timeouts.proof):
                await self.kernel.connection.ready()
        except TimeoutError:
            if self.status is None and not self._output_seen:
                # No message has arrived on iopub: the channel is broken, and later output would be lost silently.
                await self.kernel.kill(KernelDied("the kernel's output channel no longer works"))
                return  # the kernel's end ends the cell
        self.give_up()

    async def _unless_closed(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ConnectionFailed as closed:
            # The connection closes with the kernel. The kernel's end also ends the cell, soon and with the right cause.
            self._loop.call_later(CATCH_UP, self._unless_ended, partial(self.kernel_gone, closed))

    def give_up(self, *, incomplete: bool = True) -> None:
        """End the cell without waiting for its last messages, if it has not ended."""
        if self.status is None:
            self.incomplete = incomplete
            self._end(self._status_of_reply(), self._stopped)

    # -- deadline and interrupts ----------------------------------------------------------------------------

    def start(self, seconds: float) -> None:
        """Start the cell's deadline: the cell is stopped after these seconds of the kernel's time."""
        self._started_at = self.kernel.clock.time()
        self._deadline = self._after(seconds, self._pass_deadline)

    def hold_deadline(self) -> None:
        """Stop the clock of the deadline, because the cell stands at a breakpoint."""
        if self._deadline is not None and self._held is None and not self.returned.is_set():
            self._held = max(0.0, self._deadline.due - self.kernel.clock.time())
            self._deadline.cancel()

    def resume_deadline(self) -> None:
        """Let the clock of the deadline go on."""
        if self._held is not None and not self.returned.is_set():
            self._deadline = self._after(self._held, self._pass_deadline)
        self._held = None

    def _pass_deadline(self) -> None:
        if not self.returned.is_set():
            self._expire()

    def _expire(self) -> None:
        """Stop the cell at its deadline."""
        raise NotImplementedError

    def stop(self, error: SessionError, kill_cause: SessionError) -> None:
        """Interrupt the cell, and kill its kernel if that does not help.

        Args:
            error: becomes the cell's error.
            kill_cause: becomes the cause of the kernel's end.
        """
        if self._stopped is None and not self.returned.is_set():
            self._stopped = error
            spawn(self._stop(kill_cause), "stop a cell")

    async def _stop(self, kill_cause: SessionError) -> None:
        if not await self.kernel.interrupts.interrupt_until(self.returned, self._timeouts.interrupt_step):
            await self.kernel.kill(kill_cause)

    async def interrupt(self) -> None:
        """Interrupt the cell and keep the variables. A cell that ignores interrupts runs until its deadline."""
        if self.returned.is_set():
            return
        self._interrupted = True
        if not await self.kernel.interrupts.interrupt_until(self.returned, self._timeouts.interrupt_step):
            self._doubt_reply()  # the kernel may never have started the cell

    def _after(self, seconds: float, check: Callable[[], None]) -> Timer:
        clock = self.kernel.clock
        return clock.call_later(seconds, partial(self._on_time, clock.time() + seconds, check))

    def _on_time(self, due: float, check: Callable[[], None]) -> None:
        if self.kernel.clock.time() < due + STALL:
            check()
        else:  # the gateway was stopped: first read the messages that arrived meanwhile
            self._loop.call_later(CATCH_UP, self._unless_ended, check)

    def _unless_ended(self, check: Callable[[], None]) -> None:
        if not self.ended.is_set() and not self._awaits_end:
            check()

    def cancel_timers(self) -> None:
        """Cancel the deadline and other timers: the cell was not sent, or the kernel no longer runs it."""
        for timer in (self._deadline, self._doubt):
            if timer is not None:
                timer.cancel()

    # -- the end --------------------------------------------------------------------------------------------

    def release(self) -> bool:
        """Stop to watch the cell: the gateway ends, and the kernel runs on. Afterwards the cell has ended.

        Returns:
            whether the cell runs on, without a status. False means that the kernel no longer runs it: the cell has its
            status now, or gets it with the kernel's end.
        """
        if self._reply is not None:
            self.give_up()
        if self.status is not None or self._awaits_end:
            return False
        self.cancel_timers()
        self.returned.set()
        self.ended.set()
        return True

    def _stopped_status(self) -> Status | None:
        if self._stopped is None:
            return None
        return Status.TIMEOUT if isinstance(self._stopped, ExecutionTimeout) else Status.INTERRUPTED

    def _status_of_reply(self) -> Status:
        replied = (self._reply or {}).get("status")
        if stopped := self._stopped_status():
            return stopped
        if replied == "ok":
            return Status.OK
        return Status.INTERRUPTED if self._interrupted or replied in ("abort", "aborted") else Status.ERROR

    def _end(self, status: Status, error: SessionError | None) -> None:
        if self.ended.is_set():
            return
        self.status, self.error = status, error
        self._ended_at = self.kernel.clock.time()
        self.memory = self.kernel.handle.memory()
        self.cancel_timers()
        self.returned.set()
        self.ended.set()
        self._on_end()

    def _on_end(self) -> None:
        """Called once, when the cell has ended."""
