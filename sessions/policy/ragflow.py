"""Finds the same problems in Python and JavaScript as RAGFlow's analyser, in the same order.

Source: infiniflow/ragflow, `agent/sandbox/executor_manager/services/security.py` as of 2026-08. That analyser also
refuses harmless code, such as `60 * 60`, and accepts harmful code, such as `os` reached through another module.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import islice

from sessions.model.units import CODE_TOKENS

#: maximum characters that are checked. Python's parser blocks the event loop: 0.1 s for the worst code of this size
#: that has at most `CODE_TOKENS`
CODE_MAX = 32 * 1024
_TOKEN = re.compile(r"\w+|[^\w\s]|\n")
#: problems that are kept for one node and its children
ISSUES_MAX = 100
#: nested calls that RAGFlow's analyser can make in Python 3.11; it reports deeper code as no valid Python
FRAMES_MAX = 950

IMPORTS = frozenset({
    "asyncio", "builtins", "ctypes", "ftplib", "multiprocessing", "os", "pickle", "shutil", "socket", "subprocess",
    "sys", "telnetlib", "threading",
})  # fmt: skip
NAMES = frozenset({
    "__import__", "chdir", "chmod", "chown", "compile", "ctypes", "eval", "exec", "getattr", "globals", "input",
    "locals", "open", "popen", "remove", "rename", "rmdir", "setattr", "system",
})  # fmt: skip
#: nodes in which the result of a call is checked: field of the node, and text of the problem
_RESULTS: dict[type[ast.AST], tuple[tuple[str, str], ...]] = {
    ast.Lambda: (("body", "Lambda with dangerous function call"),),
    ast.ListComp: (("elt", "List comprehension with dangerous function call"),),
    ast.SetComp: (("elt", "Set comprehension with dangerous function call"),),
    ast.DictComp: (
        ("key", "Dict comprehension with dangerous function call in key"),
        ("value", "Dict comprehension with dangerous function call in value"),
    ),
    ast.Yield: (("value", "Yield with dangerous function call"),),
}
_CHECKED_NODES = (
    ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.BinOp, ast.FunctionDef, ast.Assign, *_RESULTS
)  # fmt: skip

#: frequent nodes that never have a problem
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator)

_JAVASCRIPT = {
    "Require: child_process": re.compile(r"""require\s*\(\s*['"`]child_process['"`]\s*\)"""),
    "Require: fs": re.compile(r"""require\s*\(\s*['"`]fs['"`]\s*\)"""),
    "Require: worker_threads": re.compile(r"""require\s*\(\s*['"`]worker_threads['"`]\s*\)"""),
    "Call: eval": re.compile(r"\beval\s*\("),
    "Call: Function": re.compile(r"\bFunction\s*\("),
    "Call: process.binding": re.compile(r"\bprocess\s*\.\s*binding\s*\("),
}


def problems(code: str, language: str) -> list[str]:
    """Return the problems that the analyser finds, as `Line N: Issue`. An empty list means that the code is allowed.

    Args:
        code: source code.
        language: language of the code. Every language except Python and JavaScript is refused.
    """
    if len(code) > CODE_MAX:
        return [f"Line -1: the code is longer than {CODE_MAX} characters, and is not checked"]
    if language == "python":
        return _python(code)
    if language == "javascript":
        return _javascript(code)
    return [f"Line -1: Unsupported language for security analysis: {language}"]


def _javascript(code: str) -> list[str]:
    """Check JavaScript. RAGFlow appends an `export` line first; we do not, since it never violates a rule."""
    return [
        f"Line {code.count(chr(10), 0, found.start()) + 1}: {issue}"
        for issue, pattern in _JAVASCRIPT.items()
        for found in islice(pattern.finditer(code), ISSUES_MAX)
    ]


def _python(code: str) -> list[str]:
    if sum(1 for _ in islice(_TOKEN.finditer(code), CODE_TOKENS + 1)) > CODE_TOKENS:
        return [f"Line -1: the code has more than {CODE_TOKENS} words and signs, and is not checked"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about "\d" and the like concern only the client
            tree = ast.parse(code)
        return _problems_in(tree, FRAMES_MAX)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two mean: nested too deeply
        return [f"Line -1: Parsing Error: {error}"]


def _problems_in(node: ast.AST, frames: int) -> list[str]:
    """Return the problems in a tree in RAGFlow's order. RAGFlow visits the `for` clauses of some comprehensions twice.

    Raises:
        RecursionError: when the tree is nested too deeply.
    """
    looked_at = isinstance(node, _CHECKED_NODES)
    frames -= 3 if looked_at else 2
    if frames < 0:
        raise RecursionError("maximum recursion depth exceeded")
    parts: list[str] = []
    through: list[str] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LEAVES):
            # Each child is visited only once here, or nested comprehensions would take exponential time.
            (through if isinstance(child, ast.comprehension) else parts).extend(_problems_in(child, frames))
    here = [f"Line {getattr(node, 'lineno', -1)}: {issue}" for issue in _issues(node)] if looked_at else []
    before = through if isinstance(node, ast.ListComp | ast.SetComp) else []
    return [*before, *here, *parts, *through][:ISSUES_MAX]


def _issues(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (f"Import: {alias.name}" for alias in names if _is_forbidden(alias.name))
        case ast.ImportFrom(module=str(module)) if _is_forbidden(module):
            yield f"From Import: {module}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
            yield f"Call: {name}"
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in IMPORTS:
            yield f"Attribute Access: {name}.{attribute}"
        case ast.BinOp(left=ast.Constant(), right=ast.Constant()):
            yield "Possible unsafe string concatenation"
        case ast.FunctionDef(name=name) if name in NAMES:
            yield f"Function Definition: {name}"
        case ast.Assign(targets=targets):
            named = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (f"Assignment to dangerous variable: {name}" for name in named if name in NAMES)
        case _:
            yield from _results(node)


def _results(node: ast.AST) -> Iterator[str]:
    for field, issue in _RESULTS.get(type(node), ()):
        match getattr(node, field):
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                yield issue


def _is_forbidden(module: str) -> bool:
    return module.partition(".")[0] in IMPORTS
