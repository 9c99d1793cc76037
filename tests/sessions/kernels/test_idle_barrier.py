"""The idle barrier in conversations with a kernel that sends `idle` too early."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kernel_image.protocol import FLUSHED
from sessions.kernels import idle_barrier as flush
from sessions.kernels.idle_barrier import BarrierActions, IdleBarrier
from sessions.kernels.messages import Message

CELL, NEXT = "cell", "next"


def message(channel: str, msg_type: str, parent: str, **content: Any) -> Message:
    header = {"msg_id": f"{msg_type} of {parent}", "msg_type": msg_type}
    parent_header = {"msg_id": parent, "msg_type": "kernel_info_request" if parent == "question" else "execute_request"}
    parts = tuple(orjson.dumps(part) for part in (header, parent_header, {}, content))
    return Message(channel, header, parent_header, {}, content, size=sum(map(len, parts)), parts=parts)


def idle(parent: str = CELL) -> Message:
    return message("iopub", "status", parent, execution_state="idle")


def reply(parent: str = CELL, status: str = "ok", **content: Any) -> Message:
    return message("shell", "execute_reply", parent, status=status, **content)


def text(text: str, parent: str = CELL) -> Message:
    return message("iopub", "stream", parent, name="stdout", text=text)


def flushed(parent: str) -> tuple[Message, Message]:
    return message("iopub", FLUSHED, parent), reply(parent)


class Conversation:
    """The messages sent to the kernel, and the messages delivered from it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.sent: list[list[bytes]] = []
        self.told: list[Message] = []
        self.flush = IdleBarrier(BarrierActions(self._ask, self.sent.append, self.told.append))
        assert self.flush.admits("execute_request", [b"cell"])

    def _ask(self) -> str:
        self.asked.append(f"flush {len(self.asked)}")
        return self.asked[-1]

    def says(self, *messages: Message) -> list[str]:
        """Let the kernel send messages, and return what is delivered, in order, each with its parent."""
        del self.told[:]
        for said in messages:
            self.flush.pass_on(said)
        return [f"{said.content.get('text', said.type)} of {said.parent_id}" for said in self.told]


@pytest.fixture
async def talk() -> Conversation:
    return Conversation()


@pytest.mark.parametrize("end", [[reply(), idle()], [idle(), reply()]])
async def test_a_cell_s_end_is_delivered_after_its_output(talk: Conversation, end: list[Message]) -> None:
    assert talk.says(text("1"), *end, text("2")) == ["1 of cell", "2 of cell"]
    assert talk.asked == ["flush 0"]
    assert set(talk.says(*flushed("flush 0"))) == {"execute_reply of cell", "status of cell"}


async def test_a_late_reply_is_waited_for(talk: Conversation) -> None:
    talk.flush.admits("execute_request", [b"next"])
    output, answer = flushed("flush 0")
    assert talk.says(text("1"), idle(), output) == ["1 of cell"]
    assert talk.sent == []  # else its output would count as that of the first cell, whose reply is under way
    assert talk.says(reply(), answer) == ["status of cell", "execute_reply of cell"]
    assert talk.sent == [[b"next"]]
    assert talk.says(text("2", NEXT)) == ["2 of next"]


async def test_late_output_is_waited_for(talk: Conversation) -> None:
    output, answer = flushed("flush 0")
    assert talk.says(reply(), answer) == []
    assert talk.says(text("1", "flush 0"), idle(), output) == ["1 of cell", "execute_reply of cell", "status of cell"]


async def test_output_that_names_the_flush_request_belongs_to_the_cell(talk: Conversation) -> None:
    talk.says(idle(), reply())
    assert talk.says(text("2", "flush 0")) == ["2 of cell"]
    assert orjson.loads(talk.told[0].parts[1]) == talk.told[0].parent
    talk.says(*flushed("flush 0"))
    assert talk.says(text("from a timer", "flush 0")) == ["from a timer of cell"]


async def test_messages_of_the_flush_request_are_not_delivered(talk: Conversation) -> None:
    talk.says(idle(), reply())
    code = message("iopub", "execute_input", "flush 0", code="")
    assert talk.says(idle("flush 0"), code) == []
    talk.says(*flushed("flush 0"))
    assert talk.says(*flushed("flush 0"), idle("flush 0")) == []


async def test_an_answer_to_a_later_request_is_delivered_after_the_end(talk: Conversation) -> None:
    talk.says(idle())
    answer = message("shell", "kernel_info_reply", "question"), idle("question")
    assert talk.says(*answer) == []
    assert talk.says(*flushed("flush 0")) == ["status of cell", "kernel_info_reply of question", "status of question"]


async def test_cells_are_sent_one_at_a_time(talk: Conversation) -> None:
    assert not talk.flush.admits("execute_request", [b"next"])
    assert not talk.flush.admits("execute_request", [b"last"])
    assert talk.flush.admits("complete_request", [b"question"])
    talk.says(idle(), reply())
    assert talk.sent == []
    talk.says(*flushed("flush 0"))
    assert talk.sent == [[b"next"]]
    talk.says(idle(NEXT), reply(NEXT), *flushed("flush 0"))
    assert talk.sent == [[b"next"]]  # an answer to an earlier flush request proves nothing
    talk.says(*flushed("flush 1"))
    assert talk.sent == [[b"next"], [b"last"]]


async def test_a_cell_that_could_not_be_sent_does_not_block_the_next(talk: Conversation) -> None:
    talk.flush.not_sent()
    assert talk.flush.admits("execute_request", [b"next"])


async def test_a_lost_answer_is_requested_again(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "RETRY", 0.01)
    talk.says(idle(), reply())
    await asyncio.sleep(0.1)
    assert len(talk.asked) > 1
    assert len(talk.says(*flushed(talk.asked[-1]))) == 2
    asked = len(talk.asked)
    await asyncio.sleep(0.03)
    assert len(talk.asked) == asked


async def test_a_cell_whose_output_was_lost_gets_no_idle(talk: Conversation) -> None:
    talk.flush.output_lost()
    talk.says(idle(), reply())
    assert talk.says(*flushed("flush 0")) == ["execute_reply of cell"]
    talk.flush.admits("execute_request", [b"next"])
    talk.says(idle(NEXT), reply(NEXT))
    assert len(talk.says(*flushed("flush 1"))) == 2


async def test_a_failure_is_shown_even_if_the_kernel_only_replies_with_it(talk: Conversation) -> None:
    talk.says(reply(status="error", ename="Error", evalue="failed", traceback=[]), idle())
    assert talk.says(*flushed("flush 0")) == ["error of cell", "execute_reply of cell", "status of cell"]
    shown = talk.told[0]
    assert (shown.channel, shown.content) == ("iopub", {"ename": "Error", "evalue": "failed", "traceback": []})
    assert [orjson.loads(part) for part in shown.parts] == [shown.header, shown.parent, {}, shown.content]


async def test_a_failure_is_shown_once(talk: Conversation) -> None:
    talk.says(message("iopub", "error", CELL), reply(status="error"), idle())
    assert talk.says(*flushed("flush 0")) == ["execute_reply of cell", "status of cell"]


async def test_a_kernel_that_sends_too_much_gets_no_ordering(talk: Conversation) -> None:
    talk.says(idle(), reply())
    assert len(talk.says(*[idle("question")] * flush.HELD_MESSAGES)) > flush.HELD_MESSAGES
