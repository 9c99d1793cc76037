"""The pauses of one container: those that the gateway makes, and those from outside, which may not last.

A paused container seems reachable, because gVisor's network continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from docker.errors import APIError

from sessions.backends.docker.breaker import fails
from sessions.backends.docker.engine import SIGNAL, Engine

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
        self._timer: asyncio.TimerHandle | None = None
        #: True: the gateway itself has paused the container
        self._own = False

    def begun(self) -> None:
        """Note that the container is paused. Idempotent."""
        if self._timer is None and not self._own:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_MAX, self._too_long)

    def ended(self) -> None:
        """Note that the container is not paused."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def pause(self, owner: str) -> None:
        """Pause the container, for the tenant whose it is.

        Raises:
            SessionError: when the engine does not answer, or refuses.
        """
        self._own = True
        try:
            await self._engine.call(lambda: self._engine.api.pause(self._container), lane=SIGNAL, owner=owner)
        except APIError as error:
            raise fails("pause a container", error) from error

    async def resume(self, owner: str) -> None:
        """Resume the container, for the tenant whose it is.

        Raises:
            BackendUnavailable: when the engine does not answer.
        """
        with suppress(APIError):  # it is gone, or is not paused
            await self._engine.call(lambda: self._engine.api.unpause(self._container), lane=SIGNAL, owner=owner)
        self._own = False
