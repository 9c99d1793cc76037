"""What clients with messages of their own have asked of a kernel, until it has dealt with it.

All of it waits in our memory, so its number and size are bounded. The cells among it count as executions: the
session is in use while one runs or waits, each has a deadline, and each ends, whatever the kernel says or does not
say. A kernel runs its cells in order, so a cell's turn begins when the one before it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field

import orjson

from sessions.errors import ExecutionTimeout, InvalidRequest, KernelDied, QuotaExceeded, SessionError
from sessions.execution import Patience
from sessions.kernel import Kernel
from sessions.messages import Message
from sessions.models import ExecuteRequest, ExecutionResult, StateChange, Status
from sessions.outputs import weight
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
    #: of a cell: what it runs, and what is evaluated then
    code: str | None = None
    expressions: tuple[str, ...] = ()
    #: the kernel has asked back, and may be answered
    questions: int = 0
    #: the kernel has said that it is done with it
    idle: bool = False
    #: of a cell: somebody has interrupted it
    interrupted: bool = False
    #: of a cell: why it may not go on
    stopped: SessionError | None = None
    #: of a cell: when it was its turn, in the loop's time
    begun: float | None = None
    #: of a cell: how it ended, and when, in the loop's time
    status: Status | None = None
    ended: float | None = None
    #: of a cell: bytes that it put out
    output: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    #: of a cell: what it is known as to who keeps account
    known_as: str = ""

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
    #: raises `QuotaExceeded` when the tenant has used up what it may
    permit: Callable[[], None]
    #: told of each before it is sent; what to call it by. One that it refuses is not sent
    begins: Callable[[ExecuteRequest], str]
    #: told of each that ended; without a result: it was never sent
    ended: Callable[[str, ExecuteRequest, ExecutionResult | None], None]
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
        #: those that have ended, as long as output of theirs may be on its way: it comes by another socket
        self._ending: dict[str, Asked] = {}
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
            self._rules.permit()
            if not self._cells:
                self._admitted.enter_context(self._rules.admit())
            try:
                asked.known_as = self._rules.begins(self._request(asked))
            except SessionError:
                if not self._cells:
                    self._admitted.close()
                raise
            self._quiet.clear()
            self._cells[asked.id] = asked
            if self.cell is asked:
                self._begin(asked)
        self._asked[asked.id] = asked

    def _request(self, cell: Asked) -> ExecuteRequest:
        return ExecuteRequest(cell.code or "", self._rules.deadline, expressions=cell.expressions)

    def _begin(self, cell: Asked) -> None:
        loop = asyncio.get_running_loop()
        cell.begun = loop.time()
        self._stop_deadline()
        self._deadline = loop.call_later(self._rules.deadline, self._stop, cell, self._timeout())
        self._check(cell)

    def _check(self, cell: Asked | None) -> None:
        """A cell that is in the kernel already may not go on when those before it have used up what there was."""
        if cell is not None and cell.stopped is None:
            try:
                self._rules.permit()
            except QuotaExceeded as refusal:
                self._stop(cell, refusal)

    def not_sent(self, asked: Asked) -> None:
        """It could not be sent."""
        self.forget(asked)
        if asked.code is not None:
            self._rules.ended(asked.known_as, self._request(asked), None)

    def forget(self, asked: Asked) -> None:
        """It is dealt with."""
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
        for ending in list(self._ending.values()):
            self._account(ending)
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
            self._end(cell, _status(cell, None) if cell.stopped else Status.DIED)
            self._account(cell)

    # -- what the kernel says -------------------------------------------------------------------------------

    def replied(self, asked: Asked, status: object) -> None:
        """The kernel has answered it."""
        self.forget(asked)
        if asked.code is None:
            return
        self._end(asked, _status(asked, status))
        if asked.idle:
            self._account(asked)
        else:
            asyncio.get_running_loop().call_later(self._rules.patience.proof, self._account, asked)

    def published(self, message: Message) -> None:
        """The kernel has published something."""
        asked = self._asked.get(message.parent_id) or self._ending.get(message.parent_id)
        if asked is None:
            return
        asked.output += weight(message)
        if message.content.get("execution_state") != "idle":
            return
        if asked.id in self._ending:
            self._account(asked)
        else:
            self._idle(asked)

    def _idle(self, asked: Asked) -> None:
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

    def _stop(self, cell: Asked, error: SessionError) -> None:
        cell.stopped = error
        said = {"name": "stderr", "text": f"\n[kernel-gateway {error.code}: {error.message}]\n"}
        self._tell(announcement("iopub", "stream", said, cell.header))
        if self._kernel is not None:
            spawn(self._see_off(cell, self._kernel, error), "end a cell that may not go on")

    async def _see_off(self, cell: Asked, kernel: Kernel, error: SessionError) -> None:
        if not await kernel.climb(cell.over, self._rules.patience.rung):
            await kernel.kill(error)

    def _timeout(self) -> ExecutionTimeout:
        deadline = self._rules.deadline
        return ExecutionTimeout(f"the code ran longer than {deadline:g} s", timeout=deadline)

    def _end(self, cell: Asked, status: Status) -> None:
        """Note how it ended."""
        if namesake := self._ending.get(cell.id):
            self._account(namesake)
        cell.status, cell.ended = status, asyncio.get_running_loop().time()
        self._ending[cell.id] = cell

    def _account(self, cell: Asked) -> None:
        """Let it be counted, once. Its outputs are in the transcript, and its client knows them."""
        if self._ending.get(cell.id) is not cell or cell.status is None or cell.ended is None:
            return
        del self._ending[cell.id]
        result = ExecutionResult(
            status=cell.status,
            execution_count=None,
            outputs=[],
            duration=cell.ended - cell.begun if cell.begun is not None else 0.0,
            state=StateChange.LOST if self._kernel is None else StateChange.PRESERVED,
            state_reason=None,
            incarnation=0,
            truncated=False,
            error=cell.stopped,
            output_bytes=cell.output,
            memory=self._kernel.handle.memory() if self._kernel is not None else None,
        )
        self._rules.ended(cell.known_as, self._request(cell), result)
        self._check(self.cell)


def code_of(content: bytes) -> tuple[str, tuple[str, ...]]:
    """What an execute request wants to run, and what is to be evaluated then.

    Raises:
        InvalidRequest: that cannot be told. A kernel may be less strict, and would run what nobody has seen.
    """
    with suppress(orjson.JSONDecodeError):
        match orjson.loads(content):
            case {"code": str(code), "user_expressions": dict(expressions)}:
                return code, tuple(map(str, expressions.values()))
            case {"code": str(code)}:
                return code, ()
    raise InvalidRequest("the content of an execute_request must be valid JSON, its code text", field="code")


def _status(cell: Asked, said: object) -> Status:
    if cell.stopped is not None:
        return Status.TIMEOUT if isinstance(cell.stopped, ExecutionTimeout) else Status.INTERRUPTED
    if said == "ok":
        return Status.OK
    return Status.INTERRUPTED if cell.interrupted or said in {"abort", "aborted"} else Status.ERROR
