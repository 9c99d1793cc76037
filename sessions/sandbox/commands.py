"""Shell commands of a sandbox. Some run while their client waits; others run on their own, and clients come and go."""

from __future__ import annotations

import asyncio
import shlex
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from sessions.guest.attached import CLOSE, Data, Ended, Program, Started, attach, data_line, size_line
from sessions.guest.processes import ProcessResult, run_process
from sessions.guest.tools import ToolRunner, WorkspaceOwner
from sessions.model.errors import (
    ConnectionFailed,
    ExecutionTimeout,
    FileNotFound,
    InvalidRequest,
    ProcessNotFound,
    QuotaExceeded,
    SessionClosed,
    SessionError,
)
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, SandboxSpec, SessionKey, Status
from sessions.sandbox.accounts import accounted
from sessions.session.owner import Activity
from sessions.session.services import SessionServices

#: maximum number of pieces of output that wait for a listener, and of lines of input that wait for the sandbox
QUEUE = 8
#: bytes of one line of input
INPUT_PIECE = 48 * 1024
#: seconds of pause after a piece of output without listeners. Output is unlimited, so its cost must be limited.
UNHEARD_PAUSE = 0.01


class Listener:
    """One client of a command. Iterating over it yields the command's later output and its end."""

    def __init__(self) -> None:
        self._events: deque[Data | Ended] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False

    async def put(self, event: Data | Ended) -> None:
        """Add an event as soon as there is room, or drop it if the client has left."""
        while len(self._events) >= QUEUE and not self._over:
            self._room.clear()
            await self._room.wait()
        if not self._over:
            self._events.append(event)
            self._news.set()

    def end(self) -> None:
        """Let the iteration end after the last event, and release a command that waits for room."""
        self._over = True
        self._news.set()
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[Data | Ended]:
        """Yield the events until the command's end."""
        while True:
            while self._events:
                yield self._events.popleft()
                self._room.set()
            if self._over:
                return
            self._news.clear()
            await self._news.wait()


