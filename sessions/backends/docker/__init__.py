"""Kernels in containers of a Docker engine, by default with gVisor as their runtime."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog
from docker.errors import APIError, NotFound

from sessions.backends.base import Launch, handshake, new_connection_info, nobody_cares
from sessions.backends.docker import firewall, network, proof
from sessions.backends.docker.breaker import Breaker, unavailable
from sessions.backends.docker.doctor import examine
from sessions.backends.docker.engine import PREPARE, START, Engine, engine_answers, take_over
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.lost import Lost
from sessions.backends.docker.needs import require_image, require_runtime
from sessions.backends.docker.processors import Processors
from sessions.backends.docker.profile import (
    FIRST_PORT,
    HOME,
    IMAGE_DIR,
    INSTANCE_LABEL,
    PROCESSOR_LABEL,
    PYTHON,
    UID,
    WORKSPACE,
    DockerSettings,
    host_config,
    volume_names,
)
from sessions.backends.docker.watch import Watch
from sessions.errors import BackendUnavailable, NotInitialized, StartFailed
from sessions.models import ConnectionInfo
from sessions.tasks import spawn, together

__all__ = ["DockerBackend", "DockerSettings", "engine_answers", "examine"]

log = structlog.get_logger()

#: seconds in which what is left over is deleted unless the engine is in trouble
SOON = 3.0


class DockerBackend:
    """Starts kernels as hardened containers on an isolated network."""

    name = "docker"

    def __init__(self, settings: DockerSettings) -> None:
        self.settings = settings
        self.isolation = f"docker with {settings.runtime}" + (
            " (gVisor)" if settings.runtime != "runc" else " (no gVisor: kernels share the host's kernel)"
        )
        self.on_doubt: Callable[[], None] = nobody_cares
        self._engine = Engine()
        self._breaker = Breaker()
        self._breaker.on_open = self._doubt
        self._handles: dict[str, DockerHandle] = {}
        self._watch: Watch | None = None
        self._processors = Processors()
        #: None until it was proven
        self._gvisor: bool | None = None
        #: nothing has happened since that lets it be doubted
        self._proven = False
        self._lost = Lost(self._engine)

    def _doubt(self) -> None:
        """Let it be proven again that containers can be started."""
        self._proven = False
        self.on_doubt()

    async def prepare(self) -> None:
        """Put up network and firewall, and prove that they and the runtime hold.

        Raises:
            NotInitialized: something is missing or does not hold.
            BackendUnavailable: the engine does not answer.
        """
        if stuck := self._breaker.open:
            self._proven = False
        try:
            await self._engine.call(self._prepare_blocking, lane=PREPARE)
        except APIError as error:
            raise unavailable(f"the container engine fails: {error.explanation}") from error
        if stuck:
            self._breaker.close()
        if self._watch is None:
            self._watch = Watch(self.settings.instance, self._handles, self.on_doubt)

    def _prepare_blocking(self) -> None:
        api, settings = self._engine.api, self.settings
        require_runtime(api, settings)
        require_image(api, settings)
        address = network.ensure_network(api, settings.network)
        # Rules that this user may not read can only be proven by trying; those that had to be set again too.
        if firewall.put_up(network.bridge_name(settings.network)) is not False:
            self._proven = False
        proof.clear(api, settings)  # also one that the engine has made after it was waited for
        if not self._proven:
            self._gvisor = proof.prove(api, settings, address)
            if self._gvisor:
                self._processors.learn(api, settings)
            self._proven = True

    async def adopt(self, kernels: Mapping[str, ConnectionInfo]) -> dict[str, DockerHandle]:
        """Take over containers that an earlier gateway has left; those that are not known are removed.

        Raises:
            BackendUnavailable: the engine does not answer.
        """
        try:
            await self._engine.call(self._reap_blocking, set(kernels), lane=PREPARE)
            adopted = {container: DockerHandle(self._engine, container, info) for container, info in kernels.items()}
            for handle in adopted.values():
                handle.was_running = True
                spawn(self._forget(handle), "forget container")
            # Known before it is asked which of them run: an end meanwhile is not missed.
            self._handles.update(adopted)
            running = await self._engine.call(self._running_blocking, lane=PREPARE)
        except APIError as error:
            raise unavailable(f"the container engine fails: {error.explanation}") from error
        for handle in adopted.values():
            if handle.id in running:
                handle.processor = running[handle.id]
            else:
                handle.ended()
        return adopted

    def _running_blocking(self) -> dict[str, int | None]:
        """The containers that run, and the processor that each is bound to."""
        found = {}
        for container in self._engine.api.containers(filters={"label": self._label}):
            processor = (container.get("Labels") or {}).get(PROCESSOR_LABEL)
            found[str(container["Id"])] = None if processor is None else int(processor)
        return found

    @property
    def _label(self) -> str:
        return f"{INSTANCE_LABEL}={self.settings.instance}"

    def _reap_blocking(self, known: set[str]) -> None:
        """Remove what an earlier gateway of this installation has left and nobody goes on with."""
        api, filters = self._engine.api, {"label": self._label}
        found = api.containers(all=True, filters=filters)
        for container in found:
            if container["Id"] not in known:
                log.info("container of an earlier gateway removed", container=container["Id"][:12])
                api.remove_container(container["Id"], force=True)
        in_use = {mount.get("Name") for container in found if container["Id"] in known for mount in container["Mounts"]}
        for volume in api.volumes(filters=filters)["Volumes"] or []:
            if volume["Name"] in in_use:
                continue
            with suppress(APIError):  # a container of somebody else uses it
                self._delete_volume_blocking(volume["Name"])

    async def start(self, launch: Launch) -> DockerHandle:
        """Start a kernel's container.

        Raises:
            NotInitialized: nothing was proven yet.
            StartFailed: the engine refused.
            BackendUnavailable: the engine does not answer.
        """
        if self._gvisor is None:
            raise NotInitialized
        info = new_connection_info(
            "tcp",
            "0.0.0.0",  # noqa: S104 - in the container
            first_port=FIRST_PORT,
            encryption=launch.kernelspec.encryption,
            signature=launch.kernelspec.signature,
        )
        hello = handshake(launch, info, python=PYTHON, image=IMAGE_DIR, workspace=WORKSPACE, home=HOME)
        bound = (handle.processor for handle in self._handles.values())
        processor = self._processors.choose(launch.limits, bound) if launch.kernelspec.one_processor else None
        container = await self._create(launch, processor)
        # Known before it starts: an end in its first moments is not missed.
        handle = self._handles[container] = DockerHandle(self._engine, container, info)
        handle.processor = processor
        spawn(self._forget(handle), "forget container")
        try:
            address = await self._engine.call(self._start_blocking, container, hello, lane=START)
        except BaseException as error:
            await asyncio.shield(handle.kill())
            if isinstance(error, APIError):
                raise StartFailed(f"the engine could not start the container: {error.explanation}") from error
            if isinstance(error, BackendUnavailable):
                self._doubt()  # the engine's fault, or that of a kernel with next to no processor
            raise
        handle.was_running = True
        handle.connection_info = replace(info, ip=address)
        return handle

    async def _create(self, launch: Launch, processor: int | None = None) -> str:
        """Have a container made. When it is not known whether it was, it is looked for by the names given here."""
        self._breaker.require()
        name, workspace = f"kernel-gateway-{uuid.uuid4().hex}", launch.workspace or uuid.uuid4().hex
        try:
            container = await self._engine.call(self._create_blocking, name, workspace, launch, processor, lane=START)
        except APIError as error:
            self._breaker.answered()
            if error.is_client_error():
                raise StartFailed(f"the engine refused to make a container: {error.explanation}") from error
            self._lost.look_for(name, workspace)
            raise unavailable(f"the container engine fails: {error.explanation}") from error
        except BaseException as error:
            if isinstance(error, BackendUnavailable):
                self._breaker.failed()
            self._lost.look_for(name, workspace)
            raise
        self._breaker.answered()
        return container

    def _create_blocking(self, name: str, workspace: str, launch: Launch, processor: int | None) -> str:
        self._breaker.require()  # it may have opened while this call waited for a thread
        api = self._engine.api
        made_as = host_config(
            self.settings,
            launch.limits,
            workspace,
            gvisor=bool(self._gvisor),
            processor=processor,
            shared=launch.shared,
        )
        container = api.create_container(
            self.settings.image,
            [PYTHON, "-I", "-S", f"{IMAGE_DIR}/launcher.py"],
            name=name,
            user=f"{UID}:{UID}",
            hostname="sandbox",
            working_dir=WORKSPACE,
            stdin_open=True,
            labels=self.settings.labels | ({} if processor is None else {PROCESSOR_LABEL: str(processor)}),
            use_config_proxy=False,
            host_config=api.create_host_config(**made_as),
        )
        return str(container["Id"])

    def _start_blocking(self, container: str, hello: bytes) -> str:
        """Start it, hand over the handshake on its standard input, and find its address."""
        api = self._engine.api
        stdin, _ = take_over(api.attach_socket(container, params={"stdin": 1, "stream": 1}))
        with stdin:
            api.start(container)
            stdin.sendall(hello)
        networks = api.inspect_container(container)["NetworkSettings"]["Networks"]
        address = str(networks[self.settings.network]["IPAddress"])
        if not address:
            raise StartFailed("the kernel ended while it started")
        return address

    async def _forget(self, handle: DockerHandle) -> None:
        await handle.wait()
        self._handles.pop(handle.id, None)

    async def delete_workspace(self, workspace: str) -> None:
        """Delete a session's volumes, in the end: an engine that does not answer keeps nobody waiting for long."""
        removals = [
            self._engine.insist(self._delete_volume_blocking, name, name=f"removal of volume {name}")
            for name in volume_names(workspace)
        ]
        await asyncio.wait(removals, timeout=SOON)

    def _delete_volume_blocking(self, name: str) -> None:
        with suppress(NotFound):
            self._engine.api.remove_volume(name, force=True)

    async def release(self) -> None:
        """Leave the kernels to the next gateway. The network stays: others may use it, and it costs nothing."""
        await self._lost.give_up(SOON)
        if self._watch is not None:
            self._watch.stop()
        await self._engine.close()

    async def close(self) -> None:
        """End all kernels."""
        try:
            await together(*(handle.kill() for handle in list(self._handles.values())))
        finally:
            await self.release()
