"""The proxy's two networks: a closed one with the kernels that may use it, and one that leads to the internet."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool

from sessions.backends.docker.isolation import firewall
from sessions.backends.docker.isolation.egress.squid import PORT, PRIVATE
from sessions.backends.docker.isolation.network import bridge_name, create, ensure_network
from sessions.backends.docker.profile import DockerSettings, EgressSettings
from sessions.model.errors import NotInitialized

_BRIDGE_NAME = "com.docker.network.bridge.name"
#: characters of the installation's id in the networks' names
_ID = 12


def inner_name(settings: DockerSettings) -> str:
    """Return the name of the network of the kernels that may use the proxy."""
    return f"kernel-gateway-egress-{settings.instance[:_ID]}"


def outer_name(settings: DockerSettings) -> str:
    """Return the name of the network through which the proxy reaches the internet."""
    return f"{inner_name(settings)}-out"


@dataclass(frozen=True, slots=True)
class Networks:
    """The addresses and the state of both networks."""

    #: the host's address in the kernels' network
    host: str
    #: the proxy's address in the kernels' network
    proxy: str
    #: whether all firewall rules were already set. False if one was missing, or this user may not read them.
    rules_were_set: bool


def ensure_networks(api: docker.APIClient, settings: DockerSettings, egress: EgressSettings) -> Networks:
    """Create the networks and set their firewall rules, if they are missing.

    Raises:
        NotInitialized: when a network has wrong properties, or a rule cannot be set.
    """
    inner, outer = inner_name(settings), outer_name(settings)
    _ensure_inner(api, inner)
    host = ensure_network(api, inner)
    proxy = _proxy_address(api.inspect_network(inner))
    _ensure_outer(api, outer)
    found = [
        firewall.ensure_rules(bridge_name(inner), to_the_proxy(proxy)),
        firewall.ensure_rules(bridge_name(outer), to_the_world(egress.name_servers)),
    ]
    return Networks(host, proxy, all(each is firewall.Rules.SET for each in found))


def to_the_proxy(proxy: str) -> list[str]:
    """Return the rules of the kernels' network. Kernels reach the proxy's port, and its answers reach them."""
    return [
        f"-d {proxy}/32 -p tcp -m tcp --dport {PORT} -j ACCEPT",
        f"-s {proxy}/32 -p tcp -m tcp --sport {PORT} -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "-j DROP",
    ]


def to_the_world(name_servers: tuple[str, ...]) -> list[str]:
    """Return the rules of the proxy's other network. The proxy reaches name servers and public addresses only.

    Squid checks addresses, too. These rules hold even if squid is wrong, or a name's address changes after its check.
    """
    asking = [
        f"-d {server}/32 -p {protocol} -m {protocol} --dport 53 -j RETURN"
        for server in name_servers
        for protocol in ("udp", "tcp")
    ]
    return asking + [f"-d {network} -j DROP" for network in PRIVATE]


def _ensure_inner(api: docker.APIClient, name: str) -> None:
    try:
        api.inspect_network(name)
    except NotFound:
        # The proxy needs an address that no kernel gets. Only a network with a given range can reserve one. So the
        # engine first makes a network with any free range, and then the network is made again with that range.
        create(api, name)
        subnet = ipaddress.IPv4Network(_pool(api.inspect_network(name))["Subnet"])
        api.remove_network(name)
        kernels = next(subnet.subnets())  # the lower half of the range
        pool = IPAMPool(subnet=str(subnet), iprange=str(kernels), gateway=str(subnet[1]))
        create(api, name, IPAMConfig(pool_configs=[pool]))


def _proxy_address(found: dict[str, Any]) -> str:
    pool = _pool(found)
    subnet = ipaddress.IPv4Network(pool["Subnet"])
    if not pool.get("IPRange") or subnet[-2] in ipaddress.IPv4Network(pool["IPRange"]):
        raise NotInitialized(
            f"the Docker network {found['Name']!r} keeps no address free for the proxy; remove it (docker network rm "
            f"{found['Name']}) and the gateway makes it anew"
        )
    return str(subnet[-2])


def _pool(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["IPAM"]["Config"][0])


def _ensure_outer(api: docker.APIClient, name: str) -> None:
    bridge = bridge_name(name)
    try:
        found = api.inspect_network(name)
    except NotFound:
        api.create_network(name, driver="bridge", enable_ipv6=False, options={_BRIDGE_NAME: bridge})
        return
    if (found.get("Options") or {}).get(_BRIDGE_NAME) != bridge or found.get("Internal") or found.get("EnableIPv6"):
        raise NotInitialized(
            f"the Docker network {name!r} was not made by the gateway; remove it (docker network rm {name})"
        )
