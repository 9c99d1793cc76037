"""Paused sandboxes whose memory is on disk: nothing of them runs, and a resume brings everything back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.guest.attached import Program
from sessions.guest.processes import kill_process, run_process
from sessions.guest.reading import read_file
from sessions.guest.workspace import list_files, write_file
from sessions.model.errors import BackendUnavailable, SandboxNotFound
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey, StateChange
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session
from sessions.session.states import State
from sessions.upkeep.culler import Culler
from tests.fakes import FakeBackend, World, run, until, world_over

KEY = SessionKey("acme", "box")
SPEC = SandboxSpec("template", lifetime=1000.0)


@pytest.fixture
def backend() -> FakeBackend:
    """A backend whose workspaces are on disk."""
    backend = FakeBackend()
    backend.keeps_files = True
    return backend


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend) as world:
        yield world


@pytest.fixture
async def sandbox(world: World) -> Sandbox:
    """A sandbox whose container runs."""
    return await world.sandboxes.create(KEY, SPEC)


async def contexts(sandbox: Sandbox) -> tuple[Session, Session]:
    """Return two contexts, each with a variable."""
    first, second = [await sandbox.create_session("python", "") for _ in range(2)]
    await run(first, "x = 1")
    await run(second, "x = 2")
    return first, second


async def both(first: Session, second: Session) -> list[tuple[str, StateChange]]:
    """Return what the variables are now, and what has become of them."""
    results = [await run(session, "print(x)") for session in (first, second)]
    return [(str(result.outputs[0]["text"]).strip(), result.state) for result in results]


KEPT = [("1", StateChange.PRESERVED), ("2", StateChange.PRESERVED)]


async def write(sandbox: Sandbox, path: str, content: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    await write_file(sandbox, path, len(content), pieces())


async def read(sandbox: Sandbox, path: str) -> bytes:
    async with read_file(sandbox, path) as file:
        return b"".join([piece async for piece in file.content])


# -- what a pause and a resume do ------------------------------------------------------------------------------


async def test_nothing_of_a_paused_sandbox_is_in_memory_and_everything_comes_back(
    world: World, sandbox: Sandbox
) -> None:
    sessions = await contexts(sandbox)
    await write(sandbox, "file", b"text")
    await sandbox.pausing.begin()
    assert world.backend.alive == []
    assert [session.state for session in sessions] == [State.ASLEEP, State.ASLEEP]
    assert (sandbox.pausing.paused, sandbox.pausing.problem) == (True, "")
    await sandbox.pausing.resume(60)
    assert [session.state for session in sessions] == [State.IDLE, State.IDLE]  # not only at their next use
    assert await both(*sessions) == KEPT
    assert await read(sandbox, "file") == b"text"
    assert world.backend.sleep.kept == {}


async def test_a_sandbox_pauses_again_and_again(world: World, sandbox: Sandbox) -> None:
    sessions = await contexts(sandbox)
    for _ in range(3):
        await sandbox.pausing.begin()
        assert world.backend.alive == []
        await sandbox.pausing.resume(60)
    assert await both(*sessions) == KEPT


async def test_uses_that_come_together_wake_a_sandbox_once(world: World, sandbox: Sandbox) -> None:
    sandbox.amend(wake_lifetime=50.0)
    sessions = await contexts(sandbox)
    await sandbox.pausing.begin()
    started = len(world.backend.started)
    await gather_all(sandbox.wake(), sandbox.wake(), sandbox.wake())
    assert len(world.backend.started) == started + 2
    assert await both(*sessions) == KEPT


async def test_files_in_memory_keep_a_paused_sandbox_there(backend: FakeBackend) -> None:
    backend.keeps_files = False
    async with world_over(backend) as world:
        sandbox = await world.sandboxes.create(KEY, SPEC)
        sessions = await contexts(sandbox)
        await sandbox.pausing.begin()
        assert [kernel.paused for kernel in backend.alive] == [True, True, True]
        await sandbox.pausing.resume(60)
        assert await both(*sessions) == KEPT


async def test_a_paused_sandbox_on_disk_is_not_culled_before_the_longest_pause(world: World, sandbox: Sandbox) -> None:
    culler = Culler(world.registry, world.sandboxes, sleep_for=10.0, max_pause=500)
    await contexts(sandbox)
    await sandbox.pausing.begin()
    world.clock.passes(499)
    assert await culler.sweep() == 0
    world.clock.passes(1)
    assert await culler.sweep() == 1
    assert (world.backend.sleep.kept, world.backend.workspaces) == ({}, [])


async def test_the_end_of_a_paused_sandbox_leaves_no_image(world: World, sandbox: Sandbox) -> None:
    await contexts(sandbox)
    await sandbox.pausing.begin()
    await world.sandboxes.end(KEY)
    assert (world.backend.sleep.kept, world.backend.alive, world.backend.workspaces) == ({}, [], [])


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
async def test_no_other_way_to_a_context_wakes_or_uses_it_while_the_sandbox_is_paused(
    backend: FakeBackend,
    on_disk: bool,  # noqa: FBT001
) -> None:
    backend.keeps_files = on_disk
    async with world_over(backend) as world:
        sandbox = await world.sandboxes.create(KEY, SPEC)
        sessions = await contexts(sandbox)
        await sandbox.pausing.begin()
        states = [session.state for session in sessions]
        for use in (
            lambda: world.registry.get_or_create(sessions[0].key),  # as the native dialect begins
            lambda: run(sessions[0], "x = 3"),
            lambda: list_files(sessions[0], ""),
            sessions[0].settled_kernel,  # as a Jupyter client's message
            sessions[0].restart,
        ):
            with pytest.raises(SandboxNotFound, match="paused: resume it first"):
                await use()
        assert [session.state for session in sessions] == states
        assert [kernel.paused for kernel in backend.alive] == ([] if on_disk else [True, True, True])
        await sandbox.pausing.resume(60)
        assert await both(*sessions) == KEPT


async def test_a_cell_that_waits_when_its_sandbox_is_paused_is_refused(world: World, sandbox: Sandbox) -> None:
    first, _ = await contexts(sandbox)
    async with first.checkpoints.turn():
        waiting = spawn(run(first, "x = 3"), "cell")
        await until(lambda: first.in_use)
        sandbox.amend(paused_at=sandbox.age())
    with pytest.raises(SandboxNotFound, match="paused"):
        await waiting


# -- what stays in memory, and why -----------------------------------------------------------------------------


async def test_what_cannot_be_written_stays_frozen_and_the_sandbox_says_why(world: World, sandbox: Sandbox) -> None:
    sessions = await contexts(sandbox)
    world.backend.sleep.refuses = "no"
    await sandbox.pausing.begin()
    assert [(kernel.alive, kernel.paused) for kernel in world.backend.alive] == [(True, True), (True, True)]
    for session in sessions:
        assert f"context {session.key.name} is still in memory" in sandbox.pausing.problem
    await sandbox.pausing.resume(60)
    assert sandbox.pausing.problem == ""
    assert await both(*sessions) == KEPT


async def test_a_full_disk_leaves_a_sandbox_frozen_in_memory(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=1) as world:
        sandbox = await world.sandboxes.create(KEY, SPEC)
        sessions = await contexts(sandbox)
        await sandbox.pausing.begin()
        assert [kernel.paused for kernel in backend.alive] == [True, True]
        assert "there is no room for it on disk" in sandbox.pausing.problem
        await sandbox.pausing.resume(60)
        assert await both(*sessions) == KEPT


async def test_a_command_that_runs_keeps_its_container_in_memory_and_is_named(world: World, sandbox: Sandbox) -> None:
    sessions = await contexts(sandbox)
    command, listener = await sandbox.commands.start(Program(("sleep", "60")), None)
    await sandbox.pausing.begin()
    (container,) = world.backend.alive
    assert (container.paused, container is sandbox.container) == (True, True)
    assert sandbox.pausing.problem.endswith(f"command {command.pid} runs (sleep 60)")
    assert command.running
    await sandbox.pausing.resume(60)
    assert await both(*sessions) == KEPT
    command.leave(listener)


async def test_a_process_that_a_command_has_left_keeps_its_container(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.sandbox.pausing.QUIET", 0.1)
    left = await run_process(sandbox, "sleep 60 > /dev/null 2>&1 & echo $!", "", {}, 10)
    await sandbox.pausing.begin()
    assert world.backend.alive == [sandbox.container]
    assert sandbox.pausing.problem.endswith(f"process {left.stdout.strip()} runs (sleep 60)")
    await sandbox.pausing.resume(60)
    assert await kill_process(sandbox, int(left.stdout))


async def test_a_watched_directory_keeps_its_container(world: World, sandbox: Sandbox) -> None:
    watcher = await sandbox.watchers.add("", recursive=False)
    await sandbox.pausing.begin()
    assert world.backend.alive == [sandbox.container]
    await sandbox.pausing.resume(60)
    await write(sandbox, "new", b"")
    assert [change.path for change in await sandbox.watchers.look(watcher)] != []


# -- failures on the way back ----------------------------------------------------------------------------------


async def test_a_sandbox_whose_kernel_does_not_wake_now_is_still_paused(world: World, sandbox: Sandbox) -> None:
    sessions = await contexts(sandbox)
    await sandbox.pausing.begin()
    world.backend.failures["wake"] = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await sandbox.pausing.resume(60)
    assert sandbox.pausing.paused
    world.backend.failures.clear()
    await sandbox.pausing.resume(60)
    assert await both(*sessions) == KEPT


async def test_memory_that_cannot_be_woken_is_reported_as_lost_and_the_files_stay(
    world: World, sandbox: Sandbox
) -> None:
    first, _ = await contexts(sandbox)
    await write(sandbox, "file", b"text")
    await sandbox.pausing.begin()
    world.backend.sleep.damaged = "it was changed"
    await sandbox.pausing.resume(60)
    result = await run(first, "print(1)")
    assert (result.state, "it was changed" in (result.state_reason or "")) == (StateChange.LOST, True)
    assert await read(sandbox, "file") == b"text"


async def test_a_sandbox_that_ends_while_it_is_written_leaves_nothing(world: World, sandbox: Sandbox) -> None:
    await contexts(sandbox)
    world.backend.sleep.gate.clear()
    pause = sandbox.pausing.begin()
    await until(lambda: world.backend.sleep.asked or not world.backend.alive[0].paused)
    end = world.sandboxes.end(KEY)
    world.backend.sleep.gate.set()
    await end
    await asyncio.wait({pause})
    assert (world.backend.sleep.kept, world.backend.alive, world.backend.workspaces) == ({}, [], [])


# -- gateways that are killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["take", "trial", "record", "own container", "after"])
async def test_a_gateway_killed_during_a_pause_loses_nothing(
    backend: FakeBackend, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = World(backend, ledger=tmp_path / "ledger.db")
    assert await first.readiness.check()
    sandbox = await first.sandboxes.create(KEY, SPEC)
    sessions = await contexts(sandbox)
    names = [session.key for session in sessions]
    reached, never = asyncio.Event(), asyncio.Event()

    async def killed(*_: object) -> None:  # what the gateway would have done afterwards is never done
        reached.set()
        await never.wait()

    with monkeypatch.context() as patch:
        match step:
            case "take":
                patch.setattr(backend.sleep, "take", killed)
            case "trial":
                patch.setattr("sessions.checkpoints.writing.KernelMemory._prove", killed)
            case "record":
                patch.setattr("sessions.checkpoints.sleep.Sleeper.end_kernel", killed)
            case "own container":
                patch.setattr(type(sandbox), "end_container", killed)
        pause = sandbox.pausing.begin()
        await (pause if step == "after" else reached.wait())
    async with world_over(backend, ledger=tmp_path / "ledger.db") as second:
        again = second.sandboxes.find(KEY)
        assert again.pausing.paused
        await again.pausing.begin()  # it waits for the pause that the takeover has begun
        assert backend.alive == []
        await again.pausing.resume(60)
        assert await both(*(second.registry.get(name) for name in names)) == KEPT
