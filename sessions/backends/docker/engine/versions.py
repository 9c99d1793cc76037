"""The versions of the software below the kernels: Linux, the engine, containerd and the runtime."""

from __future__ import annotations

import platform
import re
import subprocess
from contextlib import closing
from pathlib import Path

import docker

from sessions.backends.docker.engine.engine import connect

#: seconds for a runtime to print its version
_TIMEOUT = 20.0
_UNKNOWN = "unknown"


def versions(runtime: str) -> dict[str, str]:
    """Return the versions of Linux, Docker, containerd and the runtime, by name.

    Args:
        runtime: name of the kernels' runtime in the engine's configuration.

    Raises:
        BackendUnavailable: when the engine does not answer.
    """
    with closing(connect()) as api:
        said = api.version()
        parts = {str(part["Name"]).lower(): str(part["Version"]) for part in said.get("Components") or ()}
        return {
            "Linux": str(said.get("KernelVersion") or platform.release()),
            "Docker": str(said.get("Version") or _UNKNOWN),
            "containerd": parts.get("containerd", _UNKNOWN),
            runtime: parts.get("runc", _UNKNOWN) if runtime == "runc" else _version(api, runtime),
        }


def runtime_path(api: docker.APIClient, runtime: str) -> Path | None:
    """Return the path of a runtime's program. None if it is not on this machine, or the engine knows only its name."""
    path = Path((api.info()["Runtimes"].get(runtime) or {}).get("path") or "")
    return path if path.is_absolute() and path.is_file() else None


def told_version(path: Path) -> str:
    """Return the output of a runtime's `--version`.

    Raises:
        OSError: when the runtime cannot be run.
        TimeoutExpired: when it does not end in time.
    """
    return subprocess.run(  # noqa: S603 - the engine's own runtime
        [path, "--version"], check=False, capture_output=True, text=True, timeout=_TIMEOUT
    ).stdout


def _version(api: docker.APIClient, runtime: str) -> str:
    if (path := runtime_path(api, runtime)) is None:
        return _UNKNOWN
    try:
        found = re.search(r"version (\S+)", told_version(path))
    except (OSError, subprocess.TimeoutExpired):
        return _UNKNOWN
    return found.group(1) if found else _UNKNOWN
