"""A kernel that follows a script, and a backend that starts such kernels.

What lies between kernel and gateway is real: sockets, signatures, encryption, the order of messages. Only what the
kernel *does* is written down by a test, as an async function that speaks for the kernel::

    async def loses_idle(cell: Cell) -> None:
        cell.says(busy(), stream("hi"))
        cell.replies()

Everything runs in the test's own event loop, so a test sees each step and waits for none.
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
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session as Codec

from sessions.backends.base import KERNEL_IMAGE, Launch, kernel_env, new_connection_info, nobody_cares
from sessions.errors import ConnectionFailed, SessionError
from sessions.execution import Patience
from sessions.kernelspecs import KernelSpec, KernelSpecs
from sessions.ledger import Ledger
from sessions.messages import Message
from sessions.models import (
    ConnectionInfo,
    ExecuteRequest,
    ExecutionResult,
    ExitReason,
    KernelExit,
    SessionKey,
    SessionSpec,
)
from sessions.pool import Pool, Stock
from sessions.quotas import CONCURRENT, Quotas, TenantLimits
from sessions.readiness import Readiness
from sessions.recovery import Recovery
from sessions.registry import Registry
from sessions.sandboxes import Sandboxes
from sessions.session import Session
from sessions.starts import Starts
from sessions.surroundings import Surroundings
from sessions.tasks import spawn

Json = dict[str, Any]

# -- what a kernel can say -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saying:
    """One message as a kernel words it, before it has a parent."""

    type: str
    content: Json

    def to(self, parent_id: str, channel: str = "iopub") -> Message:
        """The message as it arrives when it answers the request `parent_id`."""
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
    """An execute request that the kernel has taken up."""

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
        """Answer on shell and be idle."""
        self.replies(state, **content)
        self.says(idle())

    async def asks(self, prompt: str = "") -> str:
        """Ask for input, and wait for the answer."""
        self.kernel.answer = asyncio.get_running_loop().create_future()
        question = Saying("input_request", {"prompt": prompt, "password": False})
        self.kernel.send("stdin", question, self.request, self._identity)
        return await self.kernel.answer

    async def is_interrupted(self) -> None:
        """Work until interrupted, as `time.sleep` does."""
        self.kernel.interrupted.clear()
        await self.kernel.interrupted.wait()
        raise KeyboardInterruptedCell


class KeyboardInterruptedCell(Exception):
    """What the fake raises for KeyboardInterrupt, which pytest keeps for itself."""


Script = Callable[[Cell], Awaitable[None]]


async def python(cell: Cell) -> None:
    """Behave as a Python kernel does, as far as a test of what surrounds it needs one."""
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

    #: what a cell of this very code makes them do; any other is run by `python`
    scripts: dict[str, Script] = field(default_factory=dict)
    heeds_messages: bool = True
    heeds_signals: bool = True
    #: reads control while a cell runs, which one that keeps the interpreter's lock does not, but soon after its end
    hears_at_work: bool = True
    #: answers when it is asked who it is; a kernel that does not is one that hangs while it starts
    answers: bool = True
    #: its iopub works
    audible: bool = True
    #: takes up nothing before somebody listens on iopub; otherwise what it says first may go unheard
    waits_for_listener: bool = True
    #: ends by itself before it has answered, with this code
    exits_at_once: int | None = None
    #: what its tools say, in place of the real ones
    tool: Callable[[str], bytes] | None = None


#: seconds from a cell's end until control is read that was not at work
SOON = 0.03
#: bytes that any of them claims to use
MEMORY = 64 * 1024**2


class Failures(dict[str, Exception]):
    """What the methods of a backend and its handles raise, by the methods' names, until it is taken away again."""

    def strike(self, method: str) -> None:
        """Fail if this method is to."""
        if method in self:
            raise self[method]


