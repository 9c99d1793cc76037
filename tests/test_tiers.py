"""The gate's tests with an engine or a browser are those named in README.md, and no test of the gate measures."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.test_examples import RUN_BY

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))
Test = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each test's name and the source text of its decorators."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Test) and node.name.startswith("test_"):
            yield node.name, [ast.unparse(decorator) for decorator in node.decorator_list]


def is_chosen(decorators: list[str]) -> bool:
    return any("pytest.mark.gate" in decorator or "cases(" in decorator for decorator in decorators)


def test_the_readme_names_the_tests_of_the_gate() -> None:
    some = [path for path in FILES if is_chosen([path.read_text()])]
    chosen = {name for path in some for name, decorators in functions_of(path) if is_chosen(decorators)}
    named = set(re.findall(r"`(test_\w+)`", (TESTS / "README.md").read_text()))
    assert named == chosen


def test_no_test_of_the_gate_is_in_an_ignored_file() -> None:
    ignored = re.findall(r"--ignore=(\S+)", (TESTS.parent / "Makefile").read_text())
    assert ignored
    for path in ignored:
        assert not any(is_chosen(decorators) for _, decorators in functions_of(TESTS.parent / path))


@dataclass
class Item:
    """What of a collected test decides whether it is skipped."""

    mark: str
    path: Path = Path("test_something.py")
    added: list[str] = field(default_factory=list)

    def get_closest_marker(self, name: str) -> bool:
        return name == self.mark

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.added.append(mark.name)


@pytest.mark.parametrize("tool", conftest.WANTED)
@pytest.mark.parametrize("ci", ["true", ""])
def test_a_test_whose_tool_is_absent_is_skipped_except_in_ci(
    monkeypatch: pytest.MonkeyPatch, tool: str, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(conftest.WANTED, tool, (lambda: False, "absent"))
    item: Any = Item(tool)
    conftest.pytest_collection_modifyitems(asked_for("engine"), [item])
    assert ("skip" in item.added) is not bool(ci)


def asked_for(markers: str) -> Any:
    """Return the configuration of a run with `-m`; empty: without."""
    return SimpleNamespace(getoption={"markexpr": markers}.__getitem__)


@pytest.mark.parametrize("mark", ["engine", "gate"])
@pytest.mark.parametrize("markers", ["engine", ""])
@pytest.mark.parametrize("ci", ["true", ""])
def test_a_file_that_is_run_starts_no_containers_unless_it_is_said(
    monkeypatch: pytest.MonkeyPatch, mark: str, markers: str, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(conftest.WANTED, "engine", (lambda: True, "absent"))
    item: Any = Item(mark)
    conftest.pytest_collection_modifyitems(asked_for(markers), [item])
    assert ("skip" in item.added) is (mark == "engine" and not markers and not ci)


def test_every_example_that_calls_curl_says_so() -> None:
    for (_, begins), test in RUN_BY.items():
        if begins.startswith("curl"):
            file, _, name = test.partition("::")
            assert "pytest.mark.curl" in dict(functions_of(TESTS.parent / file))[name]


#: source text of elapsed seconds and grown memory
MEASURED = re.compile(r"monotonic\(\) - \w|\.memory\(\) - \w|\.seconds\b|\.bytes\b")
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def bounds(tree: ast.AST) -> Iterator[str]:
    """Yield asserted upper bounds of measurements, also of variables that hold one. A quotient is no measurement."""
    names = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and MEASURED.search(ast.unparse(node.value)) and not is_quotient(node.value)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for check in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for compared in (node for node in ast.walk(check.test) if isinstance(node, ast.Compare)):
            sides = [compared.left, *compared.comparators]
            for left, operator, right in zip(sides, compared.ops, sides[1:], strict=False):
                smaller = left if isinstance(operator, (ast.Lt, ast.LtE)) else right
                used = {name.id for name in ast.walk(smaller) if isinstance(name, ast.Name)}
                if isinstance(operator, ORDERS) and (names & used or MEASURED.search(ast.unparse(smaller))):
                    yield ast.unparse(compared)


def is_quotient(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("assert time.monotonic() - began < 5", True),
        ("assert (\n    3 * MIB\n    >= gateway.memory() - before\n)", True),
        ("def test():\n    took = time.monotonic() - began\n    assert took <= 5", True),
        ("deadline = time.monotonic() + 60\nassert time.monotonic() < deadline", False),
        ("assert time.monotonic() - began >= 5", False),
    ],
)
def test_a_bound_is_found_in_every_notation(code: str, *, found: bool) -> None:
    assert any(bounds(ast.parse(code))) is found


def test_measurements_are_held_against_a_control_and_not_in_the_gate() -> None:
    texts = {path: path.read_text() for path in FILES}
    assert {path for path, text in texts.items() if MEASURED.search(text) and list(bounds(ast.parse(text)))} == set()
    measuring = [text for text in texts.values() if "from tests.figures import" in text]
    assert [name for text in measuring for name in held_in_the_gate(text)] == []


def held_in_the_gate(text: str) -> Iterator[str]:
    """Yield the tests of a file that hold a figure against its control, and are in the gate."""
    if re.search(r"^pytestmark = .*pytest\.mark\.(engine|measured)\b", text, re.MULTILINE):
        return  # only chosen tests of it are in the gate, where `hold` checks nothing
    for test in (node for node in ast.walk(ast.parse(text)) if isinstance(node, Test)):
        holds = any(isinstance(each, ast.Name) and each.id == "hold" for each in ast.walk(test))
        if holds and not any(ast.unparse(decorator) == "pytest.mark.full" for decorator in test.decorator_list):
            yield test.name
