"""Checks the rights of the gateway's own process that sleep and checkpoints need.

The proof of a golden image does not need these rights, and an earlier gateway with other rights may have made it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: capabilities by their bit, see linux/capability.h. They are needed to make and remove a trial's directory, to open a
#: session's files for a flush, and to end a held sandbox.
_NEEDED = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 5: "CAP_KILL"}


def missing_rights(data_root: str) -> str:
    """Return which rights this process lacks, or an empty text if it has all of them.

    Args:
        data_root: the engine's own directory, which contains the files of sessions.
    """
    status = Path("/proc/self/status").read_text()
    held = int("".join(re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)), 16)
    if missing := [name for bit, name in _NEEDED.items() if not held >> bit & 1]:
        return f"the gateway's process lacks {', '.join(missing)}"
    volumes = Path(data_root) / "volumes"
    return "" if os.access(volumes, os.R_OK | os.W_OK | os.X_OK) else f"the gateway's process cannot write to {volumes}"
