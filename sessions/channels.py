"""Clients that speak to a session's kernel by messages of their own, as Jupyter's front ends do.

What the kernel publishes goes to all of them, a reply or a question to who asked. There is one connection to the
kernel whatever their number: a client's messages are signed anew and passed on as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sessions.errors import ConnectionFailed, InvalidRequest, SessionError
from sessions.kernel import Kernel
from sessions.messages import Message
from sessions.requests import Asked, Requests, Rules, code_of
from sessions.subscription import Subscription, announcement

#: clients that went away and may come back, per session; the first that left are forgotten
HELD_MAX = 4
#: seconds the kernel's output waits for a client that reads nothing
STALL = 2.0


class Channels:
    """All such clients of one session."""

    def __init__(self, rules: Rules) -> None:
        """Begin with nobody.

        Args:
            rules: for the cells of these clients.
        """
        self._requests = Requests(rules, self.feed)
        self._kernel: Kernel | None = None
        self._subscriptions: list[Subscription] = []
        #: clients that the kernel's output waits for
        self._watched: set[Subscription] = set()

    @property
    def clients(self) -> int:
        """How many are there now."""
        return sum(subscription.attached for subscription in self._subscriptions)

    @property
    def running(self) -> bool:
        """Whether a cell of theirs runs or waits."""
        return self._requests.cell is not None

    async def quiet(self) -> None:
        """Wait until no cell of theirs runs or waits."""
        await self._requests.quiet()

    # -- clients --------------------------------------------------------------------------------------------

    def subscribe(self, client: str) -> Subscription:
        """Let a client listen. One that was here under the same id gets what it has missed.

        Args:
            client: the id it comes back with; empty: it will not.
        """
        subscription = Subscription(client, self._relieve)
        for known in list(self._subscriptions):
            if client and known.client == client:
                subscription.inherit(known)
                self._subscriptions.remove(known)
                self._requests.hand_over(known, subscription)
        self._subscriptions.append(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """A client has left; what it misses is kept if it can come back."""
        if subscription not in self._subscriptions:
            return  # another has taken over
        subscription.attached = False
        self._subscriptions.remove(subscription)
        self._subscriptions.append(subscription)  # the last that left
        away = [known for known in self._subscriptions if not known.attached and known.client]
        for known in away[:-HELD_MAX] if subscription.client else [subscription]:
            self._subscriptions.remove(known)
            known.close()
        self._relieve()

    def forward(
        self,
        subscription: Subscription,
        channel: str,
        header: dict[str, Any],
        parts: Sequence[bytes],
        buffers: Sequence[bytes],
    ) -> None:
        """Pass a client's message on.

        Raises:
            InvalidRequest: a message of this id is under way, or code is to run on another channel than shell, or it
                cannot be told which.
            PolicyViolation: the code may not run.
            QuotaExceeded: too much waits for the kernel, or the tenant has too many executions under way.
            ConnectionFailed: the kernel is not there or takes no messages.
        """
        if self._kernel is None:
            raise ConnectionFailed
        if channel == "stdin":
            self._answer(subscription, parts, buffers)
            return
        size = sum(map(len, parts)) + sum(map(len, buffers))
        asked = Asked(subscription, header["msg_id"], header["msg_type"], size)
        if asked.type == "execute_request":
            if channel != "shell":  # Python's kernels would run it there too, beside all account
                raise InvalidRequest("code is run by the shell channel", field="channel")
            asked.code, asked.expressions = code_of(parts[3])
        self._requests.add(asked)
        try:
            self._kernel.connection.forward(channel, parts, buffers)
        except ConnectionFailed:
            self._requests.not_sent(asked)
            raise

    def _answer(self, subscription: Subscription, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Pass on an answer, if the kernel has asked: what it does not wait for would wait in our memory."""
        asking = self._requests.asking(subscription)
        if asking is not None and self._kernel is not None:
            asking.questions -= 1
            self._kernel.connection.forward("stdin", parts, buffers)

    def interrupt(self) -> bool:
        """Interrupt the cell of theirs that runs.

        Returns:
            whether there is one.
        """
        return self._requests.interrupt()

    # -- the kernel -----------------------------------------------------------------------------------------

    def connect(self, kernel: Kernel) -> None:
        """The session has a kernel, in place of the one it had."""
        self._kernel = kernel
        self._requests.connect(kernel)

    def disconnect(self, cause: SessionError) -> None:
        """The session's kernel is gone, and the cells that it had have failed."""
        self._kernel = None
        self._requests.disconnect(cause)

    def feed(self, message: Message) -> None:
        """Pass a message of the kernel on to whom it concerns."""
        asked = self._requests.find(message.parent_id)
        if message.channel == "iopub":
            self._requests.published(message)
            self._publish(message)
        elif asked is not None and message.channel == "stdin":
            asked.questions += 1
            asked.by.feed(message)
        elif asked is not None:
            self._requests.replied(asked, message.content.get("status"))
            asked.by.feed(message)

    def announce(self, state: str) -> None:
        """Tell all clients of a state that the kernel itself cannot tell."""
        self._publish(announcement("iopub", "status", {"execution_state": state}))

    def _publish(self, message: Message) -> None:
        for subscription in self._subscriptions:
            subscription.feed(message)
            if subscription.pressing and self._kernel is not None:
                self._kernel.connection.pause()
                if subscription not in self._watched:
                    self._watch(subscription)

    def _watch(self, subscription: Subscription) -> None:
        self._watched.add(subscription)
        asyncio.get_running_loop().call_later(STALL, self._look_at, subscription, subscription.taken)

    def _look_at(self, subscription: Subscription, taken: int) -> None:
        """Wait no longer for a client that has taken nothing for a while."""
        self._watched.discard(subscription)
        if subscription.pressing and subscription.taken == taken:
            subscription.patient = False
        elif subscription.pressing:
            self._watch(subscription)
        self._relieve()

    def _relieve(self) -> None:
        if self._kernel is not None and not any(known.pressing for known in self._subscriptions):
            self._kernel.connection.resume()

    def close(self, cause: SessionError) -> None:
        """The session ends: tell all, and let them go."""
        self.disconnect(cause)
        self.announce("dead")
        self.part()

    def part(self) -> None:
        """Let all clients go; the session goes on."""
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()
