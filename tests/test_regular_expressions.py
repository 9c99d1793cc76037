"""No regular expression of the product takes more than linear time, whatever the text is.

Python's engine goes back in a text, so that an expression may take a second for a text of some kilobytes. All
expressions are found in the code, and each is given texts made of its own parts, shorter and longer ones.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from kernel_gateway.observe.alerts import OWN_FAULTS
from sessions.policy import weknora
from tests.fakes import KERNELSPECS
from tests.test_layers import FILES, imports_of, tree_of

Work = Callable[[str | bytes], object]

#: reads what its own Bash says; hostile code that knows its random mark slows down its own kernel
BASH = r"b'/dev/null/%b (\\d+) (\\d+) (?:=(.*?))?/%b:' % (2 * (mark.encode(),))"
#: ways to use an expression that look at one place of the text; all others look for places
ANCHORED = {"match", "fullmatch"}
METHODS = ANCHORED | {"search", "split", "findall", "finditer", "sub", "subn"}
#: expressions that are not written where they are used: what the code calls them → those there are
ELSEWHERE: dict[str, Callable[[], set[re.Pattern[Any]]]] = {
    "kernel_gateway.observe.alert_conditions pattern": lambda: {re.compile("|".join(kind.code for kind in OWN_FAULTS))},
    f"kernel_image.kernelspecs.bash.bash {BASH}": set,
    # A client's own expressions, which run in its own sandbox, and end with the tool's deadline.
    "kernel_image.searching wanted": set,
    "kernel_image.searching fnmatch.translate(pattern)": set,
    "sessions.model.kernelspecs self.env_at_start": lambda: {re.compile(spec.env_at_start) for spec in KERNELSPECS.all},
    "sessions.policy.weknora part": lambda: {
        part
        for rules in (
            weknora.PATTERNS.values(),
            weknora.REVERSE_SHELLS,
            weknora.STDIN,
            (weknora.YAML_LOAD, weknora.NETWORK),
        )
        for rule in rules
        for part in rule
    },
}

#: times that the longest text is as long as the shortest that counts, and that a linear expression takes as long
LONGER = 16
FACTOR = 4
LONGEST = 4096
#: seconds below which a time says nothing
NOISE = 5e-6


def _patterns(module: str, call: ast.Call) -> set[re.Pattern[Any]]:
    """Return the expressions that a call may use."""
    told = call.args[0]
    if (held := ELSEWHERE.get(f"{module} {ast.unparse(told)}")) is not None:
        return held()
    flags = [word.value for word in call.keywords if word.arg == "flags"]
    flags += call.args[1:2] if ast.unparse(call.func) == "re.compile" else []  # everywhere else, flags have their name
    names = {"re": re} if module.startswith("kernel_image") else vars(importlib.import_module(module))
    value, *flag = (eval(ast.unparse(part), dict(names)) for part in (told, *flags))  # noqa: S307 - our own code
    return {re.compile(value, *flag)}


@functools.cache
def _called(module: str) -> list[tuple[str, str]]:
    """Return the names, and the methods of an expression that are called on each."""
    attributes = (
        node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Attribute) and node.attr in METHODS
    )
    return [(ast.unparse(node.value).rpartition(".")[2], node.attr) for node in attributes]


def _methods(module: str, name: str) -> set[str]:
    """Return the methods of an expression that the code calls; a private one is called in its own module only."""
    places = [module] if name.startswith("_") else FILES
    return {method for place in places for called, method in _called(place) if called == name}


def _uses() -> Iterator[tuple[str, ast.Call, bool]]:
    """Yield each place that uses an expression, and whether it looks for places in a text."""
    for module in FILES:
        tree = tree_of(module)
        assigned = (
            node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        )
        names = {node.value: node.targets[0] for node in assigned}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method = node.func.attr
            if method in METHODS | {"compile"} and ast.unparse(node.func.value) == "re":
                methods = _methods(module, ast.unparse(names[node])) if node in names else {method}
                yield module, node, not methods or not methods <= ANCHORED


def _words(parsed: Any) -> Iterator[str]:
    """Yield the literal parts of a parsed expression."""
    word = ""
    for kind, value in parsed:
        if str(kind) == "LITERAL":
            word += chr(value)
            continue
        yield word
        word = ""
        for part in value if isinstance(value, tuple | list) else [value]:
            for inner in part if isinstance(part, list) else [part]:
                if hasattr(inner, "getwidth"):
                    yield from _words(inner)
        if str(kind) in {"IN", "NOT_LITERAL"}:
            yield from _signs(kind, value)
    yield word


def _signs(kind: Any, value: Any) -> Iterator[str]:
    """Yield signs that a set names."""
    if str(kind) == "NOT_LITERAL":
        yield chr(value)
        return
    for member, named in value:
        if str(member) == "LITERAL":
            yield chr(named)
        elif str(member) == "RANGE":
            yield chr(named[0])


def _texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Yield beginnings, and parts that are to be repeated behind them."""
    words = {
        word for word in _words(importlib.import_module("re._parser").parse(pattern.pattern, pattern.flags)) if word
    }
    signs = {" ", "a", "z", "0", "\n"} | {word[0] for word in words if not word[0].isalnum()}
    pairs = {"".join(pair) for pair in product(signs, repeat=2)}
    beginnings = {"", *(word for word in words if len(word) > 1)} | {word for word in words if len(word) == 1}
    yield from product(sorted(beginnings), sorted(signs | pairs if len(signs) < 12 else signs))
    yield from product([""], sorted(word + sign for word in words for sign in ("", *signs)))


