"""One cell, from its first message to its one end, with well-behaved and hostile kernels."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest

from sessions.cells import execution as module
from sessions.cells.execution import Execution, UnreadEvents
from sessions.cells.outputs import Event
from sessions.model.errors import ConnectionFailed, ExecutionTimeout, KernelDied, OutOfMemory, QuotaExceeded
from sessions.model.values import ExecuteRequest, ExecutionResult, ExitReason, StateChange, Status
from sessions.session.session import Session
from sessions.session.states import State
from tests.fakes import (
    SOON,
    TIMEOUTS,
    Cell,
    FakeBackend,
    KeyboardInterruptedCell,
    Saying,
    Script,
    World,
    busy,
    clear,
    display,
    error,
    exported,
    idle,
    run,
    started,
    stream,
    until,
    update,
    world_over,
)
from tests.sessions.kernels.test_messages import MALFORMED

SLEEP = "import time; time.sleep(60)"
#: larger than a connection accepts as one message: twice the output that a session keeps of one execution
OVERSIZED = "x" * 21_000_000


async def watch(session: Session, code: str, **request: Any) -> tuple[list[Event], ExecutionResult]:
    """Run a cell like a streaming client."""
    async with session.execute(ExecuteRequest(code, **request)) as execution:
        events = [event async for event in execution]
        return events, await execution.result()


def text(result: ExecutionResult) -> str:
    return "".join(output["text"] for output in result.outputs if output["output_type"] == "stream")


async def still_works(session: Session) -> bool:
    """Return whether the next cell runs and variables are preserved."""
    after = await run(session, "print('still here')")
    return (after.status, text(after), after.state) == (Status.OK, "still here\n", StateChange.PRESERVED)


# -- a cell that behaves ---------------------------------------------------------------------------------------


async def test_a_cell_runs(session: Session) -> None:
    events, result = await watch(session, "x = 41\nprint(x + 1)")
    assert events == [
        {"type": "started", "execution_count": 1},
        {"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": "42\n"}},
    ]
    assert result.outputs == [{"output_type": "stream", "name": "stdout", "text": "42\n"}]
    assert (result.status, result.execution_count, result.error) == (Status.OK, 1, None)
    assert (result.state, result.state_reason, result.incarnation) == (StateChange.NEW, None, 1)
    assert not result.truncated
    assert 0 < result.duration < 1


async def test_a_cell_fails(session: Session) -> None:
    result = await run(session, "1 / 0")
    assert (result.status, result.error, result.state) == (Status.ERROR, None, StateChange.NEW)
    assert result.outputs[0]["ename"] == "ZeroDivisionError"


async def test_events_can_be_read_after_the_end(session: Session) -> None:
    async with session.execute(ExecuteRequest("print(1)")) as execution:
        await execution.result()
        assert len([event async for event in execution]) == 2
        assert [event async for event in execution] == []


async def test_two_callers_may_wait_for_the_same_result(session: Session) -> None:
    async with session.execute(ExecuteRequest("print(1)")) as execution:
        one, other = await asyncio.gather(execution.result(), execution.result())
    assert one == other


async def test_the_notebook_names_the_variables_of_a_cell(session: Session) -> None:
    await run(session, "1", env={"TOKEN": "secret"})
    assert exported(session.transcript)["cells"][0]["source"].endswith("variables of its own: TOKEN")


async def test_a_cell_without_store_history_is_not_in_the_notebook(session: Session) -> None:
    await run(session, "secret = 1", store_history=False)
    await run(session, "print(secret)")
    missing, *cells = exported(session.transcript)["cells"]
    assert missing["source"].startswith("**kernel-gateway:** Cells that ran here and are not in this notebook: 1.")
    assert [cell["source"] for cell in cells] == ["print(secret)"]


async def test_an_earlier_display_changes_while_a_later_cell_runs(world: World, session: Session) -> None:
    async def shows(cell: Cell) -> None:
        cell.says(busy(), display("0 %", "bar"))
        cell.ends()

    async def updates(cell: Cell) -> None:
        cell.says(busy(), update("100 %", "bar"))
        cell.ends()

    await run(session, world.backend.on("show", shows))
    events, result = await watch(session, world.backend.on("update", updates))
    assert [event["type"] for event in events] == ["update_display_data"]
    assert result.outputs == []
    assert exported(session.transcript)["cells"][0]["outputs"][0]["data"] == {"text/plain": "100 %"}


# -- what only the reply tells ---------------------------------------------------------------------------------

UNSHOWN = {"ename": "ExceptionGroup", "evalue": "g (1 sub-exception)", "traceback": ["frames", "ExceptionGroup: g"]}


async def fails_unshown(cell: Cell) -> None:
    cell.says(busy(), stream("said"))
    cell.ends("error", **UNSHOWN)


async def fails_unshown_and_is_idle_first(cell: Cell) -> None:
    cell.says(busy(), stream("said"), idle())
    await asyncio.sleep(0.02)
    cell.replies("error", **UNSHOWN)


@pytest.mark.parametrize("script", [fails_unshown, fails_unshown_and_is_idle_first])
async def test_an_error_that_the_kernel_has_not_shown_is_shown(world: World, session: Session, script: Script) -> None:
    events, result = await watch(session, world.backend.on("fail", script))
    failure = {"output_type": "error", **UNSHOWN}
    assert (result.status, result.outputs[1:]) == (Status.ERROR, [failure])
    assert events[-1] == {"type": "output", "output": failure}
    assert exported(session.transcript)["cells"][0]["outputs"] == result.outputs


async def test_a_failed_cell_whose_error_is_beyond_the_limit_shows_it(world: World, session: Session) -> None:
    async def fails_late(cell: Cell) -> None:
        cell.says(busy(), *[stream("x" * 1_000_000)] * 11, error("ZeroDivisionError", "division by zero"))
        cell.ends("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])

    events, result = await watch(session, world.backend.on("fail", fails_late))
    assert [output["output_type"] for output in result.outputs] == ["stream", "error"]
    assert (events[-1]["output"]["ename"], result.omitted) == ("ZeroDivisionError", 11_000_000 - 10 * 1024**2)


async def test_a_failed_cell_without_any_error_says_that_none_was_named(world: World, session: Session) -> None:
    async def fails_in_silence(cell: Cell) -> None:
        cell.says(busy())
        cell.ends("error")

    result = await run(session, world.backend.on("fail", fails_in_silence))
    assert [(output["ename"], output["evalue"]) for output in result.outputs] == [
        ("UnknownError", "the kernel has not said why the cell failed")
    ]


async def test_pages_and_loaded_code_are_shown(world: World, session: Session) -> None:
    async def asks_for_help(cell: Cell) -> None:
        cell.says(busy(), stream("said"))
        help_page = {"source": "page", "data": {"text/plain": "Signature: len(obj)"}, "start": 0}
        loaded = {"source": "set_next_input", "text": "print('loaded')", "replace": True}
        other: list[Any] = [{"source": "ask_exit", "keepkernel": False}, {"source": "page", "data": "x"}, None, []]
        cell.ends(payload=[help_page, *other, loaded])

    events, result = await watch(session, world.backend.on("len?", asks_for_help))
    shown = [output["data"]["text/plain"] for output in result.outputs[1:]]
    assert shown == ["Signature: len(obj)", "print('loaded')"]
    assert [event["output"] for event in events] == result.outputs
    assert exported(session.transcript)["cells"][0]["outputs"] == result.outputs


# -- live displays, and clients that read slowly ---------------------------------------------------------------


async def test_a_live_display_ends_with_its_last_frame(world: World, session: Session) -> None:
    async def shows_frames(cell: Cell) -> None:
        cell.says(busy(), display("frame 0", "plot"))
        for number in range(1, 400):
            cell.says(clear(wait=True), stream(f"{number:50000}"))
            cell.says(display("x", "plot"), update(f"{number:50000}", "plot"))
        cell.ends()

    events, result = await watch(session, world.backend.on("live", shows_frames))
    assert (text(result), result.truncated) == (f"{399:50000}", False)
    assert result.outputs[1]["data"]["text/plain"] == f"{399:50000}"
    frames = [event["output"]["text"] for event in events if "text" in event.get("output", {})]
    assert frames[-1] == f"{399:50000}"


def test_events_that_a_client_has_not_read_are_bounded_and_what_was_replaced_goes_first() -> None:
    unread = UnreadEvents(100_000)
    started_event: Event = {"type": "started", "execution_count": 1}
    unread.append(started_event, 0)
    for number in range(1000):
        unread.append({"type": "clear_output", "wait": True}, 0)
        unread.append({"type": "output", "output": number}, 5000)
        for name in ("one", "other"):
            unread.append({"type": "update_display_data", "display_id": name, "data": number}, 5000)
        assert unread._size <= 200_000
    events = [event for event in iter(unread.take, None) if event]
    assert events[0] == started_event
    assert [event["data"] for event in events if event.get("display_id") == "one"][-1] == 999
    assert [event["output"] for event in events if event["type"] == "output"][-1] == 999
    assert not unread.gap


def test_events_that_nothing_has_replaced_leave_a_gap_when_there_are_too_many() -> None:
    unread = UnreadEvents(100_000)
    for number in range(100):
        unread.append({"type": "output", "output": number}, 5000)
    assert unread.gap
    assert unread._size <= 200_000
    assert [event["output"] for event in iter(unread.take, None) if event][-1] == 99


# -- cells of hostile kernels ----------------------------------------------------------------------------------


async def replies_twice(cell: Cell) -> None:
    cell.says(busy(), stream("said"))
    cell.replies()
    cell.replies("error")
    cell.says(idle(), idle())


async def is_idle_first(cell: Cell) -> None:
    cell.says(busy(), stream("said"), idle())
    await asyncio.sleep(0.02)
    cell.replies()


async def is_idle_and_works_on(cell: Cell) -> None:
    cell.says(busy(), idle())
    await asyncio.sleep(0.02)
    cell.says(busy(), stream("said"))
    await asyncio.sleep(0.02)
    cell.ends()


async def says_idle_ten_times(cell: Cell) -> None:
    cell.says(*[idle()] * 10, stream("said"))
    await asyncio.sleep(0.02)
    cell.ends()


async def replies_on_iopub_first(cell: Cell) -> None:
    cell.says(Saying("execute_reply", {"status": "error"}), stream("said"))
    cell.ends()


async def is_idle_on_shell_first(cell: Cell) -> None:
    cell.kernel.send("shell", idle(), cell.request, b"gateway")
    cell.says(stream("said"))
    cell.ends()


async def replies_with_another_type_first(cell: Cell) -> None:
    for kind in ("inspect_reply", "", "execute_request", "kernel_info_reply"):
        cell.kernel.send("shell", Saying(kind, {"status": "error"}), cell.request, b"gateway")
    cell.says(stream("said"))
    cell.ends()


async def talks_of_other_cells(cell: Cell) -> None:
    for parent in ("another", cell.id.upper(), ""):
        request = {"header": {**cell.request["header"], "msg_id": parent}}
        cell.kernel.publish(stream("not for this one"), request)
        cell.kernel.publish(idle(), request)
        cell.kernel.send("shell", Saying("execute_reply", {"status": "error"}), request, b"gateway")
    cell.says(stream("said"))
    cell.ends()


async def talks_to_nobody(cell: Cell) -> None:
    cell.kernel.publish(stream("to nobody"), None)
    cell.kernel.publish(idle(), None)
    cell.says(stream("said"))
    cell.ends()


async def sends_garbage(cell: Cell) -> None:
    for frames in MALFORMED.values():
        if frames:
            cell.kernel.send_raw("iopub", frames)
            cell.kernel.send_raw("shell", [b"gateway", *frames])
    cell.says(stream("said"))
    cell.ends()


async def sends_poison(cell: Cell) -> None:
    """Send signed messages whose fields have wrong types."""
    kinds = ("status", "stream", "execute_input", "display_data", "update_display_data", "error", "clear_output")
    fields = (
        "execution_state",
        "name",
        "text",
        "data",
        "metadata",
        "transient",
        "traceback",
        "execution_count",
        "wait",
    )
    poisons: list[Any] = [[], {}, None, 1e308, [[]], {"display_id": []}, "\x00"]
    for poison in poisons:
        for kind in kinds:
            cell.says(Saying(kind, dict.fromkeys(fields, poison)))
    cell.says(Saying("clear_output", {}), stream("said"))
    cell.ends()


BEHAVED = [
    replies_twice,
    is_idle_first,
    is_idle_and_works_on,
    says_idle_ten_times,
    replies_on_iopub_first,
    is_idle_on_shell_first,
    replies_with_another_type_first,
    talks_of_other_cells,
    talks_to_nobody,
    sends_garbage,
    sends_poison,
]


@pytest.mark.parametrize("script", BEHAVED, ids=lambda script: script.__name__)
async def test_a_cell_ends_once_and_keeps_its_output(world: World, session: Session, script: Script) -> None:
    events, result = await watch(session, world.backend.on("odd", script))
    assert (result.status, text(result), result.truncated) == (Status.OK, "said", False)
    assert [event for event in events if event["type"] == "output"][-1]["output"]["text"] == "said"
    assert len(world.observed) == 1
    assert await still_works(session)
    assert len(world.observed) == 2


async def loses_idle(cell: Cell) -> None:
    cell.says(busy(), stream("said"))
    cell.replies()


async def loses_everything_but_the_reply(cell: Cell) -> None:
    cell.replies()


async def shows_too_much_at_once(cell: Cell) -> None:
    cell.says(busy(), stream("said"), Saying("execute_result", {"data": {"text/plain": OVERSIZED}}))
    cell.ends()


@pytest.mark.parametrize(
    ("script", "said"),
    [(loses_idle, "said"), (loses_everything_but_the_reply, ""), (shows_too_much_at_once, "said")],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_lost_output_is_reported_as_truncated(world: World, session: Session, script: Script, said: str) -> None:
    await run(session, "x = 1")
    result = await run(session, world.backend.on("lossy", script))
    assert (result.status, text(result), result.truncated) == (Status.OK, said, True)
    assert len(world.observed) == 2
    assert await still_works(session)
    assert (await run(session, "print(x)")).status is Status.OK


async def test_an_oversized_reply_is_not_waited_for(world: World, session: Session) -> None:
    async def raises_too_much(cell: Cell) -> None:
        cell.says(busy())
        cell.ends("error", evalue=OVERSIZED)

    result = await run(session, world.backend.on("raise", raises_too_much))
    assert (result.status, result.truncated, result.state) == (Status.ERROR, True, StateChange.NEW)
    assert await still_works(session)


async def test_a_reply_that_the_kernel_forgets_is_not_waited_for(world: World, session: Session) -> None:
    async def forgets_to_reply(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream("seen"), idle())

    result = await run(session, world.backend.on("forgets", forgets_to_reply))
    assert (result.status, text(result), result.truncated, result.state) == (Status.ERROR, "seen", False, "new")
    assert await still_works(session)


async def test_output_after_the_reply_is_waited_for(world: World, session: Session) -> None:
    async def is_slow_to_deliver(cell: Cell) -> None:
        cell.replies()
        for _ in range(10):
            await asyncio.sleep(0.02)
            cell.says(stream("x"))
        cell.says(idle())

    result = await run(session, world.backend.on("slow", is_slow_to_deliver))
    assert (text(result), result.truncated) == ("x" * 10, False)


async def test_a_pause_longer_than_the_idle_timeout_loses_no_output(world: World, session: Session) -> None:
    async def pauses(cell: Cell) -> None:
        cell.says(busy(), stream("before "))
        cell.replies()
        await asyncio.sleep(3 * world.services.timeouts.idle)
        cell.says(stream("after"), idle())

    result = await run(session, world.backend.on("pause", pauses))
    assert (text(result), result.truncated) == ("before after", False)


async def test_output_after_the_end_belongs_to_its_own_cell_in_the_notebook(world: World, session: Session) -> None:
    late = asyncio.Event()

    async def speaks_late(cell: Cell) -> None:
        cell.ends()
        await late.wait()
        cell.says(stream("late"))

    first = await run(session, world.backend.on("late", speaks_late))
    late.set()
    second = await run(session, "print('mine')")
    assert (text(first), text(second)) == ("", "mine\n")
    outputs = [cell["outputs"] for cell in exported(session.transcript)["cells"]]
    assert [[output["text"] for output in cell] for cell in outputs] == [["late"], ["mine\n"]]


async def test_a_flood_of_outputs_ends_at_its_limit(world: World, session: Session) -> None:
    async def floods(cell: Cell) -> None:
        cell.says(busy(), *[stream("x" * 1_000_000)] * 30)
        cell.ends()

    events, result = await watch(session, world.backend.on("flood", floods))
    assert (len(events), len(text(result)), result.truncated) == (11, 10 * 1024**2, True)
    assert result.omitted == 30_000_000 - 10 * 1024**2
    assert await still_works(session)


@pytest.mark.parametrize("status", [None, [], {}, ["ok"], 1, "OK", "", "nonsense"])
async def test_a_reply_with_an_unknown_status_is_an_error(world: World, session: Session, status: Any) -> None:
    async def replies_oddly(cell: Cell) -> None:
        cell.ends(status)

    assert (await run(session, world.backend.on("odd", replies_oddly))).status is Status.ERROR
    assert await still_works(session)


@pytest.mark.parametrize("status", ["abort", "aborted"])
async def test_an_aborted_cell_has_the_status_interrupted(world: World, session: Session, status: str) -> None:
    async def aborts(cell: Cell) -> None:
        cell.ends(status)

    assert (await run(session, world.backend.on("abort", aborts))).status is Status.INTERRUPTED


async def test_a_kernel_without_a_working_iopub_is_replaced(backend: FakeBackend) -> None:
    async def falls_silent(cell: Cell) -> None:
        cell.kernel.behaviour = replace(cell.kernel.behaviour, audible=False)
        cell.ends()

    async with world_over(backend, timeouts=replace(TIMEOUTS, proof=0.05)) as world:
        session = await world.session()
        result = await run(session, backend.on("mute", falls_silent))
        assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
        assert isinstance(result.error, KernelDied)
        after = await run(session, "print(1)")
        assert (after.status, after.state, after.incarnation) == (Status.OK, StateChange.LOST, 2)


async def test_a_loss_of_iopub_in_a_cell_truncates_its_output_and_the_next_cell_replaces_the_kernel(
    backend: FakeBackend,
) -> None:
    async def falls_silent(cell: Cell) -> None:
        cell.says(busy(), stream("said"))
        cell.kernel.behaviour = replace(cell.kernel.behaviour, audible=False)
        cell.ends()

    async with world_over(backend, timeouts=replace(TIMEOUTS, proof=0.05)) as world:
        session = await world.session()
        result = await run(session, backend.on("mute", falls_silent))
        assert (result.status, text(result), result.truncated) == (Status.OK, "said", True)
        assert (await run(session, "print(1)")).status is Status.DIED
        assert (await run(session, "print(1)")).status is Status.OK


async def test_a_kernel_that_sends_only_garbage_is_replaced(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.kernels.connection.MALFORMED_MAX", 50)

    async def floods_garbage(cell: Cell) -> None:
        for _ in range(100):
            cell.kernel.send_raw("iopub", [b"garbage"])

    result = await run(session, world.backend.on("garbage", floods_garbage))
    assert (result.status, type(result.error)) == (Status.DIED, KernelDied)
    assert (await run(session, "1")).status is Status.OK


# -- deadline and interruption ---------------------------------------------------------------------------------


async def test_a_cell_past_its_deadline_is_interrupted(world: World, session: Session) -> None:
    await run(session, "x = 1")
    result = await run(session, SLEEP, timeout=0.05)
    assert (result.status, result.state) == (Status.TIMEOUT, StateChange.PRESERVED)
    assert isinstance(result.error, ExecutionTimeout)
    assert result.error.details == {"timeout": 0.05}
    assert world.backend.kernel.interrupts == ["message"]
    assert result.outputs[0]["ename"] == "KeyboardInterrupt"
    assert await still_works(session)


async def test_a_cell_that_ends_in_time_is_not_interrupted(world: World, session: Session) -> None:
    assert (await run(session, "print(1)", timeout=0.25)).status is Status.OK
    await asyncio.sleep(0.3)
    assert world.backend.kernel.interrupts == []


async def test_a_cell_that_ignores_the_interrupt_message_gets_a_signal(world: World, session: Session) -> None:
    world.backend.kernel.behaviour.heeds_messages = False
    result = await run(session, SLEEP, timeout=0.05)
    assert (result.status, result.state) == (Status.TIMEOUT, StateChange.NEW)
    assert world.backend.kernel.interrupts == ["message", "signal"]


async def test_a_cell_that_ignores_all_interrupts_ends_with_its_kernel(world: World, session: Session) -> None:
    deaf = world.backend.kernel
    deaf.behaviour = replace(deaf.behaviour, heeds_messages=False, heeds_signals=False)
    result = await run(session, SLEEP, timeout=0.05)
    assert (result.status, result.state) == (Status.TIMEOUT, StateChange.LOST)
    assert isinstance(result.error, ExecutionTimeout)
    assert "ended" in result.error.message
    assert deaf.interrupts == ["message", "signal"]
    assert not deaf.alive
    after = await run(session, "print(1)")
    assert (after.status, after.state, after.incarnation) == (Status.OK, StateChange.LOST, 2)


async def test_a_cell_that_catches_the_interrupt_keeps_its_output(world: World, session: Session) -> None:
    async def catches(cell: Cell) -> None:
        try:
            await cell.is_interrupted()
        except KeyboardInterruptedCell:
            cell.says(stream("caught"))
            cell.ends()

    result = await run(session, world.backend.on("catch", catches), timeout=0.05)
    assert (result.status, text(result)) == (Status.TIMEOUT, "caught")


async def test_a_client_may_interrupt_a_cell(world: World, session: Session) -> None:
    async with session.execute(ExecuteRequest(SLEEP)) as execution:
        await until(lambda: world.backend.kernel.executed)
        assert await session.interrupt()
        result = await execution.result()
    assert (result.status, result.error, result.state) == (Status.INTERRUPTED, None, StateChange.NEW)
    assert await still_works(session)


async def test_a_cell_that_its_kernel_never_started_ends_when_it_is_interrupted(world: World, session: Session) -> None:
    async def is_lost(_cell: Cell) -> None:
        """Neither answer nor heed an interrupt."""

    async with session.execute(ExecuteRequest(world.backend.on("lost", is_lost), timeout=20)) as execution:
        await session.interrupt()
        result = await execution.result()
    assert (result.status, result.error, result.state) == (Status.INTERRUPTED, None, StateChange.NEW)
    assert await still_works(session)


async def test_a_cell_whose_kernel_has_just_ended_is_not_left_to_the_next_gateway(
    world: World, session: Session
) -> None:
    async with session.execute(ExecuteRequest(SLEEP)) as execution:
        assert isinstance(execution, Execution)
        await until(lambda: world.backend.kernel.executed)
        execution.await_end()
        assert not execution.release()
        assert not execution.ended.is_set()
        world.backend.kernel.dies()
        assert (await execution.result()).status is Status.DIED


async def test_an_interrupt_without_a_running_cell_does_nothing(session: Session) -> None:
    assert not await session.interrupt()


async def test_concurrent_interrupts_end_the_cell(world: World, session: Session) -> None:
    async with session.execute(ExecuteRequest(SLEEP)) as execution:
        await until(lambda: world.backend.kernel.executed)
        await asyncio.gather(*(session.interrupt() for _ in range(5)))
        assert (await execution.result()).status is Status.INTERRUPTED


async def test_a_cell_that_ignores_interrupts_runs_until_its_deadline(world: World, session: Session) -> None:
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, heeds_messages=False, heeds_signals=False)
    async with session.execute(ExecuteRequest(SLEEP, timeout=0.25)) as execution:
        await session.interrupt()
        await asyncio.sleep(0.15)
        assert isinstance(execution, Execution)
        assert execution.status is None
        assert (await execution.result()).status is Status.TIMEOUT


async def test_an_interrupt_that_is_read_late_does_not_hit_the_next_cell(world: World, session: Session) -> None:
    """A cell that keeps the interpreter's lock beyond its deadline also keeps the kernel from reading the interrupt."""
    kernel = world.backend.kernel
    kernel.behaviour = replace(kernel.behaviour, reads_control_while_busy=False, heeds_signals=False)

    async def keeps_the_lock(cell: Cell) -> None:
        await until(lambda: cell.kernel.unread)
        cell.ends()

    async def works(cell: Cell) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(4 * SOON):
                await cell.is_interrupted()
        cell.ends()

    first, second = world.backend.on("keeps the lock", keeps_the_lock), world.backend.on("works", works)
    late, following = await asyncio.gather(run(session, first, timeout=0.05), run(session, second))
    assert (late.status, following.status) == (Status.TIMEOUT, Status.OK)
    assert world.backend.kernel.interrupts[:1] == ["message"]


