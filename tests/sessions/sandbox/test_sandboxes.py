"""Sandboxes: one workspace, one container that holds it, and sessions that start and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.abilities import Ability
from sessions.backends.base import Launch
from sessions.guest.processes import Process, list_processes
from sessions.guest.reading import read_file
from sessions.guest.workspace import list_files, write_file
from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    LedgerUnavailable,
    NotInitialized,
    QuotaExceeded,
    SandboxNotFound,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    ShuttingDown,
    StartFailed,
)
from sessions.model.kernelspecs import NO_KERNEL
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import (
    MEMORY_MIN,
    ExecutionResult,
    ExitReason,
    Limits,
    SandboxSpec,
    SessionKey,
    SessionSpec,
    StateChange,
    Status,
)
from sessions.sandbox import sandbox as module
from sessions.sandbox import sandboxes
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session
from sessions.session.states import State
from sessions.tenants.quotas import TenantLimits
from sessions.upkeep.culler import Culler
from tests.fakes import PYTHON, Failures, FakeBackend, FakeKernel, World, background, run, until, world_over

KEY = SessionKey("acme", "s1")
SPEC = SandboxSpec("template")
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
async def sandbox(world: World) -> Sandbox:
    """A sandbox whose container runs."""
    return await world.sandboxes.create(KEY, SPEC)


@pytest.fixture
def culler(world: World) -> Culler:
    return Culler(world.registry, world.sandboxes)


def holders(backend: FakeBackend) -> list[FakeKernel]:
    """Return the running containers without a kernel."""
    return [kernel for kernel in backend.alive if not kernel.launch.kernelspec.argv]


async def write(sandbox: Sandbox, path: str, content: bytes = b"content") -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    await write_file(sandbox, path, len(content), pieces())


async def read(sandbox: Sandbox, path: str) -> bytes:
    async with read_file(sandbox, path) as file:
        return b"".join([piece async for piece in file.content])


async def names(sandbox: Sandbox) -> list[str]:
    return [entry["name"] for entry in (await list_files(sandbox, "")).entries]


def nothing_is_kept(world: World) -> bool:
    return (world.sandboxes.all(), world.backend.alive, world.backend.workspaces) == ([], [], [])


# -- creating --------------------------------------------------------------------------------------------------


async def test_a_sandbox_has_a_container_without_a_kernel(world: World) -> None:
    spec = replace(SPEC, limits=Limits(memory=MEMORY_MIN), env={"A": "1"})
    sandbox = await world.sandboxes.create(KEY, spec)
    assert world.sandboxes.get(KEY) is sandbox
    assert world.sandboxes.all() == world.sandboxes.of("acme") == [sandbox]
    expected = Launch(NO_KERNEL, spec.limits, {"A": "1"}, sandbox.workspace, shared=True, tenant="acme")
    assert [kernel.launch for kernel in world.backend.alive] == [expected]
    assert (sandbox.end, sandbox.loss) == (None, None)


async def test_creating_a_sandbox_that_exists_is_refused(world: World, sandbox: Sandbox) -> None:
    with pytest.raises(SessionExists) as refused:
        await world.sandboxes.create(KEY, SPEC)
    assert refused.value.details == {"sandbox": "s1"}
    assert world.sandboxes.get(KEY) is sandbox
    assert world.backend.asked == 1


async def test_a_sandbox_that_is_being_created_exists(world: World) -> None:
    outcomes = await asyncio.gather(*(world.sandboxes.create(KEY, SPEC) for _ in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Sandbox, *[SessionExists] * 4]
    assert world.backend.asked == 1


async def test_every_name_of_every_tenant_is_a_separate_sandbox(world: World) -> None:
    keys = [SessionKey(tenant, name) for name in ("b", "a") for tenant in ("umbrella", "acme")]
    made = [await world.sandboxes.create(key, SPEC) for key in keys]
    assert len({sandbox.workspace for sandbox in made}) == world.backend.asked == 4
    assert [sandbox.key for sandbox in world.sandboxes.all()] == keys
    assert [sandbox.key.name for sandbox in world.sandboxes.of("acme")] == ["b", "a"]
    assert world.sandboxes.of("nobody") == []


async def test_a_tenant_has_a_limited_number_of_sandboxes_and_an_end_frees_one(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=2)) as world:
        keys = [SessionKey("acme", f"s{number}") for number in range(4)]
        outcomes = await asyncio.gather(*(world.sandboxes.create(key, SPEC) for key in keys), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Sandbox, Sandbox, QuotaExceeded, QuotaExceeded]
        assert backend.asked == 2
        await world.sandboxes.create(SessionKey("umbrella", "s2"), SPEC)
        await world.sandboxes.end(keys[0])
        assert not (await world.sandboxes.create(keys[2], SPEC)).closed
        with pytest.raises(QuotaExceeded):
            await world.sandboxes.create(keys[0], SPEC)


async def test_a_sandbox_that_was_ended_is_not_recorded_again(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY)
    with pytest.raises(SessionClosed):  # a client that waited while it ended
        sandbox.amend(lifetime=60.0)
    assert (sandbox.spec.lifetime, world.ledger.sandboxes()) == (SPEC.lifetime, [])


async def test_sandboxes_and_sessions_have_one_quota(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=3)) as world:
        sandbox = await world.sandboxes.create(KEY, SPEC)
        await sandbox.default_session("python")
        await world.session("other")
        for beyond in (world.session("one"), world.sandboxes.create(SessionKey("acme", "two"), SPEC)):
            with pytest.raises(QuotaExceeded):
                await beyond
        assert len(world.registry.taken("acme")) == 3
        await world.sandboxes.end(KEY)  # with its session
        await asyncio.gather(world.session("one"), world.sandboxes.create(SessionKey("acme", "two"), SPEC))
        with pytest.raises(QuotaExceeded):
            await world.session("three")


async def test_no_sandbox_is_created_before_the_engine_is_ready(world: World) -> None:
    world.backend.unprepared = NotInitialized("no network")
    await world.readiness.check()
    with pytest.raises(NotInitialized):
        await world.sandboxes.create(KEY, SPEC)
    assert world.backend.asked == 0


# -- a start that fails ----------------------------------------------------------------------------------------


async def test_a_sandbox_whose_container_does_not_start_leaves_nothing(world: World) -> None:
    world.backend.refuses = StartFailed("no room")
    with pytest.raises(StartFailed, match="no room"):
        await world.sandboxes.create(KEY, SPEC)
    assert nothing_is_kept(world)
    with pytest.raises(SandboxNotFound, match="there is no sandbox"):
        world.sandboxes.find(KEY)
    world.backend.refuses = None
    assert not (await world.sandboxes.create(KEY, SPEC)).closed


async def test_sandboxes_that_failed_do_not_count(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(sessions=1)) as world:
        backend.refuses = StartFailed()
        for number in range(3):
            with pytest.raises(StartFailed):
                await world.sandboxes.create(SessionKey("acme", f"s{number}"), SPEC)
        backend.refuses = None
        assert not (await world.sandboxes.create(KEY, SPEC)).closed


async def test_a_client_that_leaves_does_not_stop_the_start(world: World) -> None:
    world.backend.gate.clear()
    client = asyncio.gather(world.sandboxes.create(KEY, SPEC))
    await until(lambda: world.backend.asked)
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    world.backend.gate.set()
    await write(world.sandboxes.get(KEY), "a")
    assert world.backend.asked == 1


async def test_a_failed_start_leaves_nothing_after_its_client_has_left(world: World) -> None:
    world.backend.gate.clear()
    client = asyncio.gather(world.sandboxes.create(KEY, SPEC))
    await until(lambda: world.backend.asked)
    client.cancel()
    with suppress(asyncio.CancelledError):
        await client
    assert not world.sandboxes.get(KEY).closed
    world.backend.refuses = StartFailed()
    world.backend.gate.set()
    await until(lambda: nothing_is_kept(world))


async def test_a_sandbox_may_be_ended_while_it_starts(world: World) -> None:
    world.backend.gate.clear()
    starting = asyncio.gather(world.sandboxes.create(KEY, SPEC))
    await until(lambda: world.backend.asked)
    ending = world.sandboxes.end(KEY)
    with pytest.raises(SandboxNotFound, match="has ended: it was stopped"):
        world.sandboxes.get(KEY)
    world.backend.gate.set()
    await ending
    with pytest.raises(SessionClosed):
        await starting
    assert nothing_is_kept(world)


async def test_the_workspace_is_deleted_after_the_last_container_has_ended(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    kill, delete = FakeKernel.kill, world.backend.delete_workspace

    async def slow_kill(kernel: FakeKernel) -> None:
        await asyncio.sleep(0.01 if kernel.launch.kernelspec.argv else 0.05)
        await kill(kernel)

    async def noted_delete(workspace: str) -> None:
        left.append(len(world.backend.alive))
        await delete(workspace)

    monkeypatch.setattr(FakeKernel, "kill", slow_kill)
    monkeypatch.setattr(world.backend, "delete_workspace", noted_delete)
    await sandbox.create_session("python", "")
    world.backend.started[0].dies(1)
    await until(lambda: sandbox.container is None)
    world.backend.gate.clear()
    starting = asyncio.gather(sandbox.ensure_container(), return_exceptions=True)
    await until(lambda: world.backend.asked == 3)
    ending = world.sandboxes.end(KEY)
    world.backend.gate.set()
    await asyncio.gather(ending, starting)
    assert left == [0]


# -- finding ---------------------------------------------------------------------------------------------------


async def test_another_tenants_sandbox_looks_like_a_missing_one(world: World, sandbox: Sandbox) -> None:
    other, none = SessionKey("umbrella", KEY.name), SessionKey("umbrella", "none")
    for use in (world.sandboxes.find, world.sandboxes.get, world.sandboxes.end):
        refusals = []
        for key in (other, none):
            with pytest.raises(SandboxNotFound) as refused:
                use(key)
            refusals.append((refused.value.message.replace(key.name, "…"), list(refused.value.details)))
        assert refusals[0] == refusals[1]
    with pytest.raises(SandboxNotFound):
        await world.sandboxes.forget(other)
    assert world.sandboxes.get(KEY) is sandbox


async def test_an_ended_sandbox_can_be_found_but_not_used(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY, "it was idle")
    assert world.sandboxes.find(KEY) is sandbox
    assert sandbox.end is not None
    assert sandbox.end.at >= sandbox.created_at
    assert (world.sandboxes.all(), world.sandboxes.of("acme")) == ([], [sandbox])
    with pytest.raises(SandboxNotFound, match="the sandbox has ended: it was idle"):
        world.sandboxes.get(KEY)
    with pytest.raises(SandboxNotFound, match="there is no sandbox"):
        world.sandboxes.find(SessionKey("umbrella", KEY.name))


async def test_no_sandbox_ends_before_its_beginning(world: World, sandbox: Sandbox) -> None:
    world.ledger.clock = lambda: sandbox.created_at - 60  # the machine's clock was set back
    await world.sandboxes.end(KEY)
    assert sandbox.end is not None
    assert sandbox.end.at == sandbox.created_at


async def test_a_limited_number_of_ended_sandboxes_is_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "REMEMBERED", 2)
    for number in range(3):
        key = SessionKey("acme", f"s{number}")
        await world.sandboxes.create(key, SPEC)
        await world.sandboxes.end(key)
    assert [sandbox.key.name for sandbox in world.sandboxes.of("acme")] == ["s1", "s2"]
    with pytest.raises(SandboxNotFound):
        world.sandboxes.find(SessionKey("acme", "s0"))


async def test_a_tenant_with_many_ended_sandboxes_pushes_out_only_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "REMEMBERED", 3)
    for tenant in ("umbrella", "acme", "acme", "acme", "acme"):
        key = SessionKey(tenant, f"s{len(world.sandboxes.of(tenant))}")
        await world.sandboxes.create(key, SPEC)
        await world.sandboxes.end(key)
    assert [len(world.sandboxes.of(tenant)) for tenant in ("umbrella", "acme")] == [1, 2]


# -- ending ----------------------------------------------------------------------------------------------------


async def test_the_end_of_a_sandbox_ends_its_sessions_and_deletes_its_files(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.create_session("python", "")
    await write(sandbox, "a")
    own = await world.session("other")
    await world.sandboxes.end(KEY)
    assert (session.state, own.state) == (State.CLOSED, State.IDLE)
    assert world.registry.all() == [own]
    assert len(world.backend.alive) == len(world.backend.workspaces) == 1


async def test_an_ended_sandbox_refuses_all_operations(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY)
    attempts: list[Any] = [
        sandbox.ensure_container(),
        sandbox.create_session("python", ""),
        sandbox.default_session("python"),
        sandbox.commands.run("true", "", 1),
        list_files(sandbox, ""),
    ]
    for attempt in attempts:
        with pytest.raises(SessionClosed):
            await attempt
    assert world.backend.asked == 1
    assert nothing_is_kept(world)


async def test_ending_a_sandbox_twice_keeps_the_first_time_and_reason(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY, "the first reason")
    end = sandbox.end
    await world.sandboxes.end(KEY, "another reason")
    assert end is not None
    assert (sandbox.end, end.reason) == (end, "the first reason")
    assert world.sandboxes.find(KEY) is sandbox


async def test_a_second_end_waits_until_the_sandbox_has_ended(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = world.backend.kernel.kill
    let_go = asyncio.Event()

    async def slow_kill() -> None:
        await let_go.wait()
        await kill()

    monkeypatch.setattr(world.backend.kernel, "kill", slow_kill)
    first, second = world.sandboxes.end(KEY), world.sandboxes.end(KEY)
    first.cancel()
    await asyncio.sleep(0.01)
    assert not second.done()
    let_go.set()
    await second
    assert nothing_is_kept(world)
    assert sandbox.closed


async def test_a_forgotten_sandbox_is_ended_and_no_longer_found(world: World, sandbox: Sandbox) -> None:
    assert await world.sandboxes.forget(KEY) is sandbox
    assert world.sandboxes.of("acme") == []
    assert nothing_is_kept(world)
    for attempt in (world.sandboxes.find, world.sandboxes.get, world.sandboxes.end):
        with pytest.raises(SandboxNotFound, match="there is no sandbox"):
            attempt(KEY)


async def test_an_ended_sandbox_can_be_forgotten(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY)
    assert await world.sandboxes.forget(KEY) is sandbox
    assert world.sandboxes.of("acme") == []


async def test_a_name_can_be_used_again(world: World, sandbox: Sandbox) -> None:
    await write(sandbox, "a")
    ending = world.sandboxes.end(KEY)
    again = await world.sandboxes.create(KEY, SPEC)
    await ending
    assert world.sandboxes.of("acme") == [again]
    assert await names(again) == []


async def test_closing_ends_all_sandboxes_and_refuses_new_ones(world: World) -> None:
    sandboxes = [await world.sandboxes.create(SessionKey("acme", name), SPEC) for name in ("a", "b")]
    await sandboxes[0].create_session("python", "")
    world.backend.gate.clear()
    starting = asyncio.gather(world.sandboxes.create(KEY, SPEC), return_exceptions=True)
    await asyncio.sleep(0)
    world.backend.gate.set()
    await world.sandboxes.close()
    assert nothing_is_kept(world)
    assert {sandbox.end and sandbox.end.reason for sandbox in sandboxes} == {"the gateway was stopped"}
    assert isinstance((await starting)[0], SessionClosed)
    with pytest.raises(ShuttingDown):
        await world.sandboxes.create(SessionKey("acme", "c"), SPEC)


async def test_closing_waits_for_sandboxes_that_are_ending(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = world.backend.kernel.kill

    async def slow_kill() -> None:
        await asyncio.sleep(0.05)
        await kill()

    monkeypatch.setattr(world.backend.kernel, "kill", slow_kill)
    world.sandboxes.end(KEY).cancel()
    assert world.backend.alive
    await world.sandboxes.close()
    assert nothing_is_kept(world)


# -- its sessions ----------------------------------------------------------------------------------------------


async def test_the_sessions_of_a_sandbox_share_the_workspace_and_nothing_else(world: World, sandbox: Sandbox) -> None:
    one, two = await sandbox.create_session("python", ""), await sandbox.create_session("python", "")
    await run(one, "x = 1; from pathlib import Path; Path('a').write_text('from one')")
    seen = await run(two, "from pathlib import Path; print(Path('a').read_text())")
    assert seen.outputs[0]["text"] == "from one\n"
    assert (await run(two, "x")).status is Status.ERROR
    assert await read(sandbox, "a") == b"from one"
    assert len(world.backend.workspaces) == 1
    assert sandbox.sessions() == [one, two]
    assert sandbox.session(two.key.name) is two


async def test_a_session_has_the_settings_of_its_sandbox(world: World) -> None:
    spec = SandboxSpec("template", Limits(memory=MEMORY_MIN), {"A": "1"}, 77.0, max_execute_timeout=9.0)
    sandbox = await world.sandboxes.create(KEY, spec)
    session = await sandbox.create_session("python", "/home/user/sub")
    expected = SessionSpec("python", spec.limits, {"A": "1"}, 77.0, 9.0, "sub", sandbox.workspace)
    assert session.spec == expected
    launch = world.backend.kernel.launch
    assert (launch.workspace, launch.cwd, launch.shared) == (sandbox.workspace, "sub", True)


@pytest.mark.parametrize("shared", [True, False])
async def test_the_sessions_of_a_sandbox_get_no_warm_kernel_of_a_language(
    backend: FakeBackend,
    shared: bool,  # noqa: FBT001
) -> None:
    async with world_over(backend, pool_size=1) as world:
        world.pool.keep_warm(PYTHON)
        await until(lambda: world.pool.depth() == 1)
        warm = backend.kernel
        if shared:
            await (await world.sandboxes.create(KEY, SPEC)).create_session("python", "")
        else:
            await world.session()
        used = [each.container for each in world.registry.all() if each.container]
        assert (warm in used) is not shared


async def test_every_language_has_one_default_session(world: World, sandbox: Sandbox) -> None:
    sessions = await asyncio.gather(*(sandbox.default_session(name) for name in ("python", "Python", "python3") * 3))
    assert len(set(sessions)) == 1
    assert world.backend.asked == 2
    assert await sandbox.create_session("python", "") is not sessions[0]
    other = await world.sandboxes.create(SessionKey("acme", "other"), SPEC)
    assert await other.default_session("python") is not sessions[0]


async def test_an_impossible_directory_or_an_unknown_language_creates_no_session(
    world: World, sandbox: Sandbox
) -> None:
    for language, cwd in (("python", "a\0b"), ("python", "x" * 2000), ("cobol", "")):
        with pytest.raises(InvalidRequest):
            await sandbox.create_session(language, cwd)
    with pytest.raises(InvalidRequest):
        await sandbox.default_session("cobol")
    assert (sandbox.sessions(), world.backend.asked) == ([], 1)
    assert (await sandbox.create_session("python", "/tmp/x")).spec.cwd == "/tmp/x"


@pytest.mark.parametrize("cwd", ["file", "/home/user/file", "file/below"])
async def test_a_session_does_not_start_in_a_file(world: World, sandbox: Sandbox, cwd: str) -> None:
    await write(sandbox, "file")
    with pytest.raises(InvalidRequest, match="no directory"):
        await sandbox.create_session("python", cwd)
    assert (sandbox.sessions(), world.backend.asked) == ([], 1)


async def test_a_session_that_does_not_start_leaves_the_sandbox_unchanged(world: World, sandbox: Sandbox) -> None:
    await write(sandbox, "a")
    world.backend.refuses = StartFailed()
    for attempt in (sandbox.create_session("python", ""), sandbox.default_session("python")):
        with pytest.raises(StartFailed):
            await attempt
    world.backend.refuses = None
    assert sandbox.sessions() == []
    assert await names(sandbox) == ["a"]


async def test_a_sandbox_lists_only_its_own_sessions(world: World, sandbox: Sandbox) -> None:
    other = await world.sandboxes.create(SessionKey("acme", "other"), SPEC)
    strangers = [await world.session("s1"), await other.create_session("python", "")]
    own = await sandbox.create_session("python", "")
    assert sandbox.sessions() == [own]
    for name in (*(session.key.name for session in strangers), "none", ""):
        with pytest.raises(SessionNotFound):
            sandbox.session(name)


async def test_the_end_of_a_session_keeps_the_files(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.create_session("python", "")
    await run(session, "from pathlib import Path; Path('a').write_text('kept')")
    await world.registry.end(session.key)
    assert (sandbox.sessions(), await read(sandbox, "a")) == ([], b"kept")
    again = await run(await sandbox.create_session("python", ""), "from pathlib import Path; Path('a').read_text()")
    assert again.status is Status.OK
    assert world.backend.workspaces == [sandbox.workspace]


async def test_the_next_default_session_reports_the_end_of_the_last_one(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.default_session("python")
    await run(session, "x = 1")
    await world.registry.end(session.key, "it was ended")
    result = await run(await sandbox.default_session("python"), "1")
    assert (result.state, result.state_reason) == (StateChange.LOST, "it was ended")


async def test_the_end_of_a_sandbox_ends_a_session_that_is_being_created(world: World, sandbox: Sandbox) -> None:
    world.backend.gate.clear()
    making = asyncio.gather(sandbox.create_session("python", ""), return_exceptions=True)
    await until(lambda: world.backend.asked == 2)
    ending = world.sandboxes.end(KEY)
    world.backend.gate.set()
    await ending
    assert isinstance((await making)[0], SessionClosed)
    assert nothing_is_kept(world)


async def test_the_end_of_a_sandbox_waits_for_a_session_that_was_ended_while_it_started(
    world: World, sandbox: Sandbox
) -> None:
    world.backend.gate.clear()
    making = asyncio.gather(sandbox.create_session("python", ""), return_exceptions=True)
    await until(lambda: world.backend.asked == 2)
    world.registry.end(sandbox.sessions()[0].key)
    ending = world.sandboxes.end(KEY)
    world.backend.gate.set()
    await ending
    assert isinstance((await making)[0], SessionClosed)
    assert nothing_is_kept(world)


# -- its own container -----------------------------------------------------------------------------------------


async def test_a_container_that_ended_is_replaced_when_it_is_needed(world: World, sandbox: Sandbox) -> None:
    first = await sandbox.ensure_container()
    world.backend.kernel.dies(1)
    await until(lambda: sandbox.container is None)
    assert holders(world.backend) == []
    second, third = await asyncio.gather(sandbox.ensure_container(), sandbox.ensure_container())
    assert second is third is not first
    assert len(holders(world.backend)) == 1
    await write(sandbox, "a")
    assert world.backend.kernel.launch.workspace == sandbox.workspace


async def test_files_that_outlive_containers_are_not_reported_as_lost(world: World, sandbox: Sandbox) -> None:
    world.pool.keeps_files = True
    await write(sandbox, "a")
    world.backend.kernel.dies(137, ExitReason.OOM)
    await until(lambda: sandbox.container is None)
    assert "a" in await names(sandbox)
    assert sandbox.loss is None


async def test_files_that_no_session_holds_are_reported_as_lost(world: World, sandbox: Sandbox) -> None:
    world.backend.kernel.dies(137, ExitReason.OOM)
    await until(lambda: sandbox.loss)
    assert sandbox.loss == "the sandbox's files were lost: its container ended (out_of_memory)"
    assert not sandbox.closed


async def test_files_that_a_session_holds_are_kept(world: World, sandbox: Sandbox) -> None:
    container = world.backend.kernel
    await sandbox.create_session("python", "")
    await write(sandbox, "a")
    container.dies(1)
    await until(lambda: sandbox.container is None)
    assert sandbox.loss is None
    assert await names(sandbox) == ["a"]


async def test_a_container_that_ends_is_replaced_at_once_for_a_session_unless_it_ended_early(
    world: World, sandbox: Sandbox
) -> None:
    first = world.backend.kernel
    session = await sandbox.create_session("python", "")
    await write(sandbox, "a")
    world.clock.passes(module.LASTING)
    first.dies(1)
    await until(lambda: sandbox.container not in {None, first})
    await world.registry.end(session.key)
    assert await names(sandbox) == ["a"]
    asked = world.backend.asked
    await sandbox.create_session("python", "")
    container = sandbox.container
    assert container is not None
    await container.kill()
    await until(lambda: sandbox.container is None)
    await asyncio.sleep(0.01)
    assert world.backend.asked == asked + 1


async def test_a_session_without_a_kernel_holds_no_files(world: World, sandbox: Sandbox) -> None:
    container = world.backend.kernel
    session = await sandbox.create_session("python", "")
    world.backend.kernel.dies(1)
    await until(lambda: session.state is State.DEAD)
    container.dies(1)
    await until(lambda: sandbox.loss)


async def test_the_end_of_a_sandbox_is_no_loss(world: World, sandbox: Sandbox) -> None:
    await world.sandboxes.end(KEY)
    assert sandbox.loss is None


async def test_replacing_a_container_is_tried_again_after_a_failure(world: World, sandbox: Sandbox) -> None:
    world.backend.kernel.dies(1)
    await until(lambda: sandbox.container is None)
    world.backend.refuses = StartFailed()
    with pytest.raises(StartFailed):
        await list_files(sandbox, "")
    assert world.sandboxes.get(KEY) is sandbox
    world.backend.refuses = None
    assert await names(sandbox) == []


async def test_running_out_of_memory_ends_only_a_container_that_hangs(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 5.0)
    container = world.backend.kernel
    world.clock.passes(100)
    container.runs_out_of_memory()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("pulse")])
    assert container.alive
    assert sandbox.idle_for() == 100, "no client has used it"
    container.behaviour = replace(container.behaviour, tool=lambda _argument: b"")
    container.runs_out_of_memory()
    await until(lambda: not container.alive)


async def test_a_container_that_runs_its_maximum_of_tools_is_not_taken_for_hanging(
    world: World, sandbox: Sandbox
) -> None:
    def refuses(_argument: str) -> bytes:
        raise QuotaExceeded

    container = world.backend.kernel
    container.behaviour = replace(container.behaviour, tool=refuses)
    container.runs_out_of_memory()
    await asyncio.sleep(0.01)
    assert container.alive
    assert sandbox.loss is None


# -- commands --------------------------------------------------------------------------------------------------


async def test_a_command_runs_in_the_workspace_with_the_environment_of_the_sandbox(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, env={"WHO": "me"}))
    await write(sandbox, "dir/a", b"content")
    ended = await sandbox.commands.run("cat a; echo $WHO >&2; exit 3", "dir", 10)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "content", "me\n")
    assert not ended.timed_out
    assert not ended.truncated
    assert 0 < ended.duration < 10


async def test_a_command_counts_as_an_execution(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=1)) as world:
        sandbox = await world.sandboxes.create(KEY, SPEC)
        session = await sandbox.create_session("python", "")
        running = spawn(sandbox.commands.run("touch began; sleep 60", "", 60), "client")
        await until((_workspace(world, sandbox) / "began").exists)
        for attempt in (sandbox.commands.run("true", "", 1), run(session, "1")):
            with pytest.raises(QuotaExceeded):
                await attempt
        running.cancel()
        await asyncio.wait({running})
        assert (await sandbox.commands.run("true", "", 10)).exit_code == 0


def _workspace(world: World, sandbox: Sandbox) -> Path:
    return world.backend.root / "workspaces" / sandbox.workspace


async def test_a_command_whose_sandbox_ends_before_its_turn_never_runs(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=1, queued=1)) as world:
        other = await world.session("other")
        running = spawn(run(other, SLEEP), "running")
        await until(lambda: backend.kernel.executed)
        sandbox = await world.sandboxes.create(KEY, SPEC)
        waiting = asyncio.gather(sandbox.commands.run("true", "", 1), return_exceptions=True)
        await until(lambda: world.quotas.waiting)
        await world.sandboxes.end(KEY)
        await other.interrupt()
        await running
        assert isinstance((await waiting)[0], SessionClosed)
        assert [request.code for _, request, _ in world.observed] == [SLEEP]
        assert world.open == {}


async def test_a_command_runs_no_longer_than_the_maximum_timeout(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, max_execute_timeout=0.3))
    ended = await sandbox.commands.run("sleep 60", "", 60)
    assert (ended.exit_code, ended.timed_out) == (124, True)
    assert ended.duration < 30


async def test_leaving_a_command_ends_it(world: World, sandbox: Sandbox) -> None:
    running = spawn(sandbox.commands.run("touch began; sleep 60", "", 60), "client")
    await until((_workspace(world, sandbox) / "began").exists)
    assert len(await _processes(world, sandbox)) > 0
    running.cancel()
    await asyncio.wait({running})
    async with asyncio.timeout(60):  # a killed process exists for a moment longer on a busy machine
        while await _processes(world, sandbox):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)


async def _processes(world: World, sandbox: Sandbox) -> list[Process]:
    """Return the processes of this sandbox only: a fake container lists those of the machine."""
    directory = str(_workspace(world, sandbox))
    return [process for process in (await list_processes(sandbox)).processes if process.directory == directory]


# -- culling ---------------------------------------------------------------------------------------------------


async def test_an_idle_sandbox_is_ended_with_its_sessions_and_files(
    world: World, culler: Culler, sandbox: Sandbox
) -> None:
    session = await sandbox.create_session("python", "")
    world.clock.passes(SPEC.idle_timeout - 0.001)
    assert await culler.sweep() == 0
    world.clock.passes(0.001)
    assert await culler.sweep() == 1
    assert (session.state, sandbox.end and sandbox.end.reason) == (State.CLOSED, "it was idle for 300 s")
    assert nothing_is_kept(world)


async def test_a_sandbox_without_an_idle_timeout_is_only_ended_at_the_end_of_its_life(
    world: World, culler: Culler
) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, idle_timeout=0.0, lifetime=900.0))
    world.clock.passes(600.0)
    assert await culler.sweep() == 0
    sandbox.amend(lifetime=sandbox.age() + 600.0)
    world.clock.passes(599.0)
    assert await culler.sweep() == 0
    world.clock.passes(1.0)
    assert await culler.sweep() == 1
    assert sandbox.end is not None
    assert sandbox.end.reason == "it reached its maximum lifetime of 1200 s"


async def test_the_first_client_after_the_end_of_a_sandboxs_life_finds_it_ended(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=10.0))
    world.clock.passes(9.0)
    assert world.sandboxes.get(KEY) is sandbox
    world.clock.passes(1.0)
    with pytest.raises(SandboxNotFound, match="maximum lifetime"):
        world.sandboxes.get(KEY)
    assert sandbox.closed


async def test_a_change_of_its_settings_is_recorded_or_not_made(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.amend(metadata={"a": "b"})
    (record,) = world.ledger.sandboxes()
    assert record.spec == sandbox.spec == replace(SPEC, metadata={"a": "b"})
    assert record.container is not None

    def fail(_record: object) -> None:
        raise LedgerUnavailable

    monkeypatch.setattr(world.ledger, "keep", fail)
    with pytest.raises(LedgerUnavailable):
        sandbox.amend(metadata={})
    assert sandbox.spec.metadata == {"a": "b"}


async def test_a_session_is_not_culled_without_its_sandbox(world: World, culler: Culler, sandbox: Sandbox) -> None:
    idle = await sandbox.create_session("python", "")
    world.clock.passes(SPEC.idle_timeout)
    used = await sandbox.create_session("python", "")
    assert await culler.sweep() == 0
    assert Culler(world.registry, world.sandboxes, max_lifetime=1.0).reason_to_end(idle) is None
    assert {idle.state, used.state} == {State.IDLE}


async def _uses_a_file(_world: World, sandbox: Sandbox, _session: Session) -> None:
    await list_files(sandbox, "")


async def _runs_a_command(_world: World, sandbox: Sandbox, _session: Session) -> None:
    await sandbox.commands.run("true", "", 10)


async def _runs_a_cell(_world: World, _sandbox: Sandbox, session: Session) -> None:
    await run(session, "1")


async def _asks_for_it(world: World, _sandbox: Sandbox, _session: Session) -> None:
    world.sandboxes.get(KEY)


async def _asks_for_a_session(_world: World, sandbox: Sandbox, session: Session) -> None:
    assert sandbox.session(session.key.name) is session


@pytest.mark.parametrize("use", [_uses_a_file, _runs_a_command, _runs_a_cell, _asks_for_it, _asks_for_a_session])
async def test_every_use_of_a_sandbox_or_its_sessions_resets_the_idle_time(
    world: World, culler: Culler, sandbox: Sandbox, use: Any
) -> None:
    session = await sandbox.create_session("python", "")
    for _ in range(2):
        world.clock.passes(SPEC.idle_timeout)
        await use(world, sandbox, session)
        assert await culler.sweep() == 0
    world.clock.passes(SPEC.idle_timeout)
    assert await culler.sweep() == 1


async def test_finding_and_listing_a_sandbox_do_not_reset_the_idle_time(
    world: World, culler: Culler, sandbox: Sandbox
) -> None:
    world.clock.passes(SPEC.idle_timeout)
    assert world.sandboxes.find(KEY) is sandbox
    assert world.sandboxes.of("acme") == [sandbox]
    assert await culler.sweep() == 1


async def test_a_running_cell_or_upload_keeps_the_sandbox_and_its_end_resets_the_idle_time(
    world: World, culler: Culler, sandbox: Sandbox
) -> None:
    session = await sandbox.create_session("python", "")
    cell = spawn(run(session, SLEEP), "client")
    await until(lambda: world.backend.kernel.executed)
    world.clock.passes(100 * SPEC.idle_timeout)
    assert await culler.sweep() == 0
    await session.interrupt()
    assert (await cell).status is Status.INTERRUPTED

    stopped = asyncio.Event()

    async def until_stopped() -> AsyncIterator[bytes]:
        await stopped.wait()
        yield b"x"

    upload = spawn(write_file(sandbox, "a", 1, until_stopped()), "client")
    await until(lambda: sandbox.in_use)
    world.clock.passes(100 * SPEC.idle_timeout)
    assert await culler.sweep() == 0
    stopped.set()
    assert await upload == 1
    assert sandbox.idle_for() == 0
    world.clock.passes(SPEC.idle_timeout)
    assert await culler.sweep() == 1


@pytest.mark.parametrize(
    ("lifetime", "maximum", "lived"), [(100.0, 0.0, 100), (0.0, 50.0, 50), (100.0, 50.0, 50), (50.0, 100.0, 50)]
)
async def test_a_sandbox_past_its_maximum_lifetime_is_ended_even_while_it_is_used(
    world: World, lifetime: float, maximum: float, lived: float
) -> None:
    culler = Culler(world.registry, world.sandboxes, max_lifetime=maximum)
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=lifetime))
    session = await sandbox.create_session("python", "")
    cell = spawn(run(session, SLEEP), "client")
    await until(lambda: world.backend.kernel.executed)
    world.clock.passes(lived - 1)
    assert await culler.sweep() == 0
    world.clock.passes(1)
    assert await culler.sweep() == 1
    assert sandbox.end is not None
    assert sandbox.end.reason == f"it reached its maximum lifetime of {lived} s"
    assert (await cell).status is Status.DIED


async def test_without_a_maximum_lifetime_no_sandbox_is_too_old(world: World, culler: Culler, sandbox: Sandbox) -> None:
    world.clock.passes(10**9)
    sandbox.touch()
    assert await culler.sweep() == 0


async def test_a_tool_that_a_client_leaves_early_no_longer_counts_as_use(world: World, sandbox: Sandbox) -> None:
    await write(sandbox, "a", b"x" * 1_000_000)
    async with aclosing(sandbox.run_tool("files", '{"op": "read", "path": "a"}')) as output:
        assert await anext(output)
        world.clock.passes(10)
        assert sandbox.idle_for() == 0
    world.clock.passes(10)
    assert sandbox.idle_for() == 10


# -- pauses ----------------------------------------------------------------------------------------------------


async def test_a_paused_sandbox_cannot_be_used_until_it_is_resumed(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.default_session("python")
    await sandbox.pausing.begin()
    assert [kernel.paused for kernel in world.backend.alive] == [True, True]
    uses: list[Callable[[], Any]] = [
        lambda: list_files(sandbox, ""),
        lambda: sandbox.create_session("python", ""),
        lambda: sandbox.default_session("python"),
    ]
    for use in uses:
        with pytest.raises(SandboxNotFound, match="paused"):
            await use()
    with pytest.raises(SandboxNotFound, match="paused"):
        sandbox.session(session.key.name)
    await sandbox.pausing.resume(60)
    assert [kernel.paused for kernel in world.backend.alive] == [False, False]
    assert (await run(await sandbox.default_session("python"), "1")).state is StateChange.NEW


async def test_a_use_wakes_a_paused_sandbox_only_if_its_client_wants_that(world: World, sandbox: Sandbox) -> None:
    for wakes, expected in ((0.0, True), (50.0, False)):
        sandbox.amend(wake_lifetime=wakes)
        await sandbox.pausing.begin()
        await gather_all(sandbox.wake(), sandbox.wake())
        assert (sandbox.pausing.paused, world.backend.alive[0].paused) == (expected, expected)
        await sandbox.pausing.resume(60)
    assert sandbox.spec.lifetime - sandbox.age() == 50  # the last resume has found it awake
    await list_files(sandbox, "")


async def test_a_sandbox_that_is_woken_while_its_pause_begins_is_awake(world: World, sandbox: Sandbox) -> None:
    sandbox.amend(wake_lifetime=50.0)
    pause = sandbox.pausing.begin()
    await sandbox.wake()
    await pause
    assert (sandbox.pausing.paused, world.backend.alive[0].paused) == (False, False)


async def test_a_sandbox_of_another_image_has_only_containers_of_it(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, image="other:1"))
    await sandbox.default_session("python")
    assert {kernel.launch.image for kernel in world.backend.alive} == {"other:1"}


async def test_a_sandbox_that_cannot_be_resumed_is_still_paused_and_says_why(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.default_session("python")
    await sandbox.pausing.begin()
    world.backend.failures["resume"] = ConnectionFailed()
    with pytest.raises(ConnectionFailed):
        await sandbox.pausing.resume(60)
    assert sandbox.pausing.paused
    world.backend.failures.clear()
    await sandbox.pausing.resume(60)
    assert (await run(session, "1")).status is Status.OK


async def test_the_client_learns_why_a_sandbox_could_not_be_paused(world: World, sandbox: Sandbox) -> None:
    world.backend.failures["pause"] = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        await sandbox.pausing.begin()


async def test_a_pause_cuts_connections_and_waits_for_the_cells_that_this_ends(world: World, sandbox: Sandbox) -> None:
    session = await sandbox.default_session("python")
    cell = spawn(run(session, SLEEP), "cell")
    await until(lambda: session.in_use and session.state is State.BUSY)

    def cut() -> None:
        spawn(session.interrupt(), "interrupt")

    sandbox.pausing.connections.add(cut)
    await sandbox.pausing.begin()
    assert cell.done() or session.state is State.IDLE
    assert (await cell).status is Status.INTERRUPTED


@pytest.fixture
async def frozen(world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[ExecutionResult]:
    """A cell with a deadline of 0.3 s that no pause ends, in a paused sandbox."""
    monkeypatch.setattr("sessions.sandbox.pausing.QUIET", 0.0)
    session = await sandbox.default_session("python")
    cell = spawn(run(session, SLEEP, timeout=0.3), "cell")
    await until(lambda: session.state is State.BUSY)
    await sandbox.pausing.begin()
    await asyncio.sleep(0.5)
    assert not cell.done()
    assert world.backend.kernel.interrupts == []
    return cell


async def test_a_frozen_cell_reaches_its_deadline_only_after_the_resume(
    world: World, sandbox: Sandbox, frozen: asyncio.Task[ExecutionResult]
) -> None:
    await sandbox.pausing.resume(60)
    result = await frozen
    assert (result.status, result.state) == (Status.TIMEOUT, StateChange.NEW)
    assert 0.25 < result.duration < 0.75  # without the freeze, which alone took 0.5 s
    assert world.backend.kernel.interrupts == ["message"]


async def test_a_frozen_cell_whose_client_leaves_is_interrupted_after_the_resume(
    world: World, sandbox: Sandbox, frozen: asyncio.Task[ExecutionResult]
) -> None:
    kernel = world.backend.kernel
    frozen.cancel()
    await asyncio.sleep(0.2)
    assert kernel.interrupts == []
    await sandbox.pausing.resume(60)
    with suppress(asyncio.CancelledError):
        await frozen
    assert (kernel.interrupts, kernel.alive) == (["message"], True)


async def test_a_frozen_cell_ends_with_its_sandbox(world: World, frozen: asyncio.Task[ExecutionResult]) -> None:
    await world.sandboxes.end(KEY)
    assert (await frozen).status is Status.DIED


async def test_a_paused_sandbox_ends_after_the_longest_pause_and_not_before(world: World) -> None:
    culler = Culler(world.registry, world.sandboxes, max_pause=500)
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=100, idle_timeout=50))
    await sandbox.pausing.begin()
    world.clock.passes(499)
    assert await culler.sweep() == 0
    world.clock.passes(1)
    assert await culler.sweep() == 1
    assert sandbox.end is not None
    assert sandbox.end.reason == "it was paused for 500 s"


async def test_a_paused_sandbox_ends_at_the_gateways_longest_lifetime(world: World) -> None:
    culler = Culler(world.registry, world.sandboxes, max_lifetime=100, max_pause=500)
    sandbox = await world.sandboxes.create(KEY, SPEC)
    await sandbox.pausing.begin()
    world.clock.passes(100)
    assert await culler.sweep() == 1


@pytest.mark.parametrize("sweeps", [True, False])
async def test_a_sandbox_whose_time_is_over_is_paused_if_its_client_wants_that(
    world: World,
    culler: Culler,
    sweeps: bool,  # noqa: FBT001
) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=100, auto_pause=True))
    world.clock.passes(100)
    if sweeps:
        assert await culler.sweep() == 0
    else:
        assert world.sandboxes.get(KEY) is sandbox
    assert sandbox.pausing.paused
    await until(lambda: world.backend.alive[0].paused)


def refuse(_record: object) -> None:
    raise LedgerUnavailable


async def test_a_pause_that_cannot_be_recorded_stops_no_culling_and_costs_no_sandbox(
    world: World, culler: Culler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=100, auto_pause=True))
    other = await world.sandboxes.create(SessionKey("other", "s2"), replace(SPEC, lifetime=100))
    world.clock.passes(100)
    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "keep", refuse)
        assert await culler.sweep() == 1
        assert world.sandboxes.get(KEY) is sandbox
    assert (sandbox.closed, sandbox.pausing.paused, other.closed) == (False, False, True)
    assert await culler.sweep() == 0
    assert sandbox.pausing.paused


async def test_a_sandbox_whose_time_is_over_before_its_takeover_is_paused_afterwards(
    backend: FakeBackend, tmp_path: Path
) -> None:
    backend.keeps_files = True
    first = World(backend, ledger=tmp_path / "ledger")
    assert await first.readiness.check()
    await first.sandboxes.create(KEY, replace(SPEC, lifetime=100, auto_pause=True))
    first.ledger.close()  # it is killed
    world = World(backend, ledger=tmp_path / "ledger")
    world.clock.passes(100)
    sandbox = world.sandboxes.get(KEY)
    assert not sandbox.closed
    assert await world.readiness.check()
    assert world.sandboxes.get(KEY).pausing.paused
    await world.close()


@pytest.fixture
async def half_frozen(world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A paused sandbox of which only one container is frozen: the engine has refused that for the other one."""
    await sandbox.default_session("python")
    for kernel in world.backend.alive:
        monkeypatch.setattr(kernel, "pause", partial(pause_once, kernel))
    world.backend.failures["pause"] = BackendUnavailable()
    holders(world.backend)[0].failures = Failures()
    with pytest.raises(BackendUnavailable):
        await sandbox.pausing.begin()
    assert [kernel.paused for kernel in world.backend.alive] == [True, False]
    return sandbox


