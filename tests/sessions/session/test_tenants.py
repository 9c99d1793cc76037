"""Every execution, of every dialect and with any end, is counted and audited once, and refused by the same rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from sessions.guest.workspace import list_files, write_file
from sessions.model.errors import AuditUnavailable, FileNotFound, InvalidRequest, QuotaExceeded, SessionError
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionEnd, SandboxSpec, SessionKey, Status
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session
from sessions.tenants.quotas import TenantLimits
from sessions.tenants.usage import Allowance
from tests.fakes import MEMORY, TIMEOUTS, Cell, FakeBackend, World, busy, idle, run, started, stream, until, world_over
from tests.sessions.channels.test_hub import content, heard, send, text

SLEEP = "import time; time.sleep(60)"
EXIT = "import os; os._exit(3)"
#: code or command that outputs 101 bytes
PRINTS = {"api": "print('x' * 100)", "channels": "print('x' * 100)", "command": f"echo {'x' * 100}"}


class Tenant:
    """A tenant with a session and a sandbox."""

    def __init__(self, world: World, session: Session, sandbox: Sandbox) -> None:
        self.world = world
        self.session = session
        self.sandbox = sandbox
        self._client = session.channels.subscribe("c")

    @classmethod
    async def of(cls, world: World, name: str = "acme") -> Tenant:
        sandbox = await world.sandboxes.create(SessionKey(name, "box"), SandboxSpec("template"))
        return cls(world, await world.session(tenant=name), sandbox)

    async def api(self, code: str) -> None:
        await run(self.session, code)

    async def channels(self, code: str) -> None:
        await heard(self._client, send(self.session, self._client, code))

    async def command(self, command: str) -> None:
        await self.sandbox.commands.run(command, "", 10)

    async def prints(self, way: str) -> None:
        """Output 101 bytes."""
        ways: dict[str, Callable[[str], Awaitable[None]]] = {
            "api": self.api,
            "channels": self.channels,
            "command": self.command,
        }
        await ways[way](PRINTS[way])

    def ended(self) -> ExecutionEnd:
        """Return the end of the one execution that has ended since the last call."""
        ((_, _, result),) = self.world.observed
        self.world.observed.clear()
        return result


@pytest.fixture
async def tenant(world: World) -> Tenant:
    return await Tenant.of(world)


@pytest.mark.parametrize("way", PRINTS)
async def test_every_execution_is_audited_once_with_its_output_bytes(tenant: Tenant, way: str) -> None:
    await tenant.prints(way)
    result = tenant.ended()
    assert (result.status, result.output_bytes, result.error) == (Status.OK, 101, None)
    assert 0 < result.duration < 10
    assert result.memory == (None if way == "command" else MEMORY)
    assert tenant.world.open == {}


@pytest.mark.parametrize("way", ["api", "channels"])
async def test_a_kernel_that_dies_frees_the_place_and_ends_the_audit_record(tenant: Tenant, way: str) -> None:
    await (tenant.api(EXIT) if way == "api" else tenant.channels(EXIT))
    result = tenant.ended()
    assert (result.status, result.memory) == (Status.DIED, None)
    assert (tenant.world.quotas.running, tenant.world.open) == (0, {})


async def test_every_end_of_a_command_is_audited_once(tenant: Tenant) -> None:
    await tenant.command("exit 3")
    assert tenant.ended().status is Status.ERROR
    await tenant.sandbox.commands.run("sleep 60", "", 0.2)
    overdue = tenant.ended()
    assert (overdue.status, overdue.error and overdue.error.code) == (Status.TIMEOUT, "SB005")
    leaving = spawn(tenant.command("sleep 60"), "client")
    await until(lambda: tenant.world.open)
    leaving.cancel()
    await asyncio.wait({leaving})
    assert tenant.ended().status is Status.INTERRUPTED
    for command, cwd, error in (("true", "absent", FileNotFound), ("\0", "", InvalidRequest)):
        with pytest.raises(error):
            await tenant.sandbox.commands.run(command, cwd, 10)
    assert (tenant.world.observed, tenant.world.open, tenant.world.quotas.running) == ([], {}, 0)


@pytest.mark.parametrize("way", PRINTS)
async def test_nothing_runs_when_the_audit_cannot_be_written(tenant: Tenant, way: str) -> None:
    tenant.world.refuses = AuditUnavailable()
    with pytest.raises(AuditUnavailable):
        await tenant.prints(way)
    assert all(kernel.executed == [] for kernel in tenant.world.backend.started)
    assert tenant.world.quotas.running == 0
    tenant.world.refuses = None
    await tenant.prints(way)
    assert tenant.ended().status is Status.OK


# -- concurrent executions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["api", "command"])
async def test_an_execution_over_the_limit_is_queued_or_refused(backend: FakeBackend, way: str) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=1, queued=1), concurrent=5) as world:
        tenant, other = await Tenant.of(world), await world.session("other")
        first = spawn(run(other, SLEEP), "first")
        await until(lambda: world.open)
        waiting = spawn(tenant.prints(way), "waiting")
        await until(lambda: world.quotas.waiting)
        assert tenant.session.idle_for() == 0 or tenant.sandbox.idle_for() == 0  # neither is culled
        for refused in PRINTS:
            with pytest.raises(QuotaExceeded, match="at most 1 executions"):
                await tenant.prints(refused)
        await other.interrupt()
        await asyncio.gather(first, waiting)
        assert (world.quotas.running, world.quotas.waiting, world.open) == (0, 0, {})


async def test_a_client_that_leaves_while_it_waits_runs_nothing(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=1, queued=1)) as world:
        tenant, other = await Tenant.of(world), await world.session("other")
        first = spawn(run(other, SLEEP), "first")
        await until(lambda: world.open)
        waiting = spawn(tenant.prints("api"), "waiting")
        await until(lambda: world.quotas.waiting)
        waiting.cancel()
        await asyncio.wait({waiting})
        await other.interrupt()
        await first
        assert [result.status for _, _, result in world.observed] == [Status.INTERRUPTED]


# -- use over time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", PRINTS)
async def test_the_output_quota_is_shared_by_all_ways_to_execute(backend: FakeBackend, way: str) -> None:
    limits = TenantLimits(allowance=Allowance(window=60, output=150))
    async with world_over(backend, quotas=limits) as world:
        tenant, neighbour = await Tenant.of(world), await Tenant.of(world, "umbrella")
        for _ in range(2):
            await tenant.prints(way)
        for refused in PRINTS:
            with pytest.raises(QuotaExceeded, match="150 output bytes per 60 s") as error:
                await tenant.prints(refused)
            assert 60 <= error.value.details["retry_after"] <= 61
        await neighbour.prints(way)
        world.clock.passes(61)
        await tenant.prints(way)


async def test_execution_seconds_count_against_the_quota(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(allowance=Allowance(window=60, seconds=0.2))) as world:
        tenant = await Tenant.of(world)
        assert (await run(tenant.session, SLEEP, timeout=0.3)).status is Status.TIMEOUT
        with pytest.raises(QuotaExceeded, match=r"0\.2 execution seconds per 60 s"):
            await tenant.prints("api")


async def test_cells_queued_in_the_kernel_are_interrupted_when_the_quota_is_used_up(backend: FakeBackend) -> None:
    async with world_over(backend, quotas=TenantLimits(allowance=Allowance(window=60, output=150))) as world:
        session, go = await world.session(), asyncio.Event()

        async def talks(cell: Cell) -> None:
            await go.wait()
            cell.says(busy(), started(cell.code), stream("x" * 200))
            cell.ends()

        client = session.channels.subscribe("c")
        _, second = (send(session, client, code) for code in (world.backend.on("talks", talks), SLEEP))
        go.set()
        seen = await heard(client, second)
        assert "[kernel-gateway SB008: the tenant's 150 output bytes per 60 s are used up]" in text(seen)
        ended = [(result.status, result.error and result.error.code) for _, _, result in world.observed]
        assert ended == [(Status.OK, None), (Status.INTERRUPTED, "SB008")]


# -- channel clients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_events", [False, True])
async def test_a_client_gets_its_answer_before_the_end_is_recorded(backend: FakeBackend, *, by_events: bool) -> None:
    async def talks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code), stream("one"), stream("two"))
        cell.ends()

    async with world_over(backend, timeouts=replace(TIMEOUTS, answer=30.0)) as world:
        session = await world.session()
        async with session.execute(ExecuteRequest(backend.on("talks", talks))) as execution:
            if by_events:
                async for _ in execution:
                    for _turn in range(5):  # as the sending of each event takes some turns of the event loop
                        await asyncio.sleep(0)
            await execution.result()
            assert world.observed == []
        assert len(world.observed) == 1


async def test_a_client_that_stays_does_not_keep_the_end_from_being_recorded(world: World, session: Session) -> None:
    async with session.execute(ExecuteRequest("1")) as execution:
        await execution.result()
        await until(lambda: len(world.observed) == 1)
        assert (await run(session, "2")).status == "ok"


async def test_output_after_the_reply_is_counted(world: World, session: Session) -> None:
    go = asyncio.Event()

    async def replies_first(cell: Cell) -> None:
        cell.says(busy(), started(cell.code))
        cell.replies()
        await go.wait()
        cell.says(stream("x" * 50), idle())

    client = session.channels.subscribe("c")
    msg_id = send(session, client, world.backend.on("replies first", replies_first))
    await until(lambda: not session.channels.running)
    assert world.observed == []
    go.set()
    await heard(client, msg_id)
    ((_, _, result),) = world.observed
    assert (result.status, result.output_bytes) == (Status.OK, 50)


async def test_a_second_cell_with_one_id_is_refused_and_not_audited(world: World, session: Session) -> None:
    async def says_no_idle(cell: Cell) -> None:
        cell.says(busy(), started(cell.code))
        cell.replies()

    client, code = session.channels.subscribe("c"), world.backend.on("says no idle", says_no_idle)
    header = {"msg_id": "twice", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, {"code": code})]
    session.channels.forward(client, "shell", header, parts, [])
    await until(lambda: not session.channels.running)
    with pytest.raises(InvalidRequest, match="sent before"):
        session.channels.forward(client, "shell", header, parts, [])
    assert len(world.open) == 1, "the first one, whose idle is missing"
    await session.close()
    assert len(world.observed) == 1


@pytest.mark.parametrize("channel", ["control", "stdin"])
async def test_code_runs_by_the_shell_channel_alone(world: World, session: Session, channel: str) -> None:
    client = session.channels.subscribe("c")
    header = {"msg_id": "m", "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, {"code": "1"})]
    if channel == "control":
        with pytest.raises(InvalidRequest, match="shell"):
            session.channels.forward(client, channel, header, parts, [])
    else:
        session.channels.forward(client, channel, header, parts, [])  # dropped: the kernel has asked for no input
    assert content((await heard(client, send(session, client, "1")))[-1])
    assert world.backend.kernel.executed == ["1"]


# -- files -----------------------------------------------------------------------------------------------------


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size


@pytest.fixture
async def uploader(backend: FakeBackend) -> AsyncIterator[Tenant]:
    """A tenant that may upload 1000 bytes."""
    async with world_over(backend, quotas=TenantLimits(allowance=Allowance(window=60, upload=1000))) as world:
        yield await Tenant.of(world)


@pytest.mark.parametrize("place", ["session", "sandbox"])
@pytest.mark.parametrize("known", [True, False])
async def test_all_uploads_share_one_quota(uploader: Tenant, place: str, known: bool) -> None:  # noqa: FBT001
    target: Session | Sandbox = getattr(uploader, place)
    await write_file(target, "first", 999 if known else None, pieces(999))
    await write_file(target, "second", 600 if known else None, pieces(600))
    for refused in (uploader.session, uploader.sandbox):
        for size in (1, None):
            with pytest.raises(QuotaExceeded, match="1000 upload bytes per 60 s"):
                await write_file(refused, "third", size, pieces(1))
    assert sorted(entry["name"] for entry in (await list_files(target, "")).entries) == ["first", "second"]
    await uploader.prints("api")
    uploader.world.clock.passes(61)
    await write_file(target, "third", 1, pieces(1))


async def test_an_upload_of_unknown_size_ends_when_the_quota_is_used_up(uploader: Tenant) -> None:
    sent: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            sent.append(400)
            yield b"x" * 400

    with pytest.raises(QuotaExceeded):
        await write_file(uploader.session, "endless", None, endless())
    assert sum(sent) == 1600
    assert (await list_files(uploader.session, "")).entries == []


async def test_an_upload_to_an_invalid_path_gets_the_error_of_the_path(uploader: Tenant) -> None:
    for path in ("../x", ""):
        with pytest.raises(SessionError) as refused:
            await write_file(uploader.session, path, None, pieces(1))
        assert isinstance(refused.value, InvalidRequest)
