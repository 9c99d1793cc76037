"""A connection over real sockets: valid messages are delivered, bad ones are dropped, broken channels are renewed."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import replace
from typing import Any
from unittest.mock import ANY, Mock, call, patch

import pytest
import zmq
from structlog.testing import capture_logs

from kernel_image.protocol import SETTLED
from sessions.backends.base import Launch
from sessions.backends.handshake import new_connection_info
from sessions.kernels import replies as module
from sessions.kernels import transport
from sessions.kernels.messages import Message
from sessions.kernels.sockets import CHANNELS
from sessions.kernels.transport import Transport
from sessions.kernels.watchdog import Watchdog
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import ConnectionFailed
from sessions.model.tasks import spawn
from sessions.tenants.traffic import NO_CHARGE
from tests.fakes import PYTHON, FakeBackend, FakeKernel, Listener, Saying, busy, connect, stream, until
from tests.sessions.kernels.test_messages import MALFORMED, PARTS

#: maximum bytes of a message on these connections
MAX = 200_000


class Line:
    """A kernel, a connection to it, and the messages received."""

    def __init__(self, kernel: FakeKernel, info: ConnectionInfo | None = None, prelude: str = "") -> None:
        self.kernel = kernel
        self.listener = Listener()
        self.connection = connect(info or kernel.connection_info, self.listener, most=MAX, prelude=prelude)

    @property
    def heard(self) -> list[Message]:
        return self.listener.messages

    @property
    def texts(self) -> list[str]:
        """The texts of all stream messages."""
        return [message.content["text"] for message in self.heard if message.type == "stream"]

    def says(self, *sayings: Saying) -> None:
        for saying in sayings:
            self.kernel.publish(saying, None)


def dropped(logs: list[MutableMapping[str, Any]]) -> int:
    """Return how many messages were dropped as malformed, by the log."""
    return [entry["event"] for entry in logs].count("malformed message dropped")


Dial = Callable[..., Line]


@pytest.fixture(params=["plain", "encrypted"])
def encryption(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "encrypted")


@pytest.fixture
async def kernel(backend: FakeBackend, encryption: bool) -> FakeKernel:  # noqa: FBT001
    return await backend.start(Launch(replace(PYTHON, encryption=encryption)))


@pytest.fixture
async def dial(kernel: FakeKernel) -> AsyncIterator[Dial]:
    lines: list[Line] = []

    def open_line(info: ConnectionInfo | None = None, prelude: str = "") -> Line:
        lines.append(Line(kernel, info, prelude))
        return lines[-1]

    yield open_line
    for line in lines:
        line.connection.close()


@pytest.fixture
async def line(dial: Dial) -> Line:
    """A line that is ready."""
    line = dial()
    with pytest.MonkeyPatch.context() as once:
        once.setattr(module, "READY_RETRY", 30)  # no repeated requests, whose answers would arrive later
        await line.connection.ready()
    line.heard.clear()
    return line


async def is_ready(line: Line, seconds: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await line.connection.ready()
    except TimeoutError:
        return False
    return True


# -- opening ---------------------------------------------------------------------------------------------------


async def test_there_are_sockets_for_hundreds_of_kernels(kernel: FakeKernel) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # as the gateway does
    connections = []
    try:
        for _ in range(120):
            connections.append(connect(kernel.connection_info, most=1024))  # noqa: PERF401 - may fail
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- becoming ready --------------------------------------------------------------------------------------------


async def test_a_kernel_that_answers_is_ready(dial: Dial) -> None:
    assert await is_ready(dial(), seconds=2)


def refuses(url: str) -> bool:
    """Return whether nobody listens at an `ipc` endpoint."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(url.removeprefix("ipc://")) != 0


async def test_a_kernel_is_ready_only_when_its_stdin_is_connected(kernel: FakeKernel, dial: Dial) -> None:
    kernel.unbind("stdin")  # a question of the kernel would be lost now
    await until(lambda: refuses(kernel.connection_info.url("stdin")))  # libzmq closes the socket in a thread
    line = dial()
    assert not await is_ready(line, seconds=0.3)
    kernel.bind("stdin")
    assert await is_ready(line, seconds=10)


