"""Channel clients: which messages each gets, which messages are kept for it, and the effect of slow readers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kernel_image.protocol import GATEWAY_REQUESTS
from sessions.channels import hub as module
from sessions.channels import pending as requests
from sessions.channels import subscription as queue
from sessions.channels.subscription import Subscription
from sessions.channels.unread import MESSAGE_COST, Unread
from sessions.kernels.messages import Message
from sessions.model.checkpoint import OnIdle
from sessions.model.errors import ConnectionFailed, InvalidRequest, QuotaExceeded
from sessions.model.tasks import spawn
from sessions.model.values import ExecuteRequest, ExitReason, SessionSpec, StateChange
from sessions.session.session import Session
from sessions.tenants.kept_bytes import KeptBytes
from sessions.tenants.quotas import TenantLimits
from tests.fakes import (
    OUT_OF_MEMORY,
    Behaviour,
    Cell,
    FakeBackend,
    Saying,
    World,
    busy,
    exported,
    idle,
    run,
    started,
    stream,
    until,
    world_over,
)

_ids = itertools.count()
SLEEP = "import time; time.sleep(60)"
EXIT = "import os; os._exit(3)"


def send(
    session: Session, subscription: Subscription, code: str, msg_type: str = "execute_request", msg_id: str = ""
) -> str:
    msg_id = msg_id or f"client-{next(_ids)}"
    header = {"msg_id": msg_id, "msg_type": msg_type, "username": "", "session": "s", "version": "5.3"}
    content: dict[str, Any] = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
    session.channels.forward(subscription, "shell", header, parts, [])
    return msg_id


async def heard(subscription: Subscription, msg_id: str) -> list[Message]:
    """Take the messages of a request until its reply and `idle`."""
    seen: list[Message] = []
    async with asyncio.timeout(60):
        while {"reply", "idle"} - {_end(message) for message in seen}:
            message = await subscription.take()
            assert message is not None
            if message.parent_id == msg_id:
                seen.append(message)
    return seen


def content(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(message.parts[3])
    return value


def _end(message: Message) -> str:
    if message.channel == "shell":
        return "reply"
    return str(content(message).get("execution_state"))


def text(messages: list[Message]) -> str:
    return "".join(content(message)["text"] for message in messages if message.type == "stream")


async def waiting(subscription: Subscription) -> list[Message]:
    """Take all messages that wait."""
    found = []
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0):  # nothing waits when `take` has to
                message = await subscription.take()
            assert message is not None
            found.append(message)
    return found


async def waiting_until_idle(subscription: Subscription) -> list[Message]:
    """Take all messages that wait, and later ones until the kernel is idle."""
    found = await waiting(subscription)
    async with asyncio.timeout(60):
        while found[-1].type != "status" or content(found[-1])["execution_state"] != "idle":
            message = await subscription.take()
            assert message is not None
            found.append(message)
    return found


async def test_replies_go_to_the_requesting_client_and_output_to_all(session: Session) -> None:
    one, other = session.channels.subscribe("one"), session.channels.subscribe("other")
    seen = await heard(one, send(session, one, "print('hello')"))
    assert text(seen) == "hello\n"
    overheard = await waiting(other)
    assert text(overheard) == "hello\n"
    assert {message.channel for message in overheard} == {"iopub"}
    assert session.channels.clients == 2


async def test_api_and_channel_clients_share_output_variables_and_notebook(session: Session) -> None:
    client = session.channels.subscribe("c")
    await run(session, "x = 41")
    assert await waiting(client)
    assert text(await heard(client, send(session, client, "print(x + 1)"))) == "42\n"
    assert [cell["source"] for cell in exported(session.transcript)["cells"]] == [
        "x = 41",
        "print(x + 1)",
    ]


async def test_a_failure_that_the_kernel_has_not_shown_is_in_the_notebook_and_the_client_gets_what_was_sent(
    world: World, session: Session
) -> None:
    async def fails_unshown(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream("said"))
        cell.ends("error", ename="UsageError", evalue="no such magic", traceback=[])

    client = session.channels.subscribe("c")
    seen = await heard(client, send(session, client, world.backend.on("%magic", fails_unshown)))
    assert [message.type for message in seen if message.channel == "iopub"] == [
        *("status", "execute_input", "stream", "status")
    ]
    outputs = exported(session.transcript)["cells"][0]["outputs"]
    assert [output.get("ename") for output in outputs] == [None, "UsageError"]


async def test_the_next_cell_shows_once_that_the_variables_were_lost(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    await heard(client, send(session, client, "x = 1"))
    world.backend.kernel.dies(1)
    await until(lambda: session.incarnation == 2)
    lost, again = [text(await heard(client, send(session, client, "print('x' in dir())"))) for _ in range(2)]
    assert lost.startswith("kernel-gateway: the variables of earlier cells are gone: ")
    assert lost.endswith("False\n")
    assert again == "False\n"
    assert (await run(session, "1")).state is StateChange.LOST  # clients of the API are told as well


async def test_a_cell_that_failed_with_its_kernel_has_told_of_the_loss(session: Session) -> None:
    client = session.channels.subscribe("c")
    await heard(client, send(session, client, EXIT))
    await until(lambda: session.incarnation == 2)
    assert text(await heard(client, send(session, client, "print(1)"))) == "1\n"


async def test_a_restart_that_was_asked_for_is_no_loss(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    world.backend.kernel.dies(1)
    await until(lambda: session.incarnation == 2)
    await session.restart()
    assert text(await heard(client, send(session, client, "print(1)"))) == "1\n"


async def test_a_question_goes_to_the_client_whose_cell_asks(world: World, session: Session) -> None:
    async def asks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream(await cell.asks("who? ")))
        cell.ends()

    one, other = session.channels.subscribe("one"), session.channels.subscribe("other")
    msg_id = send(session, one, world.backend.on("asks", asks))
    while (question := await one.take()) and question.channel != "stdin":
        pass
    assert question is not None
    header = {"msg_id": "answer", "msg_type": "input_reply"}
    parts = [json.dumps(part).encode() for part in (header, question.header, {}, {"status": "ok", "value": "me"})]
    session.channels.forward(one, "stdin", header, parts, [])
    assert text(await heard(one, msg_id)) == "me"
    assert "stdin" not in {message.channel for message in await waiting(other)}


# -- turns, limits, life ---------------------------------------------------------------------------------------


async def test_an_api_cell_waits_for_cells_of_channel_clients(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    send(session, client, SLEEP)
    await until(lambda: world.backend.kernel.executed)
    assert session.in_use
    mine = spawn(run(session, "print(1)", timeout=0.05), "mine")
    await asyncio.sleep(0.15)
    assert not mine.done()  # nor did its deadline begin
    assert await session.interrupt()
    assert (await mine).status == "ok"
    assert not session.in_use


async def test_cells_of_channel_clients_count_as_one_execution_of_the_tenant() -> None:
    backend = FakeBackend(Behaviour())
    async with world_over(backend, quotas=TenantLimits(executions=1)) as world:
        session, second = await world.session(), await world.session("second")
        client, other = session.channels.subscribe("c"), second.channels.subscribe("c")
        cells = [send(session, client, code) for code in (SLEEP, "1", "2")]
        await until(lambda: world.backend.started[0].executed)
        with pytest.raises(QuotaExceeded):
            send(second, other, "1")
        await session.interrupt()
        await heard(client, cells[-1])
        await heard(other, send(second, other, "1"))
    await backend.close()


async def test_a_dead_kernel_is_replaced_and_reported_to_all_clients(session: Session) -> None:
    client = session.channels.subscribe("c")
    send(session, client, EXIT)
    states: list[str] = []
    async with asyncio.timeout(60):
        while "restarting" not in states or states[-1] != "idle":
            message = await client.take()
            assert message is not None
            states.append(content(message).get("execution_state", message.type))
    assert (session.incarnation, session.in_use) == (2, False)
    await heard(client, send(session, client, "1"))
    assert (await run(session, "1")).state is StateChange.LOST


async def test_a_requested_restart_is_not_reported_as_a_death(session: Session) -> None:
    client = session.channels.subscribe("c")
    await session.restart()
    states = [
        content(message)["execution_state"] for message in await waiting_until_idle(client) if message.type == "status"
    ]
    assert states[0] == "starting"
    assert "restarting" not in states


async def test_cells_of_a_kernel_that_ends_fail(session: Session) -> None:
    client, other = session.channels.subscribe("c"), session.channels.subscribe("other")
    cells = [send(session, client, code) for code in (EXIT, "print('never')")]
    for msg_id in cells:
        *_, error, idle_status, reply = await heard(client, msg_id)
        assert content(error)["ename"] == content(reply)["ename"] == "KernelDied"
        assert (error.type, reply.type, content(reply)["status"]) == ("error", "execute_reply", "error")
        assert content(idle_status) == {"execution_state": "idle"}
    assert "execute_reply" not in {message.type for message in await waiting(other)}
    assert not session.channels.running


async def test_a_cell_that_waited_when_memory_ran_out_did_not_run_and_is_told_so(
    world: World, session: Session
) -> None:
    async def runs_out_of_memory(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        while not exported(session.transcript)["cells"]:  # noqa: ASYNC110 - it has arrived when the kernel ends
            await asyncio.sleep(0.01)
        cell.kernel.dies(137, ExitReason.OOM)
        await cell.is_interrupted()

    client = session.channels.subscribe("c")
    codes = (world.backend.on("too much", runs_out_of_memory), "print('never')")
    first, waiting = [
        content((await heard(client, msg_id))[-1]) for msg_id in [send(session, client, code) for code in codes]
    ]
    assert (first["ename"], first["evalue"]) == ("OutOfMemory", OUT_OF_MEMORY)
    assert waiting["ename"] == "KernelDied"
    assert waiting["evalue"].startswith("the cell did not run: it waited for another cell when its kernel ended (")
    assert world.backend.started[0].executed == ["too much"]
    (cell,) = exported(session.transcript)["cells"][:1]
    assert cell["metadata"]["kernel_gateway"]["error"]["name"] == "OutOfMemory"
    assert [cell["source"] for cell in exported(session.transcript)["cells"] if cell["cell_type"] == "code"] == [
        "too much"
    ]


async def test_the_next_cell_shows_that_a_kernel_could_not_be_woken(backend: FakeBackend) -> None:
    async with world_over(backend, defaults=SessionSpec(on_idle=OnIdle.SLEEP)) as world:
        session = await world.session()
        await run(session, "x = 1")
        client = session.channels.subscribe("c")
        assert await session.fall_asleep() == ""
        backend.sleep.damaged = "its image is damaged"
        await session.settled_kernel()
        told = text(await heard(client, send(session, client, "print('x' in dir())")))
        assert told.startswith("kernel-gateway: the variables of earlier cells are gone: the session slept, and its ")
        assert told.endswith("its image is damaged\nFalse\n")
        backend.sleep.damaged = ""


async def test_a_restart_fails_the_running_cell(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    msg_id = send(session, client, SLEEP)
    await until(lambda: world.backend.kernel.executed)
    await session.restart()
    assert content((await heard(client, msg_id))[-1])["evalue"] == "the session was restarted while the cell ran"


async def test_the_end_of_a_session_fails_the_running_cell(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    msg_id = send(session, client, SLEEP)
    await until(lambda: world.backend.kernel.executed)
    await session.close()
    assert content((await heard(client, msg_id))[-1])["ename"] == "SessionClosed"


async def test_without_clients_a_dead_kernel_stays_dead(session: Session) -> None:
    client = session.channels.subscribe("c")
    session.channels.leave(client)
    await run(session, EXIT)
    assert session.state == "dead"
    with pytest.raises(ConnectionFailed):
        send(session, session.channels.subscribe("c"), "1")


async def test_a_restart_keeps_its_clients(session: Session) -> None:
    client = session.channels.subscribe("c")
    await heard(client, send(session, client, "x = 1"))
    await session.restart()
    assert text(await heard(client, send(session, client, "print('x' in globals())"))) == "False\n"


async def test_closing_a_session_reports_a_dead_kernel_and_ends_the_stream(session: Session) -> None:
    client = session.channels.subscribe("c")
    await session.close()
    last = await client.take()
    assert last is not None
    assert content(last) == {"execution_state": "dead"}
    assert await client.take() is None
    with pytest.raises(ConnectionFailed):
        send(session, client, "1")


async def test_pending_requests_are_limited_in_bytes(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BYTES_MAX", 10_000)
    client = session.channels.subscribe("c")
    last = send(session, client, SLEEP)
    await until(lambda: world.backend.kernel.executed)
    for _ in range(8):
        last = send(session, client, "1" * 1000)
    with pytest.raises(QuotaExceeded):
        send(session, client, "1" * 1000)
    await session.interrupt()
    await heard(client, last)
    for _ in range(30):
        await heard(client, send(session, client, "1" * 1000))
    await heard(client, send(session, client, "1" * 9000))  # as much as all may have


async def test_the_id_of_a_pending_request_cannot_be_used_again(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    send(session, client, SLEEP)
    header = {"msg_id": f"client-{next(_ids)}", "msg_type": "execute_request"}
    parts = [json.dumps(part).encode() for part in (header, {}, {}, {"code": "1"})]
    session.channels.forward(client, "shell", header, parts, [])
    with pytest.raises(InvalidRequest):
        session.channels.forward(client, "shell", header, parts, [])
    await session.interrupt()
    await heard(client, header["msg_id"])


# -- the end of a cell -----------------------------------------------------------------------------------------


async def test_the_id_of_an_answered_request_cannot_be_used_again_for_the_same_kernel(session: Session) -> None:
    client = session.channels.subscribe("one")
    msg_id = send(session, client, "print(1)")
    assert text(await heard(client, msg_id)) == "1\n"
    with pytest.raises(InvalidRequest, match="sent before"):  # a kernel drops it, and never answers
        send(session, client, "print(1)", msg_id=msg_id)
    assert not session.channels.running
    await session.restart()
    assert text(await heard(client, send(session, client, "print(1)", msg_id=msg_id))) == "1\n", "another kernel"


@pytest.mark.parametrize("msg_type", sorted(GATEWAY_REQUESTS))
async def test_a_client_cannot_send_what_only_the_gateway_may(world: World, session: Session, msg_type: str) -> None:
    client = session.channels.subscribe("one")
    with pytest.raises(InvalidRequest, match="only the gateway"):
        send(session, client, "", msg_type=msg_type)
    await heard(client, send(session, client, "1"))
    assert msg_type not in world.backend.kernel.taken


async def test_an_interrupt_ends_a_cell_that_the_kernel_never_ran(world: World, session: Session) -> None:
    async def never_runs(_cell: Cell) -> None:
        """Do nothing, like a kernel that drops the request."""

    client = session.channels.subscribe("one")
    send(session, client, world.backend.on("dropped", never_runs))
    await until(lambda: session.channels.running)
    assert await session.interrupt()
    await until(lambda: not session.channels.running)
    assert world.backend.kernel.alive
    assert text(await heard(client, send(session, client, "print(2)"))) == "2\n"


async def test_cells_that_go_on_without_the_gateway_are_no_longer_counted_and_not_interrupted(
    world: World, session: Session
) -> None:
    client = session.channels.subscribe("c")
    for code in (SLEEP, "print(2)"):
        send(session, client, code)
    await until(lambda: SLEEP in world.backend.kernel.executed)
    session.release_cells()
    assert (world.open, world.observed, world.quotas.running) == ({}, [], 0)
    assert session.in_use  # it must not be culled meanwhile
    assert not await session.interrupt()
    assert world.backend.kernel.interrupts == []
    await session.channels.quiet()
    world.backend.kernel.interrupted.set()
    await until(lambda: [cell.code for cell in session.transcript.cells()] == [SLEEP, "print(2)", ""])


async def test_a_released_cell_that_has_replied_has_ended(world: World, session: Session) -> None:
    async def loses_idle(cell: Cell) -> None:
        cell.says(busy(), started(cell.code))
        cell.replies()

    world.backend.on("replied", loses_idle)
    client = session.channels.subscribe("c")
    send(session, client, "replied")
    async with asyncio.timeout(60):
        while (message := await client.take()) is not None and message.channel != "shell":
            pass
    session.release_cells()
    assert (world.open, [end.status.value for _, _, end in world.observed]) == ({}, ["ok"])


async def test_cells_of_channel_clients_are_journaled_like_all_others(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    for code in ("1", "1 / 0"):
        await heard(client, send(session, client, code))
    sleeping = send(session, client, SLEEP)
    await until(lambda: world.backend.kernel.executed[-1] == SLEEP)
    await session.interrupt()
    await heard(client, sleeping)
    send(session, client, EXIT)
    await until(lambda: len(world.observed) == 4)
    seen = [(str(key), request.code, result.status.value) for key, request, result in world.observed]
    assert seen == [
        ("acme:s1", "1", "ok"),
        ("acme:s1", "1 / 0", "error"),
        ("acme:s1", SLEEP, "interrupted"),
        ("acme:s1", EXIT, "died"),
    ]
    assert all(0 < result.duration < 5 for _, _, result in world.observed)
    assert world.observed[-1][2].state is StateChange.LOST


@asynccontextmanager
async def impatient(behaviour: Behaviour | None = None) -> AsyncIterator[tuple[World, Session, Subscription]]:
    """Make a session whose cells may run for 0.1 s."""
    backend = FakeBackend(behaviour)
    async with world_over(backend, defaults=SessionSpec(max_execute_timeout=0.1)) as world:
        session = await world.session()
        yield world, session, session.channels.subscribe("c")
    await backend.close()


async def test_a_cell_past_its_deadline_is_interrupted_and_its_client_gets_the_reason(nothing_left: None) -> None:
    async with impatient() as (world, session, client):
        assert "SB005" in text(await heard(client, send(session, client, SLEEP)))
        assert text(await heard(client, send(session, client, "print('next')"))) == "next\n"
        assert session.incarnation == 1
        assert [result.status for _, _, result in world.observed] == ["timeout", "ok"]
        assert world.observed[0][2].error is not None


async def test_a_deadline_begins_when_the_cell_before_has_ended(nothing_left: None) -> None:
    async with impatient() as (world, session, client):

        async def takes_a_while(cell: Cell) -> None:
            await asyncio.sleep(0.07)
            cell.says(busy(), started(cell.code))
            cell.ends()

        code = world.backend.on("takes a while", takes_a_while)
        cells = [send(session, client, code) for _ in range(4)]
        await heard(client, cells[-1])
        assert [result.status for _, _, result in world.observed] == ["ok"] * 4


async def test_a_cell_that_ignores_interrupts_ends_with_its_kernel(nothing_left: None) -> None:
    async with impatient(Behaviour(heeds_messages=False, heeds_signals=False)) as (world, session, client):
        send(session, client, SLEEP)
        await until(lambda: session.incarnation == 2)
        assert [result.status for _, _, result in world.observed] == ["timeout"]
        assert not session.in_use
        assert "SB005" in text(await waiting(client))
        result = await run(session, "1")
        assert (result.state, result.state_reason) == (StateChange.LOST, "the code ran longer than 0.1 s")


async def forgets_to_reply(cell: Cell) -> None:
    cell.says(busy(), started(cell.code), idle())


async def test_a_reply_that_the_kernel_forgets_is_sent_by_the_gateway(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    seen = await heard(client, send(session, client, world.backend.on("forgets", forgets_to_reply)))
    assert content(seen[-1]) == {"status": "aborted"}
    assert not session.in_use
    assert text(await heard(client, send(session, client, "print(1)"))) == "1\n"


async def test_a_late_reply_is_waited_for(world: World, session: Session) -> None:
    async def is_late(cell: Cell) -> None:
        cell.says(busy(), started(cell.code), idle())
        await asyncio.sleep(0.3)
        cell.replies(late=True)

    client = session.channels.subscribe("c")
    seen = await heard(client, send(session, client, world.backend.on("late", is_late)))
    assert content(seen[-1])["late"]


async def test_an_input_reply_without_a_request_is_dropped(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    await heard(client, send(session, client, "1"))
    parts = [b'{"msg_id": "a", "msg_type": "input_reply"}', b"{}", b"{}", b'{"value": "unasked"}']
    session.channels.forward(client, "stdin", {"msg_id": "a", "msg_type": "input_reply"}, parts, [])

    async def asks(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1), stream(await cell.asks("who? ")))
        cell.ends()

    assert (await run(session, world.backend.on("asks", asks), stdin=("asked",))).outputs[0]["text"] == "asked"


# -- clients that leave and return -----------------------------------------------------------------------------


async def test_a_returning_client_gets_missed_messages_in_order_and_once(session: Session) -> None:
    first = session.channels.subscribe("c")
    msg_id = send(session, first, "for i in range(100): print(i)")
    session.channels.leave(first)
    await until(lambda: not session.channels.running)
    again = session.channels.subscribe("c")
    assert text(await heard(again, msg_id)) == "".join(f"{i}\n" for i in range(100))
    assert session.channels.clients == 1


async def test_an_undelivered_message_is_delivered_first(session: Session) -> None:
    first = session.channels.subscribe("c")
    msg_id = send(session, first, "print('x')")
    message = await first.take()
    assert message is not None
    first.put_back(message)
    session.channels.leave(first)
    again = session.channels.subscribe("c")
    assert await again.take() == message
    again.put_back(message)  # it may be the reply
    await heard(again, msg_id)


async def test_a_returning_client_gets_the_reply_to_its_earlier_request(world: World, session: Session) -> None:
    first = session.channels.subscribe("c")
    msg_id = send(session, first, SLEEP)
    await until(lambda: world.backend.kernel.executed)
    session.channels.leave(first)
    again = session.channels.subscribe("c")
    await session.interrupt()
    await heard(again, msg_id)


async def test_a_second_subscription_with_the_same_id_ends_the_first(session: Session) -> None:
    first = session.channels.subscribe("c")
    second = session.channels.subscribe("c")
    assert await first.take() is None
    session.channels.leave(first)  # as when its socket closes
    await heard(second, send(session, second, "1"))
    assert session.channels.clients == 1


async def test_a_client_without_an_id_is_forgotten_when_it_leaves(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "NUMBER_MAX", 1)
    first = session.channels.subscribe("")
    send(session, first, "1")
    session.channels.leave(first)
    await until(lambda: not session.channels.running)
    again = session.channels.subscribe("")
    assert await waiting(again) == []
    await heard(again, send(session, again, "2"))  # nothing is pending


async def test_only_the_last_clients_that_left_are_remembered(session: Session) -> None:
    clients = [session.channels.subscribe(f"c{number}") for number in range(module.HELD_MAX + 2)]
    for client in clients:
        session.channels.leave(client)
    await run(session, "print('missed')")
    got = [text(await waiting(session.channels.subscribe(client.client))) for client in clients]
    assert got == ["", ""] + ["missed\n"] * module.HELD_MAX


async def test_clients_without_an_id_do_not_displace_remembered_ones(session: Session) -> None:
    nameless = [session.channels.subscribe("") for _ in range(10)]
    clients = [session.channels.subscribe(f"c{number}") for number in range(module.HELD_MAX)]
    for client in [*clients, *nameless]:
        session.channels.leave(client)
    await run(session, "print('missed')")
    assert {text(await waiting(session.channels.subscribe(client.client))) for client in clients} == {"missed\n"}


# -- slow readers ----------------------------------------------------------------------------------------------

PIECE = 500_000


async def flood(session: Session, pieces: int) -> None:
    """Run a cell with many large messages while a separate client reads them."""
    reader = session.channels.subscribe("reader")
    done = spawn(run(session, "flood"), "flood")
    seen = 0
    async with asyncio.timeout(60):
        while seen < pieces:
            message = await reader.take()
            assert message is not None
            seen += message.type == "stream"
    assert (await done).status == "ok"
    session.channels.leave(reader)


def floods(world: World, pieces: int) -> None:
    async def much(cell: Cell) -> None:
        cell.says(busy(), started(cell.code, 1))
        for number in range(pieces):
            cell.says(stream(f"{number:06}" + "x" * PIECE))
            await asyncio.sleep(0)
        cell.ends()

    world.backend.on("flood", much)


async def test_a_client_that_does_not_read_loses_output_and_others_get_all(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL", 0.1)
    floods(world, 40)
    sleeper = session.channels.subscribe("sleeper")
    await flood(session, 40)
    assert sleeper.unread < queue.QUEUE_MAX + queue.RESERVE
    got = await waiting_until_idle(sleeper)  # `idle` is never left out
    told = [message for message in got if "was left out" in content(message).get("text", "")]
    assert len(told) == 1
    assert told[0].parent_id
    kept = [content(message)["text"][:6] for message in got if message.type == "stream" and message not in told]
    assert kept == [f"{number:06}" for number in range(len(kept))]
    assert 5 < len(kept) < 12
    await run(session, "print('again')")
    assert text(await waiting(sleeper)) == "again\n"


async def test_a_slow_reader_gets_all_output(world: World, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL", 1.0)
    floods(world, 40)
    slow = session.channels.subscribe("slow")
    done = spawn(run(session, "flood"), "flood")
    seen: list[str] = []
    async with asyncio.timeout(60):
        while len(seen) < 40:
            message = await slow.take()
            assert message is not None
            assert slow.unread - message.size - MESSAGE_COST < queue.QUEUE_MAX  # without what it has just got
            if message.type == "stream":
                seen.append(content(message)["text"][:6])
                await asyncio.sleep(0.01)
    assert seen == [f"{number:06}" for number in range(40)]
    await done


async def test_a_large_message_is_queued_when_nothing_waits() -> None:
    subscription = Subscription("c", lambda: None, Unread(KeptBytes(), "acme"))
    large = Saying("stream", {"name": "stdout", "text": "x" * 2 * queue.QUEUE_MAX}).to("m")
    for _ in range(2):
        subscription.enqueue(large)
        assert await subscription.take() == large.without_parsed_json()


async def test_a_waiting_message_keeps_its_bytes_but_not_its_parsed_content() -> None:
    subscription = Subscription("c", lambda: None, Unread(KeptBytes(), "acme"))
    parts = tuple(
        json.dumps(part).encode() for part in ({"msg_id": "i", "msg_type": "t"}, {"msg_id": "p"}, {}, {"a": 1})
    )
    header, parent, metadata, body = (json.loads(part) for part in parts)
    sent = Message("iopub", header | {"username": "u"}, parent, metadata, body, (b"buffer",), 100, parts)
    subscription.enqueue(sent)
    kept = await subscription.take()
    assert kept is not None
    assert (kept.channel, kept.type, kept.parent_id, kept.size) == ("iopub", "t", "p", 100)
    assert (kept.parts, kept.buffers, kept.content) == (parts, (b"buffer",), {})


async def test_a_cell_can_be_run_by_its_execution_while_clients_come_and_go(session: Session) -> None:
    async with session.execute(ExecuteRequest("print(1)")) as execution:
        session.channels.leave(session.channels.subscribe("c"))
        assert (await execution.result()).status == "ok"


async def test_the_cells_that_wait_for_all_kernels_of_a_tenant_are_bounded_as_they_are_held(world: World) -> None:
    world.most_waiting = 6_500_000
    sessions = [await world.session(f"s{number}") for number in range(3)]
    clients = [session.channels.subscribe("c") for session in sessions]
    other = await world.session("s", "other")
    code = "#" + "x" * 999_999
    wide = "#\N{PILE OF POO}" + "x" * 999_998  # four bytes for each sign
    send(sessions[0], clients[0], SLEEP)
    send(sessions[1], clients[1], SLEEP)
    send(sessions[0], clients[0], code)
    assert world.waiting["acme"] > 2_000_000
    with pytest.raises(QuotaExceeded):
        send(sessions[1], clients[1], wide)
    send(sessions[1], clients[1], code)
    with pytest.raises(QuotaExceeded):
        send(sessions[2], clients[2], code)
    send(other, other.channels.subscribe("c"), code)  # the control: another tenant has its own
    for session in sessions:
        await session.close()
    assert world.waiting["acme"] == 0


async def test_a_forged_idle_does_not_make_a_cell_that_waits_count_less(world: World, session: Session) -> None:
    client = session.channels.subscribe("c")
    send(session, client, SLEEP)
    msg_id = send(session, client, "#" + "x" * 1_000_000)
    before = world.waiting["acme"]
    assert before > 2_000_000
    session.channels.dispatch(idle().to(msg_id))
    assert world.waiting["acme"] == before


async def test_a_cell_that_is_refused_or_not_sent_counts_no_more(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = session.channels.subscribe("c")
    world.refuses = QuotaExceeded("no")
    with pytest.raises(QuotaExceeded):
        send(session, client, "1")
    world.refuses = None

    def fails(*_: object) -> None:
        raise ConnectionFailed

    kernel = await session.settled_kernel()
    with monkeypatch.context() as patched:
        patched.setattr(kernel.connection, "forward", fails)
        with pytest.raises(ConnectionFailed):
            send(session, client, "1")
    assert world.waiting["acme"] == 0
    await heard(client, send(session, client, "print(1)"))
    await until(lambda: world.waiting["acme"] == 0)
