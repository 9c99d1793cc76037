"""Idempotency keys: a retry gets the first run's result, and no code runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sessions.cells import idempotency as retries
from sessions.cells.idempotency import Attempt, _digest
from sessions.cells.outputs import Event
from sessions.model.errors import InvalidRequest, QuotaExceeded, SessionClosed, StartFailed
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExecutionResult, Limits, SessionKey, StateChange, Status, Tool
from sessions.session.session import Session
from sessions.tenants.quotas import TenantLimits
from sessions.tools.calls import CLIENT_LEFT, ToolCalls
from tests.fakes import (
    Behaviour,
    Cell,
    FakeBackend,
    Saying,
    World,
    busy,
    clear,
    run,
    started,
    stream,
    until,
    world_over,
)

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


async def test_a_key_belongs_to_one_session(world: World, session: Session) -> None:
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


@pytest.mark.parametrize("answers", [{"interactive": True}, {"tools": (Tool("f", "", ()),)}])
async def test_a_retry_may_differ_in_what_its_client_answers(session: Session, answers: dict[str, Any]) -> None:
    await run(session, COUNTS, idempotency_key=KEY, **answers)
    assert (await run(session, COUNTS, idempotency_key=KEY)).replayed


async def test_concurrent_requests_with_one_key_run_once(world: World, session: Session) -> None:
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


async def test_a_cell_whose_client_left_before_its_turn_still_runs(world: World, session: Session) -> None:
    running = spawn(run(session, SLEEP), "the one before")
    await until(lambda: world.backend.kernel.executed)
    client = spawn(run(session, COUNTS, idempotency_key=KEY), "client")
    await asyncio.sleep(0.02)
    client.cancel()
    await session.interrupt()
    await running
    assert text(await run(session, COUNTS, idempotency_key=KEY)) == "1\n"


async def test_an_interrupt_ends_a_cell_with_a_key(world: World, session: Session) -> None:
    client = spawn(run(session, SLEEP, idempotency_key=KEY), "client")
    await until(lambda: world.backend.kernel.executed)
    await session.interrupt()
    assert (await client).status is Status.INTERRUPTED
    assert (await run(session, SLEEP, idempotency_key=KEY)).status is Status.INTERRUPTED


async def test_a_retry_gets_the_same_events(session: Session) -> None:
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


async def test_any_client_with_the_key_may_answer_a_question_once(world: World, session: Session) -> None:
    async def asks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream(await cell.asks("who? ")))
        cell.says(stream(await cell.asks("and? ")))
        cell.ends()

    def prompts(events: list[Event]) -> list[str]:
        return [event["prompt"] for event in events if event["type"] == "input_request"]

    request = ExecuteRequest(world.backend.on("asks", asks), interactive=True, idempotency_key=KEY)
    async with session.execute(request) as first, session.execute(request) as second:
        assert not first.answer("too early")
        async for event in first:
            if event["type"] == "input_request" and event["prompt"] == "who? ":
                assert second.answer("me")
                assert not first.answer("nobody")
            elif event["type"] == "input_request":
                late = [event async for event in until_asked(session, request)]
                assert prompts(late) == ["and? "]
                assert first.answer(" and you")
        assert text(await second.result()) == "me and you"
    assert prompts(await events_of(session, "asks", interactive=True, idempotency_key=KEY)) == []


async def test_a_repeated_answer_is_refused_although_the_next_question_has_no_number_yet(
    world: World, session: Session
) -> None:
    async def asks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        answers = [await cell.asks("who? "), await cell.asks("and? ")]
        cell.says(stream("".join(answers)))
        cell.ends()

    request = ExecuteRequest(world.backend.on("asks", asks), interactive=True, idempotency_key=KEY)
    async with session.execute(request) as attempt:
        assert isinstance(attempt, Attempt)
        async for event in attempt:
            if event["type"] == "input_request":
                break
        number, run_id = attempt.number, attempt.run_id
        run = session.runs.find(run_id)
        assert isinstance(run, retries.Run)
        assert run.execution is not None
        assert session.runs.answer(run_id, number, "me")
        while not run.execution.asks:  # noqa: ASYNC110 - the very next step of the loop is what is looked at
            await asyncio.sleep(0)
        assert run.event_count == number, "control: the next question has no number yet"
        assert not session.runs.answer(run_id, number, "again")
        assert attempt.answer(" and you")
        assert text(await attempt.result()) == "me and you"


async def test_calls_of_tools_end_when_the_client_does_not_come_back(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []

    async def calls(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), Saying("tool_call", {"call": "1", "name": "f", "arguments": {}}))
        await until(lambda: ends)
        cell.ends()

    request = ExecuteRequest(world.backend.on("calls", calls), idempotency_key=KEY, tools=(Tool("f", "", ()),))

    async def called() -> ToolCalls:
        async with session.execute(request) as execution:
            async for event in execution:
                if event["type"] == "tool_call":
                    assert execution.tools is not None
                    return execution.tools
        raise AssertionError("the cell has called nothing")

    first = await called()
    monkeypatch.setattr(first, "_fail", lambda _call, _name, text: ends.append(text))
    monkeypatch.setattr(retries, "RETURNS_WITHIN", 0.05)
    async with session.execute(request) as returned:  # it has come back in time
        await asyncio.sleep(0.2)
        assert ends == []
    await until(lambda: ends)
    assert ends == [CLIENT_LEFT]
    assert (await returned.result()).status is Status.OK


async def until_asked(session: Session, request: ExecuteRequest) -> AsyncIterator[Event]:
    async with session.execute(request) as execution:
        async for event in execution:
            yield event
            if event["type"] == "input_request":
                return


# -- resumed streams -------------------------------------------------------------------------------------------


def waits_between(*texts: str, turn: asyncio.Semaphore) -> Any:
    """Return a script that prints one text for each release of `turn`."""

    async def says(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        for each in texts:
            await turn.acquire()
            cell.says(stream(each))
        await turn.acquire()
        cell.ends()

    return says


def said(event: Event) -> str:
    return str(event.get("output", {}).get("text", event["type"]))


async def pick_up(session: Session, seen: int | None, **request: Any) -> AsyncIterator[tuple[int, str]]:
    """Yield the events that a client gets after the event with number `seen`, each with its number."""
    async with session.execute(ExecuteRequest("speaks", idempotency_key=KEY, **request), seen) as execution:
        async for event in execution:
            yield execution.number, said(event)
        assert not execution.gap


async def test_a_returning_client_gets_each_later_event_exactly_once(world: World, session: Session) -> None:
    turn = asyncio.Semaphore(0)
    world.backend.on("speaks", waits_between(*"abcd", turn=turn))
    heard: list[tuple[int, str]] = []
    for until_number in (1, 2, 4):  # the client loses its stream each time, and misses the events meanwhile
        seen = heard[-1][0] if heard else None
        async for number, what in pick_up(session, seen):
            heard.append((number, what))
            turn.release()
            if number == until_number:
                break
        await asyncio.sleep(0.02)
    whole = [(1, "started"), (2, "a"), (3, "b"), (4, "c"), (5, "d")]
    assert heard == whole[:4]
    live = spawn(collected(pick_up(session, None)), "another, from the beginning, while it runs")
    rest = spawn(collected(pick_up(session, 4)), "the first one again")
    await until(lambda: world.backend.kernel.executed)
    turn.release()
    turn.release()
    assert (await live, await rest) == (whole, whole[4:])
    for number in range(6):  # after its end
        assert await collected(pick_up(session, number)) == whole[number:]
    assert world.backend.kernel.executed == ["speaks"]


async def collected(events: AsyncIterator[tuple[int, str]]) -> list[tuple[int, str]]:
    return [event async for event in events]


async def test_resuming_an_unknown_run_or_event_is_refused_and_runs_nothing(world: World, session: Session) -> None:
    for key, seen in ((KEY, 0), (KEY, 3), (None, 0)):
        with pytest.raises(InvalidRequest) as refused:
            async with session.execute(ExecuteRequest(COUNTS, idempotency_key=key), seen):
                pass
        assert refused.value.details["field"] == "last_event_id"
    assert world.backend.kernel.executed == []
    assert len(await events_of(session, COUNTS, idempotency_key=KEY)) == 2
    for seen in (0, 2):  # the control
        async with session.execute(ExecuteRequest(COUNTS, idempotency_key=KEY), seen) as execution:
            assert text(await execution.result()) == "1\n"
    with pytest.raises(InvalidRequest):
        async with session.execute(ExecuteRequest(COUNTS, idempotency_key=KEY), 3):
            pass
    assert len(world.backend.kernel.executed) == 1


async def small(world: World) -> Session:
    """Make a session that keeps few outputs, and so few events."""
    spec = replace(world.registry.defaults, limits=Limits(output=1000))
    return await world.registry.get_or_create(SessionKey("acme", "small"), spec)


async def test_only_the_last_events_of_a_long_run_are_kept_and_the_result_has_all_output(world: World) -> None:
    turn = asyncio.Semaphore(100)
    session = await small(world)
    texts = [f"{number:02}" for number in range(20)]
    world.backend.on("speaks", waits_between(*texts, turn=turn))
    whole = await collected(pick_up(session, None))  # a client that reads misses nothing
    assert [what for _, what in whole] == ["started", *texts]
    assert await collected(pick_up(session, 19)) == whole[19:]
    for seen in (None, 3):
        async with session.execute(ExecuteRequest("speaks", idempotency_key=KEY), seen) as execution:
            assert (execution.gap, [event async for event in execution], execution.number) == (True, [], 21)
            result = await execution.result()
        assert (text(result), result.truncated, result.replayed) == ("".join(texts), False, True)


async def test_the_events_of_a_running_cell_are_bounded_and_a_client_that_missed_some_gets_all_output(
    world: World,
) -> None:
    turn = asyncio.Semaphore(0)
    session = await small(world)
    frames = [f"frame {number:100}" for number in range(200)]

    async def shows_frames(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        for frame in frames:
            cell.says(clear(wait=True), stream(frame))
        await turn.acquire()
        cell.says(stream("after"))
        cell.ends()

    request = ExecuteRequest(world.backend.on("speaks", shows_frames), idempotency_key=KEY)
    async with session.execute(request) as execution:
        assert isinstance(execution, Attempt)
        events = aiter(execution)
        assert said(await anext(events)) == "started"
        await until(lambda: execution._run.event_count == 401)
        assert sum(map(len, execution._run.events)) <= 2000
        turn.release()
        rest = [said(event) async for event in events]
        result = await execution.result()
    assert (execution.gap, rest[-1]) == (True, "after")
    assert (text(result), result.truncated) == (frames[-1] + "after", False)


async def test_a_client_that_missed_events_gets_the_calls_among_them_that_still_wait(world: World) -> None:
    session = await small(world)
    answered: list[str] = []

    async def calls(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        for call in "12":
            cell.says(Saying("tool_call", {"call": call, "name": "f", "arguments": {"call": call}}))
        for number in range(200):
            cell.says(clear(wait=True), stream(f"frame {number:100}"))
        await until(lambda: answered)
        cell.ends()

    tools = (Tool("f", "", ()),)
    request = ExecuteRequest(world.backend.on("speaks", calls), idempotency_key=KEY, tools=tools)
    async with session.execute(request) as first:
        async for event in first:
            if event["type"] == "tool_call":
                assert first.tools is not None
                first.tools.answer(event["call"], "one")
                break
        assert isinstance(first, Attempt)
        await until(lambda: first._run.dropped > 3)
    async with session.execute(request, 1) as execution:
        seen = []
        async for event in execution:
            seen.append((execution.number, event["type"], event.get("arguments")))
            if event["type"] == "tool_call":
                assert execution.tools is not None
                execution.tools.answer(event["call"], "two")
                answered.append(event["call"])
    assert seen[0] == (3, "tool_call", {"call": "2"})
    assert [kind for _, kind, _ in seen].count("tool_call") == 1
    assert execution.gap
    assert (await execution.result()).status is Status.OK


async def test_a_client_that_reads_during_the_end_gets_all_events(world: World) -> None:
    session = await small(world)
    texts = [f"{number:02}" for number in range(20)]
    world.backend.on("speaks", waits_between(*texts, turn=asyncio.Semaphore(100)))
    async with session.execute(ExecuteRequest("speaks", idempotency_key=KEY)) as execution:
        events = aiter(execution)
        heard = [said(await anext(events))]
        await execution.result()
        heard += [said(event) async for event in events]
    assert heard == ["started", *texts]


async def test_a_cell_that_was_never_sent_is_tried_again(world: World, session: Session) -> None:
    await run(session, "import os; os._exit(3)")
    world.backend.refuses = StartFailed("no room")
    for _ in range(2):
        with pytest.raises(StartFailed):
            await run(session, COUNTS, idempotency_key=KEY)
    world.backend.refuses = None
    result = await run(session, COUNTS, idempotency_key=KEY)
    assert (result.replayed, result.state) == (False, StateChange.LOST)


async def test_retries_do_not_count_as_executions_of_the_tenant() -> None:
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


async def test_a_retry_gets_the_death_of_the_kernel_again(world: World, session: Session) -> None:
    code = "import os; os._exit(3)"
    for replayed in (False, True, True):
        result = await run(session, code, idempotency_key=KEY)
        assert (result.status, result.replayed) == (Status.DIED, replayed)
    assert (await run(session, COUNTS)).state is StateChange.LOST
    assert len(world.backend.started) == 2


async def test_only_the_last_runs_are_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RUNS_MAX", 3)
    for key in "abcd":
        await run(session, COUNTS, idempotency_key=key)
    assert [(await run(session, COUNTS, idempotency_key=key)).replayed for key in "dcba"] == [True, True, True, False]


async def test_kept_runs_are_limited_in_bytes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BYTES_MAX", 3000)
    for key in "abcd":
        await run(session, "print('x' * 1000)", idempotency_key=key)
    again = [(await run(session, "print('x' * 1000)", idempotency_key=key)).replayed for key in "dcba"]
    assert again[0] is True
    assert again[-1] is False


async def test_closing_a_session_ends_a_run_without_a_client(world: World, session: Session) -> None:
    client = spawn(run(session, SLEEP, idempotency_key=KEY), "client")
    await until(lambda: world.backend.kernel.executed)
    client.cancel()
    await session.close()
    await until(lambda: world.observed)
    assert world.observed[-1][2].status is Status.DIED


async def test_the_end_of_a_session_keeps_the_keys_of_the_next_session_with_its_name(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, may_end = world.backend.kernel, asyncio.Event()
    kill, delete = old.kill, world.backend.delete_workspace

    async def slow_kill() -> None:
        await may_end.wait()
        await kill()

    async def slow_delete(workspace: str) -> None:
        await asyncio.sleep(0.05)
        await delete(workspace)

    monkeypatch.setattr(old, "kill", slow_kill)
    monkeypatch.setattr(world.backend, "delete_workspace", slow_delete)
    running = spawn(run(session, SLEEP), "running")
    await until(lambda: old.executed)
    waiting = asyncio.gather(run(session, COUNTS, idempotency_key=KEY), return_exceptions=True)
    await asyncio.sleep(0)
    world.registry.end(session.key)
    following = await world.registry.get_or_create(session.key)
    await run(following, COUNTS, idempotency_key=KEY)
    may_end.set()
    assert isinstance((await waiting)[0], SessionClosed)
    await running
    assert list(world.ledger.idempotency_keys(session.key).all()) == [KEY]


async def test_an_ending_session_records_no_key(world: World, session: Session) -> None:
    running = spawn(run(session, SLEEP), "running")
    await until(lambda: world.backend.kernel.executed)
    ending = world.registry.end(session.key)
    with pytest.raises(SessionClosed):
        await run(session, COUNTS, idempotency_key=KEY)
    await ending
    await running
    assert world.ledger.idempotency_keys(session.key).all() == {}


@dataclass(frozen=True, slots=True)
class LaterRequest(ExecuteRequest):
    """A request of a later version."""

    colour: str | None = None


def test_a_field_that_a_later_version_adds_changes_no_digest_of_a_request_without_it() -> None:
    digests = [
        _digest(kind("x", 7.0, stdin=("a",), interactive=answers, idempotency_key="k"))
        for kind in (ExecuteRequest, LaterRequest)
        for answers in (False, True)
    ]
    assert len(set(digests)) == 1
    others = [LaterRequest("x", colour="red"), ExecuteRequest("x"), ExecuteRequest("y"), ExecuteRequest("x", stdin=())]
    assert len({_digest(each) for each in others} | set(digests)) == 5
