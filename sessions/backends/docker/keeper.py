"""Keeps a workspace while no kernel uses it: a container that runs no user code has its volume, and nothing else.

A workspace is memory that goes with the last container that has it.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace

from docker.errors import NotFound

from sessions.backends.base import Launch
from sessions.backends.docker import containers
from sessions.backends.docker.engine import Engine
from sessions.backends.docker.profile import FIRST_PORT, DockerSettings
from sessions.backends.handshake import new_connection_info
from sessions.kernelspecs import KernelSpec

_NO_KERNEL = KernelSpec("none", "no kernel", argv=())


def keep_workspace(engine: Engine, settings: DockerSettings, launch: Launch) -> str:
    """Keep a kernel's workspace after the kernel's end. Blocks.

    The container has the plain runtime, because gVisor takes 25 MB and some processor time also where nothing runs.

    Returns:
        id of the container that keeps it.

    Raises:
        APIError: when the engine refused.
    """
    plain = replace(settings, runtime="runc", egress=None)
    keeper = replace(launch, kernelspec=_NO_KERNEL, egress=None, image="", env={}, cwd="")
    container = containers.create(
        engine,
        plain,
        keeper,
        name=f"kernel-gateway-{uuid.uuid4().hex}",
        workspace=str(launch.workspace),
        gvisor=False,
        processor=None,
    )
    try:
        # A launcher without a kernel uses no connection.
        info = new_connection_info("tcp", "127.0.0.1", first_port=FIRST_PORT, encryption=False)
        containers.start(engine, container, containers.hello(plain, keeper, info))
    except BaseException:
        let_workspace_go(engine, container)
        raise
    return container


def is_kept(engine: Engine, keeper: str) -> bool:
    """Return whether the container that keeps a workspace still runs. Blocks."""
    try:
        return bool(engine.api.inspect_container(keeper)["State"]["Running"])
    except NotFound:
        return False


def let_workspace_go(engine: Engine, keeper: str) -> None:
    """Remove the container that keeps a workspace. Blocks."""
    with suppress(NotFound):
        engine.api.remove_container(keeper, force=True)
