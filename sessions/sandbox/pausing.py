"""The pause of a sandbox: its containers stand still, with memory and files, until a client resumes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from sessions.backends.base import KernelHandle
from sessions.model.errors import SandboxNotFound
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey
from sessions.session.session import Session

#: seconds that interrupted cells get to end; one that ignores its interrupt stands still with its container
QUIET = 5.0
#: seconds between two looks at whether they have ended
LOOK = 0.02


class Pausable(Protocol):
    """A sandbox."""

    key: SessionKey
    spec: SandboxSpec

    def amend(self, **changes: Any) -> None:
        """Change fields of its spec."""

    def age(self) -> float:
        """Return the seconds since it was made."""

    def sessions(self) -> Sequence[Session]:
        """Return its sessions."""


class Pausing:
    """Pauses and resumes one sandbox."""

    def __init__(self, sandbox: Pausable, container: Callable[[], KernelHandle | None]) -> None:
        """Change nothing yet.

        Args:
            sandbox: the sandbox.
            container: returns its own container, if there is one.
        """
        self._sandbox = sandbox
        self._container = container
        self._turn = asyncio.Lock()
        #: functions that cut the connections of its clients, which take a broken connection for a pause
        self.connections: set[Callable[[], None]] = set()

    @property
    def paused(self) -> bool:
        """Whether it is paused, or about to be."""
        return self._sandbox.spec.paused_at is not None

    @property
    def paused_for(self) -> float:
        """Seconds since it is paused; 0: it is not."""
        since = self._sandbox.spec.paused_at
        return 0.0 if since is None else self._sandbox.age() - since

    def check(self) -> None:
        """Refuse to use a sandbox that is paused.

        Raises:
            SandboxNotFound: when it is.
        """
        if self.paused:
            raise SandboxNotFound("the sandbox is paused: resume it first", sandbox=self._sandbox.key.name)

    def begin(self) -> asyncio.Task[None]:
        """Pause it; no client can use it when this returns.

        Returns:
            a task that is done when all its containers stand still.

        Raises:
            LedgerUnavailable: when it cannot be recorded; nothing has changed.
        """
        if not self.paused:
            self._sandbox.amend(paused_at=self._sandbox.age())
        return spawn(self._stop(), f"pause {self._sandbox.key}")

    async def _stop(self) -> None:
        async with self._turn:
            for cut in list(self.connections):  # cells that run for them are interrupted
                cut()
            loop = asyncio.get_running_loop()
            until = loop.time() + QUIET
            while any(session.in_use for session in self._sandbox.sessions()) and loop.time() < until:  # noqa: ASYNC110 - they have no event in common
                await asyncio.sleep(LOOK)
            await self._all(lambda container: container.pause())

    async def resume(self, lifetime: float) -> None:
        """Let it continue, from now on for `lifetime` seconds.

        Raises:
            BackendUnavailable: when the engine does not answer; it is still paused.
            ConnectionFailed: when the engine refuses; it is still paused.
            LedgerUnavailable: when it cannot be recorded.
        """
        await self.thaw()
        self._sandbox.amend(paused_at=None, lifetime=self._sandbox.age() + lifetime)

    async def thaw(self) -> None:
        """Let its containers continue, although no client can use it; when a pause is under way, after it."""
        async with self._turn:
            await self._all(lambda container: container.resume())

    async def _all(self, change: Callable[[KernelHandle], Awaitable[None]]) -> None:
        """Pause or resume all its containers, also when one of them fails."""
        try:
            await gather_all(*(change(container) for container in self._containers()))
        except ExceptionGroup as failed:  # a client can do something about one reason only
            raise failed.exceptions[0] from failed

    def _containers(self) -> list[KernelHandle]:
        found = [self._container(), *(session.container for session in self._sandbox.sessions() if session.alive)]
        return [each for each in found if each is not None]
