"""Makes and proves golden images: one for each shape of sandbox, written while the kernel waits for its keys."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Self

import structlog
from docker.errors import APIError, NotFound

from sessions.backends.abilities import Ability
from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint import trials
from sessions.backends.docker.checkpoint.images import Image, Images
from sessions.backends.docker.checkpoint.restore import restore
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, Runtime, clear_marks, find_runtime
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.container import containers
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.breaker import short_cause
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.engine.stdio_channel import attached
from sessions.backends.docker.golden.rights import missing_rights
from sessions.backends.docker.golden.sleep_proof import SleepProof
from sessions.backends.docker.profile import DockerSettings, GoldenSettings, host_config, volume_names
from sessions.model.errors import SessionError
from sessions.model.kernelspecs import PRELOAD_MEMORY, KernelSpec
from sessions.model.values import Limits

log = structlog.get_logger()

#: version of a golden image's content; if it changes, all images are made again
_FORMAT = 1
#: seconds for a kernel to import its modules
_IMPORT_TIMEOUT = 90.0
#: weight of a container that becomes a golden image. It is a tenth of a new container's, because a client may wait for
#: another kernel meanwhile
_WEIGHT = 0.001


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a golden image's sandbox that cannot be changed after a restore."""

    language: str
    #: whether `/tmp` is a volume, as in sandboxes of several sessions
    shared: bool
    kernelspec: KernelSpec = field(compare=False)

    @classmethod
    def of(cls, kernelspec: KernelSpec, *, shared: bool = False) -> Self:
        """Return the shape of a language's sandbox."""
        return cls(kernelspec.name, shared, kernelspec)

    def launch(self, limits: Limits) -> Launch:
        """Return the launch of the sandbox that becomes the golden image."""
        kernelspec = replace(self.kernelspec, preload=self.kernelspec.preload_within(limits.memory))
        return Launch(kernelspec, limits, shared=self.shared)


def fits(launch: Launch, limits: Limits) -> bool:
    """Return whether a kernel can be restored from a golden image.

    Args:
        launch: launch of the kernel.
        limits: limits of the golden image. Processors and the number of threads are fixed when libraries are loaded.
            Other limits can be lowered after the restore, memory down to what the modules need.
    """
    wanted = launch.limits
    return (
        launch.kernelspec.waits
        and not launch.image
        and launch.egress is None
        and launch.kernelspec.accepts(launch.env, launch.cwd)
        and math.ceil(wanted.cpus) == math.ceil(limits.cpus)
        and max(1, round(wanted.cpus)) == max(1, round(limits.cpus))
        and wanted.memory >= min(limits.memory, PRELOAD_MEMORY)
        and wanted.processes <= limits.processes
        and wanted.disk <= limits.disk
    )


