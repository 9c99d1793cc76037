"""The disk for kernels that sleep and for checkpoints: who has how much of it, and what goes first. Pure.

An image is written before the checkpoints that it displaces are deleted. So for that moment there may be more on disk
than the budget says, by the size of those checkpoints.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sessions.model.checkpoint import NoRoom, SleepImage
from sessions.tenants.budget import Budget


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    image: SleepImage
    tenant: str
    #: deletes it
    drop: Callable[[], Awaitable[None]]


class Room:
    """Room for one image that is being written."""

    def __init__(self, tenant: str, displaced: Collection[_Checkpoint]) -> None:
        """Count nothing yet.

        Args:
            tenant: tenant of the image.
            displaced: checkpoints that must go for it.
        """
        self.tenant = tenant
        self._displaced = displaced

    async def make(self) -> None:
        """Delete the checkpoints that must go, because the image is complete and recorded."""
        for checkpoint in self._displaced:
            await checkpoint.drop()


class SleepDisk:
    """Counts the images of all tenants."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin without images; see `Budget`."""
        self._budget = Budget(most, share)
        #: checkpoints that may go for newer ones of their tenant, by the id of their image
        self._checkpoints: dict[str, _Checkpoint] = {}
        #: ids of those for whose place an image is being written
        self._going: set[str] = set()

    # -- images that there are ------------------------------------------------------------------------------

    def keep(self, image: SleepImage, tenant: str) -> None:
        """Count an image that is on disk, until `forget`, in place of an earlier one with its id."""
        self.forget(image)
        self._budget.hold(image.id, tenant, image.size)

    def may_go(self, image: SleepImage, tenant: str, drop: Callable[[], Awaitable[None]]) -> None:
        """Take that an image which is counted is a checkpoint's, so that it may go for a newer one.

        Args:
            image: the image.
            tenant: its tenant.
            drop: deletes the checkpoint.
        """
        self._checkpoints[image.id] = _Checkpoint(image, tenant, drop)

    def forget(self, image: SleepImage) -> None:
        """Count an image no more. Idempotent."""
        self._checkpoints.pop(image.id, None)
        if self._budget.size(image.id):
            self._budget.release(image.id)

    def oldest_of(self, tenant: str) -> list[SleepImage]:
        """Return the checkpoints of a tenant, oldest first."""
        images = [checkpoint.image for checkpoint in self._checkpoints.values() if checkpoint.tenant == tenant]
        return sorted(images, key=lambda image: image.since)

    # -- new ones -------------------------------------------------------------------------------------------

    @contextmanager
    def room(self, tenant: str, size: int, spare: Collection[SleepImage] = ()) -> Iterator[Room]:
        """Count an image while it is being written, and have nobody else count on what goes for it.

        Args:
            tenant: tenant of the image.
            size: bytes that it is expected to take.
            spare: checkpoints that may go for it, the first ones first.

        Raises:
            NoRoom: when there is none, even if all of these go.
        """
        displaced = self._displaced(tenant, size, spare)
        place, going = uuid.uuid4().hex, {checkpoint.image.id for checkpoint in displaced}
        self._budget.hold(place, tenant, size)
        self._going |= going
        try:
            yield Room(tenant, displaced)
        finally:
            self._going -= going
            self._budget.release(place)

    def _displaced(self, tenant: str, size: int, spare: Collection[SleepImage]) -> list[_Checkpoint]:
        """Return those that must go, as few as possible."""
        displaced: list[_Checkpoint] = []
        candidates = iter([image for image in spare if image.id not in self._going])
        more = size
        while not self._budget.allows(tenant, more):
            image = next(candidates, None)
            if image is None:
                raise NoRoom(
                    f"it would take {size} bytes, and of {self._budget.most} bytes for all tenants "
                    f"{self._budget.used} are in use"
                )
            if image.id in self._checkpoints:
                displaced.append(self._checkpoints[image.id])
                more -= image.size
        return displaced
