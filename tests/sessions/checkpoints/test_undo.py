"""Checkpoints: what their clients see, and that no failure loses variables or leaves anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sessions.backends.abilities import Ability
from sessions.checkpoints.kept import KEPT_MAX
from sessions.model.checkpoint import CheckpointMode, OnIdle, SleepFailed, SleepImage
from sessions.model.errors import (
    CheckpointNotFound,
    CheckpointRefused,
    ConnectionFailed,
    InvalidRequest,
    LedgerUnavailable,
    SessionError,
    SessionExists,
    StartFailed,
)
from sessions.model.stopwatch import Operation, Stage
from sessions.model.tasks import spawn
from sessions.model.values import CUT, Limits, Network, SandboxSpec, SessionKey, SessionSpec, StateChange, Status
from sessions.session.session import Session
from sessions.session.states import State
from sessions.upkeep.culler import Culler
from tests.fakes import MEMORY, Cell, FakeBackend, FakeKernel, World, background, exported, run, until, world_over
from tests.sessions.channels.test_hub import content, heard, send, text

KEY, BRANCH = SessionKey("acme", "s1"), SessionKey("acme", "s2")
AUTO = SessionSpec(checkpoints=CheckpointMode.AUTO)


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend) as world:
        yield world
    assert (backend.sleep.copies, list(backend.copies.glob("*"))) == ({}, [])


@pytest.fixture
async def session(world: World) -> Session:
    """A session with `x = 1` and a checkpoint `one` of that."""
    session = await world.session()
    await run(session, "x = 1")
    (world.backend.kernel.workspace / "file").write_text("one")
    await session.checkpoints.take("one")
    return session


async def shown(session: Session, code: str = "print(x)") -> str:
    return str((await run(session, code)).outputs[0]["text"]).strip()


def ends_late(former: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set: the kernel may end; until then its end waits."""
    may_end, kill = asyncio.Event(), former.kill

    async def slowly() -> None:
        await may_end.wait()
        await kill()

    monkeypatch.setattr(former, "kill", slowly)
    return may_end


