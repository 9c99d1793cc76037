"""What clients with messages of their own have asked of a kernel, until it has dealt with it.

All of it waits in our memory, so its number and size are bounded. The cells among it count as executions: the
session is in use while one runs or waits, each has a deadline, and each ends, whatever the kernel says or does not
say. A kernel runs its cells in order, so a cell's turn begins when the one before it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import orjson

from sessions.errors import ExecutionTimeout, InvalidRequest, KernelDied, QuotaExceeded, SessionError
from sessions.execution import Patience
from sessions.kernel import Kernel
from sessions.messages import Message
from sessions.models import ExecuteRequest, ExecutionResult, StateChange, Status
from sessions.subscription import Subscription, announcement, refusal
from sessions.tasks import spawn

#: requests that the kernel has not dealt with, per session, and bytes of them
NUMBER_MAX = 1000
BYTES_MAX = 64 * 1024**2


@dataclass(slots=True, eq=False)
class Asked:
    """A request that the kernel has not dealt with."""

    by: Subscription
    id: str
    type: str
    size: int
    #: of a cell: what it runs
    code: str | None = None
    #: the kernel has asked back, and may be answered
    questions: int = 0
    #: the kernel has said that it is done with it
    idle: bool = False
    #: of a cell: somebody has interrupted it
    interrupted: bool = False
    #: of a cell: it ran longer than it may
    overdue: bool = False
    #: of a cell: when it was its turn, in the loop's time
    begun: float | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_reply(self) -> bool:
        """Whether more comes than `idle`. Source: "Messaging in Jupyter", custom messages."""
        return not self.type.startswith("comm_") or self.type.endswith("_request")

    @property
    def header(self) -> dict[str, str]:
        """What tells its client that a message belongs to it."""
        return {"msg_id": self.id, "msg_type": self.type}


@dataclass(frozen=True, slots=True)
class Rules:
    """For the cells among the requests."""

    #: counts an execution of the tenant; all cells together are one, because a front end sends a whole notebook
    admit: Callable[[], AbstractContextManager[None]]
    #: told of each that ended
    observe: Callable[[ExecuteRequest, ExecutionResult], None]
    patience: Patience
    #: seconds that one may run
    deadline: float


class Requests:
    """All such requests of one session."""

    def __init__(self, rules: Rules, tell: Callable[[Message], None]) -> None:
        """Begin empty.

        Args:
            rules: for the cells.
            tell: given what the kernel should have said, and has not.
        """
        self._rules = rules
        self._tell = tell
        self._kernel: Kernel | None = None
        self._admitted = ExitStack()
        self._asked: dict[str, Asked] = {}
        #: those that run or wait in the kernel, in order
        self._cells: dict[str, Asked] = {}
        self._deadline: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def cell(self) -> Asked | None:
        """The cell whose turn it is."""
        return next(iter(self._cells.values()), None)

    async def quiet(self) -> None:
        """Wait until no cell runs or waits."""
        await self._quiet.wait()

    def find(self, msg_id: str) -> Asked | None:
        """The request of this id, if the kernel has not dealt with it."""
        return self._asked.get(msg_id)

    def asking(self, by: Subscription) -> Asked | None:
        """A request of this client to which the kernel wants an answer."""
        return next((asked for asked in self._asked.values() if asked.by is by and asked.questions), None)

    def hand_over(self, old: Subscription, new: Subscription) -> None:
        """What was asked by one client is answered to another."""
        for asked in self._asked.values():
            if asked.by is old:
                asked.by = new

    # -- begin and end --------------------------------------------------------------------------------------

    def add(self, asked: Asked) -> None:
        """Take a request in.

        Raises:
            InvalidRequest: one of this id is under way.
            QuotaExceeded: too much waits for the kernel, or the tenant has too many executions under way.
        """
        if asked.id in self._asked:
            raise InvalidRequest("a message with this id is under way", field="msg_id")
        size = sum(known.size for known in self._asked.values()) + asked.size
        if len(self._asked) >= NUMBER_MAX or size > BYTES_MAX:
            raise QuotaExceeded("too much waits for this kernel; wait until it has dealt with it")
        if asked.code is not None:
            if not self._cells:
                self._admitted.enter_context(self._rules.admit())
                self._quiet.clear()
            self._cells[asked.id] = asked
            if self.cell is asked:
                self._begin(asked)
        self._asked[asked.id] = asked

    def _begin(self, cell: Asked) -> None:
        loop = asyncio.get_running_loop()
        cell.begun = loop.time()
        self._stop_deadline()
        self._deadline = loop.call_later(self._rules.deadline, self._overdue, cell)

    def forget(self, asked: Asked) -> None:
        """It is dealt with, or could not be sent."""
        del self._asked[asked.id]
        if asked.code is None:
            return
        was_its_turn = self.cell is asked
        del self._cells[asked.id]
        asked.over.set()
        if self.cell is None:
            self._rest()
        elif was_its_turn:
            self._begin(self.cell)

    def _rest(self) -> None:
        self._stop_deadline()
        self._admitted.close()
        self._quiet.set()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connect(self, kernel: Kernel) -> None:
        """There is a kernel, in place of the one there was."""
        self.disconnect(KernelDied("the session was restarted while the cell ran"))
        self._kernel = kernel

    def disconnect(self, cause: SessionError) -> None:
        """The kernel is gone, and with it the cells: clients wait for their end without a limit.

        What else was asked gets no answer, as of a kernel that has not heard it: clients ask again.
        """
        self._kernel = None
        cells = list(self._cells.values())
        self._asked.clear()
        self._cells.clear()
        self._rest()
        for cell in cells:
            cell.over.set()
            *published, reply = refusal("shell", cell.header, cause)
            for message in published:
                self._tell(message)
            cell.by.feed(reply)
            self._ended(cell, Status.TIMEOUT if cell.overdue else Status.DIED)

    # -- what the kernel says -------------------------------------------------------------------------------

    def replied(self, asked: Asked, status: object) -> None:
        """The kernel has answered it."""
        self.forget(asked)
        if asked.code is not None:
            self._ended(asked, _status(asked, status))

    def idle(self, asked: Asked) -> None:
        """The kernel says that it is done with it."""
        asked.size = 0
        if not asked.has_reply:
            self.forget(asked)
        elif asked.code is not None and not asked.idle:
            asyncio.get_running_loop().call_later(self._rules.patience.idle, self._miss_reply, asked)
        asked.idle = True

    def _miss_reply(self, cell: Asked) -> None:
        if not cell.over.is_set() and self._kernel is not None:
            spawn(self._do_without_reply(cell, self._kernel), "wait for a reply")

    async def _do_without_reply(self, cell: Asked, kernel: Kernel) -> None:
        """Ipykernel forgets to answer a cell that is interrupted before it has quite begun.

        The shell channel keeps order: when the kernel answers what it is asked next, that reply will never come.
        """
        await kernel.connection.ready()
        if not cell.over.is_set():
            self._tell(announcement("shell", "execute_reply", {"status": "aborted"}, cell.header))

    # -- interruption and deadline --------------------------------------------------------------------------

    def interrupt(self) -> bool:
        """Interrupt the cell whose turn it is.

        Returns:
            whether there is one.
        """
        cell = self.cell
        if cell is None or self._kernel is None:
            return False
        cell.interrupted = True
        spawn(self._kernel.climb(cell.over, self._rules.patience.rung), "interrupt")
        return True

    def _overdue(self, cell: Asked) -> None:
        cell.overdue = True
        error = self._timeout()
        said = {"name": "stderr", "text": f"\n[kernel-gateway {error.code}: {error.message}]\n"}
        self._tell(announcement("iopub", "stream", said, cell.header))
        if self._kernel is not None:
            spawn(self._end(cell, self._kernel), "end overdue cell")

    async def _end(self, cell: Asked, kernel: Kernel) -> None:
        if not await kernel.climb(cell.over, self._rules.patience.rung):
            await kernel.kill(self._timeout())

    def _timeout(self) -> ExecutionTimeout:
        deadline = self._rules.deadline
        return ExecutionTimeout(f"the code ran longer than {deadline:g} s", timeout=deadline)

    def _ended(self, cell: Asked, status: Status) -> None:
        """Let it be counted. Its outputs are in the transcript, and its client knows them."""
        result = ExecutionResult(
            status=status,
            execution_count=None,
            outputs=[],
            duration=asyncio.get_running_loop().time() - cell.begun if cell.begun is not None else 0.0,
            state=StateChange.LOST if self._kernel is None else StateChange.PRESERVED,
            state_reason=None,
            incarnation=0,
            truncated=False,
            error=self._timeout() if status is Status.TIMEOUT else None,
        )
        self._rules.observe(ExecuteRequest(cell.code or "", self._rules.deadline), result)


def code_of(content: bytes) -> str:
    """What an execute request wants to run; of one that is malformed, which the kernel refuses, nothing."""
    try:
        code = orjson.loads(content)["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    return code if isinstance(code, str) else ""


def _status(cell: Asked, said: object) -> Status:
    if cell.overdue:
        return Status.TIMEOUT
    if said == "ok":
        return Status.OK
    return Status.INTERRUPTED if cell.interrupted or said in {"abort", "aborted"} else Status.ERROR
