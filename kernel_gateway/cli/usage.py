"""`kernel-gateway usage`: print what each tenant has used within a period."""

from __future__ import annotations

import argparse
import sqlite3
import sys

from kernel_gateway.cli.client_command import add_examples, print_table
from kernel_gateway.cli.flags import add_location, client_from
from kernel_gateway.http.usage_report import UsageReport
from kernel_gateway.times import seconds_of
from sessions.store.usage_store import usage_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add_location(parser)
    parser.add_argument("--since", metavar="WHEN", help="begin of the period, as 2026-01-31 or 2026-01-31T09:30:00Z")
    parser.add_argument("--until", metavar="WHEN", help="end of the period, which is not part of it (default: now)")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON, as the admin API sends it")
    forms.add_argument("--csv", action="store_true", help="print CSV")
    add_examples(parser, "kernel-gateway usage --since 2026-01-01 --until 2026-02-01 --csv > january.csv")


def main(arguments: argparse.Namespace) -> int:
    """Print the report.

    Returns:
        0 when it was printed; 1 when there is no audit or it cannot be read; 2 when a time is not valid.
    """
    state_dir = client_from(arguments).state_dir.expanduser()
    since, until = (
        None if text is None else seconds_of(name, text)
        for name, text in (("--since", arguments.since), ("--until", arguments.until))
    )
    if not (audit := state_dir / "audit.db").exists():
        print(f"kernel-gateway: there is no audit at {audit}", file=sys.stderr)
        return 1
    try:
        report = UsageReport.of(since, until, usage_of(state_dir, since, until))
    except sqlite3.Error as error:
        print(f"kernel-gateway: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(report.model_dump_json(indent=2))
    elif arguments.csv:
        print(report.csv(), end="")
    else:
        _print(report)
    return 0


def _print(report: UsageReport) -> None:
    head = ("TENANT", "CELLS", "CELL SECONDS", "OUTPUT BYTES", "MEMORY GIB-HOURS", "DISK GIB-HOURS")
    rows = [
        (
            row.tenant,
            str(row.cells),
            f"{row.cell_seconds:.1f}",
            str(row.output_bytes),
            f"{row.memory_gib_hours:.3f}",
            f"{row.disk_gib_hours:.3f}",
        )
        for row in report.tenants
    ]
    print_table([head, *rows])
