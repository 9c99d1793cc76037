"""The proxy's container, which runs squid under the kernels' runtime and is connected to both networks."""

from __future__ import annotations

import hashlib
from typing import Any

import docker
from docker.errors import NotFound
from docker.types import LogConfig

from kernel_image.egress.credentials import VARIABLE as SECRET_VARIABLE
from kernel_image.egress.start import VARIABLE as CONFIG_VARIABLE
from sessions.backends.docker.isolation.egress.networks import inner_name, outer_name
from sessions.backends.docker.isolation.egress.squid import TRAP, TRAP_ADDRESS, configuration
from sessions.backends.docker.profile import UID, DockerSettings, EgressSettings
from sessions.model.errors import NotInitialized

#: label with the installation's id. It differs from the label of kernels, so the proxy is not removed as a leftover.
LABEL = "kernel-gateway.egress"
#: label with a digest of the settings that the container was made with
_MADE_AS = "kernel-gateway.egress-digest"
_MIB = 1024**2


def require_image(api: docker.APIClient, egress: EgressSettings) -> str:
    """Check that the proxy's image exists.

    Returns:
        id of the image.

    Raises:
        NotInitialized: when the image does not exist.
    """
    try:
        return str(api.inspect_image(egress.image)["Id"])
    except NotFound:
        raise NotInitialized(f"there is no image {egress.image!r}: build it with `make egress-image`") from None


def ensure_proxy(api: docker.APIClient, settings: DockerSettings, egress: EgressSettings, address: str) -> bool:
    """Start the proxy, unless it already runs with these settings, or the engine is restarting it.

    Returns:
        whether the proxy was started now.

    Raises:
        NotInitialized: when the proxy's image does not exist.
    """
    image, config = require_image(api, egress), configuration(egress, address)
    digest = hashlib.sha256(f"{image} {settings.runtime} {egress.secret} {config}".encode()).hexdigest()
    for container in _found(api, settings):
        if container["State"] in {"running", "restarting"} and container["Labels"].get(_MADE_AS) == digest:
            return False
    remove_proxy(api, settings)
    container = api.create_container(
        egress.image,
        name=inner_name(settings),
        user=f"{UID}:{UID}",
        hostname="egress",
        labels={LABEL: settings.instance, _MADE_AS: digest},
        environment={SECRET_VARIABLE: egress.secret, CONFIG_VARIABLE: config},
        use_config_proxy=False,
        networking_config=api.create_networking_config(
            {inner_name(settings): api.create_endpoint_config(ipv4_address=address)}  # type: ignore[arg-type]  # wrong stub
        ),
        host_config=api.create_host_config(**host_config(settings)),
    )
    api.connect_container_to_network(container["Id"], outer_name(settings))
    api.start(container["Id"])
    return True


def host_config(settings: DockerSettings) -> dict[str, Any]:
    """Return the arguments of the engine's host configuration for the proxy."""
    return {
        "runtime": settings.runtime,
        "network_mode": inner_name(settings),
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {"/run/egress": f"rw,noexec,nosuid,nodev,size=1m,uid={UID},gid={UID},mode=0700"},
        "mem_limit": 256 * _MIB,
        "memswap_limit": 256 * _MIB,
        "nano_cpus": 1_000_000_000,
        "pids_limit": 512,
        "ipc_mode": "private",
        "dns": ["127.0.0.1"],  # squid asks the name servers of its own configuration
        "extra_hosts": {TRAP: TRAP_ADDRESS},
        "log_config": LogConfig(type="json-file", config={"max-size": "8m", "max-file": "2"}),
        # A proxy that ends is started again at once, with the same address, because kernels know only that address.
        "restart_policy": {"Name": "always"},
    }


def remove_proxy(api: docker.APIClient, settings: DockerSettings) -> None:
    """Remove the proxy of this installation, if there is one."""
    for container in _found(api, settings):
        try:
            api.remove_container(container["Id"], force=True)
        except NotFound:
            continue


def _found(api: docker.APIClient, settings: DockerSettings) -> list[dict[str, Any]]:
    return list(api.containers(all=True, filters={"label": f"{LABEL}={settings.instance}"}))
