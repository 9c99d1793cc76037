"""The WebSocket stream of a session, on a real gateway."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from tornado.httpclient import HTTPClientError
from tornado.websocket import WebSocketClosedError, websocket_connect

from kernel_gateway.dialects.native.stream import QUEUE
from kernel_gateway.http.handlers import MAX_BODY
from tests.figures import hold
from tests.gateways import KEYS, Gateway, text_of
from tests.kernel_gateway.calls import SHARED, exists, failure, process_only, raw, until
from tests.kernel_gateway.sockets import connected, request

MIB = 1024**2
#: a cell that prints 20 MB, and makes the file `done` at its end
FLOOD = "for _ in range(200): print('x' * 100_000, flush=True)\nopen('done', 'w').close()"
HANGS = "print('begun', flush=True)\nimport time\ntime.sleep(300)"

# -- cells -----------------------------------------------------------------------------------------------------


async def test_each_event_carries_the_id_of_its_cell(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.send(code="x = 1; print('out', flush=True); x", id="first")
        await socket.send(code="x + 1", id=2)
        first, second = await socket.until("result"), await socket.until("result")
    assert [event["type"] for event in first] == ["started", "output", "output", "result"]
    assert [event["type"] for event in second] == ["started", "output", "result"]
    assert {event["id"] for event in first} == {"first"}
    assert {event["id"] for event in second} == {2}
    assert (first[-1]["status"], first[-1]["execution_count"], "outputs" in first[-1]) == ("ok", 1, False)
    assert second[1]["output"]["data"] == {"text/plain": "2"}
    assert gateway.text(session, "x") == "1"


@process_only
async def test_a_cell_without_an_id_has_events_without_an_id(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        assert all("id" not in event for event in await socket.run("1"))


async def test_input_is_asked_for_and_answered(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send(code="import getpass\nprint(input('name? ') + getpass.getpass('word? '))", id=1)
        (*_, question) = await socket.until("input_request")
        assert question == {"type": "input_request", "prompt": "name? ", "password": False, "id": 1}
        await socket.send(input="Ada ")
        (*_, question) = await socket.until("input_request")
        assert question == {"type": "input_request", "prompt": "word? ", "password": True, "id": 1}
        await socket.send(input="secret")
        events = await socket.until("result")
    assert events[-1]["status"] == "ok"
    assert "Ada secret" in str(events)


async def test_an_interrupt_ends_the_cell_and_keeps_the_variables(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.run("x = 1")
        await socket.send(code=HANGS, timeout=60)
        await socket.until("output")
        await socket.send(interrupt=True)
        assert (await socket.until("result"))[-1]["status"] == "interrupted"
        assert await socket.text("x") == "1"


@process_only
async def test_a_cell_that_waits_for_input_can_be_interrupted(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send(code="input('? ')", timeout=60)
        await socket.until("input_request")
        await socket.send(interrupt=True)
        assert (await socket.until("result"))[-1]["status"] == "interrupted"
        assert await socket.text("'goes on'") == "'goes on'"


@process_only
async def test_each_socket_receives_only_the_events_of_its_own_cells(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as one, connected(gateway, SHARED) as other:
        await one.send(code="print('for one')", id=1)
        await other.send(code="print('for the other')", id=2)
        heard = [await one.until("result"), await other.until("result")]
        assert [{event["id"] for event in events} for events in heard] == [{1}, {2}]
        assert await other.text("1") == "1"


@process_only
async def test_the_death_of_a_kernel_and_a_timeout_are_reported_as_results(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        result = (await socket.run("while True: pass", timeout=0.5))[-1]
        assert (result["status"], result["error"]["code"], result["state"]) == ("timeout", "SB005", "new")
        result = (await socket.run("import os; os._exit(1)"))[-1]
        assert (result["status"], result["error"]["code"], result["state"]) == ("died", "SB010", "lost")
        assert [(await socket.run(""))[-1]["state"] for _ in range(2)] == ["lost", "preserved"]


# -- frames ----------------------------------------------------------------------------------------------------

FRAMES: dict[str, str | bytes] = {
    "no JSON": "print(1)",
    "nothing": "",
    "deep": "[" * 100_000,
    "NaN": '{"code": "1", "timeout": NaN}',
    "half a character": '{"code": "\\ud800"}',
    "bytes": b"\xff\xfe\x00",
    "a list": "[]",
    "null": "null",
    "an empty object": "{}",
    "code 1": '{"code": 1}',
    "timeout text": '{"code": "1", "timeout": "5"}',
    "timeout too long": '{"code": "1", "timeout": 601}',
    "an unknown field": '{"code": "1", "colour": 1}',
    "too many values": '{"code": "1", "arguments": {"x": [' + "[]," * 200_000 + "[]]}}",
    "an id of another kind": '{"code": "1", "id": [1]}',
    "a long id": json.dumps({"code": "1", "id": "x" * 129}),
    "interrupt false": '{"interrupt": false}',
    "interrupt and more": '{"interrupt": true, "code": "1"}',
    "input nobody asked for": '{"input": "x"}',
    "input of another kind": '{"input": 1}',
}


@process_only
@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
async def test_a_bad_frame_is_answered_and_the_socket_stays_open(gateway: Gateway, frame: str | bytes) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send_raw(frame)
        event = await socket.event()
        assert (event["type"], event["error"]["code"]) == ("error", "SB002")
        assert "id" not in event
        assert await socket.text("1 + 1") == "2"


@process_only
async def test_the_refusal_of_a_cell_carries_its_id(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        for frame in ({"code": 1}, {"code": "1", "timeout": 601}):
            await socket.send(**frame, id="mine")
            event = await socket.event()
            assert (event["type"], event["error"]["code"], event["id"]) == ("error", "SB002", "mine")


@process_only
async def test_a_binary_frame_is_accepted_like_a_text_frame(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send_raw(b'{"code": "1"}')
        assert (await socket.until("result"))[-1]["status"] == "ok"


@process_only
async def test_a_cell_beyond_the_queue_limit_is_refused(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send(code="input()", id="holds them up")
        await socket.until("input_request")
        for number in range(QUEUE + 1):
            await socket.send(code=f"print({number})", id=number)
        refused = await socket.event()
        assert (refused["type"], refused["error"]["code"]) == ("error", "SB008")
        assert refused["id"] == QUEUE
        await socket.send(input="go on")
        ended = [(await socket.until("result"))[-1] for _ in range(QUEUE + 1)]
        assert [event["id"] for event in ended] == ["holds them up", *range(QUEUE)]
        assert {event["status"] for event in ended} == {"ok"}


@process_only
async def test_a_frame_that_is_too_large_closes_only_its_socket(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        with suppress(WebSocketClosedError):  # the gateway may close the socket during the write
            await socket.send(code="#" * (MAX_BODY + 1))
        assert await socket.end() in {1009, None}
    async with connected(gateway, SHARED) as socket:
        assert await socket.text("1") == "1"


# -- connecting and leaving ------------------------------------------------------------------------------------


async def test_leaving_during_a_cell_may_interrupt_it_and_keeps_the_variables(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.run("x = 1")
        code = f"try:\n exec({HANGS!r})\nexcept KeyboardInterrupt: left = True"
        await socket.send(code=code, timeout=60, on_disconnect="interrupt")
        await socket.send(code="never = True")
        await socket.until("output")
    reply = await asyncio.to_thread(gateway.execute, session, "x, left, 'never' in globals()")
    assert (text_of(reply), reply["state"]) == ("(1, True, False)", "preserved")


@process_only
async def test_when_a_client_leaves_its_cell_continues_without_input_and_waiting_cells_do_not_run(
    gateway: Gateway, session: str
) -> None:
    async with connected(gateway, session) as socket:
        await socket.send(
            code="try: input('? ')\nexcept EOFError: first = True\n"
            "try: input('again? ')\nexcept EOFError: second = True\nprint('to the end', flush=True)",
            timeout=60,
        )
        await socket.send(code="never = True")
        await socket.until("input_request")
    reply = await asyncio.to_thread(gateway.execute, session, "first, second, 'never' in globals()")
    assert (text_of(reply), reply["state"]) == ("(True, True, False)", "preserved")


@process_only
async def test_a_client_that_returns_with_the_idempotency_key_may_answer_input(gateway: Gateway, session: str) -> None:
    cell = {"code": "print('a', flush=True); print(input('who? ') + input('and? '))", "idempotency_key": "k"}
    async with connected(gateway, session) as socket:
        await socket.send(**cell)
        await socket.until("input_request")
        await socket.send(input="me")
        await socket.until("input_request")
    async with connected(gateway, session) as socket:
        await socket.send(**cell)
        *before, question = await socket.until("input_request")
        assert [event["type"] for event in before] == ["started", "output"]  # the first question was answered
        assert question["prompt"] == "and? "
        await socket.send(input=" and you")
        *_, output, result = await socket.until("result")
    assert (output["output"]["text"], result["status"], result["replayed"]) == ("me and you\n", "ok", True)


@process_only
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong-key-0000"}, {"Authorization": "Bearer é"}])
async def test_a_wrong_key_is_refused_before_the_upgrade(
    gateway: Gateway, session: str, headers: dict[str, str]
) -> None:
    with pytest.raises(HTTPClientError) as refusal:
        await websocket_connect(request(gateway, session, headers))
    assert refusal.value.code == 401
    assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404
    async with connected(gateway, session):
        assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 200


@process_only
async def test_an_invalid_session_name_is_refused_before_the_upgrade(gateway: Gateway) -> None:
    with pytest.raises(HTTPClientError) as refusal:
        await websocket_connect(request(gateway, "a%3Ab", {"Authorization": f"Bearer {KEYS['alice']}"}))
    assert refusal.value.code == 400


@process_only
def test_a_request_without_an_upgrade_is_refused(gateway: Gateway, session: str) -> None:
    assert failure(raw(gateway, "GET", f"/v1/sessions/{session}/stream")) == (400, "SB002")
    assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404


@process_only
async def test_a_socket_closes_with_its_session_and_reaches_no_later_one(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.run("x = 1")
        gateway.call("DELETE", f"/v1/sessions/{session}")
        reply = gateway.execute(session, "y = 1; 'x' in globals()")
        assert (text_of(reply), reply["state"]) == ("False", "lost")
        with suppress(WebSocketClosedError):
            await socket.send(code="open('trespass', 'w')")
        assert await socket.end() == 1000
        assert socket.reason == "the session was ended"
    assert not exists(gateway, session, "trespass")
    async with connected(gateway, session) as socket:  # the control
        await socket.run("open('trespass', 'w')")
    assert exists(gateway, session, "trespass")


@process_only
async def test_the_cells_of_a_socket_report_the_end_of_its_session(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.send(code=HANGS, timeout=60)
        await socket.until("output")
        await socket.send(code="waits = 1", id="waits")
        await asyncio.to_thread(gateway.call, "DELETE", f"/v1/sessions/{session}")
        result = (await socket.until("result"))[-1]
        refused = await socket.event()
        assert await socket.end() == 1000
    assert (result["status"], result["state"], result["error"]["code"]) == ("died", "lost", "SB013")
    assert (refused["type"], refused["error"]["code"], refused["id"]) == ("error", "SB013", "waits")


@pytest.mark.full
@process_only
async def test_a_client_that_reads_nothing_delays_no_other_client(gateway: Gateway, session: str) -> None:
    """The output of its cell is bounded, and unread events delay no other client."""
    gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"output": "8m"}})
    async with connected(gateway, session) as socket:
        with gateway.growth() as read:
            await socket.send(code=FLOOD)
            await socket.until("result")
        gateway.call("DELETE", f"/v1/sessions/{session}/files/done")
        with gateway.growth() as unread:
            await socket.send(code=FLOOD)
            await asyncio.to_thread(until, lambda: exists(gateway, session, "done"))
            assert await asyncio.to_thread(gateway.text, SHARED, "1") == "1"
        hold("memory for a client that reads nothing", unread.bytes, max(read.bytes, MIB), "MiB")
        result = (await socket.until("result"))[-1]
        assert (result["status"], result["truncated"]) == ("ok", True)