async def test_leaving_interrupts_the_cell_and_keeps_the_turn_until_its_end(world: World, session: Session) -> None:
    ended: list[str] = []

    async def ends_slowly(cell: Cell) -> None:
        try:
            await cell.is_interrupted()
        except KeyboardInterruptedCell:
            await asyncio.sleep(0.03)
            ended.append("slow")
            cell.ends("error")

    async def notes(cell: Cell) -> None:
        ended.append("next")
        cell.ends()

    world.backend.on("slow", ends_slowly)
    async with session.execute(ExecuteRequest("slow")):
        await until(lambda: world.backend.kernel.executed)
        following = asyncio.gather(run(session, world.backend.on("next", notes)))
        await asyncio.sleep(0)
    await following
    assert ended == ["slow", "next"]
    assert [result.status for _, _, result in world.observed] == [Status.INTERRUPTED, Status.OK]


async def test_cancelling_a_client_interrupts_its_cell(world: World, session: Session) -> None:
    await run(session, "x = 1")
    client = asyncio.gather(run(session, SLEEP))
    await until(lambda: SLEEP in world.backend.kernel.executed)
    client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client
    assert await still_works(session)
    assert world.backend.kernel.interrupts == ["message"]


async def test_a_client_that_reads_slowly_does_not_delay_the_next_cell(session: Session) -> None:
    async with session.execute(ExecuteRequest("print(1)")) as slow:
        await slow.result()
        async with asyncio.timeout(60):
            assert (await run(session, "print(2)")).outputs[0]["text"] == "2\n"
        texts = [event["output"]["text"] async for event in slow if event["type"] == "output"]
    assert texts == ["1\n"]


