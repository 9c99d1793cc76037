"""The tool that searches files, run as the gateway runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.base import KERNEL_IMAGE


def grep(directory: Path, query: str) -> dict[str, Any]:
    request = {"op": "grep", "path": "", "query": query, "regex": True, "ignore_case": False, "include": []}
    argument = json.dumps(request | {"per_line": True, "limit": 9})
    done = subprocess.run(
        [sys.executable, "-I", "-S", KERNEL_IMAGE / "searching.py", argument],
        cwd=directory,
        capture_output=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("(", "unterminated"),
        ("a{99999999999}", "too large"),
        (f"a{{{'9' * 5000}}}", "digits"),
        ("(" * 5000 + ")" * 5000, "recursion"),
    ],
    ids=["no end", "large number", "very large number", "nested groups"],
)
def test_a_query_that_is_no_regular_expression_is_refused(tmp_path: Path, query: str, reason: str) -> None:
    answer = grep(tmp_path, query)
    assert answer["error"] == "pattern"
    assert reason in answer["reason"]


def test_lines_that_fit_a_regular_expression_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert grep(tmp_path, "t.o") == {"matches": [{"file": "a.txt", "line": 2, "content": "two"}], "truncated": False}
