"""Rules for paths in a workspace. Pure."""

from __future__ import annotations

import re

from kernel_image.protocol import TEMPORARY
from kernel_image.spelling import named
from sessions.errors import InvalidRequest

#: bytes
PATH_MAX = 1024
#: characters that no path may have: control characters, and halves of surrogate pairs, which are no text
NOT_IN_PATHS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")
#: paths of the workspace inside a sandbox; the last one for clients whose code is root elsewhere
HOMES = ("/home/user", "/workspace", "/root")


def valid_path(path: str) -> str:
    """Check a path in a workspace. Names that are no UTF-8 are spelt as in `kernel_image/spelling.py`.

    Returns:
        path relative to the workspace; empty for the workspace itself.

    Raises:
        InvalidRequest: when the path leads out of the workspace or contains control characters.
    """
    if NOT_IN_PATHS.search(path):
        raise InvalidRequest("path holds a control character", field="path")
    if len(named(path).encode("utf-8", "surrogateescape")) > PATH_MAX:
        raise InvalidRequest(f"path is longer than {PATH_MAX} bytes", field="path")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise InvalidRequest("path leads out of the workspace", field="path")
    return "/".join(parts)


def sandbox_path(path: str) -> str:
    """Check a path as processes in the sandbox write it: in their home directory, the workspace, or in `/tmp`.

    Returns:
        path relative to the workspace if it lies there, else the absolute path.

    Raises:
        InvalidRequest: when the path leads elsewhere.
    """
    inside = valid_path(path)
    if not path.startswith("/"):
        return inside
    for home in HOMES:
        if f"/{inside}/".startswith(f"{home}/"):
            return inside[len(home) :]
    if f"/{inside}/".startswith(f"{TEMPORARY}/"):
        return f"/{inside}"
    raise InvalidRequest(f"path is neither in {HOMES[0]} nor in {TEMPORARY}", field="path")


def seen_path(path: str) -> str:
    """Return the path that processes in the sandbox use for a result of `sandbox_path`."""
    return path if path.startswith("/") else f"{HOMES[0]}/{path}".rstrip("/")


def entry_path(path: str) -> str:
    """Check a path that must name an entry, and return it like `sandbox_path`.

    Raises:
        InvalidRequest: when the path is not allowed, or names the workspace or `/tmp` itself.
    """
    if (path := sandbox_path(path)) in {"", TEMPORARY}:
        raise InvalidRequest("path names no file", field="path")
    return path
