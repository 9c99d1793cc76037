"""A kernel that follows a script, and a backend that starts such kernels.

Everything between kernel and gateway is real: sockets, signatures, encryption, the order of messages. Only the kernel's
*behaviour* is written by a test, as an async function that acts for the kernel::

    async def loses_idle(cell: Cell) -> None:
        cell.says(busy(), stream("hi"))
        cell.replies()

Everything runs in the test's own event loop, so a test observes each step and never has to sleep.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session as Codec

from kernel_image.protocol import LEASE_REQUEST, PRELOAD_REQUEST
from sessions.backends.abilities import Ability
from sessions.backends.base import KERNEL_IMAGE, HandleListener, KernelHandle, Launch, Sharing
from sessions.backends.handshake import kernel_env, new_connection_info
from sessions.cells.notebook import notebook
from sessions.cells.transcript import Transcript
from sessions.checkpoints.writing import KernelMemory
from sessions.kernels.connection import Connection
from sessions.kernels.messages import Message
from sessions.kernels.pool import Pool
from sessions.kernels.readiness import Readiness
from sessions.kernels.start_queue import StartQueue
from sessions.kernels.warm import PoolSettings
from sessions.model.checkpoint import CannotWake, NoRoom, SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.egress import EgressTenants
from sessions.model.errors import ConnectionFailed, SessionError, StartFailed
from sessions.model.kernelspecs import Inventory, KernelSpec, KernelSpecs
from sessions.model.stopwatch import Operation, Stage
from sessions.model.tasks import spawn
from sessions.model.tenant_limits import OwnLimits, OwnLimitsOf
from sessions.model.values import (
    ExecuteRequest,
    ExecutionEnd,
    ExecutionResult,
    ExitReason,
    KernelExit,
    SessionKey,
    SessionSpec,
    Timeouts,
)
from sessions.sandbox.sandboxes import Sandboxes
from sessions.session.registry import Registry
from sessions.session.services import SessionServices
from sessions.session.session import Session
from sessions.store.ledger import Ledger
from sessions.tenants.memory import PromisedMemory
from sessions.tenants.quotas import CONCURRENT, Quotas, TenantLimits
from sessions.tenants.shares import NOBODY
from sessions.tenants.sleep_disk import SleepDisk
from sessions.tenants.workspaces import WorkspaceDisk
from sessions.upkeep.recovery import Recovery
from sessions.upkeep.strays import Strays

Json = dict[str, Any]
#: bytes of a tenant's messages that may wait for kernels, unless a test sets another number
MOST_WAITING = 2**30

# -- messages of a kernel --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saying:
    """One message of a kernel, before it has a parent."""

    type: str
    content: Json

    def to(self, parent_id: str, channel: str = "iopub") -> Message:
        """Return the message as the gateway receives it, as an answer to the request `parent_id`."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": self.type}
        parent = {"msg_id": parent_id} if parent_id else {}
        return Message(channel, header, parent, {}, self.content, size=200 + len(str(self.content)))


def status(state: str) -> Saying:
    return Saying("status", {"execution_state": state})


def busy() -> Saying:
    return status("busy")


def idle() -> Saying:
    return status("idle")


def started(code: str, count: object = 1) -> Saying:
    return Saying("execute_input", {"code": code, "execution_count": count})


def stream(text: object, name: object = "stdout") -> Saying:
    return Saying("stream", {"name": name, "text": text})


def display(text: str, display_id: str | None = None) -> Saying:
    transient = {} if display_id is None else {"display_id": display_id}
    return Saying("display_data", {"data": {"text/plain": text}, "metadata": {}, "transient": transient})


def update(text: str, display_id: str) -> Saying:
    return Saying("update_display_data", display(text, display_id).content)


def result(text: str, count: object = 1, display_id: str | None = None) -> Saying:
    return Saying("execute_result", {**display(text, display_id).content, "execution_count": count})


def error(name: str = "ValueError", value: str = "bad") -> Saying:
    return Saying("error", {"ename": name, "evalue": value, "traceback": [f"{name}: {value}"]})


def clear(*, wait: bool) -> Saying:
    return Saying("clear_output", {"wait": wait})


# -- one cell, seen from inside the kernel ---------------------------------------------------------------------


class Cell:
    """An execute request that the kernel runs."""

    def __init__(self, kernel: FakeKernel, request: Json, identity: bytes) -> None:
        self.kernel = kernel
        self.request = request
        self.code: str = request["content"]["code"]
        self.id: str = request["header"]["msg_id"]
        self._identity = identity

    def says(self, *sayings: Saying) -> None:
        """Publish messages on iopub."""
        for saying in sayings:
            self.kernel.publish(saying, self.request)

    def replies(self, state: str = "ok", **content: Any) -> None:
        """Answer on shell."""
        content = {"status": state, "execution_count": self.kernel.count, **content}
        self.kernel.send("shell", Saying("execute_reply", content), self.request, self._identity)

    def ends(self, state: str = "ok", **content: Any) -> None:
        """Answer on shell and publish `idle`."""
        self.replies(state, **content)
        self.says(idle())

    async def asks(self, prompt: str = "") -> str:
        """Ask for input, and wait for the answer."""
        self.kernel.answer = asyncio.get_running_loop().create_future()
        question = Saying("input_request", {"prompt": prompt, "password": False})
        self.kernel.send("stdin", question, self.request, self._identity)
        return await self.kernel.answer

    async def is_interrupted(self) -> None:
        """Run until interrupted, like `time.sleep`."""
        self.kernel.interrupted.clear()
        await self.kernel.interrupted.wait()
        raise KeyboardInterruptedCell


