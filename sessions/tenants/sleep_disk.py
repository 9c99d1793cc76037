"""The disk for sleeping kernels and for checkpoints: how much of it each tenant has, and what is deleted first. Pure.

A new image is written before the checkpoints that it replaces are deleted. Until then, the disk may hold more than the
budget, by the size of those checkpoints.
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
    #: deletes the checkpoint
    drop: Callable[[], Awaitable[None]]


class Room:
    """The room on disk for one image that is being written."""

    def __init__(self, tenant: str, displaced: Collection[_Checkpoint]) -> None:
        """Keep the arguments. Nothing is deleted yet.

        Args:
            tenant: tenant of the image.
            displaced: checkpoints that must be deleted to make room for it.
        """
        self.tenant = tenant
        self._displaced = displaced

    async def delete_displaced(self) -> None:
        """Delete the checkpoints that the image replaces. Call this when the image is complete and recorded."""
        for checkpoint in self._displaced:
            await checkpoint.drop()


class SleepDisk:
    """Counts the bytes of the images of all tenants."""

    def __init__(self, most: int = 0, share: float = 1.0) -> None:
        """Begin without images. The arguments are those of `Budget`."""
        self._budget = Budget(most, share)
        #: checkpoints that may be deleted for newer ones of their tenant, by the id of their image
        self._checkpoints: dict[str, _Checkpoint] = {}
        #: ids of the checkpoints that an image, which is being written, will replace
        self._reserved: set[str] = set()

    @property
    def used(self) -> int:
        """Bytes of all images, and of those that are being written."""
        return self._budget.used

    # -- present images -------------------------------------------------------------------------------------

    def by_tenant(self) -> dict[str, int]:
        """Return the bytes that the images of each tenant take."""
        return self._budget.by_tenant()

    def keep(self, image: SleepImage, tenant: str) -> None:
        """Count an image on disk, until `forget`. It takes the place of an earlier image with the same id."""
        self.forget(image)
        self._budget.hold(image.id, tenant, image.size)

    def mark_replaceable(self, image: SleepImage, tenant: str, drop: Callable[[], Awaitable[None]]) -> None:
        """Mark a counted image as a checkpoint, which may be deleted to make room for a newer one.

        Args:
            image: image of the checkpoint.
            tenant: tenant of the checkpoint.
            drop: deletes the checkpoint.
        """
        self._checkpoints[image.id] = _Checkpoint(image, tenant, drop)

    def forget(self, image: SleepImage) -> None:
        """Stop counting an image. Idempotent."""
        self._checkpoints.pop(image.id, None)
        if self._budget.size(image.id):
            self._budget.release(image.id)

    def oldest_of(self, tenant: str) -> list[SleepImage]:
        """Return the checkpoints of a tenant, oldest first."""
        images = [checkpoint.image for checkpoint in self._checkpoints.values() if checkpoint.tenant == tenant]
        return sorted(images, key=lambda image: image.since)

    # -- new images -----------------------------------------------------------------------------------------

    def has_room(self, tenant: str, size: int, freed: int = 0) -> bool:
        """Return whether there is room for an image, if other images of the tenant are deleted before.

        Args:
            tenant: tenant of the image.
            size: bytes that the image is expected to take.
            freed: bytes of the other images.
        """
        return self._budget.allows(tenant, size - freed)

    @contextmanager
    def room(self, tenant: str, size: int, spare: Collection[SleepImage] = ()) -> Iterator[Room]:
        """Reserve room for an image while it is being written inside the `with` block.

        The checkpoints that it will replace are reserved, too: no other image can replace them.

        Args:
            tenant: tenant of the image.
            size: bytes that the image is expected to take.
            spare: checkpoints that may be deleted to make room, in this order.

        Raises:
            NoRoom: when there is not enough room, even if all of these are deleted.
        """
        displaced = self._displaced(tenant, size, spare)
        place, reserved = uuid.uuid4().hex, {checkpoint.image.id for checkpoint in displaced}
        self._budget.hold(place, tenant, size)
        self._reserved |= reserved
        try:
            yield Room(tenant, displaced)
        finally:
            self._reserved -= reserved
            self._budget.release(place)

    def _displaced(self, tenant: str, size: int, spare: Collection[SleepImage]) -> list[_Checkpoint]:
        """Return the checkpoints that must be deleted for an image, as few as possible."""
        displaced: list[_Checkpoint] = []
        candidates = iter([image for image in spare if image.id not in self._reserved])
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
