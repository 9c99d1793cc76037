"""A retry gets the first run's result, and nothing runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions import retries
from sessions.errors import InvalidRequest, QuotaExceeded, StartFailed
from sessions.models import ExecuteRequest, ExecutionResult, StateChange, Status
from sessions.outputs import Event
from sessions.quotas import TenantLimits
from sessions.session import Session
from sessions.tasks import spawn
from tests.fakes import Behaviour, Cell, FakeBackend, World, busy, run, started, stream, until, world_over

KEY = "order-66"
COUNTS = "n = globals().get('n', 0) + 1; print(n)"
SLEEP = "import time; time.sleep(60)"


def text(result: ExecutionResult) -> str:
    return "".join(output.get("text", "") for output in result.outputs)


async def events_of(session: Session, code: str, **request: Any) -> list[Event]:
    async with session.execute(ExecuteRequest(code, **request)) as execution:
        return [event async for event in execution]


async def test_a_retry_gets_the_first_result(world: World, session: Session) -> None:
    first = await run(session, COUNTS, idempotency_key=KEY)
    again = await run(session, COUNTS, idempotency_key=KEY)
    assert (text(first), first.replayed) == ("1\n", False)
    assert (text(again), again.replayed) == ("1\n", True)
    assert again.outputs == first.outputs
    assert again.execution_count == first.execution_count
    assert len(world.backend.kernel.executed) == 1
    assert text(await run(session, COUNTS)) == "2\n"  # the control: without a key it runs


async def test_another_key_is_another_run(session: Session) -> None:
    assert [text(await run(session, COUNTS, idempotency_key=key)) for key in "aba"] == ["1\n", "2\n", "1\n"]


async def test_a_key_is_a_session_s_own(world: World, session: Session) -> None:
    await run(session, "print('mine')", idempotency_key=KEY)
    other = await world.session("other")
    assert text(await run(other, "print('theirs')", idempotency_key=KEY)) == "theirs\n"


@pytest.mark.parametrize("change", [{"code": "print(2)"}, {"timeout": 3.0}, {"stdin": ("a",)}, {"arguments": {}}])
async def test_a_key_for_another_request_is_refused(session: Session, change: dict[str, Any]) -> None:
    request = {"code": "def main(): pass", "idempotency_key": KEY}
    await run(session, **request)
    with pytest.raises(InvalidRequest) as refused:
        await run(session, **request | change)
    assert refused.value.details["field"] == "idempotency_key"


async def test_the_way_a_request_came_by_does_not_matter(session: Session) -> None:
    await run(session, COUNTS, idempotency_key=KEY, interactive=True)
    assert (await run(session, COUNTS, idempotency_key=KEY)).replayed


async def test_retries_at_once_run_once(world: World, session: Session) -> None:
    results = await asyncio.gather(*(run(session, COUNTS, idempotency_key=KEY) for _ in range(20)))
    assert {text(result) for result in results} == {"1\n"}
    assert [result.replayed for result in results].count(False) == 1
    assert len(world.backend.kernel.executed) == 1


async def test_a_client_that_leaves_does_not_end_its_cell(world: World, session: Session) -> None:
    going = asyncio.Event()

    async def waits(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream("before "))
        await going.wait()
        cell.says(stream("after"))
        cell.ends()

    code = world.backend.on("waits", waits)
    client = spawn(run(session, code, idempotency_key=KEY), "client")
    await until(lambda: world.backend.kernel.executed)
    client.cancel()
    await asyncio.wait({client})
    retry = spawn(run(session, code, idempotency_key=KEY), "retry")
    await asyncio.sleep(0.05)
    assert not retry.done()
    going.set()
    result = await retry
    assert (result.status, text(result)) == (Status.OK, "before after")


async def test_a_client_that_leaves_while_it_waits_is_run_in_its_turn(world: World, session: Session) -> None:
    running = spawn(run(session, SLEEP), "the one before")
    await until(lambda: world.backend.kernel.executed)
    client = spawn(run(session, COUNTS, idempotency_key=KEY), "client")
    await asyncio.sleep(0.02)
    client.cancel()
    await session.interrupt()
    await running
    assert text(await run(session, COUNTS, idempotency_key=KEY)) == "1\n"


async def test_an_interrupt_ends_it_all_the_same(world: World, session: Session) -> None:
    client = spawn(run(session, SLEEP, idempotency_key=KEY), "client")
    await until(lambda: world.backend.kernel.executed)
    await session.interrupt()
    assert (await client).status is Status.INTERRUPTED
    assert (await run(session, SLEEP, idempotency_key=KEY)).status is Status.INTERRUPTED


async def test_the_first_sees_it_happen_and_the_others_what_it_came_to(session: Session) -> None:
    code = "print('a'); print('b')"
    first = await events_of(session, code, idempotency_key=KEY)
    again = await events_of(session, code, idempotency_key=KEY)
    assert (
        first
        == again
        == [
            {"type": "started", "execution_count": 1},
            {"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": "a\nb\n"}},
        ]
    )


async def test_only_the_first_may_answer_questions(world: World, session: Session) -> None:
    async def asks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream(await cell.asks("who? ")))
        cell.ends()

    request = ExecuteRequest(world.backend.on("asks", asks), interactive=True, idempotency_key=KEY)
    async with session.execute(request) as first, session.execute(request) as second:
        assert not first.answer("too early")
        async for event in first:
            if event["type"] == "input_request":
                assert not second.answer("nobody")
                assert first.answer("me")
        assert text(await second.result()) == "me"


async def test_what_was_never_sent_is_tried_again(world: World, session: Session) -> None:
    await run(session, "import os; os._exit(3)")
    world.backend.refuses = StartFailed("no room")
    for _ in range(2):
        with pytest.raises(StartFailed):
            await run(session, COUNTS, idempotency_key=KEY)
    world.backend.refuses = None
    result = await run(session, COUNTS, idempotency_key=KEY)
    assert (result.replayed, result.state) == (False, StateChange.LOST)


async def test_retries_are_no_executions_of_the_tenant() -> None:
    backend = FakeBackend(Behaviour())
    async with world_over(backend, quotas=TenantLimits(executions=1)) as world:
        session = await world.session()
        first = spawn(run(session, SLEEP, idempotency_key=KEY), "first")
        await until(lambda: world.backend.kernel.executed)
        again = [spawn(run(session, SLEEP, idempotency_key=KEY), "again") for _ in range(3)]
        with pytest.raises(QuotaExceeded):
            await run(session, COUNTS)
        await session.interrupt()
        assert {(await task).status for task in [first, *again]} == {Status.INTERRUPTED}
    await backend.close()


async def test_the_death_of_its_kernel_is_told_again(world: World, session: Session) -> None:
    code = "import os; os._exit(3)"
    for replayed in (False, True, True):
        result = await run(session, code, idempotency_key=KEY)
        assert (result.status, result.replayed) == (Status.DIED, replayed)
    assert (await run(session, COUNTS)).state is StateChange.LOST
    assert len(world.backend.started) == 2


async def test_only_the_last_ones_are_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RUNS_MAX", 3)
    for key in "abcd":
        await run(session, COUNTS, idempotency_key=key)
    assert [(await run(session, COUNTS, idempotency_key=key)).replayed for key in "dcba"] == [True, True, True, False]


async def test_only_so_much_is_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BYTES_MAX", 3000)
    for key in "abcd":
        await run(session, "print('x' * 1000)", idempotency_key=key)
    again = [(await run(session, "print('x' * 1000)", idempotency_key=key)).replayed for key in "dcba"]
    assert again[0] is True
    assert again[-1] is False


async def test_closing_a_session_ends_what_nobody_waits_for(world: World, session: Session) -> None:
    client = spawn(run(session, SLEEP, idempotency_key=KEY), "client")
    await until(lambda: world.backend.kernel.executed)
    client.cancel()
    await session.close()
    await until(lambda: world.observed)
    assert world.observed[-1][2].status is Status.DIED