async def pause_once(kernel: FakeKernel) -> None:
    """Freeze a container as an engine does, which refuses to freeze it twice."""
    if kernel.paused:
        raise BackendUnavailable
    await FakeKernel.pause(kernel)


async def test_a_part_of_a_paused_sandbox_that_runs_on_is_frozen_by_the_culler(
    world: World, culler: Culler, half_frozen: Sandbox
) -> None:
    assert "may still run" in half_frozen.pausing.problem
    world.backend.failures.clear()
    await culler.sweep()
    await until(lambda: not half_frozen.pausing.problem)
    assert [kernel.paused for kernel in world.backend.alive] == [True, True]


async def test_what_is_frozen_stays_so_while_the_engine_freezes_nothing_else(
    world: World, culler: Culler, half_frozen: Sandbox
) -> None:
    for _ in range(2):
        await culler.sweep()
        await until(lambda: not background("pause"))
        assert [kernel.paused for kernel in world.backend.alive] == [True, False]
        assert "may still run" in half_frozen.pausing.problem


async def test_a_sandbox_of_which_only_a_part_was_resumed_is_frozen_by_the_culler(
    world: World, culler: Culler, sandbox: Sandbox
) -> None:
    await sandbox.default_session("python")
    await sandbox.pausing.begin()
    holders(world.backend)[0].failures = Failures()
    world.backend.failures["resume"] = ConnectionFailed()
    with pytest.raises(ConnectionFailed):
        await sandbox.pausing.resume(60)
    assert [kernel.paused for kernel in world.backend.alive] == [False, True]
    await culler.sweep()
    await until(lambda: not background("pause"))
    assert [kernel.paused for kernel in world.backend.alive] == [True, True]


