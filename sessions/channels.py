"""Clients that speak to a session's kernel by messages of their own, as Jupyter's front ends do.

What the kernel publishes goes to all of them, a reply or a question to who asked. There is one connection to the
kernel whatever their number: a client's messages are signed anew and passed on as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from sessions.connection import Connection
from sessions.errors import ConnectionFailed, QuotaExceeded
from sessions.messages import Message
from sessions.subscription import Subscription, announcement

#: clients that went away and may come back, per session; the first that left are forgotten
HELD_MAX = 4
#: requests that the kernel has not dealt with, per session, and bytes of them: they wait in our memory
ASKED_MAX = 1000
ASKED_BYTES_MAX = 64 * 1024**2
#: seconds the kernel's output waits for a client that reads nothing
STALL = 2.0


@dataclass(slots=True)
class _Asked:
    """A request that the kernel has not dealt with."""

    by: Subscription
    type: str
    size: int
    #: it has asked back, and may be answered
    questions: int = 0

    @property
    def has_reply(self) -> bool:
        """Whether more comes than `idle`. Source: "Messaging in Jupyter", custom messages."""
        return not self.type.startswith("comm_") or self.type.endswith("_request")


class Channels:
    """All such clients of one session."""

    def __init__(self, admit: Callable[[], AbstractContextManager[None]]) -> None:
        """Begin with nobody.

        Args:
            admit: counts an execution of the tenant. All cells of these clients together are one, because a front
                end sends a whole notebook at once.
        """
        self._admit = admit
        self._admitted = ExitStack()
        self._connection: Connection | None = None
        self._subscriptions: list[Subscription] = []
        #: clients that the kernel's output waits for
        self._watched: set[Subscription] = set()
        #: by the request's id
        self._asked: dict[str, _Asked] = {}
        #: ids of cells that run or wait in the kernel
        self._running: set[str] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def clients(self) -> int:
        """How many are there now."""
        return sum(subscription.attached for subscription in self._subscriptions)

    @property
    def running(self) -> bool:
        """Whether a cell of theirs runs or waits."""
        return bool(self._running)

    async def quiet(self) -> None:
        """Wait until no cell of theirs runs or waits."""
        await self._quiet.wait()

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
                for asked in self._asked.values():
                    if asked.by is known:
                        asked.by = subscription
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
            QuotaExceeded: too much waits for the kernel, or the tenant has too many executions under way.
            ConnectionFailed: the kernel is not there or takes no messages.
        """
        if self._connection is None:
            raise ConnectionFailed
        if channel == "stdin":
            self._answer(subscription, parts, buffers)
            return
        msg_id, msg_type = header["msg_id"], header["msg_type"]
        size = sum(map(len, parts)) + sum(map(len, buffers))
        if len(self._asked) >= ASKED_MAX or sum(asked.size for asked in self._asked.values()) + size > ASKED_BYTES_MAX:
            raise QuotaExceeded("too much waits for this kernel; wait until it has dealt with it")
        if msg_type == "execute_request" and channel == "shell":
            self._begin(msg_id)
        try:
            self._connection.forward(channel, parts, buffers)
        except ConnectionFailed:
            self._done(msg_id)
            raise
        self._asked[msg_id] = _Asked(subscription, msg_type, size)

    def _answer(self, subscription: Subscription, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Pass on an answer, if the kernel has asked: what it does not wait for would wait in our memory."""
        asking = next((asked for asked in self._asked.values() if asked.by is subscription and asked.questions), None)
        if asking is not None and self._connection is not None:
            asking.questions -= 1
            self._connection.forward("stdin", parts, buffers)

    def _begin(self, msg_id: str) -> None:
        if not self._running:
            self._admitted.enter_context(self._admit())
            self._quiet.clear()
        self._running.add(msg_id)

    # -- the kernel -----------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """The session has a kernel; what was asked of another is never answered."""
        self.disconnect()
        self._connection = connection

    def disconnect(self) -> None:
        """The session's kernel is gone."""
        self._connection = None
        self._asked.clear()
        self._running.clear()
        self._rest()

    def feed(self, message: Message) -> None:
        """Pass a message of the kernel on to whom it concerns."""
        asked = self._asked.get(message.parent_id)
        if message.channel == "iopub":
            if asked is not None and message.content.get("execution_state") == "idle":
                asked.size = 0
                if not asked.has_reply:
                    del self._asked[message.parent_id]
            self._publish(message)
        elif asked is not None and message.channel == "stdin":
            asked.questions += 1
            asked.by.feed(message)
        elif asked is not None:
            del self._asked[message.parent_id]
            self._done(message.parent_id)
            asked.by.feed(message)

    def _done(self, msg_id: str) -> None:
        self._running.discard(msg_id)
        if not self._running:
            self._rest()

    def _rest(self) -> None:
        self._admitted.close()
        self._quiet.set()

    def announce(self, state: str) -> None:
        """Tell all clients of a state that the kernel itself cannot tell."""
        self._publish(announcement("iopub", "status", {"execution_state": state}))

    def _publish(self, message: Message) -> None:
        for subscription in self._subscriptions:
            subscription.feed(message)
            if subscription.pressing and self._connection is not None:
                self._connection.pause()
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
        if self._connection is not None and not any(known.pressing for known in self._subscriptions):
            self._connection.resume()

    def close(self) -> None:
        """The session ends: tell all, and let them go."""
        self.announce("dead")
        self.disconnect()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions.clear()
