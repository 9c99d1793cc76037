"""`kernel-gateway doctor`: check what isolated kernels need on this machine."""

from __future__ import annotations

import argparse

from kernel_gateway.cli.settings import add_settings, settings_from
from kernel_gateway.isolation import examine
from sessions.backends.abilities import Finding

add_arguments = add_settings


def main(arguments: argparse.Namespace) -> int:
    """Print the result of every check.

    Returns:
        0 when all checks pass, else 1.
    """
    well, off = True, []
    for finding in examine(settings_from(arguments)):
        print(_line(finding), flush=True)
        well = well and finding.ok
        off += [finding.name] if finding.off else []
    if not well:
        print("not ready: fix the first problem, then run this again")
        return 1
    print(f"kernels can run; off: {', '.join(off)}" if off else "all is well")
    return 0


def _line(finding: Finding) -> str:
    if finding.ok:
        return f"ok       {finding.name}: {finding.detail}"
    return f"PROBLEM  {finding.name}: {finding.problem}\n         fix: {finding.fix}"
