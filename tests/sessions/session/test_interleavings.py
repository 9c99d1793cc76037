"""Any two concurrent operations leave a session consistent, in any order and with any delay between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sessions.model.errors import SessionClosed, SessionError, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import ExecutionResult, SandboxSpec, SessionKey, SessionSpec, StateChange, Status
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.quotas import TenantLimits
from sessions.upkeep.culler import Culler
from tests.fakes import Cell, FakeBackend, World, background, run, until, world_over

KEY, ORIGIN = SessionKey("acme", "s1"), SessionKey("acme", "origin")
#: a session may have this name, and another one from which it can be branched
QUOTA = 2
#: iterations of the event loop by which the second operation is delayed
DELAYS = (0, 1, 8)
#: further delays, outside the gate
MORE_DELAYS = (2, 3, 5, 13, 21, 34, 55)


@dataclass
class Scene:
    """A session that has a variable, and the results of its executions."""

    world: World
    culler: Culler
    results: list[ExecutionResult] = field(default_factory=list)

    async def execute(self) -> None:
        """Execute a cell in the current session or a new one."""
        session = await self.world.registry.get_or_create(KEY)
        self.results.append(await run(session, "y = 1", timeout=5))

    async def create(self) -> None:
        await self.world.registry.create(KEY, SessionSpec())

    async def interrupt(self) -> None:
        await self.world.registry.get(KEY).interrupt()

    async def restart(self) -> None:
        await self.world.registry.get(KEY).restart()

    async def delete(self) -> None:
        await self.world.registry.end(KEY)

    async def cull(self) -> None:
        self.world.clock.passes(1e6)
        await self.culler.sweep()

    async def crash(self) -> None:
        self.world.backend.kernel.dies(1)

    async def branch(self) -> None:
        await self.world.registry.branch(self.world.registry.get(ORIGIN), KEY, None)

    async def branch_from(self) -> None:
        await self.world.registry.branch(self.world.registry.get(ORIGIN), KEY, "moment")

    async def roll_back(self) -> None:
        await self.world.registry.get(KEY).checkpoints.roll_back("moment")

    async def fall_asleep(self) -> None:
        await self.world.registry.get(KEY).fall_asleep()

    async def use_file(self) -> None:
        session = await self.world.registry.get_or_create(KEY)
        async for _ in session.run_tool("files", '{"op": "list", "path": ""}'):
            pass

    async def check_consistency(self) -> None:
        """Check that nothing hangs or is left over, and that a lost variable was reported."""
        await until(lambda: all(session.state is not State.BUSY for session in self.world.registry.all()))
        kernels = len(self.world.backend.alive)
        await until(lambda: len(self.world.backend.alive) == self.with_kernel())
        assert kernels <= QUOTA + 1  # a restart's old kernel may still be ending
        assert len(self.world.registry.all()) <= QUOTA
        await until(lambda: self.world.memory.promised == self.with_kernel() * SessionSpec().limits.memory)
        assert self.world.open == {}
        assert self.world.quotas.running == 0
        assert all(result.status in {Status.OK, Status.DIED, Status.INTERRUPTED} for result in self.results)
        last = await run(await self.world.registry.get_or_create(KEY), "print('x' in dir())")
        self.results.append(last)
        held = last.outputs[0]["text"] == "True\n"
        kept = {StateChange.PRESERVED, StateChange.ROLLED_BACK}
        told = any(result.state not in kept for result in self.results)
        assert held != told, (held, [(result.state, result.state_reason) for result in self.results])
        assert {record.key for record in self.world.ledger.sessions()} == {
            session.key for session in self.world.registry.all()
        }

    def with_kernel(self) -> int:
        return sum(session.alive for session in self.world.registry.all())


Step = Callable[[Scene], Awaitable[None]]
STEPS: list[Step] = [
    Scene.create,
    Scene.execute,
    Scene.interrupt,
    Scene.restart,
    Scene.delete,
    Scene.cull,
    Scene.crash,
    Scene.use_file,
    Scene.branch,
    Scene.roll_back,
    Scene.fall_asleep,
]
#: steps that matter when there is no session of this name, or it sleeps
COMING: list[Step] = [
    Scene.create,
    Scene.branch,
    Scene.branch_from,
    Scene.execute,
    Scene.use_file,
    Scene.restart,
    Scene.roll_back,
    Scene.delete,
]


@pytest.fixture
async def scene(nothing_left: None, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Scene]]]:
    """Makes scenes, one after the other in one world."""
    backend = FakeBackend()
    async with world_over(backend, quotas=TenantLimits(sessions=QUOTA)) as world:

        async def prepared(key: SessionKey) -> Session:
            session = await world.registry.get_or_create(key)
            await run(session, "x = 1")
            await session.checkpoints.take("moment")
            return session

        async def make(begins: State = State.IDLE) -> Scene:
            present = {session.key for session in world.registry.all()}
            if KEY in present:
                await world.registry.end(KEY)
            world.ledger._database.execute("DELETE FROM ended")
            if ORIGIN not in present:
                await prepared(ORIGIN)
            if begins is not State.CLOSED:
                session = await prepared(KEY)
            if begins is State.ASLEEP:
                assert await session.fall_asleep() == ""
            return Scene(world, Culler(world.registry, world.sandboxes))

        yield make
    await backend.close()


async def attempt(step: Step, scene: Scene, late: int) -> None:
    for _ in range(late):
        await asyncio.sleep(0)
    with suppress(SessionError):  # a refusal is a valid result
        await step(scene)


@pytest.mark.parametrize("second", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("first", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("lates", [DELAYS, pytest.param(MORE_DELAYS, marks=pytest.mark.full)], ids=["some", "others"])
async def test_two_operations_at_once_leave_the_session_consistent(
    scene: Callable[..., Awaitable[Scene]], first: Step, second: Step, lates: tuple[int, ...]
) -> None:
    for late in lates:
        await play(await scene(), first, second, late)


async def play(scene: Scene, first: Step, second: Step, late: int) -> None:
    at_once = [spawn(attempt(first, scene, 0), "first"), spawn(attempt(second, scene, late), "second")]
    async with asyncio.timeout(60):
        await asyncio.gather(*at_once)
        await scene.check_consistency()


@pytest.mark.parametrize("second", COMING, ids=lambda step: step.__name__)
@pytest.mark.parametrize("first", COMING, ids=lambda step: step.__name__)
@pytest.mark.parametrize("begins", [State.CLOSED, State.ASLEEP])
@pytest.mark.parametrize("lates", [DELAYS, pytest.param(MORE_DELAYS, marks=pytest.mark.full)], ids=["some", "others"])
async def test_two_operations_at_once_on_a_name_without_a_kernel_make_one_session(
    scene: Callable[..., Awaitable[Scene]], first: Step, second: Step, begins: State, lates: tuple[int, ...]
) -> None:
    for late in lates:
        await play(await scene(begins), first, second, late)


# -- sandboxes -------------------------------------------------------------------------------------------------

BOX = SandboxSpec("template", lifetime=300.0)


async def create_sandbox(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, BOX)
    sandbox.amend(lifetime=sandbox.age() + 300)  # counted from when it can be used


async def connect_to_sandbox(world: World) -> None:
    sandbox = world.sandboxes.get(KEY)
    if sandbox.pausing.paused:
        await sandbox.pausing.resume(300)
    sandbox.amend(lifetime=sandbox.age() + 300)


async def pause_sandbox(world: World) -> None:
    await world.sandboxes.get(KEY).pausing.begin()


async def run_in_sandbox(world: World) -> None:
    await run(await world.sandboxes.get(KEY).default_session("python"), "x = 1", timeout=5)


async def make_context(world: World) -> None:
    await world.sandboxes.get(KEY).create_session("python", "")


async def end_sandbox(world: World) -> None:
    await world.sandboxes.end(KEY)


SANDBOX_STEPS = [create_sandbox, connect_to_sandbox, pause_sandbox, run_in_sandbox, make_context, end_sandbox]


async def attempt_on_sandbox(step: Callable[[World], Awaitable[None]], world: World, late: int) -> None:
    for _ in range(late):
        await asyncio.sleep(0)
    with suppress(SessionError):
        await step(world)


@pytest.mark.parametrize("second", SANDBOX_STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("first", SANDBOX_STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("exists", [True, False])
async def test_two_operations_at_once_leave_one_sandbox_or_none(
    backend: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[World], Awaitable[None]],
    second: Callable[[World], Awaitable[None]],
    exists: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr("sessions.sandbox.pausing.QUIET", 0.1)
    async with world_over(backend, quotas=TenantLimits(sessions=QUOTA)) as world:
        for late in DELAYS:
            if exists and not world.sandboxes.all():
                await create_sandbox(world)
            await asyncio.gather(attempt_on_sandbox(first, world, 0), attempt_on_sandbox(second, world, late))
            present = [*world.sandboxes.all(), *world.registry.all()]
            assert len(present) <= QUOTA
            await until(lambda: len(backend.alive) == len([*world.sandboxes.all(), *world.registry.all()]))
            await until(lambda: world.memory.promised == len(backend.alive) * SessionSpec().limits.memory)
            assert [record.key for record in world.ledger.sandboxes()] == [box.key for box in world.sandboxes.all()]
            for sandbox in world.sandboxes.all():
                await world.sandboxes.forget(sandbox.key)


# -- between the end of a wait and the next step of the task that waited ---------------------------------------

#: iterations of the event loop after the end of the wait
TURNS = range(8)
SLEEP = "import time; time.sleep(60)"
SENT = "sent = 1"


class AfterWait:
    """Calls a function a number of event loop iterations after the end of a wait."""

    def __init__(self, turns: int, happens: Callable[[], object]) -> None:
        self._turns = turns
        self._happens = happens
        self._loop = asyncio.get_running_loop()
        self.over = asyncio.Event()

    def count_down(self, *_: object) -> None:
        """Start or continue the countdown after the end of the wait."""
        if self._turns:
            self._turns -= 1
            self._loop.call_soon(self.count_down)
        else:
            self._happens()
            self.over.set()


async def never_ends(cell: Cell) -> None:
    await cell.is_interrupted()


Wait = Callable[[World, Session, AfterWait], Awaitable["asyncio.Task[ExecutionResult]"]]


async def for_a_kernel(world: World, session: Session, moment: AfterWait) -> asyncio.Task[ExecutionResult]:
    """Return a client that waits for the next kernel, because the last one has ended."""
    await run(session, "import os; os._exit(3)")
    world.backend.gate.clear()
    client = spawn(run(session, SENT), "client")
    await until(lambda: background(f"start {KEY}"))
    (starting,) = background(f"start {KEY}")
    starting.add_done_callback(moment.count_down)
    world.backend.gate.set()
    return client


async def for_a_turn(world: World, session: Session, moment: AfterWait) -> asyncio.Task[ExecutionResult]:
    """Return a client that waits for its turn behind another cell of the session."""
    return await _behind_a_cell(world, session, session, moment)


async def for_admission(world: World, session: Session, moment: AfterWait) -> asyncio.Task[ExecutionResult]:
    """Return a client that waits because its tenant has the allowed number of executions."""
    return await _behind_a_cell(world, await world.session("other"), session, moment)


async def _behind_a_cell(
    world: World, before: Session, session: Session, moment: AfterWait
) -> asyncio.Task[ExecutionResult]:
    executed = sum(len(kernel.executed) for kernel in world.backend.started)
    first = spawn(run(before, SLEEP), "first")
    await until(lambda: sum(len(kernel.executed) for kernel in world.backend.started) > executed)
    client = spawn(run(session, SENT), "client")
    await asyncio.sleep(0)
    ended = world.ended

    def notes_the_end(*account: Any) -> None:
        ended(*account)
        moment.count_down()
        world.ended = ended  # type: ignore[method-assign]

    world.ended = notes_the_end  # type: ignore[method-assign, assignment]
    await before.interrupt()
    await first
    return client


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("wait", [for_a_kernel, for_a_turn, for_admission], ids=lambda wait: wait.__name__)
async def test_a_session_that_ends_right_after_a_cell_waited_gets_no_cell(
    backend: FakeBackend, wait: Wait, turns: int
) -> None:
    backend.on(SENT, never_ends)
    limits = TenantLimits(executions=1, queued=1) if wait is for_admission else TenantLimits()
    async with world_over(backend, quotas=limits) as world:
        session = await world.session()
        sent: list[bool] = []

        def ends() -> None:
            sent.append(session.state is State.BUSY)
            world.registry.end(KEY)

        moment = AfterWait(turns, ends)
        client = await wait(world, session, moment)
        await moment.over.wait()
        if sent == [True]:
            assert (await client).status is Status.DIED
        else:
            with pytest.raises(SessionClosed):
                await client
        await until(lambda: not world.open)
        begun = [request.code for _, request, _ in world.observed]
        assert begun.count(SENT) == sent.count(True)
        assert not [kernel for kernel in backend.started if SENT in kernel.executed and not sent[0]]
        assert (world.quotas.running, world.quotas.waiting) == (0, 0)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_kernel_that_dies_right_after_a_cell_waited_is_reported_or_replaced(
    world: World, session: Session, turns: int
) -> None:
    moment = AfterWait(turns, lambda: world.backend.kernel.dies(1))
    client = await for_a_kernel(world, session, moment)
    result = await client
    assert result.status in {Status.OK, Status.DIED}
    assert result.state is StateChange.LOST
    assert [request.code for _, request, _ in world.observed].count(SENT) == 1


def recording_tool(used: list[str]) -> Callable[[str], bytes]:
    """Return a tool that records its arguments and outputs nothing."""

    def tool(argument: str) -> bytes:
        used.append(argument)
        return b""

    return tool


async def restarts(session: Session) -> None:
    await session.restart()


async def uses_a_file(session: Session) -> None:
    async for _ in session.run_tool("files", "{}"):
        pass


async def sends_a_message(session: Session) -> None:
    await session.settled_kernel()


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("use", [restarts, uses_a_file, sends_a_message], ids=lambda use: use.__name__)
async def test_an_operation_that_waited_for_a_kernel_reports_the_end_of_the_session(
    world: World, session: Session, use: Callable[[Session], Coroutine[Any, Any, None]], turns: int
) -> None:
    used: list[str] = []
    world.backend.behaves(tool=recording_tool(used))
    if use is not restarts:
        await run(session, "import os; os._exit(3)")
    world.backend.gate.clear()
    client = spawn(use(session), "client")
    outcome = asyncio.gather(client, return_exceptions=True)
    await until(lambda: background(f"start {KEY}"))
    done: list[bool] = []

    def ends() -> None:
        done.append(client.done() or bool(used))
        world.registry.end(KEY)

    moment = AfterWait(turns, ends)
    (starting,) = background(f"start {KEY}")
    starting.add_done_callback(moment.count_down)
    world.backend.gate.set()
    await moment.over.wait()
    (told,) = await outcome
    assert isinstance(told, SessionClosed) is not done[0]
    assert bool(used) is (done[0] and use is uses_a_file)


@pytest.mark.parametrize("turns", range(6))
async def test_a_session_that_ends_when_its_first_kernel_is_ready_is_not_returned(world: World, turns: int) -> None:
    world.backend.gate.clear()
    client = spawn(world.session(), "client")
    outcome = asyncio.gather(client, return_exceptions=True)
    await until(lambda: world.backend.asked)
    done: list[bool] = []

    def ends() -> None:
        done.append(client.done())
        world.registry.end(KEY)

    moment = AfterWait(turns, ends)
    (starting,) = background(f"start {KEY}")
    starting.add_done_callback(moment.count_down)
    world.backend.gate.set()
    await moment.over.wait()
    assert isinstance((await outcome)[0], SessionClosed) is not done[0]


async def test_a_session_whose_first_kernel_dies_and_whose_second_does_not_start_leaves_nothing(
    world: World,
) -> None:
    world.backend.gate.clear()
    client = asyncio.gather(world.session(), return_exceptions=True)
    await until(lambda: world.backend.asked)

    def dies(_: object) -> None:
        world.backend.refuses = StartFailed()
        world.backend.kernel.dies(1)
        session._slot._present = None  # as after the end was noticed
        session._slot.move(State.DEAD)

    session = world.registry.get(KEY)
    (starting,) = background(f"start {KEY}")
    starting.add_done_callback(dies)
    world.backend.gate.set()
    assert isinstance((await client)[0], StartFailed)
    assert (world.registry.all(), world.ledger.sessions()) == ([], [])
    world.backend.refuses = None


@pytest.mark.parametrize("turns", range(3))
async def test_an_operation_that_waited_for_a_container_reports_the_end_of_the_sandbox(
    world: World, turns: int
) -> None:
    used: list[str] = []
    world.backend.behaves(tool=recording_tool(used))
    sandbox = await world.sandboxes.create(KEY, SandboxSpec("template"))
    world.backend.kernel.dies(1)
    await until(lambda: sandbox.container is None)
    world.backend.gate.clear()

    async def use() -> None:
        async for _ in sandbox.run_tool("files", "{}"):
            pass

    outcome = asyncio.gather(use(), return_exceptions=True)
    await until(lambda: background(f"start sandbox {KEY}"))
    begun: list[bool] = []

    def ends() -> None:
        begun.append(bool(used))
        world.sandboxes.end(KEY)

    moment = AfterWait(turns, ends)
    (starting,) = background(f"start sandbox {KEY}")
    starting.add_done_callback(moment.count_down)
    world.backend.gate.set()
    await moment.over.wait()
    assert isinstance((await outcome)[0], SessionClosed) is not begun[0]
    assert bool(used) is begun[0]