@pytest.fixture
def may_end(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set: the kernel that the session has now may end; until then its end waits."""
    return ends_late(world.backend.kernel, monkeypatch)


CRASH = "The kernel was ended by the signal SIGSEGV: a fault in compiled code"


async def dies(cell: Cell) -> None:
    cell.kernel.dies(139)


async def test_a_session_returns_to_a_checkpoint_with_variables_and_files(world: World, session: Session) -> None:
    await run(session, "x = 2")
    (world.backend.kernel.workspace / "file").write_text("two")
    await session.checkpoints.roll_back("one")
    assert (world.backend.kernel.workspace / "file").read_text() == "one"
    result = await run(session, "print(x)")
    assert (result.outputs[0]["text"], result.state, result.incarnation) == ("1\n", StateChange.ROLLED_BACK, 2)
    assert result.state_reason == "the session was rolled back to the checkpoint 'one'"
    assert (await run(session, "x = 3")).state is StateChange.PRESERVED
    await session.checkpoints.roll_back(None)
    assert await shown(session) == "1"
    await until(lambda: (len(world.backend.alive), len(world.backend.workspaces)) == (1, 1))


async def test_a_return_does_not_wait_for_the_end_of_the_former_kernel_and_the_next_one_does(
    world: World, session: Session, may_end: asyncio.Event
) -> None:
    former = world.backend.kernel
    await session.checkpoints.roll_back("one")
    assert await shown(session) == "1"
    assert former.alive
    again = spawn(session.checkpoints.roll_back("one"), "return")
    ending = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, ending.set)  # time in which a third kernel would be started
    await ending.wait()
    assert len(world.backend.started) == 2
    may_end.set()
    await again
    assert await shown(session) == "1"
    await until(lambda: (len(world.backend.alive), len(world.backend.workspaces)) == (1, 1))


async def test_a_session_that_ends_after_a_return_waits_for_the_end_of_the_former_kernel(
    world: World, session: Session, may_end: asyncio.Event
) -> None:
    await session.checkpoints.roll_back("one")
    ending = world.registry.end(KEY)
    may_end.set()
    await ending
    assert (world.backend.alive, world.backend.workspaces) == ([], [])


async def test_the_stages_of_returns_branches_and_wakes_are_measured(world: World, session: Session) -> None:
    world.seen.measured.clear()
    await session.checkpoints.roll_back("one")
    await (await world.registry.branch(session, BRANCH, None)).start()
    assert await session.fall_asleep() == ""
    await session.start()
    kinds = [operation for operation, _ in world.seen.measured]
    assert kinds == [Operation.ROLLBACK, Operation.BRANCH, Operation.WAKE]
    for operation, stages in world.seen.measured:
        assert {Stage.TURN, Stage.ANSWER, Stage.CHANGE} <= set(stages)
        assert (Stage.CHECKPOINT in stages) is (operation is Operation.BRANCH)
        assert all(seconds >= 0 for seconds in stages.values())


async def test_a_return_and_a_branch_tell_that_connections_were_cut(world: World, session: Session) -> None:
    world.backend.sleep.cuts = True
    await session.checkpoints.take("two")
    assert (await run(session, "")).state_reason is None  # the kernel itself keeps them
    await session.checkpoints.roll_back("two")
    result = await run(session, "")
    assert result.state is StateChange.ROLLED_BACK
    assert result.state_reason == f"the session was rolled back to the checkpoint 'two'; {CUT}"
    branch = await world.registry.branch(session, BRANCH, None)
    assert (await run(branch, "")).state_reason == f"a branch of the session 's1'; {CUT}"
    await session.checkpoints.roll_back("one")
    assert (await run(session, "")).state_reason == "the session was rolled back to the checkpoint 'one'"


async def test_the_kernel_goes_on_after_a_checkpoint(world: World, session: Session) -> None:
    result = await run(session, "print(x)")
    assert (result.outputs[0]["text"], result.state, len(world.backend.started)) == ("1\n", StateChange.PRESERVED, 1)


@pytest.mark.parametrize("how", ["damaged", "fails", "full ledger"])
async def test_a_failed_return_leaves_the_session_as_it_is(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await run(session, "x = 2")
    kernel, error = world.backend.kernel, {"damaged": CheckpointRefused, "fails": StartFailed}
    if how == "damaged":
        world.backend.sleep.damaged = "it is damaged"
    elif how == "fails":
        world.backend.sleep.fails = 3
        monkeypatch.setattr("sessions.checkpoints.writing.PAUSE", 0.0)
    else:
        monkeypatch.setattr(world.ledger, "keep", _full)
    with pytest.raises(error.get(how, LedgerUnavailable)):
        await session.checkpoints.roll_back("one")
    monkeypatch.undo()
    assert (world.backend.alive, world.backend.workspaces) == ([kernel], [kernel.workspace.name])
    result = await run(session, "print(x)")
    assert (result.outputs[0]["text"], result.state) == ("2\n", StateChange.PRESERVED)


def _full(_record: object) -> None:
    raise LedgerUnavailable


async def test_a_session_whose_kernel_has_died_returns(world: World, session: Session) -> None:
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    await session.checkpoints.roll_back("one")
    assert (await shown(session), len(world.backend.workspaces)) == ("1", 1)


async def test_a_session_that_sleeps_returns(backend: FakeBackend) -> None:
    async with world_over(backend, defaults=SessionSpec(on_idle=OnIdle.SLEEP)) as world:
        session, culler = await world.session(), Culler(world.registry, world.sandboxes)
        await run(session, "x = 1")
        await session.checkpoints.take("one")
        await run(session, "x = 2")
        world.clock.passes(301)
        await culler.sweep()
        await culler.sleep_turns.finished()
        assert session.state is State.ASLEEP
        await session.checkpoints.roll_back("one")
        assert (await shown(session), backend.sleep.kept) == ("1", {})


async def test_a_return_that_comes_together_with_a_start_is_not_lost(world: World, session: Session) -> None:
    await session.checkpoints.roll_back("one")  # the next start waits for the end of the kernel before
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    await asyncio.gather(session.start(), session.checkpoints.roll_back("one"))
    assert await shown(session) == "1"


async def test_a_restart_that_comes_together_with_a_start_is_not_lost(world: World, session: Session) -> None:
    await session.checkpoints.roll_back("one")
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    await asyncio.gather(session.start(), session.restart())
    assert (await run(session, "1")).state is StateChange.RESTARTED


async def test_a_crash_does_not_undo_a_restart_that_waits_for_the_former_kernel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await world.registry.create(KEY, AUTO)
    may_end = ends_late(world.backend.kernel, monkeypatch)
    await run(session, "x = 1")
    await session.checkpoints.roll_back(None)
    restarting = spawn(session.restart(), "restart")
    await asyncio.sleep(0)
    world.backend.kernel.dies(139)
    await until(lambda: session.state is State.DEAD)
    may_end.set()
    await restarting
    await until(lambda: len(background("watch kernel")) == 1)  # that of the new kernel
    assert (await run(session, "1")).state is StateChange.RESTARTED


async def test_a_running_cell_ends_with_its_kernel(world: World, session: Session) -> None:
    cell = spawn(run(session, "import time; time.sleep(60)"), "cell")
    await until(lambda: session.state is State.BUSY)
    await session.checkpoints.roll_back("one")
    result = await cell
    assert (result.status, str(result.error)) == (Status.DIED, "the session was rolled back while the cell ran")
    assert (result.state, result.state_reason) == (
        StateChange.ROLLED_BACK,
        "the session was rolled back to the checkpoint 'one'",
    )
    assert await shown(session) == "1"


def told(session: Session) -> list[tuple[str, bool, str]]:
    """Return the notebook's cells: their sources, whether they are undone, and the last line of their outputs."""
    cells = exported(session.transcript)["cells"]
    ends = [cell.get("outputs") or [{"text": ""}] for cell in cells]
    return [
        (cell["source"], "rolled-back" in cell["metadata"].get("tags", []), end[-1]["text"].strip())
        for cell, end in zip(cells, ends, strict=True)
    ]


async def test_the_notebook_says_which_cells_a_return_has_undone(session: Session) -> None:
    await run(session, "x = 2")
    await session.checkpoints.roll_back("one")
    await run(session, "x = 3")
    reason = "the session was rolled back to the checkpoint 'one'"
    mark = f"**kernel-gateway:** The cells above with the tag `rolled-back` are undone: {reason}"
    assert told(session) == [("x = 1", False, ""), ("x = 2", True, ""), (mark, False, ""), ("x = 3", False, "")]


async def test_the_notebook_says_that_a_crash_has_undone_its_own_cell_and_why(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    crash = await run(session, world.backend.on("crash", dies))
    await run(session, "x = 2")
    assert crash.error is not None
    mark = f"**kernel-gateway:** The cells above with the tag `rolled-back` are undone: {crash.state_reason}"
    assert told(session) == [
        ("x = 1", False, ""),
        ("crash", True, f"[kernel-gateway SB010: {crash.error.message}]"),
        (mark, False, ""),
        ("x = 2", False, ""),
    ]


async def test_the_notebook_of_a_branch_says_that_its_variables_come_from_elsewhere(
    world: World, session: Session
) -> None:
    branch = await world.registry.branch(session, BRANCH, "one")
    await run(branch, "print(x)")
    assert told(branch) == [("**kernel-gateway:** a branch of the session 's1'", False, ""), ("print(x)", False, "1")]


async def test_a_branch_knows_its_own_name_and_the_session_keeps_its_own(world: World, session: Session) -> None:
    of_session = world.backend.kernel
    for checkpoint in (None, "one"):
        name = f"branch-{checkpoint}"
        branch = await world.registry.branch(session, SessionKey("acme", name), checkpoint)
        assert world.backend.kernel.namespace["env"]["KERNEL_GATEWAY_SESSION"] == name
        assert await shown(branch) == "1"
    assert of_session.namespace["env"]["KERNEL_GATEWAY_SESSION"] == "s1"


async def test_a_branch_whose_kernel_does_not_take_its_name_fails_and_leaves_nothing(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_kernel: object) -> None:
        raise StartFailed

    monkeypatch.setattr("sessions.checkpoints.writing.PAUSE", 0.0)
    monkeypatch.setattr("sessions.kernels.kernel.Kernel.rename", fails)
    with pytest.raises(StartFailed):
        await world.registry.branch(session, BRANCH, "one")
    await until(lambda: (len(world.backend.alive), len(world.backend.workspaces)) == (1, 1))


async def test_jupyters_clients_are_told_of_a_return_in_their_next_cell(session: Session) -> None:
    client = session.channels.subscribe("c")
    await session.checkpoints.roll_back("one")
    first, again = [text(await heard(client, send(session, client, "print(x)"))) for _ in range(2)]
    reason = "the session was rolled back to the checkpoint 'one'"
    assert first == f"kernel-gateway: variables and files are those of a checkpoint: {reason}\n1\n"
    assert again == "1\n"


async def test_jupyters_clients_are_not_told_of_a_loss_that_a_return_has_undone(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    client = session.channels.subscribe("c")
    await run(session, "x = 1")
    await until(lambda: session.checkpoints._kept._ahead is not None)
    world.backend.kernel.dies(139)
    await until(lambda: session.incarnation == 2)
    first = text(await heard(client, send(session, client, "print(x)")))
    assert first.startswith("kernel-gateway: variables and files are those of a checkpoint: the session returned to ")
    assert first.endswith("\n1\n")


async def test_a_cell_of_jupyters_clients_that_a_return_ends_is_told_so(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    msg_id = send(session, client, "import time; time.sleep(60)")
    await until(lambda: session.channels.running and world.backend.kernel.executed[-1].startswith("import"))
    await session.checkpoints.roll_back("one")
    reply = content((await heard(client, msg_id))[-1])
    assert reply["evalue"] == "the session was rolled back while the cell ran"
    assert told(session)[1] == (
        "import time; time.sleep(60)",
        True,
        "[kernel-gateway SB010: the session was rolled back while the cell ran]",
    )


async def test_clients_wait_while_a_checkpoint_is_taken(world: World, session: Session) -> None:
    world.backend.sleep.gate.clear()
    taking = spawn(session.checkpoints.take("two"), "checkpoint")
    await until(lambda: not session.reachable)
    cell = spawn(shown(session), "cell")
    await asyncio.sleep(0.02)
    assert not cell.done()
    world.backend.sleep.gate.set()
    assert await cell == "1"
    assert [checkpoint.name for checkpoint in session.checkpoints.all] == ["one", "two"]
    await taking


async def test_the_oldest_checkpoints_go_first(session: Session) -> None:
    for number in range(KEPT_MAX):
        await session.checkpoints.take(f"n{number}")
    assert [checkpoint.name for checkpoint in session.checkpoints.all] == [f"n{number}" for number in range(KEPT_MAX)]
    with pytest.raises(CheckpointNotFound):
        await session.checkpoints.roll_back("one")


@pytest.fixture
async def narrow(backend: FakeBackend) -> AsyncIterator[World]:
    """A world whose disk has room for three images, of which a tenant may have two."""
    backend.sleep.size = MEMORY
    async with world_over(backend, sleep_disk=3 * MEMORY, share=2 / 3) as world:
        yield world


def names(session: Session) -> list[str]:
    return [checkpoint.name for checkpoint in session.checkpoints.all]


async def test_the_oldest_checkpoints_make_room_but_not_for_an_automatic_one(narrow: World) -> None:
    session = await narrow.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    for name in ("one", "two"):
        await session.checkpoints.take(name)
    assert names(session) == ["one", "two"]
    await run(session, "x = 2")
    assert session.checkpoints.problem == "no checkpoint could be taken: there is no room for it on disk"
    await session.checkpoints.take("three")
    assert names(session) == ["two", "three"]
    assert len(narrow.backend.sleep.copies) == 2


async def test_the_oldest_checkpoints_of_a_tenant_make_room_and_never_those_of_another(narrow: World) -> None:
    first, second, other = [await narrow.session("s1"), await narrow.session("s2"), await narrow.session("s1", "evil")]
    await first.checkpoints.take("one")
    await second.checkpoints.take("two")
    await second.checkpoints.take("three")
    with pytest.raises(CheckpointRefused, match="no room"):  # the two leave less than one image: 2/3 of one
        await other.checkpoints.take("theirs")
    assert (names(first), names(second)) == ([], ["two", "three"])
    await second.checkpoints.delete("two")
    await other.checkpoints.take("theirs")
    await second.checkpoints.take("four")
    assert (names(second), names(other)) == (["four"], ["theirs"])


@pytest.mark.parametrize("cause", ["disk", "tenant", "ledger", "engine"])
async def test_a_refused_checkpoint_costs_no_other(narrow: World, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    session = await narrow.session()
    await session.checkpoints.take("one")
    await session.checkpoints.take("two")
    if cause == "disk":
        narrow.backend.sleep.room = 0
    elif cause == "tenant":
        monkeypatch.setattr("tests.fakes.MEMORY", 3 * MEMORY)  # it would not fit if all others went
    elif cause == "ledger":
        monkeypatch.setattr(narrow.ledger, "keep", _full)
    else:
        narrow.backend.sleep.refuses = "a connection is open"
    with pytest.raises(CheckpointRefused):
        await session.checkpoints.take("three")
    assert (names(session), len(narrow.backend.sleep.copies)) == (["one", "two"], 2)
    assert [checkpoint.name for checkpoint in narrow.ledger.sessions()[0].snapshots] == ["one", "two"]


async def test_the_ledger_names_no_checkpoint_that_has_gone(narrow: World) -> None:
    session = await narrow.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await session.checkpoints.take("one")
    await session.checkpoints.take("two")
    await session.checkpoints.take("three")
    await run(session, "1")  # without an automatic one before it: those from earlier go
    recorded = {checkpoint.image.id for checkpoint in narrow.ledger.sessions()[0].snapshots}
    assert (
        recorded == {checkpoint.image.id for checkpoint in session.checkpoints.all} == set(narrow.backend.sleep.copies)
    )


async def test_where_kernels_cannot_be_written_there_are_no_checkpoints(world: World, session: Session) -> None:
    world.backend.sleep.ability = Ability(on=False, detail="none here")
    with pytest.raises(CheckpointRefused, match="readyz"):
        await session.checkpoints.take("two")
    with pytest.raises(CheckpointRefused, match="readyz"):
        await world.registry.create(BRANCH, AUTO)


@pytest.mark.parametrize("name", ["one", "auto", "a:b"])
async def test_a_name_is_valid_and_new(session: Session, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await session.checkpoints.take(name)


async def test_a_deleted_checkpoint_is_gone(world: World, session: Session) -> None:
    await session.checkpoints.delete("one")
    assert (session.checkpoints.all, world.backend.sleep.copies) == ((), {})
    with pytest.raises(CheckpointNotFound):
        await session.checkpoints.delete("one")


@pytest.mark.parametrize("how", ["refused", "full ledger"])
async def test_a_checkpoint_that_cannot_be_taken_leaves_nothing(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "refused":
        world.backend.sleep.refuses = "a connection is open"
    else:
        monkeypatch.setattr(world.ledger, "keep", _full)
    with pytest.raises(CheckpointRefused):
        await session.checkpoints.take("two")
    monkeypatch.undo()
    assert (len(world.backend.sleep.copies), await shown(session)) == (1, "1")


async def test_a_kernel_that_does_not_go_on_after_a_failed_checkpoint_is_reported_as_lost(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.kernels.kernel.START_TIMEOUT", 0.2)

    async def fails(*_: object) -> SleepImage:
        world.backend.kernel.behaviour = replace(world.backend.behaviour, answers=False)
        raise SleepFailed("the runtime has failed")

    monkeypatch.setattr(world.backend.sleep, "copy", fails)
    with pytest.raises(CheckpointRefused, match=r"could not be written.* was ended"):
        await session.checkpoints.take("two")
    after = await run(session, "1")
    assert (after.state, after.state_reason) == (StateChange.LOST, ConnectionFailed().message)


async def test_checkpoints_are_reported_with_the_time_that_clients_waited(world: World, session: Session) -> None:
    sleep, before = world.backend.sleep, list(world.seen.checkpoints)
    sleep.gate.clear()
    taking = spawn(session.checkpoints.take("two"), "checkpoint")
    await until(lambda: not session.reachable)
    world.clock.passes(3)
    sleep.gate.set()
    await taking
    sleep.refuses = "it has a connection"
    with capture_logs() as logged, pytest.raises(CheckpointRefused):
        await session.checkpoints.take("three")
    assert (before, world.seen.checkpoints) == ([(0.0, True)], [(0.0, True), (3.0, True), (0.0, False)])
    assert [line["reason"] for line in logged] == ["it has a connection"]  # its client is not told that


async def test_returns_are_reported_with_their_cause(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await run(session, world.backend.on("dies", dies))
    assert world.seen.rollbacks == [True]
    await session.checkpoints.roll_back(None)
    assert world.seen.rollbacks == [True, False]
    world.backend.sleep.damaged = "it is damaged"
    with pytest.raises(CheckpointRefused):
        await session.checkpoints.roll_back(None)
    await run(session, "dies")  # the variables are lost
    assert world.seen.rollbacks == [True, False]


async def test_sessions_of_a_sandbox_have_no_checkpoints(world: World) -> None:
    await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("", Limits()))
    sandbox = world.sandboxes.all()[0]
    member = await world.registry.create(KEY, SessionSpec(workspace=sandbox.workspace))
    with pytest.raises(CheckpointRefused, match="shares its files"):
        await member.checkpoints.take(None)


# -- branches --------------------------------------------------------------------------------------------------


async def test_a_branch_has_its_own_variables_and_files(world: World, session: Session) -> None:
    await run(session, "x = 2")
    branch = await world.registry.branch(session, BRANCH, "one")
    now = await world.registry.branch(session, SessionKey("acme", "s3"), None)
    result = await run(branch, "print(x)")
    assert (result.outputs[0]["text"], result.state, result.incarnation) == ("1\n", StateChange.PRESERVED, 1)
    assert result.state_reason == "a branch of the session 's1'"
    assert await shown(now) == "2"
    await run(branch, "x = 9")
    assert await shown(session) == "2"
    assert [checkpoint.name for checkpoint in session.checkpoints.all] == ["one"]
    await world.registry.end(KEY)
    assert await shown(branch) == "9"


async def test_a_branch_takes_no_place_among_the_checkpoints(world: World, session: Session) -> None:
    for number in range(1, KEPT_MAX):
        await session.checkpoints.take(f"n{number}")
    before = session.checkpoints.all
    assert len(before) == KEPT_MAX
    assert await shown(await world.registry.branch(session, BRANCH, None)) == "1"
    assert session.checkpoints.all == before
    assert len(world.backend.sleep.copies) == KEPT_MAX


async def test_a_branch_that_cannot_be_made_leaves_nothing(world: World, session: Session) -> None:
    with pytest.raises(SessionExists):
        await world.registry.branch(session, KEY, None)
    with pytest.raises(CheckpointNotFound):
        await world.registry.branch(session, BRANCH, "two")
    world.backend.sleep.damaged = "it is damaged"
    with pytest.raises(CheckpointRefused):
        await world.registry.branch(session, BRANCH, None)
    left = (len(world.registry.all()), len(world.backend.sleep.copies), len(world.backend.workspaces))
    assert left == (1, 1, 1)


async def test_a_session_with_a_network_cannot_be_branched(backend: FakeBackend) -> None:
    async with world_over(backend, egress_tenants=["acme"]) as world:
        session = await world.registry.create(KEY, SessionSpec(network=Network.ALLOWLIST))
        with pytest.raises(CheckpointRefused, match="network"):
            await world.registry.branch(session, BRANCH, None)
        assert session.checkpoints.all == ()


# -- before each cell ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", CheckpointMode)
async def test_a_cell_that_ends_its_kernel_costs_only_itself(world: World, checkpoints: CheckpointMode) -> None:
    session = await world.registry.create(KEY, SessionSpec(checkpoints=checkpoints))
    await run(session, "x = 1")
    crash = await run(session, world.backend.on("crash", dies))
    after = await run(session, "print(x)")
    if checkpoints is CheckpointMode.MANUAL:
        assert (crash.state, after.state, after.status) == (StateChange.LOST, StateChange.LOST, Status.ERROR)
        return
    assert (crash.status, crash.state) == (Status.DIED, StateChange.ROLLED_BACK)
    assert crash.state_reason == f"the session returned to the moment before the last cell: {CRASH}"
    assert str(crash.error) == f"{CRASH}; the session is as it was before the cell"
    assert (after.outputs[0]["text"], after.state) == ("1\n", StateChange.ROLLED_BACK)
    assert (await run(session, "1")).state is StateChange.PRESERVED
    assert [checkpoint.automatic for checkpoint in session.checkpoints.all] == [True]


async def ahead(world: World, session: Session) -> str:
    """Wait until there is a checkpoint for the next cell, and return the id of its image."""
    await until(lambda: not session.in_use and session.reachable)
    (new,) = set(world.backend.sleep.copies) - {checkpoint.image.id for checkpoint in session.checkpoints.all}
    return new


async def test_a_cell_does_not_wait_for_a_checkpoint_if_nothing_has_happened_since_the_last_one(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    image = await ahead(world, session)
    assert await shown(session) == "1"
    assert [checkpoint.image.id for checkpoint in session.checkpoints.all] == [image]
    crash = await run(session, world.backend.on("crash", dies))
    assert (crash.state, await shown(session)) == (StateChange.ROLLED_BACK, "1")


@pytest.mark.parametrize("event", ["used", "computed", "time", "kernel"])
async def test_a_checkpoint_from_after_the_last_cell_does_not_count_if_the_kernel_may_have_changed(
    world: World, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    image = await ahead(world, session)
    kernel = world.backend.kernel
    if event == "used":
        kernel.make_responsive()
    elif event == "computed":
        kernel.computed += 1
    elif event == "time":
        monkeypatch.setattr("sessions.checkpoints.kept.SAME_MAX", 0.0)
    else:
        await session.restart()
    await run(session, "x = 2")
    assert image not in {checkpoint.image.id for checkpoint in session.checkpoints.all}
    await until(lambda: image not in world.backend.sleep.copies)


async def test_a_client_that_leaves_while_a_checkpoint_is_deleted_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await world.registry.create(KEY, AUTO)
    for _ in range(2):
        await run(session, "x = 1")
        await ahead(world, session)
    sleep, begun, go_on = world.backend.sleep, asyncio.Event(), asyncio.Event()
    discard = sleep.discard

    async def slowly(image: SleepImage) -> None:
        begun.set()
        await go_on.wait()
        await discard(image)

    monkeypatch.setattr(sleep, "discard", slowly)
    cell = spawn(run(session, "x = 2"), "cell")
    await begun.wait()
    cell.cancel()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait({cell})
    assert cell.cancelled()
    await until(lambda: not session.in_use and session.reachable and not background("checkpoint"))
    assert set(sleep.copies) == session.checkpoints._kept.images
    assert world.services.kernel_memory.disk.used == len(sleep.copies) * sleep.size


async def test_what_happens_as_soon_as_a_checkpoint_is_taken_is_later_than_it(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await ahead(world, session)
    world.backend.sleep.gate.clear()
    await run(session, "x = 2")  # the checkpoint before it is there already
    await until(lambda: not session.reachable)
    world.backend.sleep.gate.set()
    while not session.reachable:  # noqa: ASYNC110 - the first turn of the loop after it
        await asyncio.sleep(0)
    world.backend.kernel.make_responsive()  # as an access to its files
    image = await ahead(world, session)
    await run(session, "1")
    assert image not in {checkpoint.image.id for checkpoint in session.checkpoints.all}


async def test_a_kernel_that_ends_between_cells_costs_no_cell(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await ahead(world, session)
    world.backend.kernel.dies(139)
    await until(lambda: session.incarnation == 2)
    result = await run(session, "print(x)")
    assert (result.outputs[0]["text"], result.state) == ("1\n", StateChange.ROLLED_BACK)
    assert result.state_reason == f"the session returned to the moment after the last cell: {CRASH}"


async def test_a_cell_of_a_channel_client_that_ends_the_kernel_costs_the_variables(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await ahead(world, session)
    send(session, session.channels.subscribe(""), world.backend.on("crash", dies))
    await until(lambda: session.incarnation == 2)  # for the channel client
    assert (await run(session, "1")).state is StateChange.LOST


async def test_a_session_that_sleeps_keeps_no_checkpoint_for_its_next_cell(backend: FakeBackend) -> None:
    async with world_over(backend, defaults=SessionSpec(on_idle=OnIdle.SLEEP)) as world:
        session = await world.registry.create(KEY, replace(AUTO, on_idle=OnIdle.SLEEP))
        await run(session, "x = 1")
        image = await ahead(world, session)
        assert await session.fall_asleep() == ""
        assert image not in backend.sleep.copies
        assert await shown(session) == "1"


async def test_the_last_cell_can_be_undone(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await run(session, "x = 2")
    await session.checkpoints.roll_back(None)
    assert await shown(session) == "1"


async def test_without_a_checkpoint_before_it_a_cell_runs_and_the_reason_is_shown(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await ahead(world, session)
    world.backend.kernel.make_responsive()
    world.backend.sleep.refuses = "a connection is open"
    assert await shown(session) == "1"
    assert "could not be written" in session.checkpoints.problem
    assert session.checkpoints.all == ()  # one from before an earlier cell would lose more than one cell
    assert (await run(session, world.backend.on("crash", dies))).state is StateChange.LOST
    world.backend.sleep.refuses = ""
    await run(session, "x = 1")
    assert session.checkpoints.problem == ""


async def test_a_crash_whose_checkpoint_cannot_be_used_says_that_the_variables_are_lost(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    world.backend.sleep.damaged = "it is damaged"
    crash = await run(session, world.backend.on("crash", dies))
    assert crash.state is StateChange.LOST
    after = await run(session, "1")
    assert (after.state, "it is damaged" in str(after.state_reason)) == (StateChange.LOST, True)


async def test_a_restart_during_a_return_gives_a_fresh_kernel(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await ahead(world, session)
    world.backend.gate.clear()
    world.backend.kernel.dies(139)
    await until(lambda: session.state is State.STARTING)
    restarting = spawn(session.restart(), "restart")
    await asyncio.sleep(0.02)
    world.backend.gate.set()
    await restarting
    result = await run(session, "print('x' in globals())")
    assert (result.outputs[0]["text"], result.state) == ("False\n", StateChange.RESTARTED)


async def test_after_a_restart_a_session_does_not_return_to_the_time_before(world: World) -> None:
    session = await world.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await session.restart()
    world.backend.kernel.dies(1)
    assert (await run(session, "1")).state is StateChange.LOST


# -- across restarts of the gateway ----------------------------------------------------------------------------


async def test_checkpoints_outlive_the_gateway(backend: FakeBackend, tmp_path: Path) -> None:
    first = World(backend, ledger=tmp_path / "ledger.db")
    assert await first.readiness.check()
    session = await first.session()
    await run(session, "x = 1")
    await session.checkpoints.take("one")
    await session.checkpoints.take("two")
    await session.checkpoints.delete("two")
    await run(session, "x = 2")
    first.ledger.close()
    async with world_over(backend, ledger=tmp_path / "ledger.db") as second:
        session = second.registry.get(KEY)
        assert [checkpoint.name for checkpoint in session.checkpoints.all] == ["one"]
        assert await shown(session) == "2"
        await session.checkpoints.roll_back("one")
        assert await shown(session) == "1"


async def test_after_a_restart_of_the_gateway_a_crash_does_not_undo_cells_of_channel_clients(
    backend: FakeBackend, tmp_path: Path
) -> None:
    first = World(backend, ledger=tmp_path / "ledger.db")
    assert await first.readiness.check()
    session = await first.registry.create(KEY, AUTO)
    await run(session, "x = 1")
    await run(session, "x = 2")
    await ahead(first, session)
    for code in ("x = 3", "x = 4"):
        send(session, session.channels.subscribe(""), code)
        await until(lambda: not session.channels.running)
    session.leave()
    first.ledger.close()
    async with world_over(backend, ledger=tmp_path / "ledger.db") as second:
        session = second.registry.get(KEY)
        await until(lambda: session.state is State.IDLE)
        backend.kernel.dies(139)
        assert (await run(session, "1")).state is StateChange.LOST


async def test_a_session_that_ends_during_a_return_leaves_nothing(world: World, session: Session) -> None:
    world.backend.gate.clear()
    returning = spawn(session.checkpoints.roll_back("one"), "return")
    await asyncio.sleep(0.02)
    ending = world.registry.end(KEY)
    world.backend.gate.set()
    await ending
    with pytest.raises(SessionError):
        await returning


async def test_a_session_does_not_fall_asleep_during_a_return(world: World, session: Session) -> None:
    world.backend.gate.clear()
    returning = spawn(session.checkpoints.roll_back("one"), "rollback")
    await until(lambda: background(f"start {KEY}"))
    refusal = await session.fall_asleep()
    world.backend.gate.set()
    await returning
    assert (refusal, session.state, await shown(session)) == ("its kernel is being replaced", State.IDLE, "1")
