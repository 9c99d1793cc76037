"""The pause of a sandbox: its containers are frozen, with memory and files, until a client resumes the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from sessions.backends.base import KernelHandle
from sessions.model.errors import SandboxNotFound
from sessions.model.tasks import gather_all, spawn
from sessions.model.values import SandboxSpec, SessionKey
from sessions.session.session import Session

#: seconds in which interrupted cells may end. A cell that ignores its interrupt is frozen with its container.
QUIET = 5.0
#: seconds between two checks whether the cells have ended
LOOK = 0.02


class Pausable(Protocol):
    """The part of a sandbox that `Pausing` uses."""

    key: SessionKey
    spec: SandboxSpec

    def amend(self, **changes: Any) -> None:
        """Change fields of the sandbox's spec."""

    def age(self) -> float:
        """Return the seconds since the sandbox was made."""

    def sessions(self) -> Sequence[Session]:
        """Return the sandbox's sessions."""


class Pausing:
    """Pauses and resumes one sandbox."""

    def __init__(self, sandbox: Pausable, container: Callable[[], KernelHandle | None]) -> None:
        """Change nothing yet.

        Args:
            sandbox: the sandbox.
            container: returns the sandbox's own container, if there is one.
        """
        self._sandbox = sandbox
        self._container = container
        self._turn = asyncio.Lock()
        #: functions that cut the clients' connections: clients learn of the pause from a broken connection
        self.connections: set[Callable[[], None]] = set()

    @property
    def paused(self) -> bool:
        """Whether the sandbox is paused, or its pause has begun."""
        return self._sandbox.spec.paused_at is not None

    @property
    def paused_for(self) -> float:
        """Seconds since the pause began. 0 means that the sandbox is not paused."""
        since = self._sandbox.spec.paused_at
        return 0.0 if since is None else self._sandbox.age() - since

    def check(self) -> None:
        """Refuse the use of a paused sandbox.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """
        if self.paused:
            raise SandboxNotFound("the sandbox is paused: resume it first", sandbox=self._sandbox.key.name)

    @asynccontextmanager
    async def excluded(self) -> AsyncIterator[None]:
        """Let no pause begin to freeze containers until the end of the `with` block.

        Raises:
            SandboxNotFound: when the sandbox is paused.
        """
        async with self._turn:
            self.check()
            yield

    def begin(self) -> asyncio.Task[None]:
        """Begin the pause. No client can use the sandbox when this method returns.

        Returns:
            a task that is done when all containers are frozen.

        Raises:
            LedgerUnavailable: when the pause cannot be recorded; nothing has changed.
        """
        if not self.paused:
            self._sandbox.amend(paused_at=self._sandbox.age())
        return spawn(self._freeze(), f"pause {self._sandbox.key}")

    async def _freeze(self) -> None:
        async with self._turn:
            if not self.paused:  # resumed before this turn
                return
            for cut in list(self.connections):  # this interrupts the cells of these clients
                cut()
            loop = asyncio.get_running_loop()
            until = loop.time() + QUIET
            while any(session.in_use for session in self._sandbox.sessions()) and loop.time() < until:  # noqa: ASYNC110 - they have no event in common
                await asyncio.sleep(LOOK)
            await self._change_containers(lambda container: container.pause())

    async def resume(self, lifetime: float) -> None:
        """Let the sandbox continue for `lifetime` seconds from now on. One that runs already is not changed.

        Raises:
            BackendUnavailable: when the engine does not answer; the sandbox is still paused.
            ConnectionFailed: when the engine refuses; the sandbox is still paused.
            LedgerUnavailable: when the end of the pause cannot be recorded.
        """
        async with self._turn:  # after a pause that has just begun
            if self.paused:  # several uses may wake it at once
                await self._change_containers(lambda container: container.resume())
                self._sandbox.amend(paused_at=None, lifetime=self._sandbox.age() + lifetime)

    async def _change_containers(self, change: Callable[[KernelHandle], Awaitable[None]]) -> None:
        """Pause or resume all containers, also when this fails for some of them."""
        try:
            await gather_all(*(change(container) for container in self._containers()))
        except ExceptionGroup as failed:  # a client gets one error
            raise failed.exceptions[0] from failed

    def _containers(self) -> list[KernelHandle]:
        found = [self._container(), *(session.container for session in self._sandbox.sessions() if session.alive)]
        return [each for each in found if each is not None]
