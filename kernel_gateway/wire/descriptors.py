"""The limit of this process's file descriptors. Half of them are for clients.

The other half is for kernels (about twenty each), the engine, databases and logs.
"""

from __future__ import annotations

import resource

import structlog

from sessions.backends.abilities import Finding

log = structlog.get_logger()


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard limit: a usual soft limit is only 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def places(wanted: int) -> int:
    """Return the number of connections that this process may have, at most `wanted`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit // 2)


def examine(wanted: int) -> Finding:
    """Check whether a gateway started like this process may have `wanted` connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most // 2 >= wanted:
        return Finding("open files", None, detail=f"at most {most}")
    return Finding(
        "open files",
        f"a process may open {most} files, so there can be only {most // 2} connections, not max_connections={wanted}",
        fix=f"raise the hard limit to {2 * wanted} (LimitNOFILE= in a systemd unit, --ulimit nofile= for a container, "
        "limits.conf for a login), or lower max_connections",
    )
