"""What the gateway's own process must be allowed to do for sleep, and for checkpoints of sessions.

The proof of a golden image needs none of it, and an earlier gateway with other rights may have made that proof.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

#: capabilities by their bit, see linux/capability.h: a trial's directory is made and removed, files of a session are
#: opened to flush them, and a sandbox that is held is ended
_NEEDED = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 5: "CAP_KILL"}


def lacking(data_root: str) -> str:
    """Return what this process is not allowed to do; empty: it is allowed all that it needs.

    Args:
        data_root: the engine's own directory, which has the files of sessions.
    """
    status = Path("/proc/self/status").read_text()
    held = int("".join(re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)), 16)
    if missing := [name for bit, name in _NEEDED.items() if not held >> bit & 1]:
        return f"the gateway's process lacks {', '.join(missing)}"
    volumes = Path(data_root) / "volumes"
    return "" if os.access(volumes, os.R_OK | os.W_OK | os.X_OK) else f"the gateway's process cannot write to {volumes}"
