"""Sets up the networks, the firewall and the egress proxy of all kernels, and proves that they isolate kernels."""

from __future__ import annotations

import docker

from sessions.backends.docker.isolation import firewall, network, proof
from sessions.backends.docker.isolation.egress import Egress
from sessions.backends.docker.profile import DockerSettings
from sessions.backends.docker.requirements import require_runtime, require_wheels


def ensure_isolation(api: docker.APIClient, settings: DockerSettings, egress: Egress) -> bool:
    """Set up everything that is missing, and remove the containers of an aborted proof.

    Returns:
        whether nothing was missing. If something was, the isolation must be proven again.

    Raises:
        NotInitialized: when a requirement is missing.
    """
    require_runtime(api, settings)
    require_wheels(api, settings)
    network.ensure_network(api, settings.network)
    stands = firewall.ensure_rules(network.bridge_name(settings.network)) is firewall.Rules.SET
    stands = egress.ensure(api) and stands
    proof.clear(api, settings)  # this also removes a probe that the engine has made after the timeout
    return stands


def prove_isolation(api: docker.APIClient, settings: DockerSettings, egress: Egress) -> proof.Proven:
    """Prove that kernels reach neither the host nor one another, and that only permitted kernels reach the proxy.

    Raises:
        NotInitialized: when a probe shows the contrary.
    """
    address = network.ensure_network(api, settings.network)
    proven = proof.prove(api, settings, address, egress.proxy)
    egress.prove(api)
    return proven