async def test_a_deadline_begins_with_the_cell_s_own_turn(world: World, session: Session) -> None:
    async def takes_a_while(cell: Cell) -> None:
        await asyncio.sleep(0.25)
        cell.ends()

    world.backend.on("while", takes_a_while)
    results = await asyncio.gather(run(session, "while"), run(session, "print(1)", timeout=0.2))
    assert [result.status for result in results] == [Status.OK, Status.OK]


async def test_a_lost_idle_at_the_deadline_does_not_end_the_kernel(backend: FakeBackend) -> None:
    async with world_over(backend, timeouts=replace(TIMEOUTS, idle=0.3)) as world:
        session = await world.session()
        result = await run(session, backend.on("lossy", loses_idle), timeout=0.2)
        assert (result.status, result.truncated) == (Status.OK, True)
        assert backend.kernel.interrupts == []
        assert await still_works(session)


# -- the end of a kernel ---------------------------------------------------------------------------------------


async def test_a_cell_may_end_its_kernel(session: Session) -> None:
    result = await run(session, "import os; os._exit(3)")
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert isinstance(result.error, KernelDied)
    assert result.error.details == {"exit_code": 3}
    assert result.state_reason == result.error.message


async def test_a_kernel_may_run_out_of_memory(world: World, session: Session) -> None:
    async def eats(cell: Cell) -> None:
        cell.says(busy(), stream("before"))
        await cell.is_interrupted()

    world.backend.on("eat", eats)
    async with session.execute(ExecuteRequest("eat")) as execution:
        events = []
        async for event in execution:
            events.append(event)
            world.backend.kernel.dies(137, ExitReason.OOM)
        result = await execution.result()
    assert (result.status, text(result), len(events)) == (Status.DIED, "before", 1)
    assert isinstance(result.error, OutOfMemory)


