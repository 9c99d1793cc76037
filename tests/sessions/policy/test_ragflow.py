"""The verdicts of RAGFlow's analyser. The cases here and 120,000 generated ones were compared with the original."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.policy import ragflow

CONCATENATION = "Possible unsafe string concatenation"

PYTHON: dict[str, list[str]] = {
    # accepted
    "": [],
    "def main(a, b):\n    return {'sum': a + b}": [],
    "import json, math, time, pathlib, urllib.request, requests\nimport http.client\nfrom http import client": [],
    "from pathlib import Path\nPath('artifacts/a').write_text('x')": [],
    "x = 60 * minutes\ny = -1 - 2\nz = 'a' 'b'": [],
    "await main()": [],
    "import osmium, sys_info": [],
    "from . import os": [],
    "x.os.path\nfoo().system\nx = eval": [],
    "async def eval(): pass\nclass exec: pass\ndef f(open): pass": [],
    "a, open = 1, 2\nopen: int = 1\nfor open in x: pass\n(open := 1)\nopen += 1\nx.open = 1": [],
    "'eval(1)'  # import os": [],
    "'\\d'": [],
    # imports that are refused
    "import os": ["Line 1: Import: os"],
    "import json, os.path as p, sys": ["Line 1: Import: os.path", "Line 1: Import: sys"],
    "\n\nfrom subprocess import run": ["Line 3: From Import: subprocess"],
    "from .os import path": ["Line 1: From Import: os"],
    "from multiprocessing.pool import Pool": ["Line 1: From Import: multiprocessing.pool"],
    "def f():\n    import pickle": ["Line 2: Import: pickle"],
    "os.getcwd()\nx = socket.AF_INET": [
        "Line 1: Attribute Access: os.getcwd",
        "Line 2: Attribute Access: socket.AF_INET",
    ],
    "os.path.join(a)": ["Line 1: Attribute Access: os.path"],
    "os.system('ls')": ["Line 1: Call: system", "Line 1: Attribute Access: os.system"],
    # calls that are refused
    "eval('1')": ["Line 1: Call: eval"],
    "with open('a') as f:\n    f.read()": ["Line 1: Call: open"],
    "__import__('os')": ["Line 1: Call: __import__"],
    "names.remove('a')\nre.compile(x)": ["Line 1: Call: remove", "Line 2: Call: compile"],
    "eval(exec(x))": ["Line 1: Call: eval", "Line 1: Call: exec"],
    "f'{getattr(a, b)}'": ["Line 1: Call: getattr"],
    "@eval(x)\ndef f(a=input()):\n    globals()": [
        "Line 2: Call: input",
        "Line 3: Call: globals",
        "Line 1: Call: eval",
    ],
    # operations on two literals
    "x = 60 * 60": [f"Line 1: {CONCATENATION}"],
    "x = 'ev' + 'al'\ny = '%s' % 5": [f"Line 1: {CONCATENATION}", f"Line 2: {CONCATENATION}"],
    "1 + 2 + 3": [f"Line 1: {CONCATENATION}"],
    "x = [\n    1,\n    2 ** 10,\n]": [f"Line 3: {CONCATENATION}"],
    "match x:\n    case 1 + 2j:\n        pass": [f"Line 2: {CONCATENATION}"],
    # definitions and assignments that are refused
    "def eval(x):\n    return x": ["Line 1: Function Definition: eval"],
    "open = 1": ["Line 1: Assignment to dangerous variable: open"],
    "a = input = exec = 1": [
        "Line 1: Assignment to dangerous variable: input",
        "Line 1: Assignment to dangerous variable: exec",
    ],
    "ctypes = 1": ["Line 1: Assignment to dangerous variable: ctypes"],
    # results of calls that are refused
    "f = lambda: eval(x)": ["Line 1: Lambda with dangerous function call", "Line 1: Call: eval"],
    "f = lambda: a.eval(x)": ["Line 1: Call: eval"],
    "[eval(x) for x in y]": ["Line 1: List comprehension with dangerous function call", "Line 1: Call: eval"],
    "{eval(x) for x in y}": ["Line 1: Set comprehension with dangerous function call", "Line 1: Call: eval"],
    "(eval(x) for x in y)": ["Line 1: Call: eval"],
    "{eval(x): exec(x) for x in input()}": [
        "Line 1: Dict comprehension with dangerous function call in key",
        "Line 1: Dict comprehension with dangerous function call in value",
        "Line 1: Call: eval",
        "Line 1: Call: exec",
        "Line 1: Call: input",
    ],
    "[eval(x) for x in input() if open(x)]": [
        "Line 1: Call: input",
        "Line 1: Call: open",
        "Line 1: List comprehension with dangerous function call",
        "Line 1: Call: eval",
        "Line 1: Call: input",
        "Line 1: Call: open",
    ],
    "[x for x in {y for y in input()}]": ["Line 1: Call: input"] * 4,
    "def f():\n    yield eval(x)\n    yield from eval(x)": [
        "Line 2: Yield with dangerous function call",
        "Line 2: Call: eval",
        "Line 3: Call: eval",
    ],
    # invalid Python
    "1 +": ["Line -1: Parsing Error: invalid syntax (<unknown>, line 1)"],
    "x = 1\n%matplotlib inline": ["Line -1: Parsing Error: invalid syntax (<unknown>, line 2)"],
    "!ls": ["Line -1: Parsing Error: invalid syntax (<unknown>, line 1)"],
    "import os\nif x:\npass": [
        "Line -1: Parsing Error: expected an indented block after 'if' statement on line 2 (<unknown>, line 3)"
    ],
}

JAVASCRIPT: dict[str, list[str]] = {
    # accepted
    "": [],
    "function main(a) { return a.x; }": [],
    "const axios = require('axios');\nasync function main() { return (await axios.get(u)).data; }": [],
    "require('node:fs'); require(name); import fs from 'fs'": [],
    "require('fs2') + require(fs); medieval = 1; myeval(1); eval; new MyFunction()": [],
    "binding(process)": [],
    # refused
    "const fs = require('fs')": ["Line 1: Require: fs"],
    'require ( "child_process" )': ["Line 1: Require: child_process"],
    "\nrequire(\n`worker_threads`\n)": ["Line 2: Require: worker_threads"],
    "require('fs\")": ["Line 1: Require: fs"],
    "x.eval (y)": ["Line 1: Call: eval"],
    "new Function('return 1')": ["Line 1: Call: Function"],
    "process . binding ('fs')": ["Line 1: Call: process.binding"],
    "// eval(1)\n'Function('": ["Line 1: Call: eval", "Line 2: Call: Function"],
    "eval(1)\nrequire('fs')\neval(2)\nrequire('child_process')": [
        "Line 4: Require: child_process",
        "Line 2: Require: fs",
        "Line 1: Call: eval",
        "Line 3: Call: eval",
    ],
}  # fmt: skip


@pytest.mark.parametrize("code", PYTHON)
def test_python(code: str) -> None:
    assert ragflow.problems(code, "python") == PYTHON[code]


@pytest.mark.parametrize("code", JAVASCRIPT)
def test_javascript(code: str) -> None:
    assert ragflow.problems(code, "javascript") == JAVASCRIPT[code]


@pytest.mark.parametrize("code", JAVASCRIPT)
def test_the_line_that_the_reference_appends_changes_nothing(code: str) -> None:
    assert ragflow.problems(f"{code}\n\nmodule.exports = {{ main }};", "javascript") == JAVASCRIPT[code]


def test_an_unknown_language_is_refused_as_a_whole() -> None:
    assert ragflow.problems("true", "shell") == ["Line -1: Unsupported language for security analysis: shell"]


# -- hostile code ----------------------------------------------------------------------------------------------

SIZE = ragflow.CODE_MAX

HOSTILE = {
    "sums": "+".join("a" * (SIZE // 2)),
    "attributes": "a" + ".a" * (SIZE // 2 - 1),
    "calls": "f" + "()" * (SIZE // 2 - 1),
    "negations": "not " * (SIZE // 4 - 1) + "a",
    "lambdas": "lambda:" * (SIZE // 7 - 1) + "0",
    "parentheses": "(" * SIZE,
    "branches": "if a: b\n" + "elif a: b\n" * (SIZE // 10 - 1),
    "NUL": "a\0b",
    "lone surrogate": "'\ud800'",
    "digits": "1" * SIZE,
    "too long": "a" * (SIZE + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_that_cannot_be_parsed_is_refused(name: str) -> None:
    (problem,) = ragflow.problems(HOSTILE[name], "python")
    assert problem.startswith("Line -1: ")
    assert len(problem) < 300


@pytest.mark.parametrize("levels", [10, 100, 300])
def test_code_nested_as_deeply_as_the_reference_allows_is_accepted(levels: int) -> None:
    assert ragflow.problems("+".join("a" * levels), "python") == []


# A busy machine takes seconds for these; quadratic or worse growth would take hours.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "code",
    [
        "[a for a in " * 90 + "b" + "]" * 90,
        "[eval() for a in " * 90 + "b" + "]" * 90,
        "eval()\n" * (SIZE // 7),
        "f'" + "{a}" * (SIZE // 3 - 1) + "'",
        "a;" * (SIZE // 2),
    ],
    ids=["comprehensions", "evil comprehensions", "calls", "format strings", "names"],
)
def test_the_longest_python_is_checked_quickly(code: str) -> None:
    assert len(ragflow.problems(code, "python")) <= ragflow.ISSUES_MAX


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["require(", "eval(", "require" + " " * 1000, "process . ", "eval" + "\n" * 500, "\n"]
)
def test_the_longest_javascript_is_checked_quickly(piece: str) -> None:
    assert len(ragflow.problems((piece * SIZE)[:SIZE], "javascript")) <= ragflow.ISSUES_MAX


PIECES = st.sampled_from([
    "eval", "os", "(", ")", "[", "]", "{", "}", "for x in", "lambda:", ".", "=", "+", "1", "'", '"', "f'", ":",
    "\n", " ", "\\", "\0", "\ud800", "require", "'fs'", "yield", "import ", "\u00a0",
])  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join), st.sampled_from(["python", "javascript", "r"]))
def test_any_code_gets_a_verdict(code: str, language: str) -> None:
    assert all(problem.startswith("Line ") for problem in ragflow.problems(code, language))