class Workshop:
    """Makes and proves golden images. All methods block."""

    def __init__(
        self,
        engine: Engine,
        disks: Disks,
        settings: DockerSettings,
        settings_of_images: GoldenSettings,
        sleep_images: SleepImages,
    ) -> None:
        """Keep the arguments. Nothing is made yet."""
        self.engine = engine
        self.disks = disks
        self.settings = settings
        self.limits = settings_of_images.limits
        self.images = Images(settings_of_images.directory, settings_of_images.disk)
        self._sleep_proof = SleepProof(engine, disks, settings, sleep_images, self._container_on)
        #: ids of the containers that exist now
        self._busy: set[str] = set()
        self._closed = False

    def close(self) -> None:
        """Remove all containers. Other threads that use them then get an error."""
        self._closed = True
        for container in list(self._busy):
            with suppress(APIError):  # the container is being removed already
                self._remove(container)

    def _remove(self, container: str) -> None:
        with suppress(NotFound):
            self.engine.api.remove_container(container, force=True)

    def golden(self, shape: Shape, used: Collection[str] = (), *, prove_again: bool = False) -> tuple[str, Image]:
        """Return the golden image of a shape. It is made if absent, and proven by a restore unless it already was.

        Args:
            shape: shape of the sandbox.
            used: keys of the images in use. All others are removed to make room for a new image.
            prove_again: whether an image that was already proven must be proven again.

        Returns:
            key of the image, and the image.

        Raises:
            CheckpointFailed: when this engine cannot make or restore golden images.
            APIError: when the engine refused.
        """
        runtime = find_runtime(self.engine.api, self.settings)
        clear_marks(self.engine.api)
        source = str(self.engine.api.inspect_image(self.settings.image)["Id"])
        key = self._key(shape, source, runtime)
        image = None if prove_again else self.images.proven(key)
        if image is not None:
            return key, image
        image = self.images.find(key)
        if image is None:
            self.images.remove_others(used)
            image = self._taken(shape, key, source, runtime)
        try:
            self._prove(shape, image)
        except CheckpointFailed:
            self.images.remove(key)
            raise
        self.images.remember_proof(image)
        return key, image

    def sleeps(self, shape: Shape, image: Image) -> Ability:
        """Return whether this process can let kernels sleep and continue them. This is proven unless it already was.

        Args:
            shape: shape of the image.
            image: a proven golden image.
        """
        if missing := missing_rights(str(self.engine.api.info()["DockerRootDir"])):
            return Ability(on=False, detail=missing)
        if self.settings.sleep is None or self.settings.files == "memory" or self.images.sleep_is_proven(image):
            return Ability(on=True, detail="the runtime restores sandboxes")
        try:
            self._sleep_proof.prove(image, shape.launch(self.limits))
        except (CheckpointFailed, SessionError) as error:
            return Ability(on=False, detail=str(error))
        except APIError as error:
            return Ability(on=False, detail=f"the engine refused: {short_cause(error)}")
        self.images.remember_sleep(image)
        return Ability(on=True, detail="the runtime restores sandboxes")

    def _key(self, shape: Shape, source: str, runtime: Runtime) -> str:
        launch = shape.launch(self.limits)
        profile = host_config(self.settings, self.limits, "", gvisor=True, shared=shape.shared)
        hello = containers.handshake_for(self.settings, launch, None).decode()
        facts = [
            _FORMAT,
            self.settings.files,
            source,
            runtime.version,
            runtime.command,
            profile,
            hello,
            asdict(self.limits),
        ]
        return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()

    def _taken(self, shape: Shape, key: str, source: str, runtime: Runtime) -> Image:
        launch = replace(shape.launch(self.limits), image=source)
        with self._container(launch) as container, attached(self.engine, container, CheckpointFailed) as sandbox:
            self.engine.api.start(container)
            with suppress(OSError):  # this user may not set weights
                ControlGroup(container).weigh(_WEIGHT)
            sandbox.send(containers.handshake_for(self.settings, launch, None))
            for module, problem in sandbox.receive(_IMPORT_TIMEOUT).items():
                log.warning("a module is not in the golden image", module=module, reason=str(problem)[:200])
            begun = self.images.begin(ControlGroup(container).memory() or self.limits.memory)
            try:
                runtime.take(container, begun)
                self.images.finish(begun, key, source, launch.kernelspec.preload)
            except OSError as error:
                raise CheckpointFailed(f"the checkpoint could not be kept: {error.strerror}") from error
            finally:
                self.images.remove(begun.name)
        image = self.images.find(key)
        if image is None:
            raise CheckpointFailed("the checkpoint has changed on the disk as soon as it was written")
        return image

    def _prove(self, shape: Shape, image: Image) -> None:
        launch = replace(shape.launch(self.limits), image=image.source)
        info = containers.new_connection(shape.kernelspec)
        with self._container(launch) as container:
            restore(self.engine, container, image.path, containers.handshake_for(self.settings, launch, info))

    @contextmanager
    def _container(self, launch: Launch) -> Iterator[str]:
        """Make a container for the `with` block only. It is removed afterwards, together with its workspace."""
        workspace = uuid.uuid4().hex
        with ExitStack() as ending:
            for name in volume_names(workspace):
                ending.callback(self.disks.delete, name)
            yield ending.enter_context(self._container_on(replace(launch, workspace=workspace)))

    @contextmanager
    def _container_on(self, launch: Launch, trial: trials.Trial | None = None) -> Iterator[str]:
        """Make a container for the `with` block only, with the launch's workspace or a trial's files, which stay."""
        with ExitStack() as ending:
            container = containers.create(
                self.engine,
                self.disks,
                self.settings,
                launch,
                name=f"kernel-gateway-{uuid.uuid4().hex}",
                workspace=str(launch.workspace),
                gvisor=True,
                files=trial.volumes if trial else None,
            )
            self._busy.add(container)
            ending.callback(self._busy.discard, container)
            ending.callback(self._remove, container)
            try:
                if self._closed:
                    raise CheckpointFailed("the gateway is shutting down")
                yield container
            except APIError as error:
                raise CheckpointFailed(f"the engine refused: {short_cause(error)}") from error
