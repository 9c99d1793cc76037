"""An audit of the dependencies is good only if every package was looked up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit import OWN, report

CLEAN = {"name": "clean", "version": "1", "vulns": []}
SKIPPED = {"name": "unknown", "skip_reason": "Dependency not found on PyPI"}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
OURS = {"name": next(iter(OWN)), "skip_reason": "distribution marked as editable"}


@pytest.mark.parametrize(
    ("packages", "good", "said"),
    [
        ([CLEAN, OURS], True, "1 packages were looked up on 2026-11-24 in "),
        ([], False, "0 packages"),
        ([CLEAN, SKIPPED], False, "NOT looked up: 1 packages (Dependency not found on PyPI): unknown"),
        ([SKIPPED], False, "0 packages"),
        ([CLEAN, BAD], False, "VULNERABLE: bad 2: CVE-1 (mended in 3)"),
    ],
)
def test_an_audit_says_what_it_looked_up(packages: list[dict[str, Any]], *, good: bool, said: str) -> None:
    text, verdict = report(packages, "2026-11-24")
    assert verdict is good
    assert said in text