def _seconds(work: Work, text: str | bytes, tries: int) -> float:
    def once() -> float:
        began = time.thread_time()
        work(text)
        return time.thread_time() - began

    return min(once() for _ in range(tries))


def _grows_too_fast(work: Work, make: Callable[[int], str | bytes]) -> bool:
    """Return whether texts that are longer take more than as much longer. It begins with short ones: some never end."""
    seconds: dict[int, float] = {}
    length = 1
    while length <= LONGEST:
        for tries in (1, 5, 25):
            seconds[length] = min(seconds.get(length, 1e9), _seconds(work, make(length), tries))
            before = max(seconds.get(length // LONGER, NOISE), NOISE)
            if seconds[length] <= LONGER * FACTOR * before:
                break
        else:
            return True
        length *= 2
    return False


def _hostile_text(pattern: re.Pattern[Any], *, searched: bool) -> str | None:
    """Return the parts of a text that takes the expression more than linear time, or None if there is none."""

    def work(text: str | bytes) -> object:
        return pattern.sub(text[:0], text) if searched else (pattern.match(text), pattern.fullmatch(text))

    for begin, part in _texts(pattern):

        def make(length: int, begin: str = begin, part: str = part) -> str | bytes:
            text = begin + part * length + "\0"
            return text if isinstance(pattern.pattern, str) else text.encode("latin-1")

        if _grows_too_fast(work, make):
            return f"{begin!r} + {part!r} * n"
    return None


@pytest.mark.full  # it measures seconds
def test_an_expression_takes_twice_as_long_for_a_text_twice_as_long() -> None:
    slow = [
        f"{module}:{call.lineno}: {pattern.pattern!r} for {hostile}"
        for module, call, searched in _uses()
        for pattern in _patterns(module, call)
        if (hostile := _hostile_text(pattern, searched=searched)) is not None
    ]
    assert not slow


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+b",
        r"\s+$",
        " {2,}(?=Traceback )",
        r"\S*/\S*",
        rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"',
        "x*y*x*z",
    ],
)
def test_an_expression_that_takes_longer_is_found(expression: str | bytes) -> None:
    assert _hostile_text(re.compile(expression, re.DOTALL), searched=True)


def test_expressions_are_found_in_all_modules_that_can_have_some() -> None:
    assert {module for module, _, _ in _uses()} == {module for module in FILES if "re" in imports_of(module)}
    assert not {module for module in FILES if "regex" in imports_of(module)}