class FakeKernel:
    """A kernel's sockets, its one thread of work, and its handle."""

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
        self.on_out_of_memory: Callable[[], None] = nobody_cares
        self.behaviour = behaviour
        self.failures = Failures() if failures is None else failures
        self.launch = launch
        self.workspace = workspace
        self.namespace: Json = {"env": kernel_env(launch, str(workspace))}
        self.count = 0
        self.interrupted = asyncio.Event()
        #: how it was asked to stop its cell, in order
        self.interrupts: list[str] = []
        #: the types of all messages it was sent
        self.taken: list[str] = []
        #: the directory it was given after its start
        self.cwd = ""
        #: the code of all cells it has taken up
        self.executed: list[str] = []
        self.answer: asyncio.Future[str] | None = None
        self._codec = Codec(key=info.key, username="kernel", signature_scheme=info.signature)
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[KernelExit] = self._loop.create_future()
        self._heard = asyncio.Event()
        self._at_work = False
        #: what came on control and is not read yet
        self.unread: list[list[bytes]] = []
        self._inbox: asyncio.Queue[tuple[bytes, Json]] = asyncio.Queue()
        self._sockets = {
            "shell": self._bind("shell", zmq.ROUTER),
            "control": self._bind("control", zmq.ROUTER),
            "stdin": self._bind("stdin", zmq.ROUTER),
            "iopub": self._bind("iopub", zmq.XPUB),
        }
        self._worker = spawn(self._work(), f"fake kernel {self.id}")
        if behaviour.exits_at_once is not None:
            self._loop.call_soon(self.dies, behaviour.exits_at_once)

    # -- sockets

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
            if channel == "iopub":  # a subscription
                self._heard.set()
            elif channel == "control" and self._at_work and not self.behaviour.hears_at_work:
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
        if message["msg_type"] == "lease_request":
            self.namespace["env"] |= message["content"]["env"]
            self.cwd = message["content"]["cwd"]
        kind = message["msg_type"].replace("request", "reply")
        self.send("control", Saying(kind, {"status": "ok"}), message, identity)

    def send(self, channel: str, saying: Saying, parent: Json | None, identity: bytes) -> None:
        """Send one message, signed."""
        message = self._codec.msg(saying.type, saying.content, parent=parent)
        self.send_raw(channel, self._codec.serialize(message, identity))

    def publish(self, saying: Saying, parent: Json | None) -> None:
        """Send one message to whoever listens."""
        self.send("iopub", saying, parent, b"topic")

    def send_raw(self, channel: str, frames: list[bytes]) -> None:
        """Send frames as they are."""
        if self._exit.done() or (channel == "iopub" and not self.behaviour.audible):
            return
        socket = self._sockets[channel]
        socket.send_multipart(frames, zmq.NOBLOCK)
        self._loop.call_soon(self._drain, channel, socket)

    def signed(self, *parts: bytes) -> list[bytes]:
        """A message of these parts with the right signature, whatever they hold."""
        return [b"topic", b"<IDS|MSG>", self._codec.sign(list(parts)), *parts]

    # -- work

    async def _work(self) -> None:
        if self.behaviour.waits_for_listener:
            await self._heard.wait()
        while True:
            identity, request = await self._inbox.get()
            if request["msg_type"] == "execute_request":
                cell = Cell(self, request, identity)
                self.executed.append(cell.code)
                self._at_work = True
                await self.behaviour.scripts.get(cell.code, python)(cell)
                self._at_work = False
                self._loop.call_later(SOON, self._read_control)
            elif self.behaviour.answers:
                self.publish(busy(), request)
                self.send("shell", Saying("kernel_info_reply", {"status": "ok"}), request, identity)
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
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.close()

    # -- handle

    @property
    def alive(self) -> bool:
        return not self._exit.done()

    async def wait(self) -> KernelExit:
        self.failures.strike("wait")
        return await asyncio.shield(self._exit)

    async def interrupt(self) -> None:
        self.failures.strike("interrupt")
        self._interrupt("signal", heeded=self.behaviour.heeds_signals)

    def memory(self) -> int | None:
        self.failures.strike("memory")
        return MEMORY if self.alive else None

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
        feeding = spawn(_feed(program.stdin, stdin), f"input of {name}")
        try:
            while piece := await program.stdout.read(65536):
                yield piece
        finally:
            feeding.cancel()
            program.stdin.close()
            await program.communicate()


async def _feed(pipe: asyncio.StreamWriter, stdin: AsyncIterable[bytes] | None) -> None:
    with contextlib.suppress(ConnectionError):  # it has its answer ready before it has read all
        async for piece in stdin or _nothing():
            pipe.write(piece)
            await pipe.drain()
        pipe.close()


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


