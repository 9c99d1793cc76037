"""Whether kernels can be started: the backend's own proof, repeated from time to time.

While it fails no kernel is started and every request that needs one is told why; what runs goes on. When it
holds again - the operator has mended it, the engine is back - the gateway serves again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

import structlog

from sessions.backends.base import Backend
from sessions.errors import BackendUnavailable, NotInitialized, SessionError, ShuttingDown
from sessions.tasks import forever, going_on

log = structlog.get_logger()

#: seconds between proofs while they hold, while something is missing, and while the engine does not answer
RECHECK = 60.0
RETRY = 10.0
RETRY_ENGINE = 2.0


class Readiness:
    """The outcome of the last proof."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = False
        #: what comes between the first proof that holds and the first kernel
        self.first: Callable[[], Awaitable[None]] | None = None
        self._doubt = asyncio.Event()
        backend.on_doubt = self._doubt.set
        #: why no kernel can be started; None when one can
        self.trouble: SessionError | None = NotInitialized("the gateway is still preparing its sandbox")

    def require(self) -> None:
        """Go on only when kernels can be started.

        Raises:
            NotInitialized: something is missing or does not hold.
            BackendUnavailable: the engine does not answer.
        """
        if self.trouble is not None:  # a new one of its kind: the one that is kept would gather tracebacks
            raise type(self.trouble)(self.trouble.message, **self.trouble.details)

    def close(self) -> None:
        """Let nothing be started any more."""
        self._closed = True
        self.trouble = ShuttingDown()

    async def check(self) -> bool:
        """Let the backend prove itself now. A proof that fails in a way nobody has foreseen has not held.

        Returns:
            whether it could.
        """
        found: SessionError | None = NotInitialized("the proof of the sandbox came to no end; the log tells why")
        with going_on("proof of the sandbox"):
            found = await self._prove()
        if self._closed:
            return False
        before, self.trouble = self.trouble, found
        if found is None and before is not None:
            log.info("ready", isolation=self._backend.isolation)
        if found is not None and (before is None or before.message != found.message):
            log.warning("not ready", code=found.code, reason=found.message, resolution=found.resolution)
        return found is None

    async def _prove(self) -> SessionError | None:
        """What is missing or does not hold; None: nothing."""
        try:
            await self._backend.prepare()
            if self.first is not None:
                await self.first()
                self.first = None
        except SessionError as error:
            return error
        return None

    async def run(self) -> NoReturn:
        """Repeat the proof until cancelled; at once when the backend has its doubts."""
        await forever(self._check_in_time)

    async def _check_in_time(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause()):
                await self._doubt.wait()
        self._doubt.clear()
        await self.check()

    def _pause(self) -> float:
        if self.trouble is None:
            return RECHECK
        return RETRY_ENGINE if isinstance(self.trouble, BackendUnavailable) else RETRY
