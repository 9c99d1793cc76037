"""`%pip`, which fails when pip fails. In IPython the cell succeeds, and a program that reads results notices nothing.

In a sandbox without network, pip's last words are the reason: see `no_network.py`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

#: beginning of the lines in which pip says what has failed
_FAILED = "ERROR: "


class PipFailed(Exception):
    """Pip has failed. The text is its last error."""


def pip(line: str) -> None:
    """Run pip with these arguments, and print what it prints.

    Args:
        line: arguments, in the syntax of the shell.

    Raises:
        PipFailed: when pip fails.
    """
    command: Any = f"{sys.executable} -m pip --no-color {line}"
    error = ""
    with subprocess.Popen(  # noqa: S602 - what the user's cell asks for
        command, shell=True, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for said in process.stdout or ():
            print(said, end="", flush=True)
            if said.startswith(_FAILED):
                error = said.removeprefix(_FAILED).strip()
    if process.returncode:
        raise PipFailed(error or f"pip has failed with the exit code {process.returncode}")
    print("Note: you may need to restart the kernel to use updated packages.")