# -- the backend -----------------------------------------------------------------------------------------------


class FakeBackend:
    """Starts kernels that follow a script."""

    name = "fake"
    isolation = "none: kernels are written down"

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        #: what any of its methods, or of its kernels', raises from now on
        self.failures = Failures()
        #: every kernel that was started, in order
        self.started: list[FakeKernel] = []
        #: why nothing can be started
        self.refuses: SessionError | None = None
        #: why the sandbox is not ready
        self.unprepared: SessionError | None = None
        self.on_doubt: Callable[[], None] = nobody_cares
        #: closed, it holds up every start
        self.gate = asyncio.Event()
        self.gate.set()
        #: how many starts were asked for, failed ones included
        self.asked = 0
        self._root = Path(tempfile.mkdtemp(prefix="fake-"))

    def on(self, code: str, script: Script) -> str:
        """Let kernels follow `script` when they are sent `code`.

        Returns:
            the code.
        """
        self.behaviour.scripts[code] = script
        return code

    def behaves(self, **changes: Any) -> None:
        """Let kernels that are started from now on behave differently."""
        self.behaviour = replace(self.behaviour, **changes)

    @property
    def kernel(self) -> FakeKernel:
        """The kernel that was started last."""
        return self.started[-1]

    @property
    def alive(self) -> list[FakeKernel]:
        """Every kernel that runs."""
        return [kernel for kernel in self.started if kernel.alive]

    @property
    def workspaces(self) -> list[str]:
        """Every workspace there is."""
        return sorted(path.name for path in (self._root / "workspaces").glob("*"))

    async def prepare(self) -> None:
        self.failures.strike("prepare")
        if self.unprepared is not None:
            raise self.unprepared

    async def adopt(self, kernels: Mapping[str, ConnectionInfo]) -> dict[str, FakeKernel]:
        self.failures.strike("adopt")
        if self.refuses is not None:
            raise self.refuses
        for kernel in self.alive:
            if kernel.id not in kernels:
                await kernel.kill()
        held = {kernel.workspace.name for kernel in self.alive}
        for workspace in set(self.workspaces) - held:
            await self.delete_workspace(workspace)
        return {kernel.id: kernel for kernel in self.started if kernel.id in kernels}

    async def start(self, launch: Launch) -> FakeKernel:
        self.asked += 1
        self.failures.strike("start")
        await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        workspace = self._root / "workspaces" / (launch.workspace or uuid.uuid4().hex)
        workspace.mkdir(parents=True, exist_ok=True)
        socket = str(self._root / uuid.uuid4().hex[:8])
        spec = launch.kernelspec
        info = new_connection_info("ipc", socket, first_port=1, encryption=spec.encryption, signature=spec.signature)
        kernel = FakeKernel(info, self.behaviour, launch, workspace, self.failures)
        self.started.append(kernel)
        return kernel

    async def delete_workspace(self, workspace: str) -> None:
        self.failures.strike("delete_workspace")
        shutil.rmtree(self._root / "workspaces" / workspace, ignore_errors=True)

    async def release(self) -> None:
        """There is nothing to free."""
        self.failures.strike("release")

    async def close(self) -> None:
        self.failures.strike("close")
        for kernel in self.started:
            kernel.dies(137, ExitReason.KILLED)
        shutil.rmtree(self._root, ignore_errors=True)


# -- the rest of a small world ---------------------------------------------------------------------------------

#: the languages there are
KERNELSPECS = KernelSpecs(KERNEL_IMAGE / "kernelspecs")


class PlainKernelSpecs(KernelSpecs):
    """The same without encryption, which takes most of a fake kernel's time."""

    def find(self, language: str) -> KernelSpec:
        return replace(super().find(language), encryption=False)


PLAIN = PlainKernelSpecs(KERNEL_IMAGE / "kernelspecs")
PYTHON = PLAIN.find("python")
#: as little as a test can wait for; who waits for proof gets it, unless a kernel is mute
PATIENCE = Patience(idle=0.05, proof=5.0, rung=0.05)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


