"""Calls that a client may send again, because it has lost the answer: they join the run that the first one began.

A client of MCP cannot resume a stream: it sends the call again, as a new one. So the gateway remembers which run a call
has begun, until the client has the run's result or its handle. A run whose client has left and does not come back ends,
unless its client asked for it to go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from sessions.cells.idempotency import Run
from sessions.model.tasks import spawn
from sessions.session.session import Session

#: seconds for which a client that has left may come back, before its run is interrupted
COMES_BACK = 30.0
#: seconds for which the result of an ended run waits for its client
KEPT = 300.0
#: calls that are remembered, of all tenants; beyond that, calls whose run has ended are forgotten first
CALLS_MAX = 4096

#: tenant, session (empty: a new one), digest of the arguments
Key = tuple[str, str, str]
#: session of the protocol, and id of the request: a client uses an id once in it. None: the client has no such session
Sender = tuple[str, str | int] | None
Began = tuple[Session, Run]


class Joined:
    """A run, and the calls that wait for it."""

    def __init__(self, key: Key, sender: Sender, starting: asyncio.Task[Began]) -> None:
        self.key = key
        #: who sent the call that began the run
        self.sender = sender
        #: begins the run
        self.starting = starting
        #: number of calls that wait
        self.waiting = 0
        #: whether a client has the result, or the handle with which it can ask for the result
        self.told = False

    def is_of(self, sender: Sender) -> bool:
        """Return whether a call with the same arguments is this run's call, sent again.

        It is the same request, also if the gateway has not noticed yet that the client lost its connection. Or it comes
        when the answer was lost: nobody has it, and nobody waits for it.
        """
        return (sender is not None and sender == self.sender) or not (self.waiting or self.told)

    @property
    def over(self) -> bool:
        """Whether nothing runs any more."""
        if not self.starting.done():
            return False
        return bool(self.starting.cancelled() or self.starting.exception() or self.starting.result()[1].over)

    def interrupt(self) -> None:
        """Interrupt the run, if it has begun."""
        if self.starting.done() and not self.over:
            self.starting.result()[1].interrupt()


class Resent:
    """The runs of calls that may be sent again."""

    def __init__(self) -> None:
        #: oldest first
        self._calls: dict[Key, list[Joined]] = {}
        self._count = 0

    def join(self, key: Key, sender: Sender, begin: Callable[[], Coroutine[Any, Any, Began]]) -> Joined:
        """Return the run that the same call has begun before, or begin one.

        Two clients that send calls with the same arguments at the same time get a run each.
        """
        for known in self._calls.get(key, ()):
            if known.is_of(sender):
                return known
        joined = Joined(key, sender, spawn(begin(), "run of a call"))
        self._make_room()
        self._calls.setdefault(key, []).append(joined)
        self._count += 1
        joined.starting.add_done_callback(lambda _task: self._began(joined))
        return joined

    @contextmanager
    def waits(self, joined: Joined, *, ends_with_client: bool) -> Iterator[None]:
        """Wait for a run. If the client leaves, the run may end; see `Call.ends_with_client`."""
        joined.waiting += 1
        try:
            yield
        except asyncio.CancelledError:
            if ends_with_client:
                asyncio.get_running_loop().call_later(COMES_BACK, self._interrupt_if_alone, joined)
            raise
        finally:
            joined.waiting -= 1
            if joined.told and joined.over:
                self._forget(joined)

    def told(self, joined: Joined) -> None:
        """Remember that a client has the result, or the handle."""
        joined.told = True
        if joined.over:
            self._forget(joined)

    def _began(self, joined: Joined) -> None:
        if joined.over:  # it was refused: the next call may run
            self._forget(joined)
        else:
            joined.starting.result()[1].task.add_done_callback(lambda _task: self._ended(joined))

    def _ended(self, joined: Joined) -> None:
        if joined.told:
            self._forget(joined)
        else:
            asyncio.get_running_loop().call_later(KEPT, self._forget, joined)

    def _interrupt_if_alone(self, joined: Joined) -> None:
        if not joined.waiting and not joined.told:
            joined.interrupt()

    def _forget(self, joined: Joined) -> None:
        calls = self._calls.get(joined.key, [])
        if joined in calls:
            calls.remove(joined)
            self._count -= 1
        if not calls:
            self._calls.pop(joined.key, None)

    def _make_room(self) -> None:
        if self._count >= CALLS_MAX:
            for joined in [joined for calls in self._calls.values() for joined in calls if joined.over]:
                self._forget(joined)