async def test_a_kernel_that_dies_after_its_cell_does_not_change_the_result(world: World, session: Session) -> None:
    async with session.execute(ExecuteRequest("print('said')")) as execution:
        await execution.result()
        world.backend.kernel.dies(1)
        await until(lambda: session.state is State.DEAD)
        assert (await execution.result()).status is Status.OK


# -- input() ---------------------------------------------------------------------------------------------------


async def asks_three_times(cell: Cell) -> None:
    cell.says(busy())
    for number in range(3):
        cell.says(stream(f"{await cell.asks(f'{number}? ')};"))
    cell.ends()


async def test_answers_are_given_in_order(world: World, session: Session) -> None:
    result = await run(session, world.backend.on("ask", asks_three_times), stdin=("a", "b", "c"))
    assert text(result) == "a;b;c;"


@pytest.mark.parametrize(("stdin", "said"), [(None, "\x04;" * 3), ((), "\x04;" * 3), (("a",), "a;\x04;\x04;")])
async def test_input_ends_when_there_are_no_more_answers(
    world: World, session: Session, stdin: tuple[str, ...] | None, said: str
) -> None:
    assert text(await run(session, world.backend.on("ask", asks_three_times), stdin=stdin)) == said


@pytest.mark.parametrize(
    ("request_", "allowed"),
    [({}, False), ({"stdin": ()}, True), ({"stdin": ("a",)}, True), ({"interactive": True}, True)],
)
async def test_the_request_says_whether_the_kernel_may_ask_for_input(
    world: World,
    session: Session,
    request_: dict[str, Any],
    allowed: bool,  # noqa: FBT001
) -> None:
    seen: list[bool] = []

    async def notes(cell: Cell) -> None:
        seen.append(cell.request["content"]["allow_stdin"])
        cell.ends()

    await run(session, world.backend.on("note", notes), **request_)
    assert seen == [allowed]


