"""Looks up every installed package in the list of known vulnerabilities, and says what was looked up.

    python tests/audit.py PYTHON

PYTHON is the interpreter whose packages are audited. Runs in an environment with `pip-audit`, which needs the internet.
An audit that could not look up every package has failed: pip-audit itself reports success when it skips all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

#: pip-audit's name of the service, and what it is
SERVICE, SOURCE = "pypi", "the Python Packaging Advisory Database, as pypi.org serves it"
#: packages that no index knows
OWN = {"sandboxed-kernel-gateway"}
#: seconds without an answer of the service
TIMEOUT = 15


def report(dependencies: Sequence[dict[str, Any]], date: str) -> tuple[str, bool]:
    """Describe the outcome of an audit.

    Args:
        dependencies: pip-audit's list of packages.
        date: day of the audit.

    Returns:
        the description, and whether all packages were looked up and none is vulnerable.
    """
    found = [package for package in dependencies if package["name"] not in OWN]
    skipped = [package for package in found if "skip_reason" in package]
    audited = [package for package in found if "skip_reason" not in package]
    bad = [
        f"{package['name']} {package['version']}: {vulnerability['id']}"
        f" (mended in {', '.join(vulnerability['fix_versions']) or 'no release'})"
        for package in audited
        for vulnerability in package["vulns"]
    ]
    names = ", ".join(package["name"] for package in skipped)
    lines = [
        f"{len(audited)} packages were looked up on {date} in {SOURCE}: {len(bad)} known vulnerabilities",
        *(f"VULNERABLE: {line}" for line in bad),
        *([f"NOT looked up: {len(skipped)} packages ({skipped[0]['skip_reason']}): {names}"] if skipped else []),
    ]
    return "\n".join(lines), bool(audited) and not skipped and not bad


def main(python: str) -> int:
    """Audit the packages of an interpreter; return 0 only after a complete audit without a finding."""
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    audit = [sys.executable, "-m", "pip_audit", "--path", where, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*audit, "--vulnerability-service", SERVICE, "--timeout", str(TIMEOUT)],
        check=False,
        capture_output=True,
        text=True,
    )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except ValueError:
        reason = done.stderr.strip().splitlines()[-1:] or ["pip-audit said nothing"]
        print(f"NOTHING was audited: {reason[0]}", file=sys.stderr)
        return 1
    said, good = report(dependencies, f"{datetime.now(UTC):%Y-%m-%d}")
    print(said)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
