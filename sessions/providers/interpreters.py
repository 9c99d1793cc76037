"""The interpreters of this machine by language, and the script files that may run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sessions.model.errors import InvalidRequest
from sessions.providers import children

#: search path for interpreters: the directory of the gateway's own Python, and the system's default path
PLACES = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
#: language and flags of each interpreter by its name, the preferred one first
COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "python": ("python", ("-I", "-B")),
    "node": ("javascript", ()),
    "deno": ("javascript", ("run", "--quiet", "--no-prompt", "--allow-all")),
    "bash": ("shell", ()),
    "sh": ("shell", ()),
}
ENDINGS = {"python": ".py", "javascript": ".mjs", "shell": ".sh"}
#: language of a program that is a file of this machine. The program's code is the path of the file.
SCRIPT = "script"
SCRIPTS = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".sh": "shell", ".bash": "shell"}
SCRIPT_BYTES = 4 * 2**20


def listed(text: str, separator: str) -> list[str]:
    """Split a list that is written as text."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def found(allowed: Sequence[str]) -> dict[str, list[str]]:
    """Return the command for each language: the first allowed interpreter that is installed."""
    commands: dict[str, list[str]] = {}
    for name in allowed:
        language, flags = COMMANDS[name]
        path = sys.executable if name == "python" else shutil.which(name, path=PLACES)
        if path and language not in commands:
            commands[language] = [path, *flags]
    return commands


def allowed_paths(text: str) -> list[Path]:
    """Return the allowed directories with all links resolved.

    Raises:
        InvalidRequest: when a path is not absolute, or no directory.
    """
    paths = []
    for part in listed(text, os.pathsep):
        path = Path(part).resolve()
        if not Path(part).is_absolute() or not path.is_dir():
            raise InvalidRequest(
                f"allowed_paths: {part[:200]!r} is no directory of this machine", field="allowed_paths"
            )
        paths.append(path)
    return paths


def script(path: str, allowed: Sequence[Path]) -> tuple[str, str]:
    """Return a script's code and language. Links and `..` are resolved before the path is checked.

    Raises:
        InvalidRequest: when the script is not in an allowed directory, or cannot be run.
    """
    if not Path(path).is_absolute() or "\0" in path:
        raise InvalidRequest("the path of a script must be absolute", field="code")
    real = Path(path).resolve()
    if not any(real.is_relative_to(directory) for directory in allowed):
        raise InvalidRequest("the script is in none of the allowed directories", field="code")
    language, content = SCRIPTS.get(real.suffix), children.content(real, SCRIPT_BYTES)
    if language is None or content is None:
        raise InvalidRequest(f"there is no script of a known kind ({', '.join(SCRIPTS)})", field="code")
    return content.decode(errors="replace"), language
