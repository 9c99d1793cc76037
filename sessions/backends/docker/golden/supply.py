"""The supply of golden images, from which new kernels are restored with their modules already imported.

gVisor can write the whole memory of a sandbox to disk, and load it into another sandbox that the engine has made. For
each shape of sandbox, the gateway makes one golden image, when the kernel has imported its modules and waits for its
keys. It contains no data of any tenant. Each restored kernel gets its own keys, environment, limits, random state and
workspace before it serves. If anything fails, the kernel is started plainly instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog
from docker.errors import APIError

from sessions.backends.abilities import Ability
from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint.images import Image
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import GOLDEN, Engine
from sessions.backends.docker.golden.workshop import Shape, Workshop, fits
from sessions.backends.docker.profile import DockerSettings
from sessions.model.errors import SessionError
from sessions.model.tasks import spawn

log = structlog.get_logger()

#: failed restores in a row after which an image is made again
FAILURES_MAX = 3
#: maximum attempts to make an image of a shape, until the gateway is restarted or the container image changes
ATTEMPTS_MAX = 3
#: seconds for which the end of the gateway waits for an image that is being made
SOON = 10.0
_OFF = "`golden_images` is off"


class GoldenImages:
    """The golden images in use."""

    def __init__(self, engine: Engine, disks: Disks, settings: DockerSettings) -> None:
        """Keep the arguments. Nothing is made yet."""
        self._engine = engine
        self._settings = settings.golden
        #: the images of sessions, which sleep or have checkpoints
        self.sleep_images = SleepImages(engine, disks, settings)
        self._workshop = (
            None if self._settings is None else Workshop(engine, disks, settings, self._settings, self.sleep_images)
        )
        #: why there is no golden image. Empty means that there is one, or will be soon.
        self._trouble = _OFF if self._settings is None else ""
        self._images: dict[Shape, Image] = {}
        #: whether sessions can be written and restored here. None before the proof.
        self._sleeps: Ability | None = None
        #: keys of the images in use; all others are removed
        self._keys: set[str] = set()
        self._making: dict[Shape, asyncio.Task[None]] = {}
        #: held while an image is made and added to `_keys`, because the next one removes all images that are not there
        self._one = asyncio.Lock()
        self._attempts: dict[Shape, int] = {}
        #: number of calls of `begin`
        self._round = 0
        #: failed restores in a row, by image
        self._failures: dict[Image, int] = {}

    @property
    def ability(self) -> Ability:
        """Whether kernels are restored."""
        if self._images:  # another shape's image may have failed; its kernels start plainly
            modules = " with their modules imported" if any(image.modules for image in self._images.values()) else ""
            return Ability(on=True, detail=f"kernels are restored{modules}")
        trouble = self._trouble or "the first golden image is being made; until then kernels start plainly"
        return Ability(on=False, detail=trouble)

    @property
    def proven(self) -> Ability:
        """Whether a proof has shown that sessions can be written and restored here. It holds without its image, too."""
        if self._sleeps is None and self._images:
            return Ability(on=False, detail="the proof that kernels can sleep is under way")
        return self._sleeps or self.ability

    # -- making images ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to make all images. Called when kernels can be started, and after the container image has changed."""
        self._round += 1
        self._images.clear()
        self._keys.clear()
        self._attempts.clear()
        if self._settings is not None:
            self._trouble = ""
            # The images are made one after the other. The language with the most modules is first, because its plain
            # start takes longest.
            for kernelspec in sorted(self._settings.kernelspecs, key=lambda spec: len(spec.preload), reverse=True):
                self._make(Shape.of(kernelspec))

    async def settled(self) -> None:
        """Wait until no image is being made, and the proof of sleep has ended."""
        while self._making:
            await asyncio.wait(set(self._making.values()))

    def _make(self, shape: Shape) -> None:
        attempts = self._attempts.get(shape, 0)
        if shape in self._making or attempts >= ATTEMPTS_MAX:
            return
        self._attempts[shape] = attempts + 1
        self._making[shape] = spawn(self._make_now(shape), f"golden image of {shape.language}")

    async def _make_now(self, shape: Shape) -> None:
        now = self._round
        try:
            async with self._one:
                key, image = await self._engine.call(self._golden, shape, set(self._keys), lane=GOLDEN)
                if current := now == self._round:
                    self._images[shape] = image
                    self._keys.add(key)
            if current:
                self._trouble = ""
                log.info("kernels are restored", language=shape.language, shared=shape.shared)
                await self._prove_sleep(shape, image)
        except (CheckpointFailed, APIError, SessionError) as error:
            self._trouble = str(error)
            log.warning("no golden image: kernels start plainly", language=shape.language, reason=str(error))
        finally:
            del self._making[shape]
        if now != self._round:  # the container image has changed meanwhile
            self._make(shape)

    def _golden(self, shape: Shape, used: Collection[str]) -> tuple[str, Image]:
        if self._workshop is None:
            raise CheckpointFailed(_OFF)
        again = self._attempts.get(shape, 0) > 1  # an earlier attempt has failed
        return self._workshop.golden(shape, used, prove_again=again)

    async def _prove_sleep(self, shape: Shape, image: Image) -> None:
        """Prove that sessions can sleep, unless this was proven with another image. Kernels are restored meanwhile."""
        if self._workshop is None or shape.shared or (self._sleeps is not None and self._sleeps.on):
            return
        try:
            self._sleeps = await self._engine.call(self._workshop.sleeps, shape, image, lane=GOLDEN)
        except (APIError, SessionError) as error:
            self._sleeps = Ability(on=False, detail=str(error))
        if not self._sleeps.on:
            log.warning("sessions cannot sleep", reason=self._sleeps.detail)

    # -- restoring kernels ---------------------------------------------------------------------------------------

    def image_for(self, launch: Launch) -> Image | None:
        """Return the image from which a kernel can be restored. None means that it must be started plainly."""
        if self._settings is None or not fits(launch, self._settings.limits):
            return None
        shape = Shape.of(launch.kernelspec, shared=launch.shared)
        image = self._images.get(shape)
        if image is not None and not image.intact():
            self._drop(image, "its files have changed")
            image = None
        if image is None:
            self._make(shape)
        return image

    def succeeded(self, image: Image) -> None:
        """Record that a kernel was restored from an image."""
        self._failures.pop(image, None)

    def failed(self, image: Image, reason: str) -> None:
        """Record that a kernel was not restored from an image. After several failures, the image is made again."""
        failures = self._failures[image] = self._failures.get(image, 0) + 1
        if failures == 1:
            log.warning("a kernel was not restored and is started plainly", reason=reason)
        if failures >= FAILURES_MAX:
            self._drop(image, "restores fail again and again")

    def _drop(self, image: Image, reason: str) -> None:
        self._failures.pop(image, None)
        for shape in [shape for shape, used in self._images.items() if used == image]:
            log.warning("a golden image is given up", language=shape.language, reason=reason)
            del self._images[shape]
            self._keys.discard(image.path.name)
            self._trouble = reason

    async def close(self) -> None:
        """Stop making images."""
        making = set(self._making.values())
        if self._workshop is not None and making:
            await self._engine.call(self._workshop.close)
            await asyncio.wait(making, timeout=SOON)
            for task in making:
                task.cancel()
