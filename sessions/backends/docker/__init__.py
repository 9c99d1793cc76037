"""Kernels in containers of a Docker engine, by default with gVisor as their runtime.

Rooms: `engine` calls the engine; `disks` makes workspaces; `container` makes containers; `isolation` isolates kernels
and proves it; `checkpoint` writes a sandbox's memory to disk and continues from there; `golden` makes the golden images
that new kernels are restored from; `fairness` distributes processor time. This package knows no message of a kernel,
and no session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NoReturn

import structlog
from docker.errors import APIError

from sessions.backends.abilities import Ability
from sessions.backends.base import Launch
from sessions.backends.docker.container import containers
from sessions.backends.docker.container.cleanup import delete_volumes
from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.container.watch import Watch
from sessions.backends.docker.doctor import examine
from sessions.backends.docker.engine.breaker import engine_failed, unavailable
from sessions.backends.docker.engine.engine import END, PREPARE, Engine, engine_answers
from sessions.backends.docker.fairness.idle_slowdown import IdleSlowdown
from sessions.backends.docker.fairness.usage_loop import UsageLoop
from sessions.backends.docker.fairness.weights import Weights
from sessions.backends.docker.isolation.egress import Egress
from sessions.backends.docker.isolation.egress.record import ignore
from sessions.backends.docker.isolation.isolation import ensure_isolation, prove_isolation
from sessions.backends.docker.profile import (
    INSTANCE_LABEL,
    DockerSettings,
    EgressSettings,
    volume_names,
)
from sessions.backends.docker.requirements import kernels_group, require_image
from sessions.backends.docker.sleep import TOOL_ENDS, DockerSleep
from sessions.backends.docker.starter import Starter
from sessions.model.checkpoint import SleepImage
from sessions.model.connection_info import ConnectionInfo
from sessions.model.egress import EgressRequest
from sessions.model.errors import BackendUnavailable, NotInitialized, SessionError
from sessions.model.kernelspecs import Inventory
from sessions.model.tasks import gather_all, spawn

__all__ = ["DockerBackend", "DockerSettings", "EgressSettings", "engine_answers", "examine"]

log = structlog.get_logger()

#: seconds for which the end of the gateway waits for containers that the engine may be making now
SOON = 3.0


class DockerBackend:
    """Starts kernels as hardened containers on an isolated network."""

    name = "docker"

    def __init__(self, settings: DockerSettings, on_egress: Callable[[EgressRequest], None] = ignore) -> None:
        self.settings = settings
        self._egress = Egress(settings, on_egress)
        self.isolation = f"docker with {settings.runtime}" + (
            " (gVisor)" if settings.runtime != "runc" else " (no gVisor: kernels share the host's kernel)"
        )
        self._doubt_listeners: list[Callable[[], None]] = []
        self._engine = Engine()
        self._handles: dict[str, DockerHandle] = {}
        self._starter = Starter(self._engine, settings, self._egress, self._handles, self._doubt)
        self.sleep = DockerSleep(self._engine, settings, self._starter)
        self._watch: Watch | None = None
        #: tasks that measure all kernels at intervals
        self._usage_loops: list[asyncio.Task[NoReturn]] = []
        self.inventory: Inventory | None = None
        #: description of the kernels' image, by its name, size and id
        self._image = ""
        #: whether the last proof of isolation still holds
        self._proven = False

    @property
    def refusal(self) -> BackendUnavailable | None:
        """The error for new kernels while the engine does not answer, or None."""
        return unavailable() if self._starter.breaker.open else None

    @property
    def keeps_files(self) -> bool:
        """Whether workspaces are on disk, and not in the memory of their containers."""
        return self.settings.files == "disk"

    @property
    def keeps_kernels(self) -> bool:
        """True, because containers belong to the engine."""
        return True

    @property
    def room(self) -> int:
        """Bytes that all workspaces together may have. 0 if they are in memory, or no disk was attached yet."""
        return self._starter.disks.room

    @property
    def golden_images(self) -> Ability:
        """Whether kernels are restored from golden images."""
        return self._starter.golden.ability

    @property
    def pauses(self) -> Ability:
        """On, because the engine can freeze containers."""
        return Ability(on=True, detail="the engine freezes containers")

    @property
    def leftovers(self) -> int:
        """Number of containers and volumes whose removal has failed and is retried."""
        return self._engine.failing

    def report_doubts(self, listener: Callable[[], None]) -> None:
        """Call one more listener when a new proof is needed."""
        self._doubt_listeners.append(listener)

    def report_restores(self, listener: Callable[[bool], None]) -> None:
        """Call one more listener after each attempt to restore a kernel from a golden image."""
        self._starter.report_restores(listener)

    def _doubt(self) -> None:
        """Request a new proof that containers can be started."""
        self._proven = False
        self._request_proof()

    def _request_proof(self) -> None:
        for listener in self._doubt_listeners:
            listener()

    async def prepare(self) -> None:
        """Set up the network and the firewall, and prove that they and the runtime isolate kernels.

        Raises:
            NotInitialized: when a requirement is missing or the proof fails.
            BackendUnavailable: when the engine does not answer.
        """
        if stuck := self._starter.breaker.open:
            self._proven = False
        before = self._image
        try:
            await self._engine.call(self._prepare_blocking, lane=PREPARE)
        except APIError as error:
            raise engine_failed("prepare the sandbox", error) from error
        if stuck:
            self._starter.breaker.close()
        if self._watch is None:
            self._watch = Watch(self.settings.instance, self._handles, self._request_proof)
            self._usage_loops = [
                spawn(UsageLoop(self._handles, Weights(self.settings.kernels_weight)).run(), "weights of kernels"),
                spawn(UsageLoop(self._handles, IdleSlowdown()).run(), "rest of kernels"),
            ]
            self._egress.report_requests()
        if before and before != self._image:
            self._starter.golden.begin()

    def _prepare_blocking(self) -> None:
        api, settings = self._engine.api, self.settings
        if (image := require_image(api, settings.image)) != self._image:
            self._proven, self._image = False, image
        if self._engine.use_kernels_group(kernels_group(api)):  # the engine may have another driver now
            self._proven = False
        if not ensure_isolation(api, settings, self._egress):
            self._proven = False
        if not self._proven:
            self._starter.disks.prove()
            gvisor, self.inventory = prove_isolation(api, settings, self._egress)
            self._starter.use_runtime(gvisor=gvisor)
            self._proven = True

    async def settled(self) -> None:
        """Wait until the golden images of all languages are made and proven, or have failed."""
        await self._starter.golden.settled()

    async def adopt(
        self, kernels: Mapping[str, ConnectionInfo], workspaces: Collection[str], asleep: Collection[SleepImage] = ()
    ) -> dict[str, DockerHandle]:
        """Take over the given containers and workspaces of an earlier gateway, and remove all others that it has left.

        Raises:
            BackendUnavailable: when the engine does not answer.
        """
        try:
            await self.sleep.adopt(asleep)  # first, because a container that is held cannot be removed
            reap, disks = partial(containers.reap, self._engine, self._starter.disks), self._starter.disks
            volumes = await self._engine.call(reap, self._label, set(kernels), workspaces, lane=PREPARE)
            await delete_volumes(self._engine, disks, volumes)
            adopted = {
                container: DockerHandle(self._engine, container, info, was_running=True)
                for container, info in kernels.items()
            }
            for handle in adopted.values():
                spawn(self._starter.forget(handle), "forget container")
            # Handles are registered before the list of running containers is read, so no end of a container is missed.
            self._handles.update(adopted)
            running = await self._engine.call(containers.running, self._engine, self._label, lane=PREPARE)
        except APIError as error:
            raise engine_failed("find the kernels of an earlier gateway", error) from error
        for handle in adopted.values():
            if handle.id not in running:
                handle.ended()
        self._starter.golden.begin()  # not earlier: its containers would have been removed as unknown ones
        return adopted

    @property
    def _label(self) -> str:
        return f"{INSTANCE_LABEL}={self.settings.instance}"

    async def start(self, launch: Launch) -> DockerHandle:
        """Start a kernel's container.

        Raises:
            NotInitialized: when no proof has succeeded yet.
            NetworkNotAllowed: when the kernel needs the egress proxy, and there is none.
            StartFailed: when the engine refused.
            BackendUnavailable: when the engine does not answer.
        """
        if self.inventory is None:  # no proof yet
            raise NotInitialized
        return await self._starter.start(launch)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete the volumes of a workspace. While the engine does not answer, this is retried in the background."""
        await delete_volumes(self._engine, self._starter.disks, volume_names(workspace), workspace)

    async def release(self) -> None:
        """Leave the kernels to the next gateway. The network stays, too, because other gateways may use it."""
        await self._release(self._starter.disks.close)

    async def _release(self, leave_disks: Callable[[], None]) -> None:
        await self._starter.lost.give_up(SOON)
        await self._starter.golden.close()
        if self._watch is not None:
            self._watch.stop()
        for each in self._usage_loops:
            each.cancel()
        self._egress.stop_reporting()
        await gather_all(*(handle.tools_ended(TOOL_ENDS) for handle in list(self._handles.values())))
        try:
            await self._engine.call(leave_disks, lane=END)
        except (APIError, SessionError) as error:  # the next gateway removes the rest
            log.warning("the disks of sessions could not be left in order", error=str(error)[:200])
        await self._engine.close()

    async def close(self) -> None:
        """End all kernels and delete all files."""
        try:
            await gather_all(*(handle.kill() for handle in list(self._handles.values())))
            if self.settings.egress is not None:
                await self._engine.call(self._egress.remove, self._engine.api, lane=PREPARE)
        finally:
            await self._release(self._starter.disks.delete_all)
