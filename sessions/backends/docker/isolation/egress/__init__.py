"""Egress: some kernels reach listed hosts, and nothing else, through a proxy that the gateway owns.

These kernels have a network of their own. It is as closed as the other kernels' network, except for one address and
port. There squid listens, in a hardened container. All other kernels are on the other network and cannot reach the
proxy. A password tells the proxy which session has sent a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import docker

from kernel_image.egress.credentials import password
from sessions.backends.base import Launch
from sessions.backends.docker.isolation.egress.networks import Networks, ensure_networks, inner_name
from sessions.backends.docker.isolation.egress.proof import prove_proxy, wait_for
from sessions.backends.docker.isolation.egress.proxy import ensure_proxy, remove_proxy
from sessions.backends.docker.isolation.egress.record import RequestRecord, ignore
from sessions.backends.docker.isolation.egress.squid import PORT, user_of
from sessions.backends.docker.isolation.proof import prove
from sessions.backends.docker.profile import DockerSettings
from sessions.model.egress import EgressRequest
from sessions.model.errors import NetworkNotAllowed, NotInitialized

__all__ = ["Egress", "ignore"]


class Egress:
    """The proxy, its networks, and the settings of kernels that may use it. `ensure`, `prove` and `remove` block."""

    def __init__(self, settings: DockerSettings, on_request: Callable[[EgressRequest], None] = ignore) -> None:
        """Keep the arguments. Nothing is started yet.

        Args:
            settings: settings of the deployment. Without `egress`, there is no proxy.
            on_request: called with each request of a session to the proxy.
        """
        self._plain = settings
        self._inner = replace(settings, network=inner_name(settings))
        self._egress = settings.egress
        self._on_request = on_request
        self._networks: Networks | None = None
        self._record: RequestRecord | None = None

    @property
    def proxy(self) -> tuple[str, int] | None:
        """The proxy's address and port, or None if there is no proxy."""
        return None if self._networks is None else (self._networks.proxy, PORT)

    def ensure(self, api: docker.APIClient) -> bool:
        """Set up everything that is missing. If the proxy is new, prove that it refuses forbidden requests.

        Returns:
            whether nothing was missing. If something was, the isolation of kernels must be proven again.

        Raises:
            NotInitialized: when a requirement is missing, or the proof fails.
        """
        if self._egress is None:
            remove_proxy(api, self._plain)  # an earlier gateway may have had one
            return True
        networks = ensure_networks(api, self._plain, self._egress)
        started = ensure_proxy(api, self._plain, self._egress, networks.proxy)
        wait_for(networks.proxy)
        if not started and networks.rules_were_set and self._networks is not None:
            return True
        prove_proxy(networks.proxy, self._egress)
        self._networks = networks
        return False

    def prove(self, api: docker.APIClient) -> None:
        """Prove that permitted kernels reach the proxy, and neither the host nor one another.

        Raises:
            NotInitialized: when a probe shows the contrary.
        """
        if self._networks is not None:
            prove(api, self._inner, self._networks.host, self.proxy, proxied=True)

    def settings_of(self, launch: Launch) -> DockerSettings:
        """Return the backend's settings with the network for a kernel.

        Raises:
            NetworkNotAllowed: when the kernel needs the proxy, and there is none.
        """
        if launch.egress is None:
            return self._plain
        if self._egress is None:
            raise NetworkNotAllowed
        return self._inner

    def with_proxy_variables(self, launch: Launch) -> Launch:
        """Return the launch. A kernel that may use the proxy gets the variables by which programs find it."""
        if launch.egress is None or self._egress is None:
            return launch
        if self.proxy is None:
            raise NotInitialized
        user = user_of(launch.egress)
        url = f"http://{user}:{password(self._egress.secret, user)}@{self.proxy[0]}:{self.proxy[1]}"
        way = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), url)
        local = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")
        return replace(launch, env=way | local | dict(launch.env))

    def report_requests(self) -> None:
        """Report the proxy's requests from now on, in the event loop."""
        if self._egress is not None and self._record is None:
            self._record = RequestRecord(self._plain, self._on_request)

    def stop_reporting(self) -> None:
        """Stop reporting requests. The proxy still runs."""
        if self._record is not None:
            self._record.stop()

    def remove(self, api: docker.APIClient) -> None:
        """Remove the proxy. Its networks stay, because they cost nothing."""
        remove_proxy(api, self._plain)
