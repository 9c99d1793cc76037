"""`kernel-gateway keys`: make, list and revoke keys, also while the gateway runs."""

from __future__ import annotations

import argparse
import re
import sys
import time

from kernel_gateway.cli.client_command import print_json, print_table
from kernel_gateway.cli.flags import add_location, client_from
from kernel_gateway.identity.keystore import Key, KeyForm, KeyStore, Role
from kernel_gateway.state_dir import was_used
from kernel_gateway.times import moment, rfc3339, seconds_of
from sessions.model.errors import InvalidRequest, LedgerUnavailable

#: seconds
_HOUR, _DAY = 3600, 86400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's actions."""
    add_location(parser)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", help="what to do")
    add = actions.add_parser("add", help="make a key and print it; it is not shown again")
    add.add_argument("tenant", metavar="TENANT")
    add.add_argument("--role", choices=[role.value for role in Role], default=Role.USER.value, help="default: user")
    add.add_argument(
        "--e2b", action="store_const", const=KeyForm.E2B, default=KeyForm.OWN, help="in the form that E2B's SDKs want"
    )
    add.add_argument("--name", default="", help="what the key is for; `list` shows it")
    add.add_argument(
        "--expires", metavar="WHEN", help="refuse the key from then on: 90d, 12h, 2026-12-31 or 2026-12-31T09:30:00Z"
    )
    listing = actions.add_parser("list", help="list the keys, without their secrets")
    listing.add_argument("--json", action="store_true", help="print the list as JSON, as the admin API sends it")
    revoke = actions.add_parser("revoke", help="revoke a key; the next request with it is refused")
    revoke.add_argument("id", metavar="ID", help="as `list` shows it")
    for action in (add, listing, revoke):
        add_location(action)


def main(arguments: argparse.Namespace) -> int:
    """Run one action.

    Returns:
        0 when the action succeeded; 1 when there is no such key or no gateway, or the database cannot be used; 2 when
        the tenant's name, the key's name or its expiry is not allowed.
    """
    state_dir = client_from(arguments).state_dir.expanduser()
    if not was_used(state_dir):
        print(
            f"kernel-gateway: no gateway has used {state_dir} yet, so none would know the key: name the gateway's "
            "--state-dir or --config, or start it once",
            file=sys.stderr,
        )
        return 1
    try:
        store = KeyStore(state_dir)
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
        expires_at = None if arguments.expires is None else _expiry(arguments.expires)
        key, secret = store.add(
            arguments.tenant, Role(arguments.role), arguments.e2b, name=arguments.name, expires_at=expires_at
        )
    except InvalidRequest as error:
        print(f"kernel-gateway: {error.message}", file=sys.stderr)
        return 2
    print(secret)
    until = "" if key.expires_at is None else f", valid until {_shown(key.expires_at)} UTC"
    written = f"key {key.id} of tenant {key.tenant} ({key.role}){until}, written to {store.path}"
    print(f"{written}; it is not shown again", file=sys.stderr)
    return 0


def _expiry(text: str) -> float:
    """Return the time that `--expires` names, in seconds since 1970."""
    if found := re.fullmatch(r"([0-9]{1,6})([dh])", text, re.ASCII):
        return time.time() + int(found[1]) * (_DAY if found[2] == "d" else _HOUR)
    try:
        return seconds_of("--expires", text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error.message}; or a time from now: 90d, 12h", field="--expires") from None


def _list(store: KeyStore, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json({"keys": [_as_json(key) for key in store.all()]})
        return 0
    rows = [
        (
            key.id,
            key.role,
            _shown(key.created_at),
            "never" if key.expires_at is None else _shown(key.expires_at) + (" (expired)" if key.expired else ""),
            "-" if key.used_at is None else _shown(key.used_at),
            key.name or "-",
            key.tenant,
        )
        for key in store.all()
    ]
    print_table([("ID", "ROLE", "MADE", "EXPIRES", "LAST USED", "NAME", "TENANT"), *rows])
    return 0


def _as_json(key: Key) -> dict[str, object]:
    """Return a key as the admin API describes it; a test compares both."""
    times = {"created_at": key.created_at, "expires_at": key.expires_at, "last_used_at": key.used_at}
    shown = {name: None if at is None else moment(at).isoformat().replace("+00:00", "Z") for name, at in times.items()}
    return {"id": key.id, "tenant": key.tenant, "role": key.role, "name": key.name, "expired": key.expired} | shown


def _shown(seconds: float) -> str:
    """Return a time in UTC, to the minute."""
    return rfc3339(seconds, "minutes").removesuffix("Z").replace("T", " ")


def _revoke(store: KeyStore, arguments: argparse.Namespace) -> int:
    if store.revoke(arguments.id):
        print(f"key {arguments.id} is revoked", file=sys.stderr)
        return 0
    print(f"kernel-gateway: there is no key {arguments.id}; `kernel-gateway keys list` shows them", file=sys.stderr)
    return 1


_ACTIONS = {"add": _add, "list": _list, "revoke": _revoke}
