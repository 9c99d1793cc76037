"""Weakens the wall line by line in a copy of the project, and shows that a test finds each weakening.

    python -m tests.mutate [WORD ...]

With words, only the lines whose description contains one of them. Needs the engine and root. `tests/wall.py` lists the
lines and the tests that are to find their loss; `tests/test_mutate.py` holds the list against the sources.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.wall import WALL, Found

ROOT = Path(__file__).parent.parent
#: seconds for the tests of one mutation, and for all of them without a mutation
TIMEOUT = 300
CONTROL_TIMEOUT = 1800
#: exit codes of pytest
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Line:
    """A piece of a source file that can be taken away."""

    #: what the piece says, in the words of the source
    label: str
    #: position in the file's text
    start: int
    end: int
    #: text that takes the piece's place
    without: str = ""


def lines(source: str, place: str) -> Iterator[Line]:
    """Yield the lines of the wall in one function or constant of a module.

    Lines are: entries of dicts and lists, options in a text such as "nosuid,size=1m", named arguments of the call whose
    value is returned or kept, and of calls that are named arguments themselves, conditions of `if`, and attributes that
    are set.
    """
    reader = _Reader(source)
    found = {line for node in ast.walk(reader.find(place)) for line in reader.read(node)}
    seen: Counter[str] = Counter()
    for line in sorted(found, key=lambda line: line.start):
        seen[line.label] += 1
        yield replace(line, label=f"{line.label} ({seen[line.label]})") if seen[line.label] > 1 else line


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tree = ast.parse(source)
        starts = [0]
        for text in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(text))
        self._starts = starts

    def find(self, place: str) -> ast.AST:
        """Return the function or constant of this name."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == place:
                return node
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == place:
                return node
        raise LookupError(place)

    def read(self, node: ast.AST) -> Iterator[Line]:
        """Yield the lines that a node contains itself."""
        for label, first, last in _entries(node):
            yield self._entry(label, first, last)
        match node:
            case ast.If(test=test):
                yield Line(f"if {ast.unparse(test)}", *self._span(test, test), "False")
            case ast.Assign(targets=[ast.Attribute() as target]):
                yield Line(ast.unparse(target), *self._span(node, node), "pass")
            case ast.JoinedStr() | ast.Constant():
                yield from self._options(node)

    def _options(self, node: ast.expr) -> Iterator[Line]:
        start, end = self._span(node, node)
        for option in re.finditer(r'(?<=[",])([a-z]+(?:=[^",]+)?)(,|(?="$))', self._source[start:end]):
            if "," in self._source[start:end] and " " not in self._source[start:end]:
                yield Line(option[1], start + option.start(), start + option.end())

    def _entry(self, label: str, first: ast.AST, last: ast.AST) -> Line:
        start, end = self._span(first, last)
        comma = re.compile(r"\s*,").match(self._source, end)
        return Line(re.sub(r"^f?'(.*)'$", r"\1", label), start, comma.end() if comma else end)

    def _span(self, first: ast.AST, last: ast.AST) -> tuple[int, int]:
        return self._at(first.lineno, first.col_offset), self._at(last.end_lineno, last.end_col_offset)  # type: ignore[attr-defined]

    def _at(self, line: int, column: int) -> int:
        # Columns count bytes.
        text = self._source[self._starts[line - 1] :].partition("\n")[0]
        return self._starts[line - 1] + len(text.encode()[:column].decode())


def _entries(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield the entries of a dict or list and the named arguments of a call: label, first and last node."""
    match node:
        case ast.Dict(keys=keys, values=values) if not all(isinstance(value, ast.Constant) for value in values):
            yield from ((ast.unparse(key), key, value) for key, value in zip(keys, values, strict=True) if key)
        case ast.List(elts=elements):
            parts = (each for each in elements if isinstance(each, ast.Call | ast.Tuple | ast.JoinedStr))
            yield from ((ast.unparse(each), each, each) for each in parts)
        case ast.Return(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            yield from ((f"{keyword.arg}=", keyword, keyword) for keyword in call.keywords if keyword.arg)
        case ast.Expr(value=ast.Call() as call) | ast.keyword(value=ast.Call() as call):
            yield from ((f"{keyword.arg}=", keyword, keyword) for keyword in call.keywords if keyword.arg)


def weakened(source: str, line: Line, weaker: str | None) -> str:
    """Return the source without a line, or with a weaker one."""
    text = line.without if weaker is None else weaker + ("," if source[line.start : line.end].endswith(",") else "")
    return source[: line.start] + text + source[line.end :]


def mutations() -> Iterator[tuple[str, str, Line, Found]]:
    """Yield each change of the wall that a test must find: file, place, line, and the change with its test."""
    for file, places in WALL.items():
        source = (ROOT / file).read_text()
        for place, expected in places.items():
            for line in lines(source, place):
                fate = expected[line.label]
                changes = (fate,) if isinstance(fate, Found) else fate if isinstance(fate, tuple) else ()
                yield from ((file, place, line, change) for change in changes)


def _copy(to: Path) -> None:
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in files.stdout.decode().splitlines():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())


def _test(copy: Path, tests: list[str], timeout: float) -> tuple[int, str]:
    """Run tests in the copy; return pytest's exit code, and the first test that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--max-suite-reruns=0", "--durations=0", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "CI": "true"}  # noqa: TID251 - a child gets it; CI: no skips
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests did not end within {timeout} s"
    said = re.search(r"^(?:FAILED|ERROR) \S*/(\S+::\S+)", done.stdout, re.MULTILINE)
    return done.returncode, said[1] if said else done.stdout[-1500:]


def main(words: list[str]) -> int:
    """Try all mutations and print a table; return the number of those that no test finds."""
    chosen = [
        (file, place, line, fate)
        for file, place, line, fate in mutations()
        if not words or any(word in f"{place}: {line.label}" for word in words)
    ]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="kgw-mutate-") as directory:
        copy = Path(directory)
        _copy(copy)
        code, said = _test(copy, sorted({fate.by for *_, fate in chosen}), CONTROL_TIMEOUT)
        if code != PASSED:
            print(f"without any mutation the tests fail: {said}")
            return 1
        for file, place, line, fate in chosen:
            source = (copy / file).read_text()
            (copy / file).write_text(weakened(source, line, fate.weaker))
            began = time.monotonic()
            code, said = _test(copy, [fate.by], TIMEOUT)
            (copy / file).write_text(source)
            survivors += code != FAILED
            verdict = said if code == FAILED else f"SURVIVES (pytest's exit code is {code})"
            name = f"{Path(file).stem}.{place}: {line.label}" + (
                "" if fate.weaker is None else f" → {fate.weaker or '∅'}"
            )
            print(f"{name[:72]:72}  {verdict[:90]:90}  {time.monotonic() - began:5.1f} s", flush=True)
    print(f"{len(chosen)} mutations, {survivors} not found")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
