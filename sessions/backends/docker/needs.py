"""Requirements of the engine for starting kernels."""

from __future__ import annotations

import docker
from docker.errors import NotFound

from sessions.backends.docker.profile import DockerSettings
from sessions.errors import NotInitialized


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


def require_image(api: docker.APIClient, settings: DockerSettings) -> str:
    """Check that the kernels' image exists; no image is pulled when a kernel starts.

    Returns:
        name and size of the image.

    Raises:
        NotInitialized: when the image does not exist.
    """
    try:
        image = api.inspect_image(settings.image)
    except NotFound:
        raise NotInitialized(f"there is no image {settings.image!r}: build it with `make image`") from None
    return f"{settings.image}, {image['Size'] // 1024**2} MiB"
