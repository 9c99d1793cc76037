"""The kernels' network: an internal bridge, without traffic between its containers and without IPv6.

A container on such a bridge can still reach every port on which the host itself listens. `firewall.py` prevents that.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.types import IPAMConfig

from sessions.model.errors import NotInitialized

_BRIDGE_OPTION = "com.docker.network.bridge"
#: status codes with which the engine refuses a network whose bridge or name exists
_CONFLICTS = {403, 409}
#: seconds before each further search for the network
_WAITS = (0.1, 0.3, 1.0)


def bridge_name(network: str) -> str:
    """Return the name of a network's bridge, which has at most 15 characters. The network need not exist yet."""
    return f"kgw-{hashlib.sha256(network.encode()).hexdigest()[:8]}"


def ensure_network(api: docker.APIClient, network: str) -> str:
    """Create the network if it does not exist, and check that it is isolated.

    Returns:
        the host's address on the network.

    Raises:
        NotInitialized: when a network of this name exists that is not isolated.
    """
    found = _find_or_create(api, network)
    if problem := _problem(found, network):
        raise NotInitialized(
            f"the Docker network {network!r} is not isolated: {problem}; remove it (docker network rm {network}) "
            "and the gateway makes it anew"
        )
    return str(found["IPAM"]["Config"][0]["Gateway"])


def _find_or_create(api: docker.APIClient, network: str) -> dict[str, Any]:
    for wait in (*_WAITS, None):
        with suppress(NotFound):
            return dict(api.inspect_network(network))
        try:
            create(api, network)
        except APIError as error:
            # A gateway and its `doctor` may make the network at the same time, and the engine lists it only a little
            # later.
            if wait is None or error.status_code not in _CONFLICTS:
                raise
            time.sleep(wait)
    return dict(api.inspect_network(network))


def create(api: docker.APIClient, network: str, ipam: IPAMConfig | None = None) -> None:
    """Create the network.

    Args:
        api: client of the engine.
        network: name of the network.
        ipam: addresses of the network. None means that the engine chooses them.
    """
    api.create_network(
        network,
        driver="bridge",
        ipam=ipam,
        internal=True,
        enable_ipv6=False,
        check_duplicate=True,
        options={
            f"{_BRIDGE_OPTION}.name": bridge_name(network),
            f"{_BRIDGE_OPTION}.enable_icc": "false",
            f"{_BRIDGE_OPTION}.enable_ip_masquerade": "false",
        },
    )


def _problem(found: dict[str, Any], network: str) -> str | None:
    options = found.get("Options") or {}
    if found.get("Driver") != "bridge" or options.get(f"{_BRIDGE_OPTION}.name") != bridge_name(network):
        return "it was not made by the gateway"
    if not found.get("Internal"):
        return "it is not internal"
    if options.get(f"{_BRIDGE_OPTION}.enable_icc") != "false":
        return "its containers can reach one another"
    if found.get("EnableIPv6"):
        return "IPv6 is on"
    return None
