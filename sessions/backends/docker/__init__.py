"""Kernels in containers of a Docker engine, by default with gVisor as their runtime."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import docker
import structlog
from docker.errors import APIError

from sessions.backends.base import Launch, handshake, new_connection_info
from sessions.backends.docker import firewall, network, proof
from sessions.backends.docker.doctor import examine
from sessions.backends.docker.engine import Engine, engine_answers, take_over
from sessions.backends.docker.handle import DockerHandle
from sessions.backends.docker.needs import require_image, require_runtime
from sessions.backends.docker.profile import (
    FIRST_PORT,
    HOME,
    IMAGE_DIR,
    INSTANCE_LABEL,
    PYTHON,
    UID,
    WORKSPACE,
    DockerSettings,
    host_config,
    volume_names,
)
from sessions.backends.docker.watch import Watch
from sessions.errors import NotInitialized, StartFailed
from sessions.tasks import spawn

__all__ = ["DockerBackend", "DockerSettings", "engine_answers", "examine"]

log = structlog.get_logger()


#: seconds for network, firewall and proof
PREPARE_TIMEOUT = 180.0


class DockerBackend:
    """Starts kernels as hardened containers on an isolated network."""

    name = "docker"

    def __init__(self, settings: DockerSettings) -> None:
        self.settings = settings
        self.isolation = f"docker with {settings.runtime}" + (
            " (gVisor)" if settings.runtime != "runc" else " (no gVisor: kernels share the host's kernel)"
        )
        self._engine = Engine()
        self._handles: dict[str, DockerHandle] = {}
        self._watch: Watch | None = None
        #: None until it was proven
        self._gvisor: bool | None = None

    async def prepare(self) -> None:
        """Put up network and firewall, and prove that they and the runtime hold.

        Raises:
            NotInitialized: something is missing or does not hold.
            BackendUnavailable: the engine does not answer.
        """
        await self._engine.call(self._prepare_blocking, deadline=PREPARE_TIMEOUT)
        if self._watch is None:
            self._watch = Watch(self.settings.instance, self._handles)

    def _prepare_blocking(self) -> None:
        api, settings = self._engine.api, self.settings
        require_runtime(api, settings)
        require_image(api, settings)
        address = network.ensure_network(api, settings.network)
        changed = firewall.put_up(network.bridge_name(settings.network))
        if self._gvisor is None:
            self._reap(api)
        # Rules that this user may not read can only be proven by trying; those that had to be set again too.
        if self._gvisor is None or changed is not False:
            self._gvisor = proof.prove(api, settings, address)

    def _reap(self, api: docker.APIClient) -> None:
        """Remove what an earlier gateway of this installation has left; its keys are gone with it."""
        label = {"label": f"{INSTANCE_LABEL}={self.settings.instance}"}
        for container in api.containers(all=True, filters=label):
            log.info("container of an earlier gateway removed", container=container["Id"][:12])
            api.remove_container(container["Id"], force=True)
        for volume in api.volumes(filters=label)["Volumes"] or []:
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
        try:
            container = await self._engine.call(self._create_blocking, launch)
        except APIError as error:
            raise StartFailed(f"the engine refused to make a container: {error.explanation}") from error
        # Known before it starts: an end in its first moments is not missed.
        handle = self._handles[container] = DockerHandle(self._engine, container, info)
        spawn(self._forget(handle), "forget container")
        try:
            address = await self._engine.call(self._start_blocking, container, hello)
        except BaseException as error:
            await asyncio.shield(handle.kill())
            if isinstance(error, APIError):
                raise StartFailed(f"the engine could not start the container: {error.explanation}") from error
            raise
        handle.was_running = True
        handle.connection_info = replace(info, ip=address)
        return handle

    def _create_blocking(self, launch: Launch) -> str:
        api = self._engine.api
        workspace = launch.workspace or uuid.uuid4().hex
        container = api.create_container(
            self.settings.image,
            [PYTHON, "-I", "-S", f"{IMAGE_DIR}/launcher.py"],
            user=f"{UID}:{UID}",
            hostname="sandbox",
            working_dir=WORKSPACE,
            stdin_open=True,
            labels=self.settings.labels,
            use_config_proxy=False,
            host_config=api.create_host_config(
                **host_config(self.settings, launch.limits, workspace, gvisor=bool(self._gvisor), shared=launch.shared)
            ),
        )
        return str(container["Id"])

    def _start_blocking(self, container: str, hello: bytes) -> str:
        """Start it, hand over the handshake on its standard input, and find its address."""
        api = self._engine.api
        with take_over(api.attach_socket(container, params={"stdin": 1, "stream": 1})) as stdin:
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
        """Delete a session's volumes."""
        for name in volume_names(workspace):  # the engine does not mind when there is none
            await self._engine.call(self._delete_volume_blocking, name)

    def _delete_volume_blocking(self, name: str) -> None:
        try:
            self._engine.api.remove_volume(name, force=True)
        except APIError as error:
            log.warning("a workspace was not deleted", volume=name, error=str(error.explanation))

    async def close(self) -> None:
        """End all kernels. The network stays: others may use it, and it costs nothing."""
        await asyncio.gather(*(handle.kill() for handle in list(self._handles.values())))
        if self._watch is not None:
            self._watch.stop()
        self._engine.close()