class AttachedCommand:
    """One command that runs on its own, while clients come and go."""

    def __init__(self, program: Program, tag: str | None) -> None:
        """Prepare a command; `run` runs it.

        Args:
            program: what to run.
            tag: the client's own name for the command.
        """
        self.program = program
        self.tag = tag
        #: process id. 0 means that the command has not begun.
        self.pid = 0
        #: whether the command has begun and not ended
        self.running = False
        #: done when the command has begun; the result is the process id
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: why the command did not run to its own end; None if it did
        self.failure: SessionError | None = None
        self._over = asyncio.Event()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self._listeners: list[Listener] = []

    # -- its life -------------------------------------------------------------------------------------------

    async def run(self, host: ToolRunner, env: Mapping[str, str], seconds: float) -> ProcessResult:
        """Run the command to its end.

        Args:
            host: sandbox that runs the command.
            env: environment variables of the sandbox.
            seconds: timeout in seconds.

        Raises:
            SessionError: as in `attach`.
        """
        clock, passed_on = asyncio.get_running_loop().time, 0
        began = clock()
        async with aclosing(attach(host, self.program, env, seconds, self._input())) as happenings:
            async for happening in happenings:
                match happening:
                    case Started(pid) if not self.pid:
                        self.pid, self.running = pid, True
                        self.begun.set_result(pid)
                    case Data(content=content):
                        passed_on += len(content)
                        await self._send_to_listeners(happening)
                    case Ended(code, timed_out):
                        self.running = False  # before listeners get the event
                        await self._send_to_listeners(happening)
                        return ProcessResult(
                            code, "", "", timed_out, truncated=False, duration=clock() - began, passed_on=passed_on
                        )
        raise ConnectionFailed("the sandbox gave no valid answer")

    async def _send_to_listeners(self, event: Data | Ended) -> None:
        """Give an event to all listeners. The command waits for the slowest listener."""
        if not self._listeners:
            await asyncio.sleep(UNHEARD_PAUSE)
        for listener in list(self._listeners):
            await listener.put(event)

    def end(self) -> None:
        """Release all listeners and writers, because the command has ended."""
        self.running = False
        self._over.set()
        for listener in self._listeners:
            listener.end()

    async def _input(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._lines.get()

    # -- what clients do ------------------------------------------------------------------------------------

    def listen(self) -> Listener:
        """Return a new listener; `leave` removes it."""
        listener = Listener()
        self._listeners.append(listener)
        if self._over.is_set():
            listener.end()
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener, whose client has left or is too slow."""
        self._listeners.remove(listener)
        listener.end()

    async def write(self, content: bytes) -> None:
        """Send input to the command. Wait while the command does not read.

        Raises:
            InvalidRequest: when the command takes no input.
            ProcessNotFound: when the command has ended.
        """
        self._require_input()
        for start in range(0, len(content), INPUT_PIECE):
            await self._send(data_line(content[start : start + INPUT_PIECE]))

    async def close_input(self) -> None:
        """End the command's input. The errors are those of `write`."""
        self._require_input()
        await self._send(CLOSE)

    async def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the command's terminal to other columns and rows.

        Raises:
            InvalidRequest: when the command has no terminal.
            ProcessNotFound: when the command has ended.
        """
        if self.program.size is None:
            raise InvalidRequest("the command has no terminal", field="pty")
        await self._send(size_line(size))

    def _require_input(self) -> None:
        if not self.program.takes_input and self.program.size is None:
            raise InvalidRequest("the command was started without an input", field="stdin")

    async def _send(self, line: bytes) -> None:
        put = spawn(self._lines.put(line), "input of a command")
        over = spawn(self._over.wait(), "input of a command")
        try:
            await asyncio.wait({put, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                raise ProcessNotFound(f"command {self.pid} has ended")
        finally:
            put.cancel()
            over.cancel()


#: maximum number of attached commands of a sandbox at a time: each is one of the tools that a container may run
ATTACHED_MAX = 8
#: language of shell commands in the audit
SHELL = "shell"
#: errors that mean that a command never ran
NOT_BEGUN = (InvalidRequest, FileNotFound, QuotaExceeded, SessionClosed)


class CommandHost(WorkspaceOwner, Protocol):
    """Sandbox whose commands are run."""

    key: SessionKey
    spec: SandboxSpec


class Commands:
    """The shell commands of one sandbox."""

    def __init__(self, host: CommandHost, services: SessionServices, activity: Activity) -> None:
        self._host = host
        self._services = services
        self._activity = activity
        #: what each command runs that has begun and not ended, attached or not
        self.under_way: list[ExecuteRequest] = []
        #: attached commands that have not ended, oldest first, and the tasks that run them
        self._attached: dict[AttachedCommand, asyncio.Task[None]] = {}

    async def run(self, command: str, cwd: str, seconds: float) -> ProcessResult:
        """Run a shell command in the sandbox's own container. The errors are those of `accounted` and `run_process`."""
        with self._activity.use():
            request = ExecuteRequest(command, min(seconds, self._host.spec.max_execute_timeout))
            run = partial(run_process, self._host, command, cwd, self._host.spec.env, request.timeout)
            return await self._execute(request, run)

    def attached(self) -> list[AttachedCommand]:
        """Return the attached commands that run, oldest first."""
        return [command for command in self._attached if command.running]

    def find(self, pid: int) -> AttachedCommand:
        """Return the attached command with this process id.

        Raises:
            ProcessNotFound: when no attached command with this id runs.
        """
        for command in self._attached:
            if command.running and command.pid == pid:
                return command
        raise ProcessNotFound(f"there is no command {pid}")

    async def start(self, program: Program, tag: str | None) -> tuple[AttachedCommand, Listener]:
        """Start a command that runs until its own end, and return it with its first listener when it has begun.

        The command counts as an execution of the tenant. It ends at its timeout, or at the time limit of executions.

        Args:
            program: the command.
            tag: the client's own name for the command. None means no name.

        Raises:
            QuotaExceeded: when the sandbox has too many attached commands, or as in `accounted`.
            SessionError: as in `accounted`, or when the program cannot be started.
        """
        if len(self._attached) >= ATTACHED_MAX:
            raise QuotaExceeded(f"at most {ATTACHED_MAX} commands of a sandbox at a time", max=ATTACHED_MAX)
        command = AttachedCommand(program, tag)
        listener = command.listen()
        work = self._attached[command] = spawn(self._run_attached(command), f"command of {self._host.key}")
        either: set[asyncio.Future[Any]] = {work, command.begun}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not command.begun.done():
            if work.cancelled():
                raise SessionClosed("the sandbox was ended")
            work.result()
        return command, listener

    async def end(self, command: AttachedCommand) -> None:
        """End one attached command and all its descendants, and wait until it has ended."""
        if (work := self._attached.get(command)) is not None:
            work.cancel()
            await asyncio.wait({work})

    async def close(self) -> None:
        """End the attached commands, because the sandbox ends, and wait until they have ended."""
        if works := list(self._attached.values()):
            for work in works:
                work.cancel()
            await asyncio.wait(works)

    async def _run_attached(self, command: AttachedCommand) -> None:
        spec = self._host.spec
        seconds = min(command.program.timeout or spec.max_execute_timeout, spec.max_execute_timeout)
        request = ExecuteRequest(shlex.join(command.program.argv), seconds)
        try:
            with self._activity.use():
                run = partial(command.run, self._host, spec.env, request.timeout)
                await self._execute(request, run)
        except SessionError as error:
            command.failure = error
            raise
        finally:
            del self._attached[command]
            command.end()

    async def _execute(self, request: ExecuteRequest, run: Callable[[], Awaitable[ProcessResult]]) -> ProcessResult:
        """Run a command to its end when its turn comes. Cancelling the call ends the command.

        Args:
            request: the command and its timeout.
            run: runs the command.

        Raises:
            SessionError: as in `accounted` and `run_process`.
        """
        async with accounted(self._services, self._host.key, SHELL, request, *NOT_BEGUN) as account:
            self.under_way.append(request)
            try:
                ended = await run()
            finally:
                self.under_way.remove(request)
            status, failure = Status.ERROR if ended.exit_code else Status.OK, None
            if ended.timed_out:
                status, seconds = Status.TIMEOUT, request.timeout
                failure = ExecutionTimeout(f"the command ran longer than {seconds:g} s", timeout=seconds)
            output = len(ended.stdout.encode()) + len(ended.stderr.encode()) + ended.passed_on
            account.ends(status, failure, output_bytes=output, truncated=ended.truncated)
        return ended
