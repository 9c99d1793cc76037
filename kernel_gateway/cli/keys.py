"""`kernel-gateway keys`: make, list and revoke keys, also while the gateway runs."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from kernel_gateway.config import Client
from kernel_gateway.keystore import KeyForm, KeyStore, Role
from sessions.errors import InvalidRequest, LedgerUnavailable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    default = Client.model_fields["state_dir"].default
    parser.add_argument(
        "--state-dir", type=Path, help=f"the gateway's state directory (default: {default}) [KERNEL_GATEWAY_STATE_DIR]"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    add = actions.add_parser("add", help="make a key and print it; it is not shown again")
    add.add_argument("tenant", metavar="TENANT")
    add.add_argument("--role", choices=list(Role), default=Role.USER, type=Role, help="default: user")
    add.add_argument(
        "--e2b", action="store_const", const=KeyForm.E2B, default=KeyForm.OWN, help="in the form that E2B's SDKs want"
    )
    actions.add_parser("list", help="list the keys, without their secrets")
    revoke = actions.add_parser("revoke", help="revoke a key; the next request with it is refused")
    revoke.add_argument("id", metavar="ID", help="as `list` shows it")


def main(arguments: argparse.Namespace) -> int:
    """Run one action.

    Returns:
        0 when the action succeeded; 1 when there is no such key, or the database cannot be used; 2 when the tenant's
        name is not allowed.
    """
    client = Client(**({} if arguments.state_dir is None else {"state_dir": arguments.state_dir}))
    try:
        store = KeyStore(client.state_dir.expanduser())
    except OSError as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    try:
        return _ACTIONS[arguments.action](store, arguments)
    except LedgerUnavailable as error:
        print(f"kernel-gateway: {error.message}", file=sys.stderr)
        return 1
    finally:
        store.close()


def _add(store: KeyStore, arguments: argparse.Namespace) -> int:
    try:
        key, secret = store.add(arguments.tenant, arguments.role, arguments.e2b)
    except InvalidRequest as error:
        print(f"kernel-gateway: {error.message}", file=sys.stderr)
        return 2
    print(secret)
    print(f"key {key.id} of tenant {key.tenant} ({key.role}); it is not shown again", file=sys.stderr)
    return 0


def _list(store: KeyStore, _arguments: argparse.Namespace) -> int:
    for key in store.all():
        made = datetime.fromtimestamp(key.created_at, UTC)
        print(f"{key.id}  {key.role:5}  {made:%Y-%m-%d %H:%M}  {key.tenant}")
    return 0


def _revoke(store: KeyStore, arguments: argparse.Namespace) -> int:
    if store.revoke(arguments.id):
        print(f"key {arguments.id} is revoked", file=sys.stderr)
        return 0
    print(f"kernel-gateway: there is no key {arguments.id}; `kernel-gateway keys list` shows them", file=sys.stderr)
    return 1


_ACTIONS = {"add": _add, "list": _list, "revoke": _revoke}
