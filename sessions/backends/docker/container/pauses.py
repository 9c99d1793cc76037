"""The pauses of one container: those that the gateway makes, and those from outside, which may not last.

A paused container seems reachable, because gVisor's network continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from docker.errors import APIError, NotFound

from sessions.backends.docker.engine.breaker import fails, log_refusal
from sessions.backends.docker.engine.engine import SIGNAL, Engine
from sessions.model.errors import ConnectionFailed

#: seconds of a pause from outside the gateway
PAUSE_MAX = 10.0


class Pauses:
    """The pauses of one container."""

    def __init__(self, engine: Engine, container: str, too_long: Callable[[], None]) -> None:
        """Begin with a container that runs.

        Args:
            engine: has the container.
            container: id of the container.
            too_long: called when a pause from outside is too long.
        """
        self._engine = engine
        self._container = container
        self._too_long = too_long
        #: ends the container; None: no pause from outside is known
        self._timer: asyncio.TimerHandle | None = None
        #: True: the container is paused, whoever has paused it
        self._paused = False
        #: True: the gateway itself has paused the container, or asks for that
        self._own = False

    def begun(self) -> None:
        """Note that the container is paused. Idempotent."""
        self._paused = True
        self._limit()

    def ended(self) -> None:
        """Note that the container is not paused."""
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _limit(self) -> None:
        if self._paused and not self._own and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_MAX, self._too_long)

    async def pause(self, owner: str) -> None:
        """Pause the container, for the tenant whose it is.

        Raises:
            BackendUnavailable: when the engine does not answer, and perhaps pauses it later; or when it refuses.
        """
        self._own = True  # before the engine is asked: the event of the pause may arrive before its answer
        try:
            await self._engine.call(lambda: self._engine.api.pause(self._container), lane=SIGNAL, owner=owner)
        except APIError as error:
            self._own = False
            self._limit()  # one from outside may have begun meanwhile
            raise fails("pause a container", error) from error
        self.ended()  # it ran until now, so no pause from outside lasts, even if the event of its end was missed

    async def resume(self, owner: str) -> None:
        """Resume the container, for the tenant whose it is. Does nothing when it is gone or is not paused.

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
        with suppress(NotFound):  # it is gone
            # The engine's answer for a container that is not paused is the same 500 as for a failure.
            if api.inspect_container(self._container)["State"].get("Paused"):
                api.unpause(self._container)
