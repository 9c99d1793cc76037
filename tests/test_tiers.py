"""The gate's tests with an engine or a browser are those that README.md names, and nothing in the gate measures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))
Test = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each test's name and its decorators, as they are written."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Test) and node.name.startswith("test_"):
            yield node.name, [ast.unparse(decorator) for decorator in node.decorator_list]


def is_chosen(decorators: list[str]) -> bool:
    return any(decorator == "pytest.mark.gate" or "cases(" in decorator for decorator in decorators)


def test_the_readme_names_what_is_in_the_gate() -> None:
    chosen = {name for path in FILES for name, decorators in functions_of(path) if is_chosen(decorators)}
    named = set(re.findall(r"`(test_\w+)`", (TESTS / "README.md").read_text()))
    assert named == chosen


def test_nothing_of_the_gate_is_ignored_by_it() -> None:
    ignored = re.findall(r"--ignore=(\S+)", (TESTS.parent / "Makefile").read_text())
    assert ignored
    for path in ignored:
        assert not any(is_chosen(decorators) for _, decorators in functions_of(TESTS.parent / path))


#: what tells how much of something this machine has used or has: a test that asks for it is not part of the gate
MEASURES = re.compile(r"monotonic\(\) - \w+ <|\.memory\(\) - \w+ <|\.seconds <")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_test_with_a_bound_on_seconds_or_memory_is_not_part_of_the_gate(path: Path) -> None:
    text = path.read_text()
    if re.search(r"^pytestmark = .*pytest\.mark\.(engine|measured)\b", text, re.MULTILINE):
        return  # not in the gate but for what was chosen, whose bounds hang on `measured`
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Test) and MEASURES.search("\n".join(lines[node.lineno - 1 : node.end_lineno])):
            assert any(ast.unparse(decorator) == "pytest.mark.full" for decorator in node.decorator_list), node.name
