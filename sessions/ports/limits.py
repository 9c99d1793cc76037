"""How many connections to servers there may be. Settings need only this module, and none of a kernel's libraries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Maximum numbers of open connections. Each may hold `RELAY_WINDOW` bytes in each direction."""

    #: of a session or sandbox
    per_owner: int = 64
    per_tenant: int = 128
    #: of all tenants
    in_all: int = 512
