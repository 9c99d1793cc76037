"""The disks of workspaces: files of a session that outlive its containers, with a limited size.

Each volume of a workspace is a file system in an image file. A helper (`kernel_image/disks.py`) makes the image file
and attaches it to a loop device. The engine mounts that device while a container uses the volume. So only the engine
needs the privilege to mount, and a gateway that has only the engine's socket can use disks, too. The helper ends with
the gateway. The image files stay for the next gateway.

The image files are in the volume `kernel-gateway-files-INSTANCE`. Each has the name of its volume.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from docker.errors import NotFound

from sessions.backends.docker.disks.helper import Helper
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import Disk, DockerSettings
from sessions.model.errors import NotInitialized, StartFailed

#: bytes of the disk with which the helper is proven
_PROBE_SIZE = 8 * 1024**2


class Disks:
    """The disks of an installation. All methods block; several threads may call them."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        """Keep the arguments. Nothing is started yet."""
        self._engine = engine
        self._settings = settings
        self._volume = f"kernel-gateway-files-{settings.instance}"
        self._helper = Helper(engine, settings, self._volume)
        #: the disk with which the helper is proven. All proofs use the same disk, so failing proofs leave at most one.
        self._probe = Disk(f"kernel-gateway-proof-{uuid.uuid4().hex}", "", _PROBE_SIZE, "0700")
        #: bytes that all disks together could have when the last disk was attached. 0 before that.
        self.room = 0

    @property
    def _used(self) -> bool:
        return self._settings.files == "disk"

    def prove(self) -> str:
        """Make a disk, attach it and delete it.

        Returns:
            text that says where files are.

        Raises:
            NotInitialized: when this is not possible on the engine's machine.
        """
        if not self._used:
            return "in memory: files end with their kernels"
        try:
            self.attach([self._probe])
            self.delete(self._probe.name)
        except StartFailed as error:
            raise NotInitialized(f"{error.message}. Without loop devices set `files` to `memory`") from error
        return "on disk: files outlive their kernels"

    def attach(self, disks: Sequence[Disk]) -> Mapping[str, str] | None:
        """Make disks unless they exist, and attach them to devices. Call this before a container mounts them.

        Returns:
            path of each disk's device, by the disk's name. None means that workspaces are in memory.

        Raises:
            StartFailed: when a disk cannot be made or attached.
            BackendUnavailable: when the helper does not answer.
            APIError: when the engine refused.
        """
        if not self._used:
            return None
        devices = {}
        for disk in disks:
            asked = self._helper.ask(op="attach", name=disk.name, size=disk.size, mode=disk.mode)
            devices[disk.name] = device = str(asked["device"])
            if "room" not in asked:
                raise StartFailed("the kernels' image is older than the gateway: build it again (make image)")
            self.room = int(asked["room"])
            self._forget_other(disk.name, device)
        return devices

    def _forget_other(self, volume: str, device: str) -> None:
        """Remove a volume that names another device. After a restart of the machine, a disk may get another device."""
        api = self._engine.api
        with suppress(NotFound):
            options = api.inspect_volume(volume)["Options"] or {}
            if options.get("device") != device:
                api.remove_volume(volume)

    def delete(self, name: str) -> None:
        """Delete a volume and its disk, if they exist.

        Raises:
            APIError: when the engine refused, because a container still uses the volume.
            SessionError: when the helper failed.
        """
        with suppress(NotFound):
            self._engine.api.remove_volume(name, force=True)
        if self._used:
            self._helper.ask(op="delete", name=name)

    def image(self, name: str) -> Path:
        """Return the path of a disk's image file on the engine's machine. The disk need not exist.

        Raises:
            APIError: when the engine refused.
        """
        return Path(self._engine.api.inspect_volume(self._volume)["Mountpoint"]) / f"{name}.img"

    def names(self) -> list[str]:
        """Return the names of all disks."""
        return list(self._helper.ask(op="names")["names"]) if self._used else []

    def delete_all(self) -> None:
        """Delete all disks and the volume with their image files. No session may exist.

        Raises:
            SessionError: when the helper failed.
            APIError: when the engine refused, because a container still uses a volume.
        """
        if self._helper.asked:
            for name in self.names():
                self.delete(name)
            self.close()
            self._engine.api.remove_volume(self._volume)

    def close(self) -> None:
        """End the helper. The disks stay for the next gateway."""
        self._helper.close()

    def reap(self) -> None:
        """Remove the helpers of earlier gateways that have not ended on their own."""
        self._helper.reap()
