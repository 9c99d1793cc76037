"""Whether a sandbox has connections to other hosts, which end when its memory is continued with.

gVisor of 2024 refuses to write a sandbox that has one. Later releases write it, and cut them.
"""

from __future__ import annotations

from sessions.backends.docker.engine import Engine

#: states in which a TCP socket has, or asks for, another end. Source: linux/include/net/tcp_states.h
_CONNECTED = {"01", "02", "03", "08"}
#: the loopback's first byte, the last one of the number in `/proc/net/tcp` of a little-endian machine
_LOOPBACK = "7F"


def lead_out(engine: Engine, container: str) -> bool:
    """Return whether a container to whose ports nothing is connected has connections to other hosts. Blocks.

    Raises:
        APIError: when the engine refused.
    """
    made = engine.api.exec_create(container, ["cat", "/proc/net/tcp"], stderr=False)["Id"]
    return found_in(engine.api.exec_start(made).decode(errors="replace"))


def found_in(table: str) -> bool:
    """Return whether a `/proc/net/tcp` shows connections to other hosts."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] in _CONNECTED and fields[2].partition(":")[0][-2:] != _LOOPBACK:  # noqa: PLR2004 - the fourth field is the state
            return True
    return False