async def test_an_interactive_client_gets_the_questions(world: World, session: Session) -> None:
    world.backend.on("ask", asks_three_times)
    prompts = []
    async with session.execute(ExecuteRequest("ask", interactive=True)) as execution:
        assert not execution.answer("too early")
        async for event in execution:
            if event["type"] == "input_request":
                prompts.append((event["prompt"], event["password"]))
                assert execution.answer(f"<{event['prompt']}>")
                assert not execution.answer("twice")
        assert not execution.answer("too late")
        assert text(await execution.result()) == "<0? >;<1? >;<2? >;"
    assert prompts == [("0? ", False), ("1? ", False), ("2? ", False)]


async def test_answers_of_the_request_are_used_before_the_client_is_asked(world: World, session: Session) -> None:
    world.backend.on("ask", asks_three_times)
    async with session.execute(ExecuteRequest("ask", stdin=("a", "b"), interactive=True)) as execution:
        async for event in execution:
            if event["type"] == "input_request":
                assert event["prompt"] == "2? "
                execution.answer("c")
        assert text(await execution.result()) == "a;b;c;"


async def test_a_cell_that_waits_for_input_can_be_interrupted(world: World, session: Session) -> None:
    async def asks_for_ever(cell: Cell) -> None:
        asked = asyncio.ensure_future(cell.asks())  # noqa: TID251 - the fake's own
        try:
            await cell.is_interrupted()
        except KeyboardInterruptedCell:
            asked.cancel()
            cell.says(error("KeyboardInterrupt", ""))
            cell.ends("error")

    world.backend.on("ask", asks_for_ever)
    result = await run(session, "ask", interactive=True, timeout=0.05)
    assert result.status is Status.TIMEOUT


