"""Forks and snapshots of sandboxes, and branches of their sessions: all begin with one moment, and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.guest.attached import Program
from sessions.guest.processes import Process, ProcessList
from sessions.guest.workspace import list_files
from sessions.model.errors import (
    CheckpointNotFound,
    CheckpointRefused,
    LedgerUnavailable,
    QuotaExceeded,
    SandboxNotFound,
    SessionClosed,
    SessionError,
    StartFailed,
    TemplateNotFound,
)
from sessions.model.tasks import spawn
from sessions.model.values import SandboxSpec, SessionKey, StateChange
from sessions.sandbox import moments
from sessions.sandbox import snapshots as snapshots_room
from sessions.sandbox.sandbox import Sandbox
from sessions.tenants.quotas import TenantLimits
from tests.fakes import Cell, FakeBackend, World, run, until, world_over
from tests.sessions.checkpoints.test_undo import shown

SPEC = SandboxSpec("template", env={"A": "own"}, idle_timeout=0.0, max_execute_timeout=60.0)
FORK = SessionKey("acme", "fork")


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend) as world:
        yield world
        for snapshot in world.sandboxes.snapshots.of("acme"):
            await world.sandboxes.snapshots.delete(snapshot.key)
    assert (backend.sleep.moments, backend.sleep.copies, list(backend.copies.glob("*"))) == ({}, {}, [])


@pytest.fixture
async def sandbox(world: World) -> Sandbox:
    """A sandbox with `x = 1` in its default session, and a file."""
    sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), SPEC)
    await run(await sandbox.default_session("python"), "x = 1")
    place(world, sandbox).joinpath("file").write_text("one")
    return sandbox


def place(world: World, sandbox: Sandbox) -> Path:
    return world.backend.root / "workspaces" / sandbox.workspace


async def forked(world: World, sandbox: Sandbox, *names: str) -> list[Sandbox]:
    """Fork a sandbox; all forks succeed."""
    wanted = [(SessionKey("acme", name), sandbox.spec) for name in names]
    made = await world.sandboxes.fork(sandbox, wanted)
    assert not [each for each in made if isinstance(each, SessionError)]
    return [each for each in made if isinstance(each, Sandbox)]


async def test_forks_have_variables_and_files_of_one_moment_and_are_independent(world: World, sandbox: Sandbox) -> None:
    other = await sandbox.create_session("python", "")
    await run(other, "x = 'other'")
    one, two = await forked(world, sandbox, "f1", "f2")
    source = await sandbox.default_session("python")
    await run(source, "x = 2")
    place(world, sandbox).joinpath("file").write_text("two")
    for fork in (one, two):
        session = await fork.default_session("python")
        result = await run(session, "print(x)")
        assert (result.outputs[0]["text"], result.state) == ("1\n", StateChange.PRESERVED)
        assert result.state_reason == "the sandbox began as a copy of another one"
        (second,) = set(fork.sessions()) - {session}
        assert await shown(second) == "other"
        assert place(world, fork).joinpath("file").read_text() == "one"
    await run(await one.default_session("python"), "x = 3")
    place(world, one).joinpath("file").unlink()
    assert [await shown(await each.default_session("python")) for each in (sandbox, one, two)] == ["2", "3", "1"]
    assert place(world, two).joinpath("file").exists()
    assert len({each.workspace for each in (sandbox, one, two)}) == 3


async def test_a_fork_waits_for_the_running_cells_of_all_sessions(world: World, sandbox: Sandbox) -> None:
    go_on = asyncio.Event()

    async def slow(cell: Cell) -> None:
        await go_on.wait()
        cell.kernel.namespace["x"] = "done"
        cell.ends()

    world.backend.on("slow", slow)
    other = await sandbox.create_session("python", "")
    running = spawn(run(other, "slow"), "cell")
    await until(lambda: other.in_use)
    forking = spawn(forked(world, sandbox, "fork"), "fork")
    await until(sandbox.moments._turn.locked)
    await asyncio.sleep(0.02)
    assert not forking.done()
    go_on.set()
    await running
    (fork,) = await forking
    (second,) = set(fork.sessions()) - {await fork.default_session("python")}
    assert await shown(second) == "done"


async def test_a_cell_that_does_not_end_has_the_fork_refused_and_runs_on(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "WAIT_MAX", 0.05)
    go_on = asyncio.Event()

    async def slow(cell: Cell) -> None:
        await go_on.wait()
        cell.ends()

    world.backend.on("slow", slow)
    session = await sandbox.default_session("python")
    running = spawn(run(session, "slow"), "cell")
    await until(lambda: session.in_use)
    with pytest.raises(CheckpointRefused, match="interrupt it"):
        await forked(world, sandbox, "fork")
    go_on.set()
    assert (await running).error is None
    assert await shown(session) == "1"


async def test_a_running_command_has_the_fork_refused_and_is_named(world: World, sandbox: Sandbox) -> None:
    program = Program(("/bin/sh", "-c", "read line"), takes_input=True)
    command, listener = await sandbox.commands.start(program, None)
    with pytest.raises(CheckpointRefused, match="read line"):
        await forked(world, sandbox, "fork")
    await command.close_input()
    async for _ in listener:
        pass
    await until(lambda: not sandbox.running)
    await forked(world, sandbox, "fork")  # positive control


async def test_a_process_that_has_ended_refuses_no_fork(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Process(7, "sleep 60", "Z", 0.0, 0.0, 0, "/")  # nobody has waited for it

    async def listed(_container: object) -> ProcessList:
        return ProcessList([ended], truncated=False)

    monkeypatch.setattr("sessions.sandbox.occupants.list_processes", listed)
    await forked(world, sandbox, "fork")
    ended = replace(ended, state="S")  # positive control
    with pytest.raises(CheckpointRefused, match="sleep 60"):
        await forked(world, sandbox, "another")


async def test_a_session_that_is_made_meanwhile_starts_after_the_moment(world: World, sandbox: Sandbox) -> None:
    sleep = world.backend.sleep
    sleep.gate.clear()
    forking = spawn(forked(world, sandbox, "fork"), "fork")
    await until(lambda: not sandbox.moments._over.is_set())
    before = world.backend.asked
    making = spawn(sandbox.create_session("python", ""), "session")
    await asyncio.sleep(0.02)
    assert world.backend.asked == before
    sleep.gate.set()
    (fork,) = await forking
    assert (await making).alive
    assert len(fork.sessions()) == 1


async def test_a_pause_waits_for_the_moment_and_a_paused_sandbox_is_not_forked(world: World, sandbox: Sandbox) -> None:
    sleep = world.backend.sleep
    sleep.gate.clear()
    forking = spawn(forked(world, sandbox, "fork"), "fork")
    await until(sandbox.pausing._turn.locked)
    pausing = sandbox.pausing.begin()
    await asyncio.sleep(0.02)
    assert not any(kernel.paused for kernel in world.backend.alive)
    sleep.gate.set()
    await forking
    await pausing
    with pytest.raises(SandboxNotFound, match="resume it first"):
        await forked(world, sandbox, "fork2")
    await sandbox.pausing.resume(60)
    assert await shown(await sandbox.default_session("python")) == "1"


async def test_a_sandbox_that_is_ended_during_the_moment_leaves_nothing(world: World, sandbox: Sandbox) -> None:
    sleep = world.backend.sleep
    sleep.gate.clear()
    forking = spawn(world.sandboxes.fork(sandbox, [(FORK, SPEC)]), "fork")
    await until(lambda: not sandbox.moments._over.is_set())
    ending = world.sandboxes.end(sandbox.key)
    sleep.gate.set()
    with pytest.raises(SessionError):
        await forking
    await ending
    assert world.sandboxes.all() == []


@pytest.mark.parametrize("default", [True, False])
async def test_a_session_that_waits_for_the_moment_is_not_made_when_its_sandbox_ends(
    world: World,
    sandbox: Sandbox,
    default: bool,  # noqa: FBT001
) -> None:
    world.backend.sleep.gate.clear()
    forking = spawn(world.sandboxes.fork(sandbox, [(FORK, SPEC)]), "fork")
    await until(lambda: not sandbox.moments._over.is_set())
    making = spawn(sandbox.default_session("bash") if default else sandbox.create_session("python", ""), "session")
    await asyncio.sleep(0)
    ending = world.sandboxes.end(sandbox.key)
    world.backend.sleep.gate.set()
    with pytest.raises(SessionClosed):
        await making
    with pytest.raises(SessionError):
        await forking
    await ending
    assert (world.registry.all(), world.backend.workspaces) == ([], [])


async def test_a_use_that_waits_for_the_moment_starts_no_container_when_the_sandbox_ends(
    world: World, sandbox: Sandbox
) -> None:
    sandbox.moments._over.clear()
    listing = spawn(list_files(sandbox, ""), "list")
    await asyncio.sleep(0)
    await world.sandboxes.end(sandbox.key)
    started = len(world.backend.started)
    sandbox.moments._over.set()
    with pytest.raises(SessionClosed):
        await listing
    assert (len(world.backend.started), world.backend.workspaces) == (started, [])


async def test_a_fork_that_fails_is_an_entry_and_leaves_nothing(world: World, sandbox: Sandbox) -> None:
    sleep = world.backend.sleep
    sleep.fails = 1  # the first fork's files
    (failed, made) = await world.sandboxes.fork(sandbox, [(FORK, SPEC), (SessionKey("acme", "f2"), SPEC)])
    assert isinstance(failed, StartFailed)
    assert isinstance(made, Sandbox)
    assert {each.key.name for each in world.sandboxes.all()} == {"s1", "f2"}
    await until(lambda: len(world.backend.workspaces) == 2)


async def test_what_cannot_be_written_is_refused_and_the_source_goes_on(world: World, sandbox: Sandbox) -> None:
    world.backend.sleep.refuses = "a file without a name"
    with pytest.raises(CheckpointRefused, match="could not be copied"):
        await forked(world, sandbox, "fork")
    assert await shown(await sandbox.default_session("python")) == "1"


async def test_forks_are_bounded_by_the_number_of_sessions(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=4)) as world:
        sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), SPEC)
        await sandbox.default_session("python")
        wanted = [(SessionKey("acme", f"f{number}"), SPEC) for number in range(5)]
        made = await world.sandboxes.fork(sandbox, wanted)
        assert [type(each) for each in made] == [Sandbox, *[QuotaExceeded] * 4]
        written = backend.sleep.asked
        with pytest.raises(QuotaExceeded):
            await world.sandboxes.fork(sandbox, wanted)
        assert backend.sleep.asked == written  # refused before anything was written


async def test_a_snapshot_outlives_its_sandbox_and_is_deleted_only_when_asked(world: World, sandbox: Sandbox) -> None:
    snapshots = world.sandboxes.snapshots
    taken = await snapshots.take(sandbox, "name:default")
    await world.sandboxes.end(sandbox.key)
    assert snapshots.of("acme") == [taken]
    for name in ("f1", "f2"):
        made = await world.sandboxes.continue_from(taken.moment, SessionKey("acme", name), SPEC)
        assert await shown(await made.default_session("python")) == "1"
        assert place(world, made).joinpath("file").read_text() == "one"
    await snapshots.delete(taken.key)
    assert world.services.kernel_memory.disk.used == 0
    with pytest.raises(TemplateNotFound):
        snapshots.get(taken.key)
    with pytest.raises(CheckpointRefused, match="it is gone"):
        await world.sandboxes.continue_from(taken.moment, FORK, SPEC)


async def test_a_snapshot_of_the_files_alone_has_no_variables(world: World, sandbox: Sandbox) -> None:
    taken = await world.sandboxes.snapshots.take(sandbox, memory=False)
    made = await world.sandboxes.continue_from(taken.moment, FORK, SPEC)
    session = await made.default_session("python")
    assert (await run(session, "print('x' in globals())")).outputs[0]["text"] == "False\n"
    assert place(world, made).joinpath("file").read_text() == "one"


async def test_a_snapshot_replaces_the_one_of_the_same_name(world: World, sandbox: Sandbox) -> None:
    snapshots = world.sandboxes.snapshots
    await snapshots.take(sandbox, "name:default")
    await snapshots.take(sandbox)
    again = await snapshots.take(sandbox, "name:default")
    assert [each.name for each in snapshots.of("acme")] == ["", "name:default"]
    assert snapshots.of("acme")[1] == again


async def test_at_the_limit_a_snapshot_is_taken_only_in_place_of_another(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = world.sandboxes.snapshots
    monkeypatch.setattr(snapshots_room, "PER_TENANT", 2)
    for name in ("one:default", "two:default", "two:default"):
        await snapshots.take(sandbox, name)
    for name in ("three:default", ""):
        with pytest.raises(QuotaExceeded, match="delete one first"):
            await snapshots.take(sandbox, name)
    assert [each.name for each in snapshots.of("acme")] == ["one:default", "two:default"]


async def test_a_snapshot_is_refused_without_room_and_none_is_deleted_for_it(backend: FakeBackend) -> None:
    async with world_over(backend, sleep_disk=3000) as world:
        backend.sleep.size = 1400
        sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), SPEC)
        snapshots = world.sandboxes.snapshots
        await snapshots.take(sandbox, memory=False)
        await snapshots.take(sandbox, memory=False)
        await sandbox.default_session("python")
        with pytest.raises(CheckpointRefused, match="no room"):
            await snapshots.take(sandbox)
        with pytest.raises(CheckpointRefused, match="no room"):  # the size of the files is known only afterwards
            await snapshots.take(sandbox, memory=False)
        assert len(snapshots.of("acme")) == 2
        assert len(backend.sleep.copies) == 2


async def test_a_snapshot_that_cannot_be_recorded_leaves_nothing(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_record: object) -> None:
        raise LedgerUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "keep", refuse)
        with pytest.raises(CheckpointRefused, match="no snapshot could be taken"):
            await world.sandboxes.snapshots.take(sandbox)
    assert (world.sandboxes.snapshots.of("acme"), world.backend.sleep.moments) == ([], {})


async def test_a_branch_of_a_sandboxs_session_has_its_own_copy_of_the_files(world: World, sandbox: Sandbox) -> None:
    source = await sandbox.default_session("python")
    await run(await sandbox.create_session("python", ""), "x = 'other'")
    branch = await world.sandboxes.branch(source, SessionKey("acme", "branch"), None)
    assert await shown(branch, "x = x + 1; print(x)") == "2"
    assert await shown(source) == "1"
    files = world.backend.root / "workspaces" / str(branch.launch.workspace)
    assert files.joinpath("file").read_text() == "one"
    files.joinpath("file").write_text("two")
    assert place(world, sandbox).joinpath("file").read_text() == "one"
    assert branch.launch.shared  # its `/tmp` is a disk, as in the sandbox
    assert branch not in sandbox.sessions()
    assert branch.spec.idle_timeout == world.registry.defaults.idle_timeout  # the sandbox has none, but a lifetime
    await branch.checkpoints.take("one")  # its files are its own
    await world.sandboxes.end(sandbox.key)
    assert await shown(branch) == "2"
    with pytest.raises(CheckpointRefused, match="shares its files"):
        await (await (await world.sandboxes.create(FORK, SPEC)).default_session("python")).checkpoints.take("c")


async def test_a_session_that_is_deleted_before_it_is_copied_has_its_branch_refused(
    world: World, sandbox: Sandbox
) -> None:
    source, other = await sandbox.default_session("python"), await sandbox.create_session("python", "")
    async with other.checkpoints.turn():  # as while a cell runs
        branching = spawn(world.sandboxes.branch(source, FORK, None), "branch")
        await until(sandbox.moments._turn.locked)
        await world.registry.end(source.key)
    with pytest.raises(SessionClosed, match="before it could be copied"):
        await branching
    assert world.registry.find(FORK) is None


async def test_a_branch_from_a_checkpoint_that_a_sandboxs_session_cannot_have_is_not_found(
    world: World, sandbox: Sandbox
) -> None:
    with pytest.raises(CheckpointNotFound):
        await world.sandboxes.branch(await sandbox.default_session("python"), FORK, "one")


@pytest.fixture
async def first(backend: FakeBackend, tmp_path: Path) -> AsyncIterator[World]:
    """A gateway that is killed, with a sandbox in which `x = 1`."""
    world = World(backend, ledger=tmp_path / "ledger")
    assert await world.readiness.check()
    sandbox = await world.sandboxes.create(SessionKey("acme", "s1"), SPEC)
    await run(await sandbox.default_session("python"), "x = 1")
    yield world
    world.ledger.close()


async def test_the_next_gateway_has_the_snapshots_and_deletes_what_has_no_record(first: World, tmp_path: Path) -> None:
    sandbox, sleep = first.sandboxes.get(SessionKey("acme", "s1")), first.backend.sleep
    taken = await first.sandboxes.snapshots.take(sandbox, "name:default")
    await sandbox.moments.take()  # the gateway is killed before this one is recorded
    async with world_over(first.backend, ledger=tmp_path / "ledger") as second:
        assert second.sandboxes.snapshots.of("acme") == [taken]
        assert {*sleep.moments, *sleep.copies} == {image.id for image in taken.moment.images}
        assert second.services.kernel_memory.disk.used == taken.size
        made = await second.sandboxes.continue_from(taken.moment, FORK, SPEC)
        assert await shown(await made.default_session("python")) == "1"


async def test_the_next_gateway_ends_a_fork_of_which_not_all_sessions_continue(first: World, tmp_path: Path) -> None:
    backend, snapshots = first.backend, first.sandboxes.snapshots
    taken = await snapshots.take(first.sandboxes.get(SessionKey("acme", "s1")))
    started = len(backend.started)
    forking = spawn(first.sandboxes.continue_from(taken.moment, FORK, SPEC), "fork")
    await until(lambda: len(backend.started) > started)
    backend.gate.clear()  # the gateway is killed before the kernel of its session starts
    await until(lambda: first.ledger.sandboxes()[-1].key == FORK)
    async with world_over(backend, ledger=tmp_path / "ledger") as second:
        assert [each.key.name for each in second.sandboxes.all()] == ["s1"]
        with pytest.raises(SandboxNotFound, match="restarted while it was made"):
            second.sandboxes.get(FORK)
        kept = second.sandboxes.get(SessionKey("acme", "s1"))
        assert await shown(await kept.default_session("python")) == "1"
        backend.sleep.damaged = "the gateway is dead"
        backend.gate.set()
        with pytest.raises(SessionError):
            await forking


async def test_another_tenants_snapshot_is_not_found(world: World, sandbox: Sandbox) -> None:
    taken = await world.sandboxes.snapshots.take(sandbox)
    assert world.sandboxes.snapshots.get(taken.key) is taken
    with pytest.raises(TemplateNotFound):
        world.sandboxes.snapshots.get(replace(taken.key, tenant="other"))
    assert await world.sandboxes.snapshots.delete_all("other") == 0
    assert await world.sandboxes.snapshots.delete_all("acme") == 1
