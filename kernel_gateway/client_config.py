"""Settings of the commands that call a running gateway: its address, a key, and its state directory.

They come from the same flags, variables and file as the gateway's own (`config.py`). They are read without the library
that checks those, because it takes longer to load than such a command to do its work.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sessions.model.errors import InvalidRequest

#: prefix of the environment variables of all settings
PREFIX = "KERNEL_GATEWAY_"
#: default of the setting `state_dir`
STATE_DIR = Path("~/.local/state/kernel-gateway")


@dataclass(frozen=True, slots=True)
class Client:
    """Where a running gateway is, and whose key is used."""

    url: str = "http://127.0.0.1:8888"
    key: str | None = field(default=None, repr=False)
    state_dir: Path = STATE_DIR
    secrets_key_file: Path | None = None

    def credential(self) -> str:
        """Return the configured key, else the key that a gateway without keys wrote into its state directory.

        Without either, return an empty text.
        """
        if self.key is not None:
            return self.key
        path = self.state_dir.expanduser() / "key"
        return path.read_text().strip() if path.exists() else ""


#: names of the settings of `Client`
NAMES = frozenset(each.name for each in fields(Client))
_PATHS = {"state_dir", "secrets_key_file"}


def load_client(flags: Mapping[str, Any], file: Path | None = None) -> Client:
    """Return the settings: flags first, then the environment, then a TOML file, then defaults.

    The gateway's file may set the state directory; what else it sets is not looked at.

    Args:
        flags: value of each setting, by the setting's name.
        file: the TOML file. None means the file that `KERNEL_GATEWAY_CONFIG` names, if that is set.

    Raises:
        InvalidRequest: when the file cannot be read or parsed, or has a value that is no text.
    """
    file = config_file(file)
    found = {} if file is None else _texts(file)
    found |= {name: value for name, value in environment().items() if name in NAMES}
    found |= flags
    found |= {name: Path(found[name]) for name in _PATHS & found.keys()}
    return Client(**found)


def _texts(file: Path) -> dict[str, Any]:
    texts = {name: value for name, value in content_of(file).items() if name in NAMES}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{file}: {name} must be a text", field=name)
    return texts


def content_of(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InvalidRequest: when the file cannot be read or parsed.
    """
    try:
        return tomllib.loads(file.expanduser().read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{file}: {error}", field="config") from error


def config_file(given: Path | None) -> Path | None:
    """Return the file with settings: the given one, or the one that `KERNEL_GATEWAY_CONFIG` names, or None."""
    file = Path(environment().get("config", "")) if given is None else given
    return None if file == Path() else file  # the variable is empty in some files of variables


def environment() -> dict[str, str]:
    """Return the environment variables with the prefix, by the names of their settings."""
    variables = os.environ  # noqa: TID251 - this module reads the environment
    given = ((name.upper(), value) for name, value in variables.items())
    return {name.removeprefix(PREFIX).lower(): value for name, value in given if name.startswith(PREFIX)}


def picture_protocol() -> Literal["kitty", "iterm"] | None:
    """Return how this program's terminal shows pictures. None means that it is not known to show any."""
    variables = os.environ  # noqa: TID251 - as above
    program = variables.get("TERM_PROGRAM", "")
    if variables.get("TERM") == "xterm-kitty" or program == "ghostty":
        return "kitty"
    return "iterm" if program in {"iTerm.app", "WezTerm"} else None
