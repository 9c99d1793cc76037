"""Decides whether kernels can be started, by the backend's own proof, which is repeated at intervals.

While the proof fails, no kernel is started, and each request that needs a new kernel gets the reason. Running kernels
continue. When the proof succeeds again, for example because the operator has repaired the sandbox, kernels are started
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from sessions.backends.base import Backend
from sessions.model.errors import BackendUnavailable, NotInitialized, SessionError, ShuttingDown
from sessions.model.tasks import forever, log_failure, set_within

log = structlog.get_logger()

#: seconds between proofs while they succeed, while a requirement is missing, and while the engine does not answer
RECHECK = 60.0
RETRY = 10.0
RETRY_ENGINE = 2.0


class Readiness:
    """The outcome of the last proof."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = False
        self._after_first_proof: Callable[[], Awaitable[None]] | None = None
        self._doubt = asyncio.Event()
        backend.report_doubts(self._doubt.set)
        #: why the last proof has failed. None means that it has succeeded.
        self._trouble: SessionError | None = NotInitialized(
            "the gateway is still preparing its sandbox: try again in a few seconds"
        )

    @property
    def trouble(self) -> SessionError | None:
        """Why no kernel can be started, or None. The backend may report trouble before the next proof has ended."""
        return self._trouble or self._backend.refusal

    def run_after_first_proof(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work once, after the first successful proof and before the first kernel.

        If the work raises a `SessionError`, the proof counts as failed, and the work runs again after the next proof.
        """
        self._after_first_proof = work

    def require(self) -> None:
        """Raise an error unless kernels can be started.

        Raises:
            NotInitialized: when a requirement is missing, or the proof has failed.
            BackendUnavailable: when the engine does not answer.
        """
        if (trouble := self.trouble) is not None:  # a new exception, because the stored one would collect tracebacks
            raise type(trouble)(trouble.message, **trouble.details)

    def close(self) -> None:
        """Refuse all later starts."""
        self._closed = True
        self._trouble = ShuttingDown()

    async def check(self) -> bool:
        """Let the backend prove its sandbox now. An unexpected error counts as a failed proof.

        Returns:
            whether the proof has succeeded.
        """
        found: SessionError | None = NotInitialized("the proof of the sandbox failed unexpectedly; the log says why")
        with log_failure("proof of the sandbox"):
            found = await self._prove()
        if self._closed:
            return False
        before, self._trouble = self._trouble, found
        if found is None and before is not None:
            log.info("ready", isolation=self._backend.isolation)
        if found is not None and (before is None or before.message != found.message):
            log.warning("not ready", code=found.code, reason=found.message, resolution=found.resolution)
        return found is None

    async def _prove(self) -> SessionError | None:
        """Return why the proof has failed, or None if it has succeeded."""
        try:
            await self._backend.prepare()
            if self._after_first_proof is not None:
                await self._after_first_proof()
                self._after_first_proof = None
        except SessionError as error:
            return error
        return None

    async def run(self) -> NoReturn:
        """Repeat the proof until the task is cancelled, and at once when the backend asks for it."""
        await forever(self._check_in_time)

    async def _check_in_time(self) -> None:
        await set_within(self._doubt, self._pause())
        self._doubt.clear()
        await self.check()

    def _pause(self) -> float:
        if self._trouble is None:
            return RECHECK
        return RETRY_ENGINE if isinstance(self._trouble, BackendUnavailable) else RETRY
