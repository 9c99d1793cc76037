"""Detects URLs that lead back to the gateway. With such a provider, it would forward a program to itself forever."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


async def leads_here(url: str, port: int) -> bool:
    """Return True if the URL names this machine, by any name, and the gateway's port.

    A proxy in front of the gateway is not detected.

    Args:
        url: URL of a service that runs programs.
        port: port that the gateway listens on.
    """
    try:
        parts = urlsplit(url)
        asked = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return False
    if asked != port or not parts.hostname:
        return False
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_ours(family, str(address[0])) for family, *_, address in found)


def _is_ours(family: int, address: str) -> bool:
    """Return True if an address belongs to this machine. A socket can be bound only to such an address."""
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.bind((address, 0))
        except OSError:
            return False
    return True
