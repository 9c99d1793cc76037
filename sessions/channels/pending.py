"""Requests of channel clients that the kernel has not answered yet.

All of them wait in the gateway's memory, so their number and size are bounded. The cells among them count as
executions. The session is in use while a cell runs or waits. Each cell has a deadline, and each cell ends, also when
the kernel sends nothing or garbage. A kernel runs its cells in order: a cell begins when the cell before has returned.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack

from sessions.channels.cells import ChannelCell, Code, Submission
from sessions.channels.requests import PendingRequest, Rules
from sessions.channels.subscription import Subscription, gateway_message, refusal
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import ExecutionTimeout, InvalidRequest, KernelDied, QuotaExceeded, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionEnd

#: maximum number, and bytes, of requests per session that the kernel has not answered
NUMBER_MAX = 1000
BYTES_MAX = 64 * 1024**2
#: ids of requests that are remembered per session
SEEN_MAX = 4096


class PendingRequests:
    """The pending requests of one session."""

    def __init__(self, rules: Rules, deliver: Callable[[Message], None]) -> None:
        """Begin empty.

        Args:
            rules: for the cells.
            deliver: called with each message that the gateway sends in place of the kernel.
        """
        self._rules = rules
        self._deliver = deliver
        self._kernel: Kernel | None = None
        self._admitted = ExitStack()
        self._requests: dict[str, PendingRequest] = {}
        #: cells that run or wait in the kernel, in their order
        self._cells: dict[str, ChannelCell] = {}
        #: cells whose reply has arrived, but not their `idle`: output may still arrive on the other socket
        self._returned: dict[str, ChannelCell] = {}
        #: ids of the last requests that were sent to this kernel
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def cell(self) -> ChannelCell | None:
        """The first cell that has not returned: the kernel runs it. None means that no cell runs."""
        return next(iter(self._cells.values()), None)

    async def quiet(self) -> None:
        """Wait until no cell runs or waits."""
        await self._quiet.wait()

    def find(self, msg_id: str) -> PendingRequest | None:
        """Return the pending request with this id."""
        return self._requests.get(msg_id)

    def with_open_input(self, client: Subscription) -> PendingRequest | None:
        """Return a request of this client whose code waits for an answer to `input()`, if there is one."""
        return next((known for known in self._requests.values() if known.client is client and known.open_inputs), None)

    def hand_over(self, old: Subscription, new: Subscription) -> None:
        """Send the answers to a client's requests to another client from now on."""
        for request in self._requests.values():
            if request.client is old:
                request.hand_over(new)

    # -- begin and end --------------------------------------------------------------------------------------

    def add(self, request: PendingRequest) -> None:
        """Admit a request.

        Raises:
            InvalidRequest: when a request with this id was sent to this kernel before.
            QuotaExceeded: when too many requests are pending, or the tenant has too many executions.
        """
        if request.id in self._seen:  # the kernel drops a message with a known id, and never answers
            raise InvalidRequest("a message with this id was sent before; each needs its own", field="msg_id")
        size = sum(known.size for known in self._requests.values()) + request.size
        if len(self._requests) >= NUMBER_MAX or size > BYTES_MAX:
            raise QuotaExceeded("too many or too large requests wait for this kernel; wait for its answers")
        if request.code is not None and self._kernel is not None:
            request.run_as(self._admit(request, request.code, self._kernel))
        self._requests[request.id] = request
        self._seen[request.id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)

    def _admit(self, request: PendingRequest, code: Code, kernel: Kernel) -> ChannelCell:
        self._rules.permit()
        # A kernel can report the end of a cell that it has not read yet, so the cell's bytes count until it is settled.
        size = request.size + code.size
        if not self._rules.count_bytes(size):
            raise QuotaExceeded("the cells of the tenant that wait for kernels are too large together")
        asked = ExecuteRequest(code.text, self._rules.deadline, expressions=code.expressions)
        with ExitStack() as undo:
            undo.callback(self._rules.count_bytes, -size)
            if not self._cells:
                self._admitted.enter_context(self._rules.admit())
                undo.callback(self._admitted.close)
            execution_id = self._rules.begins(asked)
            undo.pop_all()
        submission = Submission(request.header, asked, execution_id, size, in_subshell=request.in_subshell)
        cell = ChannelCell(kernel, self._rules.timeouts, self, submission, self._rules.servers(execution_id))
        self._quiet.clear()
        self._cells[request.id] = cell
        if self.cell is cell:
            self._begin(cell)
        return cell

    def _begin(self, cell: ChannelCell) -> None:
        cell.start(self._rules.deadline)
        self._check_quota(cell)

    def _check_quota(self, cell: ChannelCell | None) -> None:
        """Stop a cell that waits in the kernel if the cells before it have used up the tenant's quota."""
        if cell is not None:
            try:
                self._rules.permit()
            except QuotaExceeded as refused:
                self.stop(cell, refused)

    def stop(self, cell: ChannelCell, error: SessionError) -> None:
        """Stop a cell, and show its clients why."""
        if cell.stopped:
            return
        text = f"\n[kernel-gateway {error.code}: {error.message}]\n"
        self._deliver(gateway_message("iopub", "stream", {"name": "stderr", "text": text}, cell.header))
        cell.stop(error, error)

    def expire(self, cell: ChannelCell) -> None:
        """Stop a cell at its deadline."""
        deadline = self._rules.deadline
        self.stop(cell, ExecutionTimeout(f"the code ran longer than {deadline:g} s", timeout=deadline))

    def miss_reply(self, cell: ChannelCell) -> None:
        """Send the reply that the kernel should have sent."""
        self._deliver(gateway_message("shell", "execute_reply", {"status": "aborted"}, cell.header))

    def not_sent(self, request: PendingRequest) -> None:
        """Forget a request that could not be sent."""
        self._forget(request)
        self._seen.pop(request.id, None)
        if request.cell is not None:
            request.cell.cancel_timers()
            self._finish(request.cell, None)

    def _forget(self, request: PendingRequest) -> None:
        del self._requests[request.id]
        if request.cell is None:
            return
        was_its_turn = self.cell is request.cell
        del self._cells[request.id]
        if self.cell is None:
            self._become_quiet()
        elif was_its_turn:
            self._begin(self.cell)

    def _become_quiet(self) -> None:
        self._admitted.close()
        self._quiet.set()

    def ended(self, cell: ChannelCell) -> None:
        """Record the end of a cell. Its outputs were recorded and sent when they arrived."""
        self._returned.pop(cell.id, None)
        if cell.failure is not None or cell.error is not None:
            self._rules.failed(cell.id, cell.failure, cell.error)
        self._finish(cell, cell.end())
        self._check_quota(self.cell)

    def _finish(self, cell: ChannelCell, end: ExecutionEnd | None) -> None:
        """Stop counting a cell's bytes, and record its end. `Rules.ended` describes the argument `end`."""
        self._rules.count_bytes(-cell.size)
        self._rules.ended(cell.execution_id, cell.request, end)

    # -- the kernel -----------------------------------------------------------------------------------------

    def connect(self, kernel: Kernel, cause: SessionError) -> None:
        """Use a new kernel for later requests, and end the cells of the previous kernel.

        Args:
            kernel: the new kernel.
            cause: why the previous kernel ends.
        """
        self.disconnect(cause)
        self._kernel = kernel
        self._seen.clear()

    def disconnect(self, cause: SessionError) -> None:
        """End the cells, because their kernel has ended. Clients would wait for the end of a cell for ever.

        Other requests get no answer, as if the kernel had not received them. Clients send them again.
        """
        for cell in list(self._returned.values()):
            cell.give_up()
        self._kernel = None
        running = self.cell
        pending = [request for request in self._requests.values() if request.cell is not None]
        self._requests.clear()
        self._cells.clear()
        self._become_quiet()
        for request in pending:
            waited = request.cell is not None and request.cell is not running and request.cell.waits
            error = _not_run(cause) if waited else cause
            *published, reply = refusal("shell", request.header, error)
            for message in published:
                self._deliver(message)
            request.client.enqueue(reply)
            if request.cell is not None:
                request.cell.kernel_gone(error)

    def release(self) -> None:
        """Let the cells go on without this gateway. Their clients return to the next one and get the later output."""
        for cell in [*self._returned.values(), *self._cells.values()]:
            if cell.release():
                del self._requests[cell.id], self._cells[cell.id]
                self._rules.count_bytes(-cell.size)
                self._rules.left(cell.execution_id)
        if not self._cells:
            self._become_quiet()

    def replied(self, request: PendingRequest, message: Message) -> None:
        """Take the kernel's reply to a request."""
        self._forget(request)
        if request.cell is not None:
            self._returned[request.id] = request.cell
            request.cell.replied(message.content)

    def published(self, message: Message) -> None:
        """Take a message that the kernel has published."""
        request = self._requests.get(message.parent_id)
        cell = request.cell if request is not None else self._returned.get(message.parent_id)
        if cell is not None:
            cell.take_output(message)
        if request is not None and message.content.get("execution_state") == "idle":
            request.stop_counting()
            if not request.has_reply:
                self._forget(request)

    def interrupt(self) -> bool:
        """Interrupt the running cell.

        Returns:
            True if a cell runs.
        """
        cell = self.cell
        if cell is not None:
            spawn(cell.interrupt(), "interrupt")
        return cell is not None


def _not_run(cause: SessionError) -> SessionError:
    """Return the error of a cell that waited when its kernel ended: what ended the kernel was not this cell."""
    return KernelDied(f"the cell did not run: it waited for another cell when its kernel ended ({cause.message})")
