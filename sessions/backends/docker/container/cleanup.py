"""Removal of volumes, and of containers that the engine may have made without reporting it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

import structlog
from docker.errors import APIError, NotFound

from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import volume_names
from sessions.model.tasks import spawn
from sessions.tenants.shares import NOBODY

log = structlog.get_logger()

#: seconds before each of the first searches, while the engine answers, for a container that may still be made
SOON = (0.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: seconds between all further searches: a stuck engine may continue at any time with a request that was given up
LATER = 300.0
#: seconds that deletions of volumes may take before the caller no longer waits for them
VOLUMES_WAIT = 3.0
#: status codes of the engine: the volume does not exist, a container uses it. Source: Docker Engine API, VolumeDelete
_NOT_THERE, _IN_USE = 404, 409


async def delete_volumes(engine: Engine, disks: Disks, volumes: Sequence[str], owner: str = NOBODY) -> None:
    """Delete volumes and their disks. Those that are in use, or that the engine cannot free yet, are deleted later.

    Args:
        engine: has the volumes.
        disks: keep what is in them.
        volumes: their names.
        owner: owner of the calls; see `Engine.call`.
    """
    removals = [engine.insist(disks.delete, name, name=f"removal of volume {name}", owner=owner) for name in volumes]
    if removals:
        await asyncio.wait(removals, timeout=VOLUMES_WAIT)


class LostContainers:
    """Searches for such containers by their names, and removes them with their volumes.

    A volume has no content of its own: the session's disk stays, and is shown by the volume that its next start makes.
    A volume in memory goes with its last container.

    A search without a result proves nothing, because the engine may still be making the container. So a name is
    searched for until it is found or the gateway ends; the next gateway removes everything with this installation's
    label.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: recent searches, likely to find a container soon, and older searches, unlikely to find one
        self._soon: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[None]] = set()

    def look_for(self, name: str, workspace: str) -> None:
        """Start the search for a container and the volumes that were made with it.

        Args:
            name: name of the container.
            workspace: workspace whose volumes the container has.
        """
        _track(self._soon, self._look_soon(name, workspace))

    async def _look_soon(self, name: str, workspace: str) -> None:
        for pause in SOON:
            await asyncio.sleep(pause)
            if await self._remove(name, workspace):
                return
        _track(self._later, self._look_later(name, workspace))

    async def _look_later(self, name: str, workspace: str) -> None:
        found = False
        while not found:
            await asyncio.sleep(LATER)
            found = await self._remove(name, workspace)

    async def _remove(self, name: str, workspace: str) -> bool:
        """Remove the container and its volumes if they exist, with retries.

        Returns:
            True if the container existed; a volume alone may belong to a container that the engine is making.
        """
        found = await self._engine.insist(self._remove_container_blocking, name, name="removal of a lost container")
        for volume in volume_names(workspace):
            await self._engine.insist(self._remove_volume_blocking, volume, name=f"removal of volume {volume}")
        return found

    def _remove_container_blocking(self, name: str) -> bool:
        try:
            self._engine.api.remove_container(name, force=True)
        except NotFound:
            return False
        log.info("a container without a session was removed", container=name)
        return True

    def _remove_volume_blocking(self, volume: str) -> None:
        try:
            self._engine.api.remove_volume(volume, force=True)
        except APIError as error:
            # A volume of another container is removed with the session of that container.
            if error.status_code not in {_NOT_THERE, _IN_USE}:
                raise

    async def give_up(self, seconds: float) -> None:
        """Wait at most `seconds` for the recent searches, which find containers made just now, and cancel all."""
        if self._soon:
            await asyncio.wait(self._soon, timeout=seconds)
        for search in [*self._soon, *self._later]:
            search.cancel()


def _track(searches: set[asyncio.Task[None]], search: Coroutine[None, None, None]) -> None:
    task = spawn(search, "look for a container that may have been made")
    searches.add(task)
    task.add_done_callback(searches.discard)
