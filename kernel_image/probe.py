"""What a sandbox can see and reach, as one line of JSON. The gateway runs it before it trusts a runtime or network.

Argument: `{"listen": port or null, "targets": [[host, port], …]}`. With `listen` it waits for its end after it has
answered, so that others can try to reach it. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

#: seconds per target
TIMEOUT = 1.0


def main(argument: str) -> None:
    """Look, try, say."""
    request: dict[str, Any] = json.loads(argument)
    listener = _listen(request["listen"]) if request["listen"] else None
    answer = {
        "gvisor": "gVisor" in _kernel_log(),
        "reached": [target for target in request["targets"] if _reaches(*target)],
        "uid": os.getuid(),
    }
    print(json.dumps(answer), flush=True)
    if listener is not None:
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _listen(port: int) -> socket.socket:
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 - inside the sandbox, to be tried from outside


def _kernel_log() -> str:
    try:
        return subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5, check=False).stdout  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
