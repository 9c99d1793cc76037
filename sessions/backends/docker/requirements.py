"""What the engine must have before kernels can be started: the runtime, the images, the wheels."""

from __future__ import annotations

import docker
from docker.errors import APIError, NotFound

from sessions.backends.docker.engine.cgroup import parent_for
from sessions.backends.docker.profile import DockerSettings, wheels_mounts
from sessions.model.errors import NotInitialized


def require_runtime(api: docker.APIClient, settings: DockerSettings) -> str:
    """Check that the runtime is registered.

    Returns:
        name of the runtime and version of the engine.

    Raises:
        NotInitialized: when the runtime is not registered.
    """
    info = api.info()
    if settings.runtime not in info["Runtimes"]:
        raise NotInitialized(
            f"the engine has no runtime {settings.runtime!r}: install gVisor and register it in "
            "/etc/docker/daemon.json, or run without gVisor: --runtime runc"
        )
    return f"{settings.runtime}, engine {info['ServerVersion']}"


def kernels_group(api: docker.APIClient) -> str:
    """Return the name of the control group of all kernels, in the form that this engine accepts."""
    return parent_for(str(api.info()["CgroupDriver"]))


def require_image(api: docker.APIClient, name: str) -> str:
    """Check that an image for kernels exists, because the start of a kernel pulls no image.

    Returns:
        name, size and id of the image.

    Raises:
        NotInitialized: when the image does not exist.
    """
    try:
        image = api.inspect_image(name)
    except NotFound:
        raise NotInitialized(f"there is no image {name!r}: build it with `make image`") from None
    return f"{name}, {image['Size'] // 1024**2} MiB, {image['Id'][:19]}"


def require_wheels(api: docker.APIClient, settings: DockerSettings) -> str:
    """Check that the directory with wheels exists on the engine's machine, which may be another one.

    Returns:
        path of the directory.

    Raises:
        NotInitialized: when the engine does not find the directory.
    """
    if not settings.wheels:
        return "none"
    host = api.create_host_config(mounts=wheels_mounts(settings), network_mode="none")
    try:
        container = api.create_container(settings.image, ["true"], labels=settings.labels, host_config=host)["Id"]
    except APIError as error:
        raise NotInitialized(
            f"the engine finds no directory {settings.wheels!r} with wheels on its machine: make it, or change `wheels`"
        ) from error
    api.remove_container(container)
    return settings.wheels