@pytest.mark.parametrize("limit", ["QUESTIONS_MAX", "PROMPTS_MAX"])
async def test_a_cell_that_floods_questions_is_stopped_with_an_error(
    world: World, session: Session, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 10)

    async def floods_questions(cell: Cell) -> None:
        for _ in range(100):
            cell.kernel.send("stdin", Saying("input_request", {"prompt": "?"}), cell.request, b"gateway")
        try:
            await cell.is_interrupted()
        except KeyboardInterruptedCell:
            cell.ends("error")

    code = world.backend.on("flood", floods_questions)
    events, result = await watch(session, code, interactive=True)
    assert len(events) == 10
    assert result.status is Status.INTERRUPTED
    assert isinstance(result.error, QuotaExceeded)
    assert "questions" in result.error.message
    assert result.state is StateChange.NEW


async def test_a_flood_of_questions_that_ignores_interrupts_loses_its_kernel(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 10)
    world.backend.behaviour = replace(world.backend.behaviour, heeds_messages=False, heeds_signals=False)

    async def floods_questions(cell: Cell) -> None:
        while True:
            cell.kernel.send("stdin", Saying("input_request", {"prompt": "?"}), cell.request, b"gateway")
            await asyncio.sleep(0.01)

    code = world.backend.on("flood", floods_questions)
    _, result = await watch(session, code, interactive=True)
    assert isinstance(result.error, QuotaExceeded)
    assert result.state is StateChange.LOST


