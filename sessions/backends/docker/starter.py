"""Makes and starts a kernel's container. It is restored from a golden image if one fits, or else started plainly."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace

from docker.errors import APIError, ImageNotFound

from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint.images import Image
from sessions.backends.docker.checkpoint.restore import restore
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.checkpoint.trials import Trial
from sessions.backends.docker.container import containers
from sessions.backends.docker.container.cleanup import LostContainers
from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.breaker import Breaker, engine_failed, log_refusal
from sessions.backends.docker.engine.engine import START, Engine
from sessions.backends.docker.golden.supply import GoldenImages
from sessions.backends.docker.isolation.egress import Egress
from sessions.backends.docker.profile import DockerSettings
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import BackendUnavailable, StartFailed
from sessions.model.stopwatch import Stage, lap, mark_restored
from sessions.model.tasks import spawn


class Starter:
    """Starts kernels in containers."""

    def __init__(
        self,
        engine: Engine,
        settings: DockerSettings,
        egress: Egress,
        handles: dict[str, DockerHandle],
        doubt: Callable[[], None],
    ) -> None:
        """Keep the arguments. Nothing is started yet.

        Args:
            engine: makes the containers.
            settings: settings of the backend.
            egress: the egress proxy.
            handles: all containers by id. New containers are added, and ended ones are removed.
            doubt: called when the engine may be in trouble, because a start has failed.
        """
        self._engine = engine
        self._settings = settings
        self._egress = egress
        self._handles = handles
        self._doubt = doubt
        self.breaker = Breaker(doubt)
        self.disks = Disks(engine, settings)
        self.golden = GoldenImages(engine, self.disks, settings)
        self.lost = LostContainers(engine)
        #: whether the last proof has found gVisor
        self._gvisor = False
        self._restore_listeners: list[Callable[[bool], None]] = []

    def use_runtime(self, *, gvisor: bool) -> None:
        """Start later kernels for the runtime that the last proof has found, which is gVisor or not."""
        self._gvisor = gvisor

    def report_restores(self, listener: Callable[[bool], None]) -> None:
        """Call one more listener after each attempt to restore a kernel, with True if it succeeded."""
        self._restore_listeners.append(listener)

    def _report_restore(self, *, succeeded: bool) -> None:
        for listener in self._restore_listeners:
            listener(succeeded)

    async def start(self, launch: Launch) -> DockerHandle:
        """Start a kernel's container.

        Raises:
            NetworkNotAllowed: when the kernel needs the egress proxy, and there is none.
            StartFailed: when the engine refused.
            BackendUnavailable: when the engine does not answer.
        """
        image = self.golden.image_for(launch) if self._gvisor else None
        if image is None:
            return await self._start(launch)
        try:
            # The golden image was made from this container image. Its id is used, because its name may have moved.
            handle = await self._start(replace(launch, image=image.source), image)
        except (StartFailed, BackendUnavailable) as error:
            self.golden.failed(image, str(error.__cause__ or error))
            self._report_restore(succeeded=False)
            if isinstance(error, BackendUnavailable):
                raise
            return await self._start(launch)
        self.golden.succeeded(image)
        mark_restored()
        self._report_restore(succeeded=True)
        handle.note_preloaded(image.modules)
        return handle

    async def _start(self, launch: Launch, image: Image | None = None) -> DockerHandle:
        launch = self._egress.with_proxy_variables(launch)
        info = containers.new_connection(launch.kernelspec)
        hello = containers.handshake_for(self._settings, launch, info)

        def begin(container: str) -> None:
            if image is None:
                containers.start(self._engine, container, hello)
            else:
                restore(self._engine, container, image.path, hello)

        return await self.start_with(begin, launch, info)

    async def start_with(
        self, begin: Callable[[str], None], launch: Launch, info: ConnectionInfo, trial: Trial | None = None
    ) -> DockerHandle:
        """Make a container, and start it by a function of the caller.

        Args:
            begin: starts the container with the given id. Blocks.
            launch: order to start the kernel.
            info: connection info of the kernel. Its address is replaced by the container's.
            trial: files of a trial, which replace the workspace. None means the workspace.

        Raises:
            SessionError: as in `start`.
        """
        settings = self._egress.settings_of(launch)
        container = await self._create(launch, trial)
        # The handle is registered before the start, so that an end directly after the start is not missed.
        handle = self._handles[container] = DockerHandle(self._engine, container, info, launch.tenant)
        spawn(self.forget(handle), "forget container")

        def start() -> str:
            begin(container)
            lap(Stage.RUN)
            return containers.address(self._engine, settings.network, container)

        try:
            address = await self._engine.call(start, lane=START, owner=launch.tenant)
        except BaseException as error:
            await asyncio.shield(handle.kill())
            if isinstance(error, APIError):
                log_refusal("start a container", error)
            if isinstance(error, APIError | CheckpointFailed):
                raise StartFailed("the engine could not start the container") from error
            if isinstance(error, BackendUnavailable):
                self._doubt()  # the engine is in trouble, or the kernel has very little processor time
            raise
        handle.note_started(address)
        return handle

    async def _create(self, launch: Launch, trial: Trial | None = None) -> str:
        """Create a container. If the engine does not report the outcome, the container is searched for by its name."""
        self.breaker.require()
        name, workspace = f"kernel-gateway-{uuid.uuid4().hex}", launch.workspace or uuid.uuid4().hex

        def create() -> str:
            self.breaker.require()  # the breaker may have opened while this call waited for a thread
            return containers.create(
                self._engine,
                self.disks,
                self._egress.settings_of(launch),
                launch,
                name=name,
                workspace=workspace,
                gvisor=self._gvisor,
                files=trial.volumes if trial else None,
            )

        try:
            container = await self._engine.call(create, lane=START, owner=launch.tenant)
        except StartFailed:  # the workspace could not be made, so no container was asked for
            self.breaker.answered()
            raise
        except APIError as error:
            self.breaker.answered()
            if error.is_client_error():
                log_refusal("make a container", error)
                absent = "has no such image: the gateway's operator has to build or pull it"
                refused = absent if isinstance(error, ImageNotFound) else "refused to make a container"
                raise StartFailed(f"the engine {refused}") from error
            self.lost.look_for(name, workspace)
            raise engine_failed("make a container", error) from error
        except BaseException as error:
            if isinstance(error, BackendUnavailable):
                self.breaker.failed()
            self.lost.look_for(name, workspace)
            raise
        self.breaker.answered()
        return container

    async def forget(self, handle: DockerHandle) -> None:
        """Wait until a container has ended, and remove its handle."""
        await handle.wait()
        self._handles.pop(handle.id, None)
