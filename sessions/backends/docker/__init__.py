"""Kernels in containers of a Docker engine, by default with gVisor as their runtime."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn

from docker.errors import APIError, ImageNotFound

from sessions.backends.base import Launch, no_op
from sessions.backends.docker import containers
from sessions.backends.docker.breaker import Breaker, fails, log_refusal
from sessions.backends.docker.doctor import examine
from sessions.backends.docker.egress import Egress, ignore
from sessions.backends.docker.engine import PREPARE, START, Engine, engine_answers
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.lost import LostContainers, delete_volumes
from sessions.backends.docker.needs import require_image
from sessions.backends.docker.processors import Processors
from sessions.backends.docker.profile import (
    FIRST_PORT,
    INSTANCE_LABEL,
    DockerSettings,
    EgressSettings,
    volume_names,
)
from sessions.backends.docker.rest import Rest
from sessions.backends.docker.walls import ensure_walls, prove_walls
from sessions.backends.docker.watch import Watch
from sessions.backends.docker.weights import Weights
from sessions.backends.handshake import new_connection_info
from sessions.connection_info import ConnectionInfo
from sessions.egress import EgressRequest
from sessions.errors import BackendUnavailable, NotInitialized, StartFailed
from sessions.models import Inventory
from sessions.tasks import gather_all, spawn

__all__ = ["DockerBackend", "DockerSettings", "EgressSettings", "engine_answers", "examine"]

#: seconds that the end of the gateway waits for containers that were made just now
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
        self.on_proof_needed: Callable[[], None] = no_op
        self._engine = Engine()
        self._breaker = Breaker()
        self._breaker.on_open = self._doubt
        self._handles: dict[str, DockerHandle] = {}
        self._watch: Watch | None = None
        #: tasks that look at all kernels from time to time
        self._rounds: list[asyncio.Task[NoReturn]] = []
        self._processors = Processors()
        self.inventory: Inventory | None = None
        #: the image that was proven
        self._image = ""
        #: True if the last proof has found gVisor
        self._gvisor = False
        #: True if the last proof is still valid
        self._proven = False
        self._lost = LostContainers(self._engine)

    @property
    def leftovers(self) -> int:
        """Number of containers and volumes whose removal has failed and is retried."""
        return self._engine.failing

    def _doubt(self) -> None:
        """Request a new proof that containers can be started."""
        self._proven = False
        self.on_proof_needed()

    async def prepare(self) -> None:
        """Set up network and firewall, and prove that they and the runtime isolate kernels.

        Raises:
            NotInitialized: when a requirement is missing or the proof fails.
            BackendUnavailable: when the engine does not answer.
        """
        if stuck := self._breaker.open:
            self._proven = False
        try:
            await self._engine.call(self._prepare_blocking, lane=PREPARE)
        except APIError as error:
            raise fails("prepare the sandbox", error) from error
        if stuck:
            self._breaker.close()
        if self._watch is None:
            self._watch = Watch(self.settings.instance, self._handles, self.on_proof_needed)
            self._rounds = [spawn(each(self._handles).run(), f"{each.__name__} of kernels") for each in (Weights, Rest)]
            self._egress.follow()

    def _prepare_blocking(self) -> None:
        api, settings = self._engine.api, self.settings
        if (image := require_image(api, settings.image)) != self._image:
            self._proven, self._image = False, image
        if not ensure_walls(api, settings, self._egress):
            self._proven = False
        if not self._proven:
            self._gvisor, self.inventory = prove_walls(api, settings, self._egress)
            if self._gvisor:
                self._processors.learn(api, settings)
            self._proven = True

    async def adopt(self, kernels: Mapping[str, ConnectionInfo]) -> dict[str, DockerHandle]:
        """Take over the containers of `kernels` from an earlier gateway, and remove its other containers.

        Raises:
            BackendUnavailable: when the engine does not answer.
        """
        try:
            volumes = await self._engine.call(containers.reap, self._engine, self._label, set(kernels), lane=PREPARE)
            await delete_volumes(self._engine, volumes)
            adopted = {container: DockerHandle(self._engine, container, info) for container, info in kernels.items()}
            for handle in adopted.values():
                handle.was_running = True
                spawn(self._forget(handle), "forget container")
            # Registered before the list of running containers is read, so that the end of one meanwhile is not missed.
            self._handles.update(adopted)
            running = await self._engine.call(containers.running, self._engine, self._label, lane=PREPARE)
        except APIError as error:
            raise fails("find the kernels of an earlier gateway", error) from error
        for handle in adopted.values():
            if handle.id in running:
                handle.processor = running[handle.id]
            else:
                handle.ended()
        return adopted

    @property
    def _label(self) -> str:
        return f"{INSTANCE_LABEL}={self.settings.instance}"

    async def start(self, launch: Launch) -> DockerHandle:
        """Start a kernel's container.

        Raises:
            NotInitialized: when no proof has succeeded yet.
            NetworkNotAllowed: when it needs the egress proxy, and there is none.
            StartFailed: when the engine refused.
            BackendUnavailable: when the engine does not answer.
        """
        if self.inventory is None:  # no proof yet
            raise NotInitialized
        settings, launch = self._egress.settings_of(launch), self._egress.informed(launch)
        info = new_connection_info(
            "tcp",
            "0.0.0.0",  # noqa: S104 - inside the container
            first_port=FIRST_PORT,
            encryption=launch.kernelspec.encryption,
            signature=launch.kernelspec.signature,
        )
        hello = containers.hello(self.settings, launch, info)
        bound = (handle.processor for handle in self._handles.values())
        processor = self._processors.choose(launch.limits, bound) if launch.kernelspec.one_processor else None
        container = await self._create(launch, processor)
        # Registered before the start, so that an end directly after it is not missed.
        handle = self._handles[container] = DockerHandle(self._engine, container, info, launch.tenant, processor)
        spawn(self._forget(handle), "forget container")
        try:
            address = await self._engine.call(
                containers.start, self._engine, settings.network, container, hello, lane=START, owner=launch.tenant
            )
        except BaseException as error:
            await asyncio.shield(handle.kill())
            if isinstance(error, APIError):
                log_refusal("start a container", error)
                raise StartFailed("the engine could not start the container") from error
            if isinstance(error, BackendUnavailable):
                self._doubt()  # caused by the engine, or by a kernel with very little processor time
            raise
        handle.was_running = True
        handle.connection_info = replace(info, ip=address)
        return handle

    async def _create(self, launch: Launch, processor: int | None = None) -> str:
        """Create a container. When the engine does not report the outcome, search for the container by its name."""
        self._breaker.require()
        name, workspace = f"kernel-gateway-{uuid.uuid4().hex}", launch.workspace or uuid.uuid4().hex

        def create() -> str:
            self._breaker.require()  # the breaker may have opened while this call waited for a thread
            return containers.create(
                self._engine,
                self._egress.settings_of(launch),
                launch,
                name=name,
                workspace=workspace,
                gvisor=self._gvisor,
                processor=processor,
            )

        try:
            container = await self._engine.call(create, lane=START, owner=launch.tenant)
        except APIError as error:
            self._breaker.answered()
            if error.is_client_error():
                log_refusal("make a container", error)
                absent = "has no such image: the gateway's operator has to build or pull it"
                refused = absent if isinstance(error, ImageNotFound) else "refused to make a container"
                raise StartFailed(f"the engine {refused}") from error
            self._lost.look_for(name, workspace)
            raise fails("make a container", error) from error
        except BaseException as error:
            if isinstance(error, BackendUnavailable):
                self._breaker.failed()
            self._lost.look_for(name, workspace)
            raise
        self._breaker.answered()
        return container

    async def _forget(self, handle: DockerHandle) -> None:
        await handle.wait()
        self._handles.pop(handle.id, None)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete the volumes of a workspace; retry in the background while the engine does not answer."""
        await delete_volumes(self._engine, volume_names(workspace), workspace)

    async def release(self) -> None:
        """Leave the kernels to the next gateway. The network stays: other gateways may use it, and it costs nothing."""
        await self._lost.give_up(SOON)
        if self._watch is not None:
            self._watch.stop()
        for each in self._rounds:
            each.cancel()
        self._egress.leave()
        await self._engine.close()

    async def close(self) -> None:
        """End all kernels."""
        try:
            await gather_all(*(handle.kill() for handle in list(self._handles.values())))
            if self.settings.egress is not None:
                await self._engine.call(self._egress.remove, self._engine.api, lane=PREPARE)
        finally:
            await self.release()
