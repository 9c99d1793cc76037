"""Writes the proxy's rules as squid's configuration, and parses squid's log of requests. Pure functions.

Sources: squid's directives (squid-cache.org/Doc/config); the special-purpose addresses of RFC 6890.
"""

from __future__ import annotations

from urllib.parse import unquote

from sessions.backends.docker.profile import EgressSettings
from sessions.model.egress import HTTPS, EgressRequest
from sessions.model.values import SessionKey

#: the proxy's port
PORT = 3128
#: a listed name for the proof, with a private address, to which the proxy must not connect
TRAP, TRAP_ADDRESS = "trap.kernel-gateway.invalid", "10.255.255.254"
#: HTTP status of the refusal of a name that is not listed, of a listed name with a private address, of a wrong password
FORBIDDEN, MISDIRECTED, UNKNOWN_USER = 403, 421, 407
#: separates tenant and session in a user's name; neither contains it
SEPARATOR = "~"
#: maximum connections of one kernel
CONNECTIONS = 64
#: bytes per second that one session may receive
SPEED = 16 * 1024**2

#: addresses that lead to the host, to its neighbours or to a metadata service
PRIVATE = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",  # Azure's metadata service has a public address
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/3",
)
#: such addresses of IPv6, also those that contain an address of IPv4; the proxy's container has no IPv6 at all
PRIVATE_IPV6 = ("::/128", "::1/128", "64:ff9b::/96", "2001::/32", "2002::/16", "fc00::/7", "fe80::/10", "ff00::/8")


def configuration(settings: EgressSettings, address: str) -> str:
    """Return squid's configuration.

    Args:
        settings: settings of the proxy, with the allowed hosts.
        address: the proxy's address in the kernels' network. It listens on no other address.
    """
    return "\n".join(
        [f"http_port {address}:{PORT}", *_access(settings), *_resolving(settings), *_bounds(), *_habits(), ""]
    )


def _access(settings: EgressSettings) -> list[str]:
    """Return the rules of access. The first matching `http_access` line decides.

    A name that is not listed is refused before it is resolved, because a query to a name server can carry data out.
    """
    by_port: dict[int, list[str]] = {}
    for port, host in sorted((port, host) for host, port in {*settings.allow, (TRAP, HTTPS)}):
        by_port.setdefault(port, []).append(host)
    return [
        "auth_param basic program /usr/bin/python3 -I -S /opt/egress/credentials.py",
        "auth_param basic children 2 startup=1",
        "auth_param basic realm egress",
        # Otherwise squid changes a user's name to small letters, and names that differ only in capitals become equal.
        "auth_param basic casesensitive on",
        "acl session proxy_auth REQUIRED",
        # With -n, squid does not look up the name of an address.
        f"acl listed dstdomain -n {' '.join(sorted({host for hosts in by_port.values() for host in hosts}))}",
        *(f"acl host{port} dstdomain -n {' '.join(hosts)}" for port, hosts in by_port.items()),
        *(f"acl port{port} port {port}" for port in by_port),
        f"acl private dst {' '.join(PRIVATE + PRIVATE_IPV6)}",
        f"acl crowded maxconn {CONNECTIONS}",
        f"deny_info {MISDIRECTED}:ERR_ACCESS_DENIED private",
        "http_access deny manager",
        "http_access deny !session",
        "http_access deny !listed",
        "http_access deny crowded",
        "http_access deny private",
        *(f"http_access allow host{port} port{port}" for port in by_port),
        "http_access deny all",
    ]


def _resolving(settings: EgressSettings) -> list[str]:
    return [
        f"dns_nameservers {' '.join(settings.name_servers)}",
        "dns_defnames off",
        # Squid keeps each answer for at least this time, so it uses the same address that it has checked.
        "negative_dns_ttl 1 minute",
    ]


def _bounds() -> list[str]:
    return [
        "delay_pools 1",
        "delay_class 1 4",
        "delay_access 1 allow all",
        f"delay_parameters 1 -1/-1 -1/-1 -1/-1 {SPEED}/{SPEED}",
        "max_filedescriptors 4096",
        "client_lifetime 1 hour",
        "connect_timeout 15 seconds",
        "forward_timeout 30 seconds",
        "cache deny all",
        "cache_mem 0",
        "memory_pools off",
    ]


def _habits() -> list[str]:
    return [
        "visible_hostname egress",
        # The next lines keep data about the kernel out of the requests.
        "forwarded_for delete",
        "via off",
        "eui_lookup off",
        "global_internal_static off",
        "pinger_enable off",
        "pid_filename none",
        "coredump_dir none",
        "netdb_filename none",
        "logfile_rotate 0",
        "shutdown_lifetime 1 second",
        "cache_log /dev/stderr",
        # Each field is percent-encoded, so that no request can add fields or lines.
        "logformat egress egress %ts.%03tu %#un %#>rd %>rP %#Ss %>Hs %<st %>st",
        "access_log stdio:/dev/stdout egress",
    ]


def user_of(key: SessionKey) -> str:
    """Return the user name with which a session's requests authenticate."""
    return f"{key.tenant}{SEPARATOR}{key.name}"


_FIELDS = 9


def request_of(line: str) -> EgressRequest | None:
    """Return the request that a line of squid's output reports. None if it reports no request of a session."""
    words = line.split()
    if len(words) != _FIELDS or words[0] != "egress":
        return None
    at, user, host, port, outcome, status, sent, received = words[1:]
    tenant, separator, session = unquote(user).partition(SEPARATOR)
    if not separator or int(status) == UNKNOWN_USER:
        return None  # the password was wrong, so the name may be false
    return EgressRequest(
        at=float(at),
        tenant=tenant,
        session=session,
        host=unquote(host),
        port=int(port) if port.isdigit() else 0,
        allowed="DENIED" not in outcome,
        status=int(status),
        sent=int(sent),
        received=int(received),
    )
