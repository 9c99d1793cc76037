"""A gateway that was killed comes back: nothing is lost that still runs, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.connection import Connection
from sessions.culler import Culler
from sessions.errors import (
    AuditUnavailable,
    BackendUnavailable,
    InvalidRequest,
    NotInitialized,
    OutcomeUnknown,
    OutOfMemory,
    SandboxNotFound,
    SessionNotFound,
)
from sessions.models import ExitReason, SandboxSpec, SessionKey, SessionSpec, StateChange, Status
from sessions.recovery import NOTE, NOTE_CUT
from sessions.session import Session
from sessions.states import State
from sessions.tasks import spawn
from tests.fakes import (
    PYTHON,
    Cell,
    FakeBackend,
    World,
    busy,
    idle,
    run,
    started,
    stream,
    until,
    world_over,
)

KEY = SessionKey("acme", "s1")
SLEEP = "import time; time.sleep(60)"

Successor = Callable[..., Awaitable[World]]


@pytest.fixture
async def first(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[World]:
    """A gateway that is going to be killed."""
    world = World(backend, ledger=tmp_path / "ledger.db")
    assert await world.readiness.check()
    yield world
    world.ledger.close()


@asynccontextmanager
async def successor(first: World, tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    """The gateway after one that was killed: it knows what stands in the ledger, and nothing else."""
    async with world_over(first.backend, ledger=tmp_path / "ledger.db", **settings) as world:
        yield world


async def test_a_session_goes_on_with_its_variables(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "x = 41")
    kernel = first.backend.kernel
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        result = await run(session, "print(x + 1)")
        assert (result.status, result.outputs[0]["text"]) == (Status.OK, "42\n")
        assert (result.state, result.state_reason, result.incarnation) == (StateChange.PRESERVED, NOTE, 1)
        assert (await run(session, "1")).state_reason is None  # it is told once
        assert second.backend.alive == [kernel]


async def test_what_it_was_made_with_is_as_it_was(first: World, tmp_path: Path) -> None:
    spec = SessionSpec(env={"A": "b"}, idle_timeout=7.0, max_execute_timeout=9.0, cwd="deep/down")
    made = await first.registry.create(KEY, spec)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert (session.spec, session.created_at, session.incarnation) == (spec, made.created_at, 1)
        await session.restart()
        assert session.incarnation == 2
        launch = second.backend.kernel.launch
        assert (launch.env, launch.cwd) == ({"A": "b"}, "deep/down")
        assert launch.workspace == second.backend.started[0].launch.workspace  # its files are those it had


async def test_all_sessions_go_on_and_nothing_else_does(first: World, tmp_path: Path) -> None:
    for number in range(10):
        await run(await first.session(f"s{number}"), f"x = {number}")
    await first.registry.end(SessionKey("acme", "s9"), "it was idle")
    for _ in range(2):  # warm ones, or half made: nobody's
        await first.backend.start(Launch(PYTHON))
    async with successor(first, tmp_path) as second:
        assert len(second.backend.alive) == 9
        texts = [(await run(await second.session(f"s{number}"), "print(x)")).outputs[0]["text"] for number in range(9)]
        assert texts == [f"{number}\n" for number in range(9)]
        result = await run(await second.session("s9"), "1")
        assert (result.state, result.state_reason) == (StateChange.LOST, "it was idle")


async def test_a_kernel_that_has_ended_meanwhile_is_told(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.kernel.dies(1)
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "print('x' in dir())")
        assert (result.state, result.incarnation) == (StateChange.LOST, 2)
        assert result.state_reason
        assert result.outputs[0]["text"] == "False\n"


async def test_a_kernel_that_nobody_finds_is_told_too(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.kernel.dies(1)
    first.backend.started.clear()
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert session.state is State.DEAD
        result = await run(session, "1")
        assert (result.state, result.state_reason) == (
            StateChange.LOST,
            "the kernel ended while the gateway was away",
        )


async def test_what_was_not_told_yet_is_told_by_the_next_gateway(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await session.restart()
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "1")
        assert (result.state, result.state_reason) == (StateChange.RESTARTED, "a restart was asked for")


async def test_what_was_told_is_not_told_again(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await session.restart()
    assert (await run(session, "1")).state is StateChange.RESTARTED
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "1")).state is StateChange.PRESERVED


# -- a cell that runs on ---------------------------------------------------------------------------------------


def held(backend: FakeBackend, code: str = "held") -> asyncio.Event:
    """Let a cell run until it is told to go on, and then speak."""
    go_on = asyncio.Event()

    async def script(cell: Cell) -> None:
        cell.says(busy(), started(cell.code), stream("early\n"))
        await go_on.wait()
        cell.says(stream("late\n"))
        cell.ends()
        cell.says(idle())

    backend.on(code, script)
    return go_on


async def begin(first: World, session: Session, code: str) -> asyncio.Task[Any]:
    """A cell that runs when the gateway is killed: what has not reached its kernel by then never will."""
    task = spawn(run(session, code), "cell of a gateway that is killed")
    await until(lambda: code in first.backend.kernel.executed)
    return task


async def test_a_cell_that_runs_on_is_waited_for_and_its_late_output_kept(first: World, tmp_path: Path) -> None:
    session = await first.session()
    go_on = held(first.backend)
    left = await begin(first, session, "held")
    async with successor(first, tmp_path, interrupted={KEY}) as second:
        session = second.registry.get(KEY)
        assert session.state is State.BUSY
        assert session.in_use
        waiting = spawn(run(session, "print(2)"), "next cell")
        await asyncio.sleep(1)
        assert not waiting.done()
        assert second.backend.kernel._inbox.qsize() == 1  # it is asked once, however long the cell runs
        go_on.set()
        result = await waiting
        assert (result.status, result.outputs[0]["text"]) == (Status.OK, "2\n")
        assert (result.state, result.state_reason) == (StateChange.PRESERVED, NOTE_CUT)
        cells = session.transcript.notebook(session.kernelspec)["cells"]
        assert [cell["outputs"][0]["text"] for cell in cells] == ["late\n", "2\n"]
    await asyncio.wait({left})


async def test_a_cell_that_runs_on_can_be_interrupted(first: World, tmp_path: Path) -> None:
    session = await first.session()
    left = await begin(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        assert await session.interrupt()
        await until(lambda: session.state is State.IDLE)
        assert (await run(session, "print(3)")).outputs[0]["text"] == "3\n"
        assert not await session.interrupt()
    await asyncio.wait({left})


async def test_a_cell_that_runs_on_and_on_has_a_deadline(first: World, tmp_path: Path) -> None:
    session = await first.registry.create(KEY, SessionSpec(max_execute_timeout=0.1))
    left = await begin(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        await until(lambda: session.state is State.IDLE)
        assert second.backend.alive == [second.backend.started[0]]  # to be interrupted was enough
    await asyncio.wait({left})


async def test_one_that_ignores_its_end_costs_the_kernel(first: World, tmp_path: Path) -> None:
    first.backend.behaves(heeds_messages=False, heeds_signals=False)
    session = await first.registry.create(KEY, SessionSpec(max_execute_timeout=0.1))
    left = await begin(first, session, SLEEP)
    first.backend.behaves(heeds_messages=True, heeds_signals=True)
    async with successor(first, tmp_path) as second:
        result = await run(second.registry.get(KEY), "1")
        assert (result.status, result.state, result.incarnation) == (Status.OK, StateChange.LOST, 2)
        assert "ran on and on" in str(result.state_reason)
    await asyncio.wait({left})


async def test_a_kernel_that_dies_of_the_cell_it_was_left_with_is_told(first: World, tmp_path: Path) -> None:
    session = await first.session()
    left = await begin(first, session, SLEEP)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        waiting = spawn(run(session, "1"), "next cell")
        second.backend.started[0].dies(137, ExitReason.OOM)
        result = await waiting
        assert (result.status, result.state, result.state_reason) == (
            Status.OK,
            StateChange.LOST,
            OutOfMemory().message,
        )
    await asyncio.wait({left})


# -- what must not run twice -----------------------------------------------------------------------------------


async def test_what_was_begun_is_not_run_again(first: World, tmp_path: Path) -> None:
    session = await first.session()
    await run(session, "n = 0")
    await run(session, "n += 1", idempotency_key="ended")
    with pytest.raises(InvalidRequest):
        await run(session, "n += 2", idempotency_key="ended")
    left = spawn(run(session, SLEEP, idempotency_key="running"), "cell of a gateway that is killed")
    await until(lambda: session.state is State.BUSY)
    async with successor(first, tmp_path) as second:
        session = second.registry.get(KEY)
        for code, key in (("n += 1", "ended"), (SLEEP, "running")):
            with pytest.raises(OutcomeUnknown):
                await run(session, code, idempotency_key=key)
        with pytest.raises(InvalidRequest):
            await run(session, "n += 2", idempotency_key="ended")
        await session.interrupt()
        assert (await run(session, "print(n)", idempotency_key="another")).outputs[0]["text"] == "1\n"
        await second.registry.end(KEY)  # a session that is gone takes its keys along
        assert (await run(await second.session(), "print(2)", idempotency_key="ended")).status is Status.OK
    await asyncio.wait({left})


async def test_what_was_refused_may_be_asked_for_again(first: World, tmp_path: Path) -> None:
    session = await first.session()
    first.refuses = AuditUnavailable()
    with pytest.raises(AuditUnavailable):
        await run(session, "1", idempotency_key="k")
    first.refuses = None
    async with successor(first, tmp_path) as second:
        assert (await run(second.registry.get(KEY), "1", idempotency_key="k")).status is Status.OK


# -- before the kernels are there ------------------------------------------------------------------------------


async def test_until_then_sessions_can_be_seen_but_not_used(first: World, tmp_path: Path) -> None:
    await run(await first.session(), "x = 1")
    first.backend.refuses = BackendUnavailable()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    assert not await second.readiness.check()
    session = second.registry.get(KEY)
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await run(session, "1")
    first.backend.refuses = None
    assert await second.readiness.check()
    assert (await run(session, "print(x)")).outputs[0]["text"] == "1\n"  # nothing was given up meanwhile
    await second.close()


async def test_until_then_they_can_be_ended(first: World, tmp_path: Path) -> None:
    await first.session()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    await second.registry.end(KEY)
    assert second.registry.all() == []
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_what_is_ended_while_it_is_taken_over_leaves_nothing(first: World, tmp_path: Path) -> None:
    await first.session()
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    adopt = second.backend.adopt

    async def slow_adopt(kernels: Any) -> Any:
        handles = await adopt(kernels)
        await second.registry.end(KEY)
        await second.sandboxes.end(KEY)
        return handles

    second.backend.adopt = slow_adopt  # type: ignore[method-assign]
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_until_then_nothing_is_idle(first: World, tmp_path: Path) -> None:
    await first.session()
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    culler = Culler(second.registry, second.sandboxes, max_lifetime=1)
    second.clock.passes(1e6)
    assert await culler.sweep() == 0
    assert await second.readiness.check()
    await until(lambda: second.registry.get(KEY).state is State.IDLE)
    assert await culler.sweep() == 2
    await second.close()


async def test_they_count_as_their_tenant_s(first: World, tmp_path: Path) -> None:
    for name in ("a", "b"):
        await first.session(name)
    async with successor(first, tmp_path) as second:
        assert len(second.registry.of("acme")) == 2


async def test_what_is_old_is_old_for_the_next_gateway_too(first: World, tmp_path: Path) -> None:
    first.ledger.clock = lambda: 1000.0
    await first.session()
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    assert second.registry.get(KEY).age() > 1e6
    assert second.registry.get(KEY).idle_for() == 0  # nobody could use it meanwhile
    assert await second.readiness.check()
    await second.close()


# -- sandboxes -------------------------------------------------------------------------------------------------


async def test_a_sandbox_goes_on_with_its_sessions(first: World, tmp_path: Path) -> None:
    sandbox = await first.sandboxes.create(KEY, SandboxSpec("template", env={"A": "b"}))
    context = await sandbox.create_session("python", "")
    await run(context, "x = 5")
    async with successor(first, tmp_path) as second:
        again = second.sandboxes.get(KEY)
        assert (again.spec, again.workspace, again.loss) == (sandbox.spec, sandbox.workspace, None)
        assert [session.key for session in again.sessions()] == [context.key]
        result = await run(again.session(context.key.name), "print(x)")
        assert result.outputs[0]["text"] == "5\n"
        assert (await again.ensure_holder()).id == first.backend.started[0].id


async def test_a_sandbox_whose_container_has_ended_says_what_became_of_its_files(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    first.backend.kernel.dies(1)
    first.backend.started.clear()
    async with successor(first, tmp_path) as second:
        sandbox = second.sandboxes.get(KEY)
        assert sandbox.loss == "the sandbox's files were lost: its container ended while the gateway was away"
        await sandbox.ensure_holder()


async def test_a_sandbox_that_ended_does_not_come_back(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    await first.sandboxes.end(KEY)
    async with successor(first, tmp_path) as second:
        with pytest.raises(SandboxNotFound):
            second.sandboxes.get(KEY)


async def test_until_then_a_sandbox_can_be_ended_and_not_used(first: World, tmp_path: Path) -> None:
    await first.sandboxes.create(KEY, SandboxSpec("template"))
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with pytest.raises(NotInitialized):
        await second.sandboxes.get(KEY).ensure_holder()
    await second.sandboxes.end(KEY)
    assert await second.readiness.check()
    assert (second.backend.alive, second.backend.workspaces) == ([], [])
    await second.close()


async def test_a_language_that_is_no_longer_there(first: World, tmp_path: Path) -> None:
    await first.session()
    first.ledger._database.execute("UPDATE kept SET record = CAST(replace(record, 'python', 'cobol') AS BLOB)")
    async with successor(first, tmp_path) as second:
        with pytest.raises(SessionNotFound):
            second.registry.get(KEY)
        assert second.backend.alive == []
        result = await run(await second.session(), "1")
        assert (result.state, result.state_reason) == (
            StateChange.LOST,
            "there is no language 'cobol' any more",
        )


# -- what fails ------------------------------------------------------------------------------------------------


async def test_one_that_cannot_be_taken_over_is_told_so_and_all_others_go_on(
    first: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s1", "s2", "s3"):
        await run(await first.session(name), f"x = {name!r}")
    made = Mock(side_effect=[OSError("a defect"), DEFAULT, DEFAULT], wraps=Connection)
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr("sessions.kernel.Connection", made)
        assert await second.readiness.check()
    assert [entry["task"] for entry in logs if entry["log_level"] == "error"] == ["taking over the kernel of acme:s1"]
    assert len(second.backend.alive) == 2, "nobody can talk to it"
    for name in ("s2", "s3"):
        assert (await run(await second.session(name), "print(x)")).outputs[0]["text"] == f"{name}\n"
    result = await run(await second.session("s1"), "print('x' in dir())")
    assert (result.state, result.outputs[0]["text"]) == (StateChange.LOST, "False\n")
    assert "could not be taken over" in str(result.state_reason)
    await second.close()


async def test_it_is_tried_again_when_the_backend_fails_in_a_way_nobody_has_foreseen(
    first: World, tmp_path: Path
) -> None:
    await run(await first.session(), "x = 1")
    first.backend.failures["adopt"] = KeyError("Id")
    second = World(first.backend, ledger=tmp_path / "ledger.db")
    with capture_logs():
        assert not await second.readiness.check()
    first.backend.failures.clear()
    assert await second.readiness.check()
    assert (await run(await second.session(), "print(x)")).outputs[0]["text"] == "1\n"
    await second.close()
