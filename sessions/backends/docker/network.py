"""The kernels' network: the gateway reaches them, they reach nothing.

An internal bridge without traffic between its containers is not enough: a container on it connects to every
port the host itself listens on. So new connections from the bridge into the host are dropped as well; answers to
connections that the host has made pass.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound

from sessions.errors import NotInitialized

_BRIDGE_OPTION = "com.docker.network.bridge"
_ANSWERS = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
#: bridged packets pass the firewall only when this is 1
BRIDGE_NF = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_TIMEOUT = 10


def bridge_name(network: str) -> str:
    """The interface of a network; at most 15 characters, and known before the network is made."""
    return f"kgw-{hashlib.sha256(network.encode()).hexdigest()[:8]}"


def ensure_network(api: docker.APIClient, network: str) -> str:
    """Make the network if it is absent, and check that it is what it must be.

    Returns:
        the host's address on it.

    Raises:
        NotInitialized: there is one of this name that is not isolated.
    """
    try:
        found = api.inspect_network(network)
    except NotFound:
        _create(api, network)
        found = api.inspect_network(network)
    if problem := _problem(found, network):
        raise NotInitialized(
            f"the Docker network {network!r} is not isolated: {problem}; remove it (docker network rm {network}) "
            "and the gateway makes it anew"
        )
    return str(found["IPAM"]["Config"][0]["Gateway"])


def _create(api: docker.APIClient, network: str) -> None:
    api.create_network(
        network,
        driver="bridge",
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


def firewall_rules(network: str) -> list[list[str]]:
    """The host's rules for the bridge, as arguments of `iptables -I`: inserted one by one, the last stands first."""
    bridge = bridge_name(network)
    return [
        ["DOCKER-USER", "-i", bridge, "-j", "DROP"],
        ["DOCKER-USER", "-i", bridge, *_ANSWERS],
        ["INPUT", "-i", bridge, "-j", "DROP"],
        ["INPUT", "-i", bridge, *_ANSWERS],
    ]


def firewall_rules_v6(network: str) -> list[list[str]]:
    """The same for IPv6, which kernels have none of; the bridge itself has a link-local address."""
    bridge = bridge_name(network)
    return [["FORWARD", "-i", bridge, "-j", "DROP"], ["INPUT", "-i", bridge, "-j", "DROP"]]


def ensure_firewall(network: str) -> bool | None:
    """Put up the rules that are missing.

    Returns:
        whether one was missing; None when this user may not look.

    Raises:
        NotInitialized: they cannot be put up.
    """
    if os.geteuid() != 0:
        return None
    if BRIDGE_NF.exists() and BRIDGE_NF.read_text().strip() != "1":
        raise NotInitialized(
            f"kernels could reach one another: set {BRIDGE_NF} to 1 (sysctl -w net.bridge.bridge-nf-call-iptables=1)"
        )
    changed = [_ensure_rule("iptables", rule) for rule in firewall_rules(network)]
    if Path("/proc/net/if_inet6").exists():
        changed += [_ensure_rule("ip6tables", rule) for rule in firewall_rules_v6(network)]
    return any(changed)


def _ensure_rule(program: str, rule: list[str]) -> bool:
    chain, *rest = rule
    if _run(program, "-C", chain, *rest).returncode == 0:
        return False
    done = _run(program, "-I", chain, *rest)
    if done.returncode != 0:
        raise NotInitialized(f"a firewall rule cannot be set: {program} -I {' '.join(rule)}: {done.stderr.strip()}")
    return True


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        raise NotInitialized(f"{program} is not installed; the kernels' network cannot be closed without it")
    return subprocess.run(  # noqa: S603 - a fixed program with arguments of our own
        [path, "-w", "5", *arguments], capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )


def remove(api: docker.APIClient, network: str) -> None:
    """Take network and rules away again; used where a network was made for a while."""
    try:
        api.remove_network(network)
    except (NotFound, APIError):
        return
    if os.geteuid() == 0:
        for program, rules in (("iptables", firewall_rules(network)), ("ip6tables", firewall_rules_v6(network))):
            for chain, *rest in rules:
                _run(program, "-D", chain, *rest)
