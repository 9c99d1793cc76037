"""An interrupt may arrive between any two steps of publishing: no message is lost, and none is sent twice."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from kernel_image.python_kernel import children, descriptors, publishing
from kernel_image.python_kernel.children import Children
from kernel_image.python_kernel.descriptors import Descriptor
from kernel_image.python_kernel.publishing import KernelSession, Outgoing, Publisher, Stream

TEXT = "one two three"
PIECES = ["one t", "wo th", "ree"]


class Desk:
    """A publisher, the stream of printed text, and a listener to both."""

    def __init__(self) -> None:
        context = zmq.Context()
        self.listener, speaker = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self.listener.bind("inproc://desk")
        speaker.connect("inproc://desk")
        self.publisher = Publisher(speaker)
        self.session = KernelSession(key=b"a key")
        self.stream = Stream(self.session, self.publisher, "stdout", watchfd=False)
        self._reader = Session(key=b"a key")  # refuses messages that it has received before
        self._context = context

    def say(self, text: str) -> None:
        """Publish a message that needs no flush."""
        self.session.send(self.publisher, "stream", {"name": "stdout", "text": text})

    def heard(self) -> list[str]:
        """Return the texts of all messages since the last call."""
        texts = []
        while self.listener.poll(0):
            _, frames = self._reader.feed_identities(self.listener.recv_multipart())
            texts.append(self._reader.deserialize(frames)["content"]["text"])
        return texts

    def close(self) -> None:
        self.publisher.stop()  # type: ignore[no-untyped-call]
        self._context.destroy(linger=0)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(publishing, "PIECE", 5)
    desk = Desk()
    yield desk
    desk.close()


def interrupt() -> None:
    raise KeyboardInterrupt


def disturb(step: int, work: Callable[[], None], handler: Callable[[], None]) -> bool:
    """Do some work, and run a handler before one of the steps (bytecodes) of the kernel's own modules in it.

    Returns:
        True if there is such a step.
    """
    steps = count()
    disturbed = False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal disturbed
        if frame.f_code.co_filename not in {publishing.__file__, descriptors.__file__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            disturbed = True
            handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.settrace(before)
    return disturbed


def at_every_step(work: Callable[[], None], check: Callable[[], None], handler: Callable[[], None] = interrupt) -> int:
    """Disturb some work at each of its steps, and check the result after each.

    Returns:
        number of steps.
    """
    for step in count():
        disturbed = disturb(step, work, handler)
        check()
        if not disturbed:
            return step
    raise AssertionError


def test_printed_text_leaves_once(desk: Desk) -> None:
    def work() -> None:
        desk.stream.write(TEXT)
        written.append(True)
        desk.stream.flush()

    def check() -> None:
        desk.stream.flush()
        heard = desk.heard()
        assert heard == PIECES or not (written or heard)
        written.clear()

    written: list[bool] = []
    assert at_every_step(work, check) > 100


def test_printed_text_that_is_held_back_leaves_once_and_in_order(desk: Desk) -> None:
    def check() -> None:
        desk.stream.flush()
        desk.say("after")
        desk.publisher.release()
        assert desk.heard() == ["before", *PIECES, "after"]
        prepare()

    def prepare() -> None:
        desk.publisher.hold()
        desk.say("before")
        desk.stream.write(TEXT)

    prepare()
    assert at_every_step(desk.stream.flush, check) > 100


def test_messages_that_are_held_back_leave_once(desk: Desk) -> None:
    def check() -> None:
        desk.publisher.release()
        assert desk.heard() == ["1", "2", "3"]
        prepare()

    def prepare() -> None:
        desk.publisher.hold()
        for text in "123":
            desk.say(text)

    prepare()
    assert at_every_step(desk.publisher.release, check) > 50


def test_a_message_that_is_sent_again_leaves_once(desk: Desk) -> None:
    message = Outgoing(desk.session.serialize(desk.session.msg("stream", {"text": "once"})))
    for _ in range(2):
        desk.publisher.publish(message)
    assert desk.heard() == ["once"]


def test_text_that_a_signal_handler_prints_leaves_once(desk: Desk) -> None:
    def prints() -> None:
        desk.stream.write("!")
        desk.stream.flush()
        printed.append("!")

    def check() -> None:
        desk.stream.flush()
        heard = "".join(desk.heard())
        assert heard.replace("!", "") == TEXT
        assert heard.count("!") == len(printed)
        printed.clear()
        desk.stream.write(TEXT)

    printed: list[str] = []
    desk.stream.write(TEXT)
    assert at_every_step(desk.stream.flush, check, prints) > 100


@pytest.fixture
def number(desk: Desk) -> Iterator[int]:
    """The number of a descriptor whose output belongs to the stream; it holds the beginning of a character."""
    number = os.open(os.devnull, os.O_WRONLY)
    desk.stream._descriptor = Descriptor(number)
    os.write(number, CHARACTER[:2])
    yield number
    os.close(number)
    os.close(desk.stream._descriptor._end)


CHARACTER = "中".encode()
#: the rest of a character, others, and the beginning of the next one
BYTES = CHARACTER[2:] + b" and more " + CHARACTER[:2]


def test_output_of_a_descriptor_leaves_once_and_before_what_is_printed_then(desk: Desk, number: int) -> None:
    def work() -> None:
        os.write(number, BYTES)
        desk.stream.write("!")
        desk.stream.flush()

    def check() -> None:
        desk.stream.flush()
        assert "".join(desk.heard()) in {"中 and more ", "中 and more !"}

    assert at_every_step(work, check) > 200


def test_output_of_a_descriptor_leaves_once_when_a_signal_handler_prints(desk: Desk, number: int) -> None:
    def prints() -> None:
        desk.stream.write("!")
        desk.stream.flush()

    def check() -> None:
        desk.stream.flush()
        assert "".join(desk.heard()).replace("!", "") == "中 and more "
        os.write(number, BYTES)

    os.write(number, BYTES)
    assert at_every_step(desk.stream.flush, check, prints) > 100


def test_messages_after_the_publisher_is_closed_are_dropped(desk: Desk) -> None:
    desk.stream.write(TEXT)
    desk.publisher.close()  # type: ignore[no-untyped-call]
    desk.say("late")
    desk.stream.flush()
    assert desk.heard() == []


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_reaches_a_kernel_that_has_no_descriptor_left() -> None:
    with interruptible(), no_descriptor_left(), pytest.raises(KeyboardInterrupt):
        Children().interrupt()


def test_an_interrupt_reaches_a_shell_before_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, group = 10, 10
    below = {30: kernel, 20: 30, 15: 20, 40: kernel, 12: 1}  # ids begin anew, so a child's may be the smaller one
    monkeypatch.setattr(
        children, "_processes", lambda: {kernel: (1, group)} | {p: (a, group) for p, a in below.items()}
    )
    reached: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: kernel)
    monkeypatch.setattr(os, "getpgrp", lambda: group)
    monkeypatch.setattr(os, "kill", lambda pid, _: reached.append(pid))
    Children().interrupt()
    assert reached == [kernel, 30, 40, 20, 15]
