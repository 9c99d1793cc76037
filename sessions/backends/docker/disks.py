"""Disks of workspaces: files of a session that outlive its containers, on the engine's disk, up to a size.

Each volume of a workspace is a file system in an image file. A helper (`kernel_image/disks.py`) makes the image and
attaches it to a loop device, and the engine mounts that device while a container uses the volume. So the engine alone
needs the privilege to mount, and this also works for a gateway that has nothing but the engine's socket. The helper has
a container of its own. It ends when the gateway does; the images stay, for the next gateway.

The images are in the volume `kernel-gateway-files-INSTANCE`, each under the name of the volume that shows it.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount

from sessions.backends.docker.breaker import unavailable
from sessions.backends.docker.conversation import Conversation, attached
from sessions.backends.docker.engine import Engine
from sessions.backends.docker.profile import DISKS_LABEL, IMAGE_DIR, PYTHON, Disk, DockerSettings
from sessions.errors import NotInitialized, StartFailed

#: seconds for an answer of the helper; to make a disk takes 0.1 s
_ANSWER = 15.0
#: status code of the engine. Source: Docker Engine API, ContainerDelete
_BEING_REMOVED = 409
#: bytes of the disk with which the helper is proven
_PROBE_SIZE = 8 * 1024**2
#: where the helper finds the host's devices and the images
_DEVICES, _IMAGES = "/devices", "/images"


class HelperFailed(Exception):
    """The helper does not converse."""


class Disks:
    """The disks of an installation. All methods block; several threads may call them."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        """Start nothing yet."""
        self._engine = engine
        self._settings = settings
        self._volume = f"kernel-gateway-files-{settings.instance}"
        self._name = f"kernel-gateway-files-{uuid.uuid4().hex}"
        #: one request at a time
        self._turn = threading.Lock()
        self._helper: Conversation | None = None
        self._closed = False
        #: ends the conversation
        self._open = ExitStack()

    @property
    def _used(self) -> bool:
        return self._settings.files == "disk"

    def prove(self) -> str:
        """Make a disk, attach it and delete it.

        Returns:
            where files are.

        Raises:
            NotInitialized: when that is not possible on the engine's machine.
        """
        if not self._used:
            return "in memory: files end with their kernels"
        probe = Disk(f"kernel-gateway-proof-{uuid.uuid4().hex}", "", _PROBE_SIZE, "0700")
        try:
            self.attach([probe])
            self.delete(probe.name)
        except StartFailed as error:
            raise NotInitialized(f"{error.message}. Without loop devices set `files` to `memory`") from error
        return "on disk: files outlive their kernels"

    def attach(self, disks: Sequence[Disk]) -> Mapping[str, str] | None:
        """Make disks unless they exist, and attach them, before a container is made that mounts them.

        Returns:
            path of the device of each disk, by name; None: files are kept in memory.

        Raises:
            StartFailed: when a disk cannot be made or attached.
            BackendUnavailable: when the helper does not answer.
            APIError: when the engine refused.
        """
        if not self._used:
            return None
        devices = {}
        for disk in disks:
            asked = self._ask(op="attach", name=disk.name, size=disk.size, mode=disk.mode)
            devices[disk.name] = device = str(asked["device"])
            self._forget_other(disk.name, device)
        return devices

    def _forget_other(self, volume: str, device: str) -> None:
        """Remove a volume that names another device: after a restart of the machine the disk may have another one."""
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
            self._ask(op="delete", name=name)

    def names(self) -> list[str]:
        """Return the names of all disks."""
        return list(self._ask(op="names")["names"]) if self._used else []

    def delete_all(self) -> None:
        """Delete all disks and the volume of their images: no session is left.

        Raises:
            SessionError: when the helper failed.
            APIError: when the engine refused, because a container still uses a volume.
        """
        if self._helper is not None:
            for name in self.names():
                self.delete(name)
            self.close()
            self._engine.api.remove_volume(self._volume)

    def close(self) -> None:
        """End the helper. The disks stay for the next gateway."""
        with self._turn:
            self._closed = True
            if self._helper is not None:
                self._end_helper()

    def _ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the helper, which is started if it does not run, and return the answer."""
        with self._turn:
            if self._closed:
                raise unavailable("the gateway is shutting down")
            try:
                answer = self._told(**request)
            except HelperFailed:  # it has ended, perhaps with the engine
                self._end_helper()
                try:
                    answer = self._told(**request)
                except HelperFailed as error:
                    self._end_helper()
                    raise unavailable("the disks of sessions cannot be reached") from error
        if problem := answer.get("error"):
            raise StartFailed(f"the session's files cannot be kept: {problem}")
        return answer

    def _told(self, **request: Any) -> dict[str, Any]:
        if self._helper is None:
            self._helper = self._start_helper()
        self._helper.say(json.dumps(request).encode() + b"\n")
        return self._helper.hear(_ANSWER)

    def _start_helper(self) -> Conversation:
        api, settings = self._engine.api, self._settings
        self._remove_helper()  # an earlier attempt may have made it without an answer
        api.create_container(
            settings.image,
            [PYTHON, "-I", "-S", f"{IMAGE_DIR}/disks.py"],
            name=self._name,
            user="0:0",
            working_dir=_IMAGES,
            stdin_open=True,
            labels={DISKS_LABEL: settings.instance},
            use_config_proxy=False,
            host_config=api.create_host_config(**helper_config(self._volume, settings)),
        )
        try:
            helper = self._open.enter_context(attached(self._engine, self._name, HelperFailed))
            api.start(self._name)
        except BaseException:
            self._end_helper()
            raise
        return helper

    def _end_helper(self) -> None:
        self._helper = None
        self._open.close()
        self._remove_helper()

    def _remove_helper(self) -> None:
        api = self._engine.api
        with suppress(NotFound):
            try:
                api.remove_container(self._name, force=True)
            except APIError as error:
                if error.status_code != _BEING_REMOVED:
                    raise
                api.wait(
                    self._name, timeout=round(_ANSWER), condition="removed"
                )  # the engine is removing it: it has ended

    def reap(self) -> None:
        """Remove the helpers of earlier gateways, which have ended on their own unless the engine was in trouble."""
        label = f"{DISKS_LABEL}={self._settings.instance}"
        for container in self._engine.api.containers(all=True, filters={"label": label}):
            if f"/{self._name}" not in container["Names"]:
                with suppress(APIError):  # it is being removed already
                    self._engine.api.remove_container(container["Id"], force=True)


def helper_config(volume: str, settings: DockerSettings) -> dict[str, Any]:
    """Return the arguments of the engine's host configuration for the helper.

    Args:
        volume: name of the volume with the images.
        settings: settings of the deployment.
    """
    return {
        "runtime": "runc",  # gVisor has no loop devices
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        # Loop devices, and the device that finds a free one. Source: Documentation/admin-guide/devices.txt
        "device_cgroup_rules": ["b 7:* rw", "c 10:237 rw"],
        "mounts": [
            Mount(target=_DEVICES, source="/dev", type="bind", read_only=True),
            Mount(target=_IMAGES, source=volume, type="volume", labels={DISKS_LABEL: settings.instance}),
        ],
        "mem_limit": "128m",
        "memswap_limit": "128m",
        "pids_limit": 32,
        "log_config": LogConfig(type="none"),
        "auto_remove": True,
    }
