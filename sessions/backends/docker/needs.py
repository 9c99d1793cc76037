"""What the engine must have before kernels can be thought of."""

from __future__ import annotations

import docker
from docker.errors import NotFound

from sessions.backends.docker.profile import DockerSettings
from sessions.errors import NotInitialized


def require_runtime(api: docker.APIClient, settings: DockerSettings) -> str:
    """The runtime is registered.

    Returns:
        the engine's version, with the runtime.

    Raises:
        NotInitialized: it is not.
    """
    info = api.info()
    if settings.runtime not in info["Runtimes"]:
        raise NotInitialized(
            f"the engine has no runtime {settings.runtime!r}: install gVisor and register it in "
            "/etc/docker/daemon.json, or ask for less with --runtime runc"
        )
    return f"{settings.runtime}, engine {info['ServerVersion']}"


def require_image(api: docker.APIClient, settings: DockerSettings) -> str:
    """The kernels' image is there; nothing is pulled when a kernel starts.

    Returns:
        its id and size.

    Raises:
        NotInitialized: it is not.
    """
    try:
        image = api.inspect_image(settings.image)
    except NotFound:
        raise NotInitialized(f"there is no image {settings.image!r}: build it with `make image`") from None
    return f"{settings.image}, {image['Size'] // 1024**2} MiB"
