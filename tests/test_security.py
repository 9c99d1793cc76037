"""SECURITY.md promises only what a test shows."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()
PROMISES = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_promise_names_the_tests_that_show_it() -> None:
    assert len(PROMISES) > 10
    for promise, shown_by in PROMISES:
        files = re.findall(r"`([^`]+)`", shown_by)
        assert files, promise
        assert all(file.endswith(".py") and (ROOT / file).is_file() for file in files), shown_by


def test_every_attack_is_shown_for_some_promise() -> None:
    attacks = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/attacks").glob("test_*.py")}
    assert {file for file in attacks if file not in PAGE} == set()