async def test_a_sandbox_that_was_paused_or_resumed_is_left_alone_by_the_culler(
    world: World, culler: Culler, sandbox: Sandbox
) -> None:
    for expected in (True, False):
        await (sandbox.pausing.begin() if expected else sandbox.pausing.resume(60))
        await culler.sweep()
        assert background("pause") == []
        assert [kernel.paused for kernel in world.backend.alive] == [expected]


async def test_where_nothing_can_be_paused_a_pause_is_refused_and_a_sandbox_ends_at_its_time(
    world: World, culler: Culler
) -> None:
    world.pool.pauses = Ability(on=False, detail="nothing can be frozen here")
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, lifetime=100, auto_pause=True))
    with pytest.raises(InvalidRequest, match="cannot pause a sandbox: nothing can be frozen here"):
        sandbox.pausing.begin()
    assert not sandbox.pausing.paused
    world.clock.passes(100)
    assert await culler.sweep() == 1
    assert sandbox.closed


async def test_a_sandbox_with_a_secret_is_found_by_its_name_until_it_ends(world: World) -> None:
    await world.sandboxes.create(SessionKey("other", KEY.name), SPEC)  # of another dialect, with the same name
    assert world.sandboxes.with_secret(KEY.name) is None
    sandbox = await world.sandboxes.create(KEY, replace(SPEC, secret=KEY.name))
    assert world.sandboxes.with_secret(KEY.name) is sandbox
    await world.sandboxes.end(KEY)
    assert world.sandboxes.with_secret(KEY.name) is None