class KeyboardInterruptedCell(Exception):
    """Exception of the fake in place of KeyboardInterrupt, which pytest handles itself."""


Script = Callable[[Cell], Awaitable[None]]


STANDS = Saying("debug_event", {"event": "stopped", "body": {"threadId": 1, "reason": "breakpoint"}})


async def stands(cell: Cell) -> None:
    """Stop at a breakpoint until an interrupt, as debugpy does."""
    cell.says(busy(), started(cell.code), STANDS)
    with contextlib.suppress(KeyboardInterruptedCell):
        await cell.is_interrupted()
    cell.ends("error", ename="KeyboardInterrupt")


async def python(cell: Cell) -> None:
    """Behave like a Python kernel, as far as tests of the gateway need it."""
    cell.kernel.count += 1
    cell.says(busy(), started(cell.code, cell.kernel.count))
    printed = io.StringIO()
    try:
        match cell.code:
            case "import time; time.sleep(60)":
                await cell.is_interrupted()
            case "import os; os._exit(3)":
                cell.kernel.dies(3)
                return
            case "import json, os; print(json.dumps(dict(os.environ)))":
                printed.write(json.dumps(cell.kernel.namespace["env"]) + "\n")
            case _:
                with contextlib.redirect_stdout(printed), contextlib.chdir(cell.kernel.workspace):
                    exec(compile(ast.parse(cell.code), "<cell>", "exec"), cell.kernel.namespace)  # noqa: S102
    except KeyboardInterruptedCell:
        cell.says(error("KeyboardInterrupt", ""))
        cell.ends("error", ename="KeyboardInterrupt")
    except Exception as raised:  # noqa: BLE001 - a cell may raise anything
        cell.says(error(type(raised).__name__, str(raised)))
        cell.ends("error", ename=type(raised).__name__)
    else:
        if printed.getvalue():
            cell.says(stream(printed.getvalue()))
        cell.ends()


# -- the kernel ------------------------------------------------------------------------------------------------


@dataclass
class Behaviour:
    """How the kernels of a `FakeBackend` behave."""

    #: script for a cell with exactly this code; all other cells follow `python`
    scripts: dict[str, Script] = field(default_factory=dict)
    heeds_messages: bool = True
    heeds_signals: bool = True
    #: reads control while a cell runs; False: soon after its end, as with a cell that keeps the interpreter's lock
    reads_control_while_busy: bool = True
    #: answers `kernel_info` and `lease` requests; False: as a kernel that hangs while it starts
    answers: bool = True
    #: its iopub works
    audible: bool = True
    #: runs nothing before iopub has a subscriber; otherwise its first messages may be lost
    waits_for_listener: bool = True
    #: exit code with which it ends on its own before it has answered
    exits_at_once: int | None = None
    #: imports a module for a `preload_request`, and returns the problem; None: at once and without a problem
    imports: Callable[[FakeKernel, str], Awaitable[str]] | None = None
    #: returns the output of its tools, in place of the real ones
    tool: Callable[[str], bytes] | None = None


#: seconds from a cell's end until the kernel reads control, if it does not while a cell runs
SOON = 0.03
#: bytes that each fake kernel claims to use
MEMORY = 64 * 1024**2


#: what the debugger of a fake kernel answers, by command; `FakeKernel.debug_info` answers `debugInfo`
DEBUGGER: Json = {
    "dumpCell": {"sourcePath": "/tmp/ipykernel_1/1.py"},
    "setBreakpoints": {"breakpoints": []},
    "stackTrace": {"stackFrames": [{"id": 7, "name": "f", "line": 1, "source": {"path": "/tmp/ipykernel_1/1.py"}}]},
    "scopes": {"scopes": [{"name": "Locals", "variablesReference": 3}]},
    "variables": {"variables": [{"name": "x", "value": "1", "type": "int"}]},
}


class Failures(dict[str, Exception]):
    """Errors that the methods of a backend and its handles raise, by method name, until a test removes them."""

    def strike(self, method: str) -> None:
        """Raise the error of this method, if it has one."""
        if method in self:
            raise self[method]


