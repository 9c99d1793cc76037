"""Rules and values for egress: kernels reach listed hosts, by their exact names, through one proxy. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from sessions.model.errors import NetworkNotAllowed
from sessions.model.values import Network, SessionKey

#: port of a listed host whose entry has no port
HTTPS = 443
#: most characters of a host name and of one of its labels. Source: RFC 1035, 2.3.4
_NAME_MAX, _LABEL_MAX = 253, 63


def host_and_port(entry: str) -> tuple[str, int]:
    """Return host and port of `host` or `host:port`.

    Raises:
        ValueError: when the entry is no full host name, but an address, a single label, or a pattern.
    """
    host, separator, port = entry.lower().partition(":")
    labels = host.split(".")
    exact = len(labels) > 1 and not labels[-1].isdigit() and len(host) <= _NAME_MAX and all(map(_is_label, labels))
    if not exact or (separator and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)):
        raise ValueError(f"{entry!r} is no exact host: write name.example or name.example:port, no pattern, no address")
    return host, int(port or HTTPS)


def _is_label(label: str) -> bool:
    inner = label.replace("-", "")
    return (
        inner.isascii()
        and inner.isalnum()
        and not label.startswith("-")
        and not label.endswith("-")
        and len(label) <= _LABEL_MAX
    )


def name_server(entry: str) -> str:
    """Return the address of a name server.

    Raises:
        ValueError: when the entry is no IPv4 address, or an address that only the machine itself reaches.
    """
    address = ipaddress.IPv4Address(entry)
    if address.is_loopback or address.is_unspecified:
        raise ValueError(f"{entry} is this machine's own: the proxy's container does not reach it")
    return str(address)


class EgressTenants:
    """The tenants whose sessions may use the proxy."""

    def __init__(self, tenants: Iterable[str] = ()) -> None:
        """Take the tenants' names. `*` stands for all tenants."""
        self._tenants = frozenset(tenants)

    def require(self, key: SessionKey, network: Network) -> None:
        """Check that a session may have a network.

        Raises:
            NetworkNotAllowed: when its tenant may not use the proxy.
        """
        if network is not Network.NONE and not self._tenants & {key.tenant, "*"}:
            raise NetworkNotAllowed


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """One finished request of a kernel to the proxy."""

    #: seconds since 1970
    at: float
    tenant: str
    session: str
    host: str
    port: int
    #: whether the proxy allowed the request
    allowed: bool
    #: HTTP status of the answer; 200 for a tunnel
    status: int
    #: bytes that the kernel sent
    sent: int
    #: bytes that the kernel received
    received: int
