"""The walls of all kernels together: networks, firewall and egress proxy; set up, and proven to hold."""

from __future__ import annotations

import docker

from sessions.backends.docker.isolation import firewall, network, proof
from sessions.backends.docker.isolation.egress import Egress
from sessions.backends.docker.profile import DockerSettings
from sessions.backends.docker.requirements import require_runtime, require_wheels


def ensure_walls(api: docker.APIClient, settings: DockerSettings, egress: Egress) -> bool:
    """Set up what is missing, and remove what an aborted proof has left.

    Returns:
        True if nothing was missing; False: the walls must be proven anew.

    Raises:
        NotInitialized: when a requirement is missing.
    """
    require_runtime(api, settings)
    require_wheels(api, settings)
    network.ensure_network(api, settings.network)
    stands = firewall.ensure_rules(network.bridge_name(settings.network)) is firewall.Rules.SET
    stands = egress.ensure(api) and stands
    proof.clear(api, settings)  # also a probe that the engine made after the timeout
    return stands


def prove_walls(api: docker.APIClient, settings: DockerSettings, egress: Egress) -> proof.Proven:
    """Prove that kernels reach neither the host nor one another, and the proxy only with the right to it.

    Raises:
        NotInitialized: when that does not hold.
    """
    address = network.ensure_network(api, settings.network)
    proven = proof.prove(api, settings, address, egress.proxy)
    egress.prove(api)
    return proven