class FakeKernel:
    """A kernel's sockets, its task that runs cells, and its handle."""

    def __init__(
        self,
        info: ConnectionInfo,
        behaviour: Behaviour,
        launch: Launch,
        workspace: Path,
        failures: Failures | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.connection_info = info
        self.listener: HandleListener | None = None
        self.tenant = NOBODY
        #: how often the gateway announced a message
        self.roused = 0
        self.paused = False
        self.behaviour = behaviour
        self.failures = Failures() if failures is None else failures
        #: seconds of processor time that it claims to have used
        self.computed = 0.0
        self.launch = launch
        self.workspace = workspace
        self.namespace: Json = {"env": kernel_env(launch, str(workspace), {})}
        self.count = 0
        self.interrupted = asyncio.Event()
        #: kinds of the interrupts that it got, in order
        self.interrupts: list[str] = []
        #: types of all messages that it got
        self.taken: list[str] = []
        #: modules that it was asked to import ahead of need
        self.preloaded: list[str] = []
        #: breakpoints by their source; None: no debugger is attached
        self.breakpoints: dict[str, Any] | None = None
        #: whether the debugger has stopped the cell
        self.stands = False
        #: directory that a lease gave it
        self.cwd = ""
        #: code of all cells that it has run
        self.executed: list[str] = []
        self.answer: asyncio.Future[str] | None = None
        self._tools: set[asyncio.subprocess.Process] = set()
        self._codec = Codec(key=info.key, username="kernel", signature_scheme=info.signature)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[KernelExit] = self._loop.create_future()
        #: set while somebody reads iopub
        self.subscribed = asyncio.Event()
        self._at_work = False
        #: messages on control that it has not read yet
        self.unread: list[list[bytes]] = []
        self._inbox: asyncio.Queue[tuple[bytes, Json]] = asyncio.Queue()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for channel in ("shell", "control", "stdin", "iopub"):
            self.bind(channel)
        self._worker = spawn(self._work(), f"fake kernel {self.id}")
        if behaviour.exits_at_once is not None:
            self._loop.call_soon(self.dies, behaviour.exits_at_once)

    # -- sockets

    def bind(self, channel: str) -> None:
        """Listen on a channel."""
        self._sockets[channel] = self._bind(channel, zmq.XPUB if channel == "iopub" else zmq.ROUTER)

    def unbind(self, channel: str) -> None:
        """Stop listening on a channel; the kernel continues."""
        socket = self._sockets.pop(channel)
        self._loop.remove_reader(socket.FD)
        socket.close()

    def _bind(self, channel: str, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        socket.linger = 0
        socket.sndhwm = 0
        if kind == zmq.XPUB:
            socket.xpub_verbose = 1
        else:
            socket.router_handover = 1
        if self.connection_info.curve_secretkey is not None:
            socket.curve_server = True
            socket.curve_secretkey = self.connection_info.curve_secretkey
        socket.bind(self.connection_info.url(channel))
        self._loop.add_reader(socket.FD, self._drain, channel, socket)
        return socket

    def _drain(self, channel: str, socket: zmq.Socket[bytes]) -> None:
        while not socket.closed:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if channel == "iopub":  # a subscription, or the end of the last one
                (self.subscribed.set if frames[0].startswith(b"\x01") else self.subscribed.clear)()
            elif channel == "control" and self._at_work and not self.behaviour.reads_control_while_busy:
                self.unread.append(frames)
            else:
                self._receive(channel, frames)

    def _read_control(self) -> None:
        while self.unread and self.alive:
            self._receive("control", self.unread.pop(0))

    def _receive(self, channel: str, frames: list[bytes]) -> None:
        identities, parts = self._codec.feed_identities(frames)
        message: Json = self._codec.deserialize(parts)
        self.taken.append(message["msg_type"])
        match channel, message["msg_type"]:
            case "control", "interrupt_request":
                self.send("control", Saying("interrupt_reply", {"status": "ok"}), message, identities[0])
                self._interrupt("message", heeded=self.behaviour.heeds_messages)
            case "control", _:
                self._answer_on_control(message, identities[0])
            case "stdin", "input_reply" if self.answer is not None and not self.answer.done():
                self.answer.set_result(message["content"]["value"])
            case "shell", _:
                self._inbox.put_nowait((identities[0], message))

    def _answer_on_control(self, message: Json, identity: bytes) -> None:
        if not self.behaviour.answers:
            return
        if message["msg_type"] == LEASE_REQUEST:
            self.namespace["env"] = self.namespace["env"] | message["content"]["env"]
            self.cwd = message["content"]["cwd"]
        kind = message["msg_type"].replace("request", "reply")
        content: Json = {"status": "ok"}
        if kind == "debug_reply":
            content = {"success": True, "body": self._debug(message["content"])}
        self.send("control", Saying(kind, content), message, identity)

    def _debug(self, request: Json) -> Json:
        match request["command"]:
            case "initialize":
                self.breakpoints = {}
            case "setBreakpoints" if self.breakpoints is not None:
                self.breakpoints[request["arguments"]["source"]["path"]] = request["arguments"]["breakpoints"]
            case "disconnect":
                self.breakpoints, self.stands = None, False
            case "debugInfo":
                told = [{"source": source, "breakpoints": those} for source, those in (self.breakpoints or {}).items()]
                threads = [1] if self.stands else []
                return {"isStarted": self.breakpoints is not None, "breakpoints": told, "stoppedThreads": threads}
        return dict(DEBUGGER.get(request["command"], {}))

    def send(self, channel: str, saying: Saying, parent: Json | None, identity: bytes) -> None:
        """Send one message, signed."""
        message = self._codec.msg(saying.type, saying.content, parent=parent)
        self.send_raw(channel, self._codec.serialize(message, identity))

    def publish(self, saying: Saying, parent: Json | None) -> None:
        """Publish one message on iopub."""
        self.stands = self.stands or saying.content.get("event") == "stopped"
        self.send("iopub", saying, parent, b"topic")

    def send_raw(self, channel: str, frames: list[bytes]) -> None:
        """Send frames as they are."""
        if self._exit.done() or (channel == "iopub" and not self.behaviour.audible):
            return
        socket = self._sockets[channel]
        socket.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._drain, channel, socket)

    def signed(self, *parts: bytes) -> list[bytes]:
        """Return the frames of a message with these parts and a valid signature, even if the parts are invalid."""
        return [b"topic", b"<IDS|MSG>", self._codec.sign(list(parts)), *parts]

    # -- work

    async def _work(self) -> None:
        if self.behaviour.waits_for_listener:
            await self.subscribed.wait()
        while True:
            identity, request = await self._inbox.get()
            if request["msg_type"] == "execute_request":
                cell = Cell(self, request, identity)
                self.executed.append(cell.code)
                self._at_work = True
                await self.behaviour.scripts.get(cell.code, python)(cell)
                self._at_work = False
                self._loop.call_later(SOON, self._read_control)
            elif request["msg_type"] == PRELOAD_REQUEST:
                await self._preload(request, identity)
            elif self.behaviour.answers:
                self.publish(busy(), request)
                self.send("shell", Saying("kernel_info_reply", {"status": "ok"}), request, identity)
                self.publish(idle(), request)

    async def _preload(self, request: Json, identity: bytes) -> None:
        module = request["content"]["module"]
        self.preloaded.append(module)
        self.publish(busy(), request)
        problem = await self.behaviour.imports(self, module) if self.behaviour.imports else ""
        self.send("shell", Saying("preload_reply", {"status": "ok", "problem": problem}), request, identity)
        self.publish(idle(), request)

    def _interrupt(self, how: str, *, heeded: bool) -> None:
        self.interrupts.append(how)
        if heeded:
            self.interrupted.set()

    def dies(self, code: int = 1, reason: ExitReason = ExitReason.EXITED) -> None:
        """End now."""
        if self._exit.done():
            return
        self._exit.set_result(KernelExit(reason, code))
        self._worker.cancel()
        for tool in self._tools:
            with contextlib.suppress(ProcessLookupError):
                tool.kill()
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.close()

    # -- handle

    @property
    def alive(self) -> bool:
        return not self._exit.done()

    async def pause(self) -> None:
        self.failures.strike("pause")
        self.paused = True

    async def resume(self) -> None:
        self.failures.strike("resume")
        self.paused = False

    @property
    def used_at(self) -> float:
        return self.roused

    def make_responsive(self) -> None:
        self.failures.strike("make_responsive")
        self.roused += 1

    def attach(self, listener: HandleListener, tenant: str) -> None:
        self.failures.strike("attach")
        self.listener, self.tenant = listener, tenant

    def runs_out_of_memory(self) -> None:
        """Report that memory ran out, and go on."""
        if self.listener is None:
            raise RuntimeError("nobody uses this kernel")
        self.listener.on_out_of_memory(self)

    async def wait(self) -> KernelExit:
        self.failures.strike("wait")
        return await asyncio.shield(self._exit)

    async def interrupt(self) -> None:
        self.failures.strike("interrupt")
        self._interrupt("signal", heeded=self.behaviour.heeds_signals)

    def memory(self) -> int | None:
        self.failures.strike("memory")
        return MEMORY if self.alive else None

    def processor_seconds(self) -> float | None:
        self.failures.strike("processor_seconds")
        return self.computed if self.alive else None

    async def kill(self) -> None:
        self.failures.strike("kill")
        self.dies(137, ExitReason.KILLED)
        await self.wait()

    async def run_tool(
        self, name: str, argument: str, stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.failures.strike("run_tool")
        if not self.alive:
            raise ConnectionFailed
        if self.behaviour.tool is not None:
            yield self.behaviour.tool(argument)
            return
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(KERNEL_IMAGE / f"{name}.py"), argument),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=self.workspace,
            env={},
        )
        assert program.stdin is not None
        assert program.stdout is not None
        self._tools.add(program)
        feeding = spawn(_feed(program.stdin, stdin), f"input of {name}")
        try:
            while piece := await program.stdout.read(65536):
                if not self.alive:
                    raise ConnectionFailed
                yield piece
            if not self.alive:  # killed before the tool had more to say
                raise ConnectionFailed
        finally:
            self._tools.discard(program)
            feeding.cancel()
            program.stdin.close()
            await program.communicate()


