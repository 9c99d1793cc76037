"""Lets the gateway's n-th command to gVisor about a container fail, and lets idle sessions sleep sooner.

Python imports this module at its start. The number n stands in a file, before the way of the failure, and is counted
down with each command. At 0 the command fails: in its place (`early`) or after it was run (`late`).
"""

from __future__ import annotations

import os
from pathlib import Path

from kernel_gateway import app
from sessions.backends.docker.checkpoint import runtime

#: names the file with the number
COUNTDOWN = Path(os.environ["FAIL_RUNTIME"])  # noqa: TID251 - set by the test

_run = runtime._run


def run(command: list[str], timeout: float) -> str:
    """Run a command, or fail in its place or after it."""
    if "--root" not in command:  # it is about no container
        return _run(command, timeout)
    number, way = COUNTDOWN.read_text().split()
    left = int(number) - 1
    COUNTDOWN.write_text(f"{left} {way}")
    if left:
        return _run(command, timeout)
    if way == "late":
        _run(command, timeout)
    raise runtime.CheckpointFailed("a fault was injected")


runtime._run = run
app.CULL_INTERVAL = 0.5
