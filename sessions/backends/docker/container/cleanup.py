"""Removes volumes, and containers that the engine may have made without reporting it."""

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

#: seconds before each of the first searches for a container that the engine may still be making
SOON = (0.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: seconds between all further searches: at any time, a stuck engine may continue with a request that timed out
LATER = 300.0
#: seconds for which a caller waits for the deletion of volumes
VOLUMES_WAIT = 3.0
#: status codes of the engine: the volume does not exist, a container uses it. Source: Docker Engine API, VolumeDelete
_NOT_THERE, _IN_USE = 404, 409


async def delete_volumes(engine: Engine, disks: Disks, volumes: Sequence[str], owner: str = NOBODY) -> None:
    """Delete volumes and their disks. A volume in use, or one that the engine cannot free yet, is deleted later.

    Args:
        engine: engine that has the volumes.
        disks: disks with the content of the volumes.
        volumes: names of the volumes.
        owner: owner of the calls, as in `Engine.call`.
    """
    removals = [engine.insist(disks.delete, name, name=f"removal of volume {name}", owner=owner) for name in volumes]
    if removals:
        await asyncio.wait(removals, timeout=VOLUMES_WAIT)


class LostContainers:
    """Searches for lost containers by their names, and removes them with their volumes.

    A volume on disk has no content of its own: the session's disk stays, and its next start makes the volume again. A
    volume in memory ends with its last container.

    A search without a result proves nothing, because the engine may still be making the container. So the search for
    a name is repeated until the container is found or the gateway ends. The next gateway removes everything with this
    installation's label.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: recent searches, which may soon find a container, and older searches, which probably find none
        self._soon: set[asyncio.Task[None]] = set()
        self._later: set[asyncio.Task[None]] = set()

    def look_for(self, name: str, workspace: str) -> None:
        """Start the search for a container and its volumes.

        Args:
            name: name of the container.
            workspace: workspace whose volumes the container uses.
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
            whether the container existed. A volume alone may belong to a container that the engine is still making.
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
            # A volume that another container uses is removed with the session of that container.
            if error.status_code not in {_NOT_THERE, _IN_USE}:
                raise

    async def give_up(self, seconds: float) -> None:
        """Wait at most `seconds` for the recent searches, and then cancel all searches."""
        if self._soon:
            await asyncio.wait(self._soon, timeout=seconds)
        for search in [*self._soon, *self._later]:
            search.cancel()


def _track(searches: set[asyncio.Task[None]], search: Coroutine[None, None, None]) -> None:
    task = spawn(search, "look for a container that may have been made")
    searches.add(task)
    task.add_done_callback(searches.discard)
