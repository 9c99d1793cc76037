"""Prints what a sandbox can see and reach, and what is installed. The gateway checks that before it trusts a runtime.

The argument is JSON: `{"listen": port or null, "targets": [[host, port], …]}`. The answer is one line of JSON. With
`listen` the probe answers and then waits for a signal, so that other containers can try to reach it. Standard library
only.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

if __name__ == "__main__":  # in isolated mode Python does not search the program's directory for modules
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kernel_image.inventory import interpreters, packages, site_packages

#: maximum seconds to connect to a target
TIMEOUT = 1.0
#: command of the system call syslog(2) that reads the whole log, and the bytes of it that are read at most
SYSLOG_ACTION_READ_ALL = 3
LOG_MAX = 1024 * 1024


def main(argument: str) -> None:
    """Inspect the sandbox, try the targets and print the result."""
    request: dict[str, Any] = json.loads(argument)
    listener = _listen(request["listen"]) if request["listen"] else None
    answer = {
        "gvisor": b"gVisor" in _kernel_log(),
        "reached": _reached(request["targets"]),
        "uid": os.getuid(),
        "python": platform.python_version(),
        "packages": packages([site_packages()]) | interpreters(),
    }
    print(json.dumps(answer), flush=True)
    if listener is not None:
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _listen(port: int) -> socket.socket:
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 - in the sandbox, as a target for other containers


def _kernel_log() -> bytes:
    """Return the kernel's log; nothing if the sandbox may not read it.

    A system call reads it: the program `dmesg` took too long on a busy machine, and gVisor was not recognized.
    """
    log = ctypes.create_string_buffer(LOG_MAX)
    size = ctypes.CDLL(None).klogctl(SYSLOG_ACTION_READ_ALL, log, LOG_MAX)
    return log.raw[: max(size, 0)]


def _reached(targets: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the targets that answer. They are tried at the same time: a silent target takes the whole timeout."""
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
