"""Settings as flags: each field of `Settings` becomes one flag."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic.fields import FieldInfo

from kernel_gateway.config import Client, Settings, load, load_client, settings_by_group

_MIB = 1024**2


def add_location(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that only need to know where a gateway keeps its data."""
    _add_config(parser)
    default = Settings.model_fields["state_dir"].default
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIRECTORY",
        default=argparse.SUPPRESS,
        help=f"the gateway's state directory (default: {default}) [KERNEL_GATEWAY_STATE_DIR]",
    )


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="TOML file with settings, which flags and environment variables override [KERNEL_GATEWAY_CONFIG]",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting, grouped by subject; its help contains the environment variable and the default."""
    parser.usage = "%(prog)s [-h] [--FLAG [VALUE] ...]"  # the names of all flags would fill a screen
    _add_config(parser)
    for subject, settings in settings_by_group().items():
        group = parser.add_argument_group(subject)
        for name, field in settings.items():
            _add_setting(group, name, field)


def _add_setting(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    default = f" (default: {shown(field.default)})" if field.default not in (None, "", {}, []) else ""
    switch: dict[str, str] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
    group.add_argument(
        f"--{name.replace('_', '-')}",
        metavar="VALUE",
        default=argparse.SUPPRESS,
        help=f"{field.description}{default} [KERNEL_GATEWAY_{name.upper()}]".replace("%", "%%"),
        **switch,  # type: ignore[arg-type]
    )


def shown(default: object) -> str:
    """Return a default as a user would write it: sizes with their unit."""
    if isinstance(default, int) and default and default % _MIB == 0:
        return f"{default // _MIB}m"
    return f"{default:g}" if isinstance(default, float) else str(default)


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings; see `load`."""
    return load(_given(arguments, Settings), getattr(arguments, "config", None))


def client_from(arguments: argparse.Namespace) -> Client:
    """Return the settings of the command-line client; see `load_client`."""
    return load_client(_given(arguments, Client), getattr(arguments, "config", None))


def _given(arguments: argparse.Namespace, kind: type[Settings | Client]) -> dict[str, object]:
    flags = vars(arguments).items()
    return {name: value for name, value in flags if name in kind.model_fields and value is not None}
