"""Rules for paths in a workspace. Pure."""

from __future__ import annotations

import re

from kernel_image.file_names import name_of
from kernel_image.protocol import TEMPORARY
from sessions.model.errors import InvalidRequest

#: maximum bytes of a path
PATH_MAX = 1024
#: names that a shell replaces by the home directory, which is the workspace
TILDES = frozenset({"~", "~user"})
#: characters that a path must not have: control characters, and halves of surrogate pairs, which are no text
NOT_IN_PATHS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")
#: paths of the workspace inside a sandbox; the last two for clients whose code is root elsewhere, and for those of
#: Azure's dynamic sessions
HOMES = ("/home/user", "/workspace", "/root", "/mnt/data")


def valid_path(path: str) -> str:
    """Check a path in a workspace. Names that are no UTF-8 are spelt as in `kernel_image/file_names.py`.

    Returns:
        path relative to the workspace; empty for the workspace itself.

    Raises:
        InvalidRequest: when the path leads out of the workspace or contains control characters.
    """
    return _relative(_names_inside(path))


def session_path(path: str) -> str:
    """Check a path in a workspace: relative to it, or absolute as code in the session writes it.

    Returns:
        path in the form of `valid_path`.

    Raises:
        InvalidRequest: when the path leads elsewhere.
    """
    placed = _placed(path, _names_inside(path))
    if placed.startswith("/"):
        raise InvalidRequest(f"path is not in {HOMES[0]}, where the session's files are", field="path")
    return placed


def sandbox_path(path: str) -> str:
    """Check a path as processes in the sandbox write it: in the workspace, which is their home directory, or in `/tmp`.

    Returns:
        path relative to the workspace if it lies there, else the absolute path.

    Raises:
        InvalidRequest: when the path leads elsewhere.
    """
    placed = _placed(path, _names_inside(path))
    if placed.startswith("/") and not f"{placed}/".startswith(f"{TEMPORARY}/"):
        raise InvalidRequest(f"path is neither in {HOMES[0]} nor in {TEMPORARY}", field="path")
    return placed


def directory_path(path: str) -> str:
    """Check the directory of a command, as processes in the sandbox write it.

    Any directory is allowed, because the sandbox itself isolates the command.

    Returns:
        path in the form of `sandbox_path`.

    Raises:
        InvalidRequest: when the path is too long or contains control characters.
    """
    return _placed(path, _names(path))


def _names(path: str) -> list[str]:
    """Return the names on a path. A `~` at its beginning is left out, because the home directory is the workspace."""
    if NOT_IN_PATHS.search(path):
        raise InvalidRequest("path holds a control character", field="path")
    if len(name_of(path).encode("utf-8", "surrogateescape")) > PATH_MAX:
        raise InvalidRequest(f"path is longer than {PATH_MAX} bytes", field="path")
    first, _, rest = path.partition("/")
    return [name for name in (rest if first in TILDES else path).split("/") if name not in {"", "."}]


def _names_inside(path: str) -> list[str]:
    names = _names(path)
    if ".." in names:
        raise InvalidRequest("path leads out of the workspace", field="path")
    return names


def _placed(path: str, names: list[str]) -> str:
    below = _below_home(names) if path.startswith("/") else names
    return "/" + "/".join(names) if below is None else _relative(below)


def _below_home(names: list[str]) -> list[str] | None:
    """Return the names of an absolute path below the workspace, or None if the path lies elsewhere."""
    for home in HOMES:
        before = home.split("/")[1:]
        if names[: len(before)] == before:
            return names[len(before) :]
    return None


def _relative(names: list[str]) -> str:
    """Return the path of an entry of the workspace. `./` precedes an entry named `~`, which is not the workspace."""
    return "/".join([".", *names] if names and names[0] in TILDES else names)


def seen_path(path: str, asked: str = "") -> str:
    """Return the path that processes in the sandbox use for a result of `sandbox_path`.

    Args:
        path: the result of `sandbox_path`.
        asked: path that a client has asked for. If it begins with one of `HOMES`, the returned path does, too.
    """
    if path.startswith("/"):
        return path
    home = next((home for home in HOMES if f"{asked.rstrip('/')}/".startswith(f"{home}/")), HOMES[0])
    return f"{home}/{path.removeprefix('./')}".rstrip("/")


def entry_path(path: str) -> str:
    """Check a path that must name an entry, and return it like `sandbox_path`.

    Raises:
        InvalidRequest: when the path is not allowed, or names the workspace or `/tmp` itself.
    """
    if (path := sandbox_path(path)) in {"", TEMPORARY}:
        raise InvalidRequest("path names no file", field="path")
    return path