async def test_a_cell_whose_client_answers_nothing_itself_may_ask_without_a_limit(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 1)
    world.backend.on("ask", asks_three_times)
    assert (await run(session, "ask")).status is Status.OK


@pytest.mark.parametrize(("prompt", "shown"), [("x" * 20_000, "x" * module.PROMPT_MAX), (["?"] * 9, ""), (None, "")])
async def test_a_prompt_is_cut(world: World, session: Session, prompt: object, shown: str) -> None:
    async def asks(cell: Cell) -> None:
        cell.kernel.send("stdin", Saying("input_request", {"prompt": prompt}), cell.request, b"gateway")
        await asyncio.sleep(0.05)
        cell.ends()

    events, _ = await watch(session, world.backend.on("ask", asks), interactive=True)
    assert [event["prompt"] for event in events] == [shown]


async def test_a_malformed_question_is_answered_like_any_other(world: World, session: Session) -> None:
    async def asks_oddly(cell: Cell) -> None:
        for extra in (b'"header": 5', b'"date": "9999-99-99"', b'"session": []'):
            cell.kernel.answer = asyncio.get_running_loop().create_future()
            header = b'{"msg_id": "q", "msg_type": "input_request", ' + extra + b"}"
            parent = orjson.dumps({"msg_id": cell.id})
            content = b'{"prompt": ["?"], "password": "yes"}'
            frames = cell.kernel.signed(header, parent, b"{}", content)
            cell.kernel.send_raw("stdin", [b"gateway", *frames[1:]])
            cell.says(stream(await cell.kernel.answer))
        cell.ends()

    assert text(await run(session, world.backend.on("ask", asks_oddly), stdin=("a", "b", "c"))) == "abc"


