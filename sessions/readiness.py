"""Whether kernels can be started: the backend's own proof, repeated from time to time.

While it fails no kernel is started and every request that needs one is told why; what runs goes on. When it
holds again - the operator has mended it - the gateway serves again by itself.
"""

from __future__ import annotations

import asyncio

import structlog

from sessions.backends.base import Backend
from sessions.errors import NotInitialized, SessionError

log = structlog.get_logger()

#: seconds between proofs while they hold, and while they do not
RECHECK = 60.0
RETRY = 10.0


class Readiness:
    """The outcome of the last proof."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
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

    async def check(self) -> bool:
        """Let the backend prove itself now.

        Returns:
            whether it could.
        """
        before = self.trouble
        try:
            await self._backend.prepare()
        except SessionError as error:
            self.trouble = error
            if before is None or before.message != error.message:
                log.warning("not ready", code=error.code, reason=error.message, resolution=error.resolution)
            return False
        self.trouble = None
        if before is not None:
            log.info("ready", isolation=self._backend.isolation)
        return True

    async def run(self) -> None:
        """Repeat the proof until cancelled."""
        while True:
            await asyncio.sleep(RETRY if self.trouble else RECHECK)
            await self.check()
