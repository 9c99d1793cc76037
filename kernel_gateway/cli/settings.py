"""Settings as flags: each field of `Settings` becomes one flag."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_gateway.config import Settings, load

_MIB = 1024**2


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting; its help contains the environment variable and the default."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with settings, which flags and environment variables override [KERNEL_GATEWAY_CONFIG]",
    )
    for name, field in Settings.model_fields.items():
        default = f" (default: {shown(field.default)})" if field.default not in (None, "", {}, []) else ""
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{field.description}{default} [KERNEL_GATEWAY_{name.upper()}]".replace("%", "%%"),
        )


def shown(default: object) -> str:
    """Return a default as a user would write it: sizes with their unit."""
    if isinstance(default, int) and default and default % _MIB == 0:
        return f"{default // _MIB}m"
    return f"{default:g}" if isinstance(default, float) else str(default)


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Return the settings; see `load`."""
    flags = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    return load(flags, arguments.config)
