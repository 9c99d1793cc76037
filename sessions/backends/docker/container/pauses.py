"""Pauses one container, and limits the pauses that somebody else makes.

A paused container still seems reachable, because gVisor's network continues. So a long pause from outside would make
clients wait in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from docker.errors import APIError, NotFound

from sessions.backends.docker.engine.breaker import engine_failed, log_refusal
from sessions.backends.docker.engine.engine import SIGNAL, Engine
from sessions.model.errors import ConnectionFailed

#: maximum seconds of a pause that the gateway has not made
PAUSE_MAX = 10.0


class Pauses:
    """The pauses of one container."""

    def __init__(self, engine: Engine, container: str, too_long: Callable[[], None]) -> None:
        """Begin with a running container.

        Args:
            engine: engine that has the container.
            container: id of the container.
            too_long: called when a pause from outside lasts too long.
        """
        self._engine = engine
        self._container = container
        self._too_long = too_long
        #: calls `too_long`. None means that no pause from outside is known.
        self._timer: asyncio.TimerHandle | None = None
        #: whether the container is paused, by the gateway or from outside
        self._paused = False
        #: whether the gateway itself has paused the container, or is about to
        self._own = False

    def begun(self) -> None:
        """Record that the container is paused. Idempotent."""
        self._paused = True
        self._limit()

    def ended(self) -> None:
        """Record that the container is not paused."""
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _limit(self) -> None:
        if self._paused and not self._own and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_MAX, self._too_long)

    async def pause(self, owner: str) -> None:
        """Pause the container.

        Args:
            owner: tenant of the container.

        Raises:
            BackendUnavailable: when the engine refuses, or does not answer. Then it may pause the container later.
        """
        self._own = True  # set before the call, because the event of the pause may arrive before the engine's answer
        try:
            await self._engine.call(lambda: self._engine.api.pause(self._container), lane=SIGNAL, owner=owner)
        except APIError as error:
            self._own = False
            self._limit()  # a pause from outside may have begun meanwhile
            raise engine_failed("pause a container", error) from error
        self.ended()  # the container ran until now, so no pause from outside lasts, even if its end was not reported

    async def resume(self, owner: str) -> None:
        """Resume the container. Does nothing if it has ended or is not paused.

        Args:
            owner: tenant of the container.

        Raises:
            BackendUnavailable: when the engine does not answer.
            ConnectionFailed: when the engine refuses.
        """
        try:
            await self._engine.call(self._resume_blocking, lane=SIGNAL, owner=owner)
        except APIError as error:
            log_refusal("resume a container", error)
            raise ConnectionFailed("the container engine could not resume the sandbox") from error
        self._own = False

    def _resume_blocking(self) -> None:
        api = self._engine.api
        with suppress(NotFound):  # the container has ended
            # The engine's answer for a container that is not paused is the same 500 as for a failure.
            if api.inspect_container(self._container)["State"].get("Paused"):
                api.unpause(self._container)
