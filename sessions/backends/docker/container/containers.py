"""Calls to the engine about containers and volumes. All of them block, so run them in the engine's threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import structlog
from docker.types import Mount

from sessions.backends.base import Launch
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine, take_over
from sessions.backends.docker.profile import (
    FIRST_PORT,
    IMAGE_DIR,
    PRIVATE,
    PYTHON,
    UID,
    WORKSPACE,
    DockerSettings,
    disks_of,
    environment,
    host_config,
    volume_names,
    wheels_mounts,
)
from sessions.backends.handshake import handshake, new_connection_info
from sessions.model.connection_info import ConnectionInfo
from sessions.model.errors import StartFailed
from sessions.model.kernelspecs import KernelSpec
from sessions.model.stopwatch import Stage, lap

log = structlog.get_logger()


def create(
    engine: Engine,
    disks: Disks,
    settings: DockerSettings,
    launch: Launch,
    *,
    name: str,
    workspace: str,
    gvisor: bool,
    files: Sequence[Mount] | None = None,
) -> str:
    """Create a container for a kernel, without starting it.

    Args:
        engine: engine that makes the container.
        disks: disks with the files of workspaces.
        settings: settings of the backend.
        launch: order to start the kernel that will run in the container.
        name: name of the container.
        workspace: id of the workspace.
        gvisor: whether the runtime is gVisor.
        files: volumes that replace the workspace. None means the workspace.

    Returns:
        id of the container.

    Raises:
        StartFailed: when the workspace cannot be made.
        APIError: when the engine refused.
    """
    api = engine.api
    own = None if files else disks.attach(disks_of(settings, launch.limits, workspace, shared=launch.shared))
    lap(Stage.VOLUMES)
    made_as = host_config(
        settings,
        launch.limits,
        workspace,
        gvisor=gvisor,
        shared=launch.shared,
        devices=own,
    )
    if files is not None:
        made_as["mounts"] = [*files, *wheels_mounts(settings)]
    container = api.create_container(
        launch.image or settings.image,
        [PYTHON, "-I", "-S", f"{IMAGE_DIR}/launcher.py"],
        name=name,
        user=f"{UID}:{UID}",
        hostname="sandbox",
        working_dir=WORKSPACE,
        environment=environment(settings, online=launch.egress is not None),
        stdin_open=True,
        labels=settings.labels,
        use_config_proxy=False,
        host_config=api.create_host_config(**made_as, cgroup_parent=engine.kernels_group),
    )
    lap(Stage.CREATE)
    return str(container["Id"])


def new_connection(kernelspec: KernelSpec) -> ConnectionInfo:
    """Return connection info with new keys for a kernel in a container. The kernel listens on all its addresses."""
    return new_connection_info(
        "tcp",
        "0.0.0.0",  # noqa: S104 - inside the container
        first_port=FIRST_PORT,
        encryption=kernelspec.encryption,
        signature=kernelspec.signature,
    )


def handshake_for(settings: DockerSettings, launch: Launch, info: ConnectionInfo | None) -> bytes:
    """Return the handshake for a kernel in a container. With None, the kernel waits for another handshake."""
    env = environment(settings, online=launch.egress is not None)
    return handshake(launch, info, python=PYTHON, image=IMAGE_DIR, workspace=WORKSPACE, private=PRIVATE, env=env)


def start(engine: Engine, container: str, hello: bytes) -> None:
    """Start a container, and send the handshake to its standard input."""
    api = engine.api
    stdin, _ = take_over(api.attach_socket(container, params={"stdin": 1, "stream": 1}))
    with stdin:
        api.start(container)
        stdin.sendall(hello)


def address(engine: Engine, network: str, container: str) -> str:
    """Return the IP address of a running container in a network.

    Raises:
        StartFailed: when the container has ended.
    """
    found = str(engine.api.inspect_container(container)["NetworkSettings"]["Networks"][network]["IPAddress"])
    if not found:
        raise StartFailed("the kernel ended while it started")
    return found


def running(engine: Engine, label: str) -> set[str]:
    """Return the ids of the running containers with a label."""
    return {str(container["Id"]) for container in engine.api.containers(filters={"label": label})}


def reap(engine: Engine, disks: Disks, label: str, kernels: Collection[str], workspaces: Iterable[str]) -> list[str]:
    """Remove the containers with a label, except those of known kernels.

    Returns:
        names of the volumes and disks that belong to no known workspace. The caller must delete them.
    """
    api, filters = engine.api, {"label": label}
    for container in api.containers(all=True, filters=filters):
        if container["Id"] not in kernels:
            log.info("container of an earlier gateway removed", container=container["Id"][:12])
            api.remove_container(container["Id"], force=True)
    disks.reap()
    found = {each["Name"] for each in api.volumes(filters=filters)["Volumes"] or []} | set(disks.names())
    return sorted(found - {name for workspace in workspaces for name in volume_names(workspace)})
