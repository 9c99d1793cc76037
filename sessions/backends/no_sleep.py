"""The sleep of kernels in a backend that cannot write them to disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sessions.backends.abilities import Ability
from sessions.backends.base import KernelHandle, Launch, Sharing
from sessions.model.checkpoint import CannotWake, SleepFailed, SleepImage
from sessions.model.connection_info import ConnectionInfo


class NoSleep:
    """Refuses to write kernels to disk."""

    def __init__(self, why: str) -> None:
        """Begin with the reason, which operators and clients see."""
        self.ability = Ability(on=False, detail=why)

    async def take(self, _handle: KernelHandle, _launch: Launch) -> SleepImage:
        """Refuse."""
        raise SleepFailed(self.ability.detail)

    async def resume(self, _handle: KernelHandle) -> None:
        """Do nothing, because no kernel is held."""

    async def wake(self, _image: SleepImage, _launch: Launch, _info: ConnectionInfo) -> KernelHandle:
        """Refuse."""
        raise CannotWake(self.ability.detail)

    def trial(
        self, _image: SleepImage, _launch: Launch, _info: ConnectionInfo
    ) -> AbstractAsyncContextManager[KernelHandle]:
        """Refuse."""
        raise CannotWake(self.ability.detail)

    async def copy(self, _handle: KernelHandle, _launch: Launch, _goes_on: Callable[[], None]) -> SleepImage:
        """Refuse."""
        raise SleepFailed(self.ability.detail)

    async def restore(self, _image: SleepImage, _launch: Launch, _info: ConnectionInfo) -> KernelHandle:
        """Refuse."""
        raise CannotWake(self.ability.detail)

    async def copy_together(self, _shared: Sharing, _goes_on: Callable[[], None]) -> list[SleepImage]:
        """Refuse."""
        raise SleepFailed(self.ability.detail)

    async def unpack(self, _files: SleepImage, _launch: Launch) -> None:
        """Refuse."""
        raise CannotWake(self.ability.detail)

    async def discard(self, _image: SleepImage) -> None:
        """Do nothing, because there are no images."""
