"""`kernel-gateway audit`: print the audit, and check it for changes."""

from __future__ import annotations

import argparse
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path

import orjson

from kernel_gateway.config import Client
from sessions.store.records import read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    default = Client.model_fields["state_dir"].default
    parser.add_argument(
        "--state-dir", type=Path, help=f"the gateway's state directory (default: {default}) [KERNEL_GATEWAY_STATE_DIR]"
    )
    parser.add_argument("--tenant", help="print only this tenant's records; all are checked")


def main(arguments: argparse.Namespace) -> int:
    """Print the records and check them.

    Returns:
        0 when no record was changed; 1 when a record was changed or removed, or there is no audit.
    """
    client = Client(**({} if arguments.state_dir is None else {"state_dir": arguments.state_dir}))
    path = client.state_dir.expanduser() / "audit.db"
    tenants: dict[str, str] = {}
    digest = ""
    try:
        for record in read(path):
            values = asdict(record.what)
            tenant = tenants.setdefault(record.execution, values.get("tenant", ""))
            digest = record.digest
            if arguments.tenant in {None, tenant}:
                line = {"seq": record.seq, "at": record.at, "execution": record.execution, **values}
                print(orjson.dumps(line).decode())
    except (ValueError, OSError, sqlite3.Error) as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    print(f"nothing was changed; the last digest is {digest or 'none'}", file=sys.stderr)
    return 0