# -- after the end ---------------------------------------------------------------------------------------------


async def test_messages_after_the_end_do_not_change_the_result(session: Session) -> None:
    async with session.execute(ExecuteRequest("print(1)")) as execution:
        before = await execution.result()
        assert isinstance(execution, Execution)
        execution.handle(stream("more").to(execution.id), {"type": "output", "output": {}})
        execution.handle(Saying("execute_reply", {"status": "error"}).to(execution.id, "shell"), None)
        execution.kernel_gone(KernelDied())
        assert await execution.result() == before


@pytest.mark.parametrize("count", ["1", -1, [], None, True])
async def test_an_invalid_execution_count_is_reported_as_none(world: World, session: Session, count: object) -> None:
    async def counts_oddly(cell: Cell) -> None:
        cell.says(started(cell.code, count))
        cell.ends()

    assert (await run(session, world.backend.on("odd", counts_oddly))).execution_count is None


# -- a connection that is closed -------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["idle", "reply"])
async def test_a_cell_ends_when_its_connection_is_closed_while_its_last_message_is_missing(
    world: World, session: Session, lost: str
) -> None:
    async def loses_a_message(cell: Cell) -> None:
        if lost == "idle":
            cell.replies()
        else:
            cell.says(busy(), idle())

    code = world.backend.on("lost", loses_a_message)
    async with session.execute(ExecuteRequest(code)) as execution:
        assert isinstance(execution, Execution)
        await until(lambda: execution._reply is not None or execution._idle)
        execution.kernel.connection.close()  # and the kernel's end is never reported
        result = await asyncio.wait_for(execution.result(), 60)
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert isinstance(result.error, ConnectionFailed)
