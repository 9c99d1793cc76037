"""Matches the messages of a kernel to the requests that the gateway itself has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sessions.kernels.messages import Message
from sessions.model.errors import ConnectionFailed
from sessions.model.tasks import set_within

#: seconds between the first two `kernel_info` requests to a kernel that has not answered yet
READY_RETRY = 0.25
#: growth of that pause, and its maximum; a kernel that is busy for long must later answer all these requests
READY_GROWTH, READY_RETRY_MAX = 1.25, 5.0
#: seconds between two requests to a kernel that has answered, but whose output does not reach the gateway yet
AUDIBLE_RETRY = 0.02


class Probe:
    """The repeated requests that find out whether a kernel is ready, and the answers to them."""

    def __init__(self) -> None:
        #: message ids of the requests
        self.sent: set[str] = set()
        #: set when the kernel has answered; set when its iopub reaches the gateway, too
        self.replied, self.passed = asyncio.Event(), asyncio.Event()
        self._replied: set[str] = set()
        self._idle: set[str] = set()

    def observe(self, message: Message) -> None:
        """Check whether a message answers one of the requests."""
        if message.parent_id not in self.sent:
            return
        if message.channel == "shell":
            self._replied.add(message.parent_id)
            self.replied.set()
        elif message.channel == "iopub" and message.content.get("execution_state") == "idle":
            self._idle.add(message.parent_id)
        if self._replied & self._idle:
            self.passed.set()

    async def ask(self, send: Callable[[], str], closed: Callable[[], bool]) -> None:
        """Send requests until one is answered and its output has arrived, or the connection is closed.

        Args:
            send: sends one request and returns its message id.
            closed: returns whether the connection is closed.
        """
        pause = READY_RETRY
        while not closed() and not self.passed.is_set():
            with suppress(ConnectionFailed):  # a channel that is being renewed accepts no messages; the loop asks again
                self.sent.add(send())
            await set_within(self.replied, pause)
            pause = min(pause * READY_GROWTH, READY_RETRY_MAX)
            await set_within(self.passed, AUDIBLE_RETRY)


class Replies:
    """The requests of one connection that wait for an answer."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Message]] = {}
        self._probes: set[Probe] = set()

    def observe(self, message: Message) -> None:
        """Pass a message to the request that it answers, and to all probes."""
        reply = self._futures.pop(message.parent_id, None) if message.channel in {"shell", "control"} else None
        if reply is not None and not reply.done():
            reply.set_result(message)
        for probe in self._probes:
            probe.observe(message)

    async def reply_to(self, msg_id: str) -> Message:
        """Wait for the reply to a request, without a time limit.

        Raises:
            ConnectionFailed: when the connection was closed meanwhile.
        """
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._futures[msg_id] = future
        try:
            return await future
        finally:
            self._futures.pop(msg_id, None)

    @contextmanager
    def probe(self) -> Iterator[Probe]:
        """Make a probe that observes every message inside the `with` block."""
        probe = Probe()
        self._probes.add(probe)
        try:
            yield probe
        finally:
            self._probes.discard(probe)

    def fail(self) -> None:
        """Fail all requests with `ConnectionFailed`, and wake all probes, which then check the connection."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ConnectionFailed())
        for probe in self._probes:
            probe.replied.set()
            probe.passed.set()