async def test_a_kernel_that_starts_later_is_waited_for(backend: FakeBackend) -> None:
    info = new_connection_info("ipc", str(backend.root / "later"), first_port=1, encryption=True)
    early = connect(info, most=MAX)
    ready = asyncio.gather(early.ready())
    await asyncio.sleep(0.05)
    assert not ready.done()
    kernel = FakeKernel(info, backend.behaviour, Launch(PYTHON), backend.root)
    async with asyncio.timeout(60):
        await ready
    early.close()
    await kernel.kill()


async def test_kernel_info_requests_are_repeated_until_iopub_works(
    backend: FakeBackend, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY_RETRY", 0.02)
    line = dial()
    line.kernel.behaviour = replace(backend.behaviour, audible=False)
    waiting = asyncio.gather(line.connection.ready())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    line.kernel.behaviour = backend.behaviour
    async with asyncio.timeout(60):
        await waiting


async def test_a_reply_on_shell_without_iopub_does_not_make_a_kernel_ready(backend: FakeBackend, dial: Dial) -> None:
    line = dial()
    line.kernel.behaviour = replace(backend.behaviour, audible=False)
    waiting = spawn(line.connection.ready(), "ready")
    await until(lambda: line.heard)
    await asyncio.sleep(0.02)
    assert {message.channel for message in line.heard} == {"shell"}
    assert not waiting.done()
    waiting.cancel()


async def test_a_silent_kernel_is_not_ready(backend: FakeBackend, dial: Dial) -> None:
    line = dial()
    line.kernel.behaviour = replace(backend.behaviour, answers=False)
    assert not await is_ready(line)


async def test_ready_returns_after_all_earlier_messages_have_arrived(line: Line) -> None:
    line.says(*(stream(str(number)) for number in range(500)))
    await line.connection.ready()
    assert line.texts == [str(number) for number in range(500)]


async def test_messages_signed_with_another_key_are_dropped(kernel: FakeKernel, dial: Dial) -> None:
    right, wrong = dial(), dial(replace(kernel.connection_info, key=b"another key"))

    def both_were_told() -> bool:
        right.says(stream("hi"))
        return bool(right.texts and dropped(logs))

    with capture_logs() as logs:
        await until(both_were_told)
    assert wrong.heard == []


@pytest.mark.parametrize("encryption", ["encrypted"], indirect=True)
async def test_an_encrypted_kernel_is_reached_with_its_public_key_only(kernel: FakeKernel, dial: Dial) -> None:
    other, _ = zmq.curve_keypair()
    for wrong in (other, None):  # long enough for a second request while libzmq has dropped the channel
        assert not await is_ready(dial(replace(kernel.connection_info, curve_publickey=wrong)), seconds=1)
    assert await is_ready(dial(), seconds=2)


# -- messages --------------------------------------------------------------------------------------------------


async def test_messages_arrive_in_order_with_their_channel(line: Line) -> None:
    line.says(busy(), stream("1"), stream("2"))
    await until(lambda: len(line.heard) == 3)
    assert [(message.channel, message.type) for message in line.heard] == [
        ("iopub", "status"),
        ("iopub", "stream"),
        ("iopub", "stream"),
    ]


async def test_a_message_without_a_request_is_delivered_at_once(dial: Dial) -> None:
    line = dial()
    await until(line.kernel.subscribed.is_set)
    line.says(stream("unasked"))
    await until(lambda: line.texts == ["unasked"])


async def test_a_request_gets_its_own_reply(line: Line) -> None:
    replies = await asyncio.gather(*(line.connection.request("control", "kernel_info_request", {}) for _ in range(5)))
    assert len({reply.parent_id for reply in replies}) == 5
    assert {reply.type for reply in replies} == {"kernel_info_reply"}


async def test_iopub_answers_no_request(line: Line) -> None:
    line.kernel.behaviour = replace(line.kernel.behaviour, answers=False)
    asked = asyncio.gather(line.connection.request("control", "kernel_info_request", {}))
    await asyncio.sleep(0)
    (msg_id,) = line.connection._replies._futures
    line.kernel.publish(Saying("kernel_info_reply", {}), {"msg_id": msg_id, "header": {"msg_id": msg_id}})
    await until(lambda: line.heard)
    assert not asked.done()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not line.connection._replies._futures


async def test_a_second_reply_is_only_delivered_as_a_message(line: Line) -> None:
    reply = await line.connection.request("control", "kernel_info_request", {})
    line.kernel.send("control", Saying("kernel_info_reply", {"again": True}), {"header": reply.parent}, b"gateway")
    await until(lambda: len(line.heard) == 2)
    assert line.heard[1].content == {"again": True}


async def test_a_flood_of_messages_takes_turns_with_other_work(line: Line) -> None:
    line.says(*(stream(str(number)) for number in range(2000)))
    turns = 0
    while len(line.heard) < 2000:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2000 / transport.BATCH_MESSAGES


async def test_large_messages_take_turns_with_other_work(line: Line) -> None:
    line.says(*[stream("x" * 150_000)] * 60)
    turns = 0
    while len(line.heard) < 60:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 60 * 150_000 / transport.BATCH_BYTES / 2


async def test_a_kernel_is_read_when_its_tenant_need_not_wait_any_more(line: Line) -> None:
    events, waits = list[float](), [0.01, 0.01]

    def wait() -> float:
        events.append(-len(line.heard))
        return waits.pop() if waits else 0.0

    line.connection.charge(replace(NO_CHARGE, spend=events.append, wait=wait))
    line.says(stream("loud"))
    await until(lambda: line.texts == ["loud"])
    assert events[:3] == [0, 0, 0], "asked three times, and nothing was read before the third"
    assert events[3] > 0, "the seconds that were spent"


async def test_a_look_at_a_kernel_that_says_nothing_costs_its_tenant_nothing(line: Line) -> None:
    looks, spent = list[int](), list[float]()

    def wait() -> float:
        looks.append(len(spent))
        return 0.0

    line.connection.charge(replace(NO_CHARGE, spend=spent.append, wait=wait))
    line.connection.pause()
    line.connection.resume()  # reads what has arrived meanwhile: nothing
    await until(lambda: looks)
    assert spent == []
    line.says(stream("loud"))
    await until(lambda: line.texts == ["loud"])
    assert spent


# -- bad messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encryption", ["plain"], indirect=True)
async def test_malformed_frames_are_dropped_and_the_next_message_is_read(line: Line) -> None:
    good = line.kernel.signed(*PARTS)
    for frames in MALFORMED.values():
        if frames:  # a message without frames cannot be sent
            line.kernel.send_raw("iopub", frames)
    line.kernel.send_raw("iopub", good)
    await until(lambda: line.heard)
    assert line.texts == ["hi"]


async def test_a_kernel_that_sends_only_garbage_is_reported_broken_once(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.kernels.connection.MALFORMED_MAX", 10)
    for count in (9, 30):
        for _ in range(count):
            line.kernel.send_raw("iopub", [b"topic", b"garbage"])
        line.says(stream("end"))
        await until(lambda: line.texts)
        line.heard.clear()
        assert line.listener.times_broken == (count > 9)


async def test_a_message_that_cannot_be_handled_does_not_stop_the_next(line: Line) -> None:
    def stumble(message: Message) -> None:
        if message.type == "status":
            raise ZeroDivisionError

    line.listener.handle = stumble
    line.says(busy(), stream("1"), busy(), stream("2"))
    with capture_logs() as logs:
        await until(lambda: line.texts == ["1", "2"])
    assert dropped(logs) == 2


async def test_a_large_message_arrives(line: Line) -> None:
    line.says(stream("x" * (MAX - 1000)))
    await until(lambda: line.texts)
    assert len(line.texts[0]) == MAX - 1000


async def test_an_oversized_message_breaks_the_channel_which_is_renewed(line: Line) -> None:
    for number in range(3):
        line.says(stream("x" * (MAX + 1)), stream("lost with it"))
        await line.connection.ready()
        line.says(stream(f"heard {number}"))
        await until(lambda: line.texts)
        assert line.texts == [f"heard {number}"]
        line.heard.clear()


async def test_the_log_has_one_line_for_all_channels_that_a_kernel_drops_at_once(kernel: FakeKernel) -> None:
    lines = Transport(kernel.connection_info, listener := Mock(), MAX, lambda: NO_CHARGE)
    lines.open()
    await lines.connected.wait()
    for _ in range(2):
        listener.reset_mock()
        with capture_logs() as logs:
            for channel in CHANNELS:
                kernel.unbind(channel)
            await until(lambda: listener.on_renewed.call_count == len(CHANNELS))
        assert [(entry["log_level"], entry["channels"]) for entry in logs] == [("warning", sorted(CHANNELS))]
        for channel in CHANNELS:
            kernel.bind(channel)
        await lines.connected.wait()  # the next loss is another one
    lines.close()


async def test_a_channel_that_the_kernel_drops_gets_one_new_connection(line: Line) -> None:
    with (
        patch.object(Watchdog, "disconnected", autospec=True, side_effect=Watchdog.disconnected) as lost,
        patch.object(Watchdog, "reconnected", autospec=True, side_effect=Watchdog.reconnected) as back,
    ):
        line.kernel.unbind("shell")
        await until(lambda: lost.called)
        line.kernel.bind("shell")  # before the gateway looks after the channel, and libzmq connects at once
        await until(lambda: line.listener.shell_losses)
        await line.connection.ready()
    assert back.call_args_list == [call(ANY, "shell")], "the kernel takes the second for the same client"


async def test_a_loss_on_shell_is_reported_to_the_listener(line: Line) -> None:
    line.says(stream("x" * (MAX + 1)))
    await line.connection.ready()
    assert line.listener.shell_losses == 0
    line.kernel.send("shell", Saying("execute_reply", {"text": "x" * (MAX + 1)}), None, b"gateway")
    await until(lambda: line.listener.shell_losses)
    await line.connection.ready()
    assert line.listener.shell_losses == 1


async def test_a_prelude_runs_first_and_its_messages_are_dropped(dial: Dial) -> None:
    line = dial(prelude="print('prelude')")
    cell = line.connection.send("shell", "execute_request", {"code": "1", "silent": False})
    await until(lambda: {("shell", cell), ("iopub", cell)} <= {(m.channel, m.parent_id) for m in line.heard})
    assert line.kernel.executed == ["print('prelude')", "1"]
    assert {message.parent_id for message in line.heard} == {cell}


async def test_settled_messages_of_a_kernel_are_dropped(line: Line) -> None:
    line.says(Saying(SETTLED, {}), stream("1"))
    await until(lambda: line.texts)
    assert [message.type for message in line.heard] == ["stream"]


# -- the end ---------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_after_the_end(line: Line) -> None:
    line.connection.close()
    with pytest.raises(ConnectionFailed):
        line.connection.send("shell", "kernel_info_request", {})


async def test_closing_a_connection_twice_is_allowed(line: Line) -> None:
    line.connection.close()
    line.connection.close()


async def test_waiting_callers_get_an_error_when_the_connection_closes(backend: FakeBackend, dial: Dial) -> None:
    line = dial()
    line.kernel.behaviour = replace(backend.behaviour, answers=False)
    waiting = asyncio.gather(
        line.connection.ready(),
        line.connection.request("control", "kernel_info_request", {}),
        return_exceptions=True,
    )
    await asyncio.sleep(0.01)
    line.connection.close()
    async with asyncio.timeout(0.1):
        assert [type(outcome) for outcome in await waiting] == [ConnectionFailed, ConnectionFailed]


async def test_no_message_is_delivered_after_the_end(line: Line) -> None:
    line.says(stream("1"))
    await until(lambda: line.texts)
    line.says(stream("2"))
    line.connection.close()
    await asyncio.sleep(0.02)
    assert line.texts == ["1"]


async def test_sends_to_a_kernel_that_accepts_nothing_are_refused_in_the_end(backend: FakeBackend) -> None:
    info = new_connection_info("ipc", str(backend.root / "nobody"), first_port=1, encryption=False)
    lonely = connect(info, most=MAX)

    def feed() -> None:
        for _ in range(10_000):
            lonely.send("shell", "kernel_info_request", {})

    with pytest.raises(ConnectionFailed, match="takes no more"):
        feed()
    lonely.close()


async def test_a_channel_that_ends_with_its_kernel_is_not_renewed(line: Line) -> None:
    line.connection.expect_end()
    with capture_logs() as logs:
        line.kernel.unbind("shell")
        await asyncio.sleep(3 * transport.RENEWAL_DELAY)
    assert logs == [], "the end of every session would be a warning"
    assert line.listener.shell_losses == 0