class Seen:
    """What a pool tells of itself."""

    def __init__(self) -> None:
        #: kernels that wait, and that ought to, by language
        self.shelves: dict[str, tuple[int, int]] = {}
        #: for each session that could have had a warm kernel, whether it got one
        self.leases: list[bool] = []
        self.evictions = 0
        self.refills: list[float] = []
        self.starts: list[tuple[float, float | None]] = []

    def shelved(self, language: str, kernels: int, target: int) -> None:
        self.shelves[language] = kernels, target

    def leased(self, _language: str, *, warm: bool) -> None:
        self.leases.append(warm)

    def evicted(self, _language: str) -> None:
        self.evictions += 1

    def refilled(self, _language: str, seconds: float) -> None:
        self.refills.append(seconds)

    def started(self, container: float, ready: float | None) -> None:
        self.starts.append((container, ready))


class World:
    """Everything that `kernel_gateway/app.py` would put together, over a `FakeBackend`."""

    def __init__(
        self,
        backend: FakeBackend,
        *,
        pool_size: int = 0,
        pool_max: int = 0,
        starts: int = 8,
        quotas: TenantLimits | None = None,
        concurrent: int = CONCURRENT,
        defaults: SessionSpec | None = None,
        patience: Patience | None = None,
        ledger: Path | None = None,
        interrupted: Collection[SessionKey] = (),
    ) -> None:
        defaults = defaults or SessionSpec()
        self.backend = backend
        self.clock = Clock()
        self.readiness = Readiness(backend)
        self.seen = Seen()
        self.starts = Starts(backend, self.readiness, starts, self.seen.started)
        self.pool = Pool(
            backend, self.starts, Stock(defaults.limits, pool_size, pool_max, breath=0), self.clock, self.seen
        )
        self.quotas = Quotas(quotas or TenantLimits(), self.clock, concurrent)
        #: every execution that has ended
        self.observed: list[tuple[SessionKey, ExecuteRequest, ExecutionResult]] = []
        #: executions that have begun and not ended, by what they are known as
        self.open: dict[str, ExecuteRequest] = {}
        #: what keeps a cell from beginning
        self.refuses: SessionError | None = None
        self.ledger = Ledger(ledger)
        around = Surroundings(self.pool, self.quotas, self.clock, self, self.ledger, patience or PATIENCE)
        self.registry = Registry(PLAIN, defaults, around)
        self.sandboxes = Sandboxes(self.registry, around)
        self.around = around
        self.recovery = Recovery(backend, self.registry, self.sandboxes, interrupted)
        self.readiness.first = self.recovery

    def begins(self, _key: SessionKey, _language: str, request: ExecuteRequest) -> str:
        """A cell is about to run."""
        if self.refuses is not None:
            raise self.refuses
        execution = uuid.uuid4().hex
        self.open[execution] = request
        return execution

    def ended(self, key: SessionKey, execution: str, request: ExecuteRequest, result: ExecutionResult | None) -> None:
        """It has ended: once, and as it has begun."""
        assert self.open.pop(execution) == request
        if result is not None:
            self.quotas.charge_execution(key.tenant, result.duration, result.output_bytes)
            self.observed.append((key, request, result))

    async def session(self, name: str = "s1", tenant: str = "acme") -> Session:
        """The session of this name, made on first use."""
        return await self.registry.obtain(SessionKey(tenant, name))

    async def close(self) -> None:
        """Shut down, as the gateway does."""
        await self.sandboxes.close()
        await self.registry.close()
        await self.pool.close()
        self.ledger.close()


@contextlib.asynccontextmanager
async def world_over(backend: FakeBackend, **settings: Any) -> AsyncIterator[World]:
    """A world of its own, whose end is complete."""
    world = World(backend, **settings)
    assert await world.readiness.check()
    try:
        yield world
    finally:
        await world.close()
    # Whoever closes all sessions has ended all kernels and deleted all workspaces.
    assert world.open == {}
    assert (world.quotas.running, world.quotas.waiting) == (0, 0)
    assert backend.alive == []
    assert backend.workspaces == []


async def run(session: Session, code: str, **request: Any) -> ExecutionResult:
    """Run one cell to its end."""
    async with session.execute(ExecuteRequest(code, **request)) as execution:
        return await execution.result()


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Let the event loop run until something holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a condition is not an event
            await asyncio.sleep(0.001)