async def _feed(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    with contextlib.suppress(ConnectionError):  # the tool may answer before it has read all input
        async for piece in stdin or _nothing():
            pipe.write(piece)
            await pipe.drain()
        pipe.close()


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


# -- the listener ----------------------------------------------------------------------------------------------


class Listener:
    """Records the events of a connection or a kernel."""

    #: whether a client uses the kernel
    in_use = False

    def __init__(self, handle: Callable[[Message], None] | None = None) -> None:
        #: called with each message, besides the list
        self.handle = handle
        self.messages: list[Message] = []
        self.shell_losses = 0
        self.times_broken = 0
        self.broken = asyncio.Event()
        self.unreachable = asyncio.Event()

    def on_message(self, message: Message) -> None:
        self.messages.append(message)
        if self.handle is not None:
            self.handle(message)

    def on_shell_loss(self) -> None:
        self.shell_losses += 1

    def on_broken(self) -> None:
        self.times_broken += 1
        self.broken.set()

    def on_unreachable(self) -> None:
        self.unreachable.set()

    def received(self, message: Message) -> None:
        self.on_message(message)

    def missed(self, _kernel: object) -> None:
        self.shell_losses += 1


def connect(info: ConnectionInfo, listener: Listener | None = None, *, most: int, prelude: str = "") -> Connection:
    """Open a connection whose frames may have `most` bytes."""
    connection = Connection(info, listener or Listener(), max_message_bytes=most, prelude=prelude)
    connection.open()
    return connection


# -- the backend -----------------------------------------------------------------------------------------------


class FakeSleep:
    """Keeps the namespaces of scripted kernels, as if they were on disk."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.ability = Ability(on=True, detail="scripted kernels can sleep")
        #: kernels that sleep, by the id of their image
        self.kept: dict[str, FakeKernel] = {}
        #: copies of kernels, by the id of their image: namespace, number of cells, and directory of the files
        self.copies: dict[str, tuple[Json, int, Path]] = {}
        #: kernels that were copied together, by the id of their image: namespace, and number of cells
        self.moments: dict[str, tuple[Json, int]] = {}
        #: bytes that the image of each kernel has
        self.size = 1000
        #: why no image can be used; empty: each can
        self.damaged = ""
        #: why no kernel can be written; empty: each can
        self.refuses = ""
        #: number of copies that the disk itself has room for
        self.room = 100
        #: whether kernels that are written have connections to other hosts
        self.cuts = False
        #: number of attempts to write a kernel
        self.asked = 0
        #: attempts to wake a kernel that will fail
        self.fails = 0
        #: trials of an image that will fail
        self.unproven = 0
        #: while it is not set, a kernel that falls asleep waits
        self.gate = asyncio.Event()
        self.gate.set()

    async def take(self, handle: KernelHandle, _launch: Launch) -> SleepImage:
        self.asked += 1
        kernel = await self._written("take", handle)
        self.kept[kernel.id] = kernel
        return SleepImage(kernel.id, self.size, time.time(), "written down", self.cuts)

    async def _written(self, method: str, handle: KernelHandle) -> FakeKernel:
        """Begin to write a kernel, unless that is refused, it has ended, or the attempt is to fail."""
        await self.gate.wait()
        self._backend.failures.strike(method)
        if self.refuses:
            raise SleepFailed(self.refuses)
        kernel = next((kernel for kernel in self._backend.alive if kernel.id == handle.id), None)
        if kernel is None:
            raise SleepFailed("it has ended")
        return kernel

    async def resume(self, _handle: KernelHandle) -> None:
        self._backend.failures.strike("resume")

    @contextlib.asynccontextmanager
    async def trial(self, image: SleepImage, launch: Launch, _info: ConnectionInfo) -> AsyncIterator[FakeKernel]:
        self._backend.failures.strike("trial")
        if self.unproven:
            self.unproven -= 1
            raise StartFailed
        kernel = await self._continued(image, launch, self._backend.new_info(launch))  # the other one still listens
        kernel.namespace = dict(kernel.namespace)
        if "hangs" in kernel.namespace:  # its user's code has seen to that
            kernel.behaviour = replace(kernel.behaviour, answers=False)
        try:
            yield kernel
        finally:
            await kernel.kill()

    async def wake(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> FakeKernel:
        await self._begins("wake", image, {*self.kept, *self.moments})
        if image.id in self.moments:
            kernel = await self._backend.start(launch)
            namespace, kernel.count = self.moments[image.id]
            kernel.namespace = dict(namespace)
            return kernel
        return await self._continued(image, launch, info)

    async def _begins(self, method: str, image: SleepImage, images: Collection[str]) -> None:
        """Begin to continue from an image, unless it is damaged, gone, or the attempt is to fail."""
        self._backend.failures.strike(method)
        await self._backend.gate.wait()
        if self.damaged or image.id not in images:
            raise CannotWake(self.damaged or "it is gone")
        if self.fails:
            self.fails -= 1
            raise StartFailed

    async def _continued(self, image: SleepImage, launch: Launch, info: ConnectionInfo) -> FakeKernel:
        slept = self.kept[image.id]
        kernel = FakeKernel(info, self._backend.behaviour, launch, slept.workspace, self._backend.failures)
        kernel.namespace, kernel.count = slept.namespace, slept.count
        self._backend.started.append(kernel)
        return kernel

    async def copy(self, handle: KernelHandle, _launch: Launch, on_resumed: Callable[[], None]) -> SleepImage:
        kernel = await self._written("copy", handle)
        if len(self.copies) >= self.room:
            raise NoRoom("the disk is full")
        image = SleepImage(uuid.uuid4().hex, self.size, time.time(), "written down", self.cuts)
        files = shutil.copytree(kernel.workspace, self._backend.copies / image.id)
        self.copies[image.id] = dict(kernel.namespace), kernel.count, Path(files)
        on_resumed()
        return image

    async def restore(self, image: SleepImage, launch: Launch, _info: ConnectionInfo) -> FakeKernel:
        await self._begins("restore", image, self.copies)
        kernel = await self._backend.start(launch)
        namespace, kernel.count, files = self.copies[image.id]
        kernel.namespace = dict(namespace)
        shutil.copytree(files, kernel.workspace, dirs_exist_ok=True)
        return kernel

    async def copy_together(self, shared: Sharing, on_resumed: Callable[[], None]) -> list[SleepImage]:
        written = [await self._written("copy_together", handle) for handle, _ in shared.kernels]
        if len(self.copies) >= self.room:
            raise NoRoom("the disk is full")
        images = []
        for kernel in written:
            images.append(SleepImage(uuid.uuid4().hex, self.size, time.time(), "written down"))
            self.moments[images[-1].id] = dict(kernel.namespace), kernel.count
        place = self._backend.root / "workspaces" / str(shared.launch.workspace)
        files = SleepImage(uuid.uuid4().hex, self.size, time.time(), "")
        self.copies[files.id] = {}, 0, Path(shutil.copytree(place, self._backend.copies / files.id))
        on_resumed()
        return [*images, files]

    async def unpack(self, files: SleepImage, launch: Launch) -> None:
        await self._begins("unpack", files, self.copies)
        shutil.copytree(self.copies[files.id][2], self._backend.root / "workspaces" / str(launch.workspace))

    async def discard(self, image: SleepImage) -> None:
        self._backend.failures.strike("discard")
        self.kept.pop(image.id, None)
        self.moments.pop(image.id, None)
        if image.id in self.copies:
            shutil.rmtree(self.copies.pop(image.id)[2])


class FakeBackend:
    """Starts kernels that follow a script."""

    name = "fake"
    isolation = "none: kernels are written down"

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        #: errors of its methods and those of its kernels
        self.failures = Failures()
        #: all kernels that were started, in order
        self.started: list[FakeKernel] = []
        #: error of each start; None: starts succeed
        self.refuses: SessionError | None = None
        #: error of the proof; None: the sandbox is ready
        self.unprepared: SessionError | None = None
        #: why it starts no kernel until the next proof, although the last one has succeeded
        self.refusal: SessionError | None = None
        self._doubt_listeners: list[Callable[[], None]] = []
        self._restore_listeners: list[Callable[[bool], None]] = []
        self.golden_images = Ability(on=False, detail="scripted kernels have none")
        self.inventory = Inventory("3.0", {"bash": "5.2", "deno": "2.9"})
        self.sleep = FakeSleep(self)
        #: as if workspaces went with their last container
        self.keeps_files = False
        #: as if kernels were containers
        self.keeps_kernels = True
        self.pauses = Ability(on=True, detail="scripted kernels can be paused")
        #: as if workspaces had a disk of this size; 0: they have none
        self.room = 0
        #: while it is not set, all starts wait
        self.gate = asyncio.Event()
        self.gate.set()
        #: number of requested starts, including failed ones
        self.asked = 0
        self.root = Path(tempfile.mkdtemp(prefix="fake-"))

    def on(self, code: str, script: Script) -> str:
        """Let kernels follow `script` for a cell with this code.

        Returns:
            the code.
        """
        self.behaviour.scripts[code] = script
        return code

    def behaves(self, **changes: Any) -> None:
        """Change the behaviour of kernels that are started later."""
        self.behaviour = replace(self.behaviour, **changes)

    def report_doubts(self, listener: Callable[[], None]) -> None:
        self._doubt_listeners.append(listener)

    def report_restores(self, listener: Callable[[bool], None]) -> None:
        self._restore_listeners.append(listener)

    def doubt(self) -> None:
        """Report that a new proof is needed."""
        for listener in self._doubt_listeners:
            listener()

    def restored(self, *, succeeded: bool) -> None:
        """Report an attempt to restore a kernel."""
        for listener in self._restore_listeners:
            listener(succeeded)

    @property
    def kernel(self) -> FakeKernel:
        """The last kernel that was started."""
        return self.started[-1]

    @property
    def alive(self) -> list[FakeKernel]:
        """All running kernels."""
        return [kernel for kernel in self.started if kernel.alive]

    @property
    def copies(self) -> Path:
        """Directory with the files of copies."""
        return self.root / "copies"

    @property
    def workspaces(self) -> list[str]:
        """All workspaces."""
        return sorted(path.name for path in (self.root / "workspaces").glob("*"))

    @property
    def leftovers(self) -> int:
        return 0

    async def prepare(self) -> None:
        self.failures.strike("prepare")
        if self.unprepared is not None:
            raise self.unprepared

    async def settled(self) -> None:
        self.failures.strike("settled")

    async def adopt(
        self, kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], asleep: Collection[SleepImage] = ()
    ) -> dict[str, FakeKernel]:
        self.failures.strike("adopt")
        if self.refuses is not None:
            raise self.refuses
        for kernel in self.alive:
            if kernel.id not in kernels:
                await kernel.kill()
        known = {image.id for image in asleep}
        self.sleep.kept = {image: kernel for image, kernel in self.sleep.kept.items() if image in known}
        self.sleep.copies = {image: copy for image, copy in self.sleep.copies.items() if image in known}
        self.sleep.moments = {image: moment for image, moment in self.sleep.moments.items() if image in known}
        for workspace in set(self.workspaces) - set(workspaces):
            await self.delete_workspace(workspace)
        return {kernel.id: kernel for kernel in self.started if kernel.id in kernels}

    def new_info(self, launch: Launch) -> ConnectionInfo:
        """Return where a new kernel listens."""
        socket, spec = str(self.root / uuid.uuid4().hex[:8]), launch.kernelspec
        return new_connection_info("ipc", socket, first_port=1, encryption=spec.encryption, signature=spec.signature)

    async def start(self, launch: Launch) -> FakeKernel:
        self.asked += 1
        self.failures.strike("start")
        await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        workspace = self.root / "workspaces" / (launch.workspace or uuid.uuid4().hex)
        workspace.mkdir(parents=True, exist_ok=True)
        kernel = FakeKernel(self.new_info(launch), self.behaviour, launch, workspace, self.failures)
        self.started.append(kernel)
        return kernel

    async def delete_workspace(self, workspace: str) -> None:
        self.failures.strike("delete_workspace")
        shutil.rmtree(self.root / "workspaces" / workspace, ignore_errors=True)

    async def release(self) -> None:
        """There is nothing to free."""
        self.failures.strike("release")

    async def close(self) -> None:
        self.failures.strike("close")
        for kernel in self.started:
            kernel.dies(137, ExitReason.KILLED)
        shutil.rmtree(self.root, ignore_errors=True)


# -- the rest of the gateway's domain --------------------------------------------------------------------------

#: warm kernels preload nothing, unless a test is about that: importing costs more than most tests
NOTHING: dict[str, tuple[str, ...]] = {"python": ()}
#: kernelspecs of all languages
KERNELSPECS = KernelSpecs(KERNEL_IMAGE / "kernelspecs", NOTHING)


class PlainKernelSpecs(KernelSpecs):
    """The kernelspecs without encryption, which takes most of a fake kernel's time."""

    def find(self, language: str) -> KernelSpec:
        return replace(super().find(language), encryption=False)


PLAIN = PlainKernelSpecs(KERNEL_IMAGE / "kernelspecs", NOTHING)
PYTHON = PLAIN.find("python")
#: short timeouts; `proof` is long because the fake kernels answer at once, except one without a working iopub
#: what a kernel with the usual memory says that ran out of it
OUT_OF_MEMORY = "The kernel used more memory than its limit of 512 MiB and was ended; its variables are lost"
TIMEOUTS = Timeouts(idle=0.05, proof=5.0, interrupt_step=0.05)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Seen:
    """Records the events of a pool, and of memory on disk."""

    def __init__(self) -> None:
        #: number of warm kernels, and their wanted number, by language
        self.shelves: dict[str, tuple[int, int]] = {}
        #: for each session that a warm kernel would fit, whether it got one
        self.leases: list[bool] = []
        self.evictions = 0
        self.refills: list[float] = []
        self.starts: list[tuple[float, float | None]] = []
        #: seconds of each checkpoint, and whether it was taken
        self.checkpoints: list[tuple[float, bool]] = []
        #: seconds of each wake, and whether it succeeded
        self.wakes: list[tuple[float, bool]] = []
        #: for each return to a checkpoint, whether a crash was its cause
        self.rollbacks: list[bool] = []
        #: operations that were measured, and the seconds of their stages
        self.measured: list[tuple[Operation, dict[Stage, float]]] = []

    def depth_changed(self, language: str, kernels: int, target: int) -> None:
        self.shelves[language] = kernels, target

    def leased(self, _language: str, *, warm: bool) -> None:
        self.leases.append(warm)

    def evicted(self, _language: str) -> None:
        self.evictions += 1

    def refilled(self, _language: str, seconds: float) -> None:
        self.refills.append(seconds)

    def started(self, container: float, ready: float | None) -> None:
        self.starts.append((container, ready))

    def checkpoint(self, seconds: float, *, succeeded: bool) -> None:
        self.checkpoints.append((seconds, succeeded))

    def woken(self, seconds: float, *, succeeded: bool) -> None:
        self.wakes.append((seconds, succeeded))

    def rolled_back(self, *, crash: bool) -> None:
        self.rollbacks.append(crash)

    def stages(self, operation: Operation, seconds: Mapping[Stage, float]) -> None:
        self.measured.append((operation, dict(seconds)))


class World:
    """The parts that `kernel_gateway/app.py` builds, on a `FakeBackend`."""

    def __init__(
        self,
        backend: FakeBackend,
        *,
        pool_size: int = 0,
        pool_max: int = 0,
        sandboxes: int = 0,
        starts: int = 8,
        memory: int = 0,
        quotas: TenantLimits | None = None,
        concurrent: int = CONCURRENT,
        defaults: SessionSpec | None = None,
        timeouts: Timeouts | None = None,
        ledger: Path | None = None,
        interrupted: Collection[SessionKey] = (),
        egress_tenants: Collection[str] = (),
        sleep_disk: int = 0,
        share: float = 1.0,
        own_limits: OwnLimitsOf = OwnLimits,
    ) -> None:
        defaults = defaults or SessionSpec()
        self.backend = backend
        self.clock = Clock()
        self.readiness = Readiness(backend)
        self.seen = Seen()
        self.memory = PromisedMemory(memory, share)
        self.starts = StartQueue(
            backend, self.readiness, starts, self.seen.started, memory=self.memory, on_stages=self.seen.stages
        )
        self.pool = Pool(
            backend,
            self.starts,
            PoolSettings(defaults.limits, pool_size, pool_max, refill_delay=0, sandboxes=sandboxes),
            self.clock,
            observer=self.seen,
        )
        self.quotas = Quotas(quotas or TenantLimits(), self.clock, concurrent, share, own_limits)
        #: all executions that have ended
        self.observed: list[tuple[SessionKey, ExecuteRequest, ExecutionEnd]] = []
        #: executions that have begun and not ended, by id
        self.open: dict[str, ExecuteRequest] = {}
        #: error that each new cell gets; None: cells may begin
        self.refuses: SessionError | None = None
        self.ledger = Ledger(ledger)
        #: bytes of each tenant's messages that wait for kernels, and as many as it may have
        self.waiting, self.most_waiting = Counter[str](), MOST_WAITING
        services = SessionServices(
            self.pool,
            self.quotas,
            self.clock,
            self,
            self.ledger,
            timeouts or TIMEOUTS,
            KernelMemory(backend, self.starts, self.pool, SleepDisk(sleep_disk, share)),
            self.seen,
            self._wait,
            EgressTenants(egress_tenants),
            workspaces=WorkspaceDisk(lambda: backend.room, share),
            own_limits=own_limits,
        )
        self.registry = Registry(PLAIN, defaults, services)
        self.sandboxes = Sandboxes(self.registry, services)
        self.services = services
        #: number of kernels that belonged to nobody, and were ended
        self.stray = 0
        self.strays = Strays(
            backend,
            self.starts,
            self.pool,
            self.registry,
            self.sandboxes,
            clock=self.clock,
            on_found=self._found_stray,
        )
        self.recovery = Recovery(backend, self.starts, self.registry, self.sandboxes, interrupted=interrupted)
        self.readiness.run_after_first_proof(self.recovery)

    def _wait(self, tenant: str, count: int) -> bool:
        if count > 0 and self.waiting[tenant] + count > self.most_waiting:
            return False
        self.waiting[tenant] += count
        return True

    def _found_stray(self) -> None:
        self.stray += 1

    def begins(self, _key: SessionKey, _language: str, request: ExecuteRequest) -> str:
        """Record that a cell is about to run."""
        if self.refuses is not None:
            raise self.refuses
        execution = uuid.uuid4().hex
        self.open[execution] = request
        return execution

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, end: ExecutionEnd | None) -> None:
        """Record the end of an execution, and check that it ends once and with the request that it began with."""
        assert self.open.pop(execution) == request
        if end is not None:
            self.quotas.charge_execution(key.tenant, end.duration, end.output_bytes)
            self.observed.append((key, request, end))

    def left(self, execution: str) -> None:
        """Forget an execution that goes on when the gateway ends."""
        del self.open[execution]

    async def session(self, name: str = "s1", tenant: str = "acme") -> Session:
        """Return the session with this name, made on first use."""
        return await self.registry.get_or_create(SessionKey(tenant, name))

    async def close(self) -> None:
        """Shut down like the gateway."""
        await self.sandboxes.close()
        await self.registry.close()
        await self.pool.close()
        self.ledger.close()


@contextlib.asynccontextmanager
async def world_over(backend: FakeBackend, **settings: Any) -> AsyncIterator[World]:
    """Make a world, and check after its end that nothing of it is left."""
    world = World(backend, **settings)
    assert await world.readiness.check()
    try:
        yield world
    finally:
        await world.close()
    # Closing all sessions ends all kernels and deletes all workspaces.
    assert world.open == {}
    assert (world.quotas.running, world.quotas.waiting) == (0, 0)
    assert not +world.waiting
    assert not -world.waiting
    assert backend.alive == []
    assert backend.workspaces == []


async def run(session: Session, code: str, **request: Any) -> ExecutionResult:
    """Run one cell to its end."""
    async with session.execute(ExecuteRequest(code, **request)) as execution:
        return await execution.result()


def exported(transcript: Transcript) -> Json:
    """Return the transcript of a Python session as a notebook."""
    book: Json = json.loads(b"".join(notebook(transcript.cells(), PYTHON)))
    return book


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a condition is not an event
            await asyncio.sleep(0.001)


def background(name: str) -> list[asyncio.Task[Any]]:
    """Return the tasks that go on under a name that begins so."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(name)]
