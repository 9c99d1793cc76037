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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: seconds per target
TIMEOUT = 1.0


def main(argument: str) -> None:
    """Look, try, say."""
    request: dict[str, Any] = json.loads(argument)
    listener = _listen(request["listen"]) if request["listen"] else None
    answer = {
        "gvisor": "gVisor" in _kernel_log(),
        "reached": _reached(request["targets"]),
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


def _reached(targets: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those that answer. All are tried at once, because what answers nothing takes all of its time."""
    with ThreadPoolExecutor(max_workers=len(targets) + 1) as threads:
        answered = list(threads.map(lambda target: _reaches(*target), targets))
    return [target for target, answers in zip(targets, answered, strict=True) if answers]


def _reaches(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
