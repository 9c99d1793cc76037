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
Began = tuple[Session, Run]


class Joined:
    """A run, and the calls that wait for it."""

    def __init__(self, starting: asyncio.Task[Began]) -> None:
        #: begins the run
        self.starting = starting
        #: number of calls that wait
        self.waiting = 0
        #: whether a client has the result, or the handle with which it can ask for the result
        self.told = False

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
        self._calls: dict[Key, Joined] = {}

    def join(self, key: Key, begin: Callable[[], Coroutine[Any, Any, Began]]) -> Joined:
        """Return the run that an earlier call with this key has begun, or begin one.

        A call that names no session joins only a run that nobody waits for any more: two clients that begin with the
        same code at the same time get a session each.
        """
        known = self._calls.get(key)
        if known is not None and (key[1] or not known.waiting):
            return known
        joined = Joined(spawn(begin(), "run of a call"))
        self._make_room()
        if known is None:
            self._calls[key] = joined
        joined.starting.add_done_callback(lambda _task: self._began(key, joined))
        return joined

    @contextmanager
    def waits(self, key: Key, joined: Joined, *, ends_with_client: bool) -> Iterator[None]:
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
                self._forget(key, joined)

    def told(self, key: Key, joined: Joined) -> None:
        """Remember that a client has the result, or the handle."""
        joined.told = True
        if joined.over:
            self._forget(key, joined)

    def _began(self, key: Key, joined: Joined) -> None:
        if joined.over:  # it was refused: the next call may run
            self._forget(key, joined)
        else:
            joined.starting.result()[1].task.add_done_callback(lambda _task: self._ended(key, joined))

    def _ended(self, key: Key, joined: Joined) -> None:
        if joined.told:
            self._forget(key, joined)
        else:
            asyncio.get_running_loop().call_later(KEPT, self._forget, key, joined)

    def _interrupt_if_alone(self, joined: Joined) -> None:
        if not joined.waiting and not joined.told:
            joined.interrupt()

    def _forget(self, key: Key, joined: Joined) -> None:
        if self._calls.get(key) is joined:
            del self._calls[key]

    def _make_room(self) -> None:
        if len(self._calls) >= CALLS_MAX:
            for key, joined in list(self._calls.items()):
                if joined.over:
                    del self._calls[key]
