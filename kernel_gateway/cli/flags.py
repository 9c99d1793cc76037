"""Flags that many commands have, and values as their help shows them."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_gateway.client_config import NAMES, STATE_DIR, Client, load_client

_MIB = 1024**2


def add_location(parser: argparse.ArgumentParser) -> None:
    """Add the flags of commands that only need to know where a gateway keeps its data."""
    add_config(parser)
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIRECTORY",
        default=argparse.SUPPRESS,
        help=f"the gateway's state directory (default: {STATE_DIR}) [KERNEL_GATEWAY_STATE_DIR]",
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the file with settings."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="TOML file with settings, which flags and environment variables override [KERNEL_GATEWAY_CONFIG]",
    )


def client_from(arguments: argparse.Namespace) -> Client:
    """Return the settings of the command-line client; see `load_client`."""
    given = {name: value for name, value in vars(arguments).items() if name in NAMES and value is not None}
    return load_client(given, getattr(arguments, "config", None))


def shown(default: object) -> str:
    """Return a default as a user would write it: sizes with their unit."""
    if isinstance(default, int) and default and default % _MIB == 0:
        return f"{default // _MIB}m"
    return f"{default:g}" if isinstance(default, float) else str(default)
