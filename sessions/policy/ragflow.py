"""The verdicts of RAGFlow's analyser, on Python and JavaScript: the same lines in the same order.

Source: infiniflow/ragflow, `agent/sandbox/executor_manager/services/security.py` as of 2026-08. It also refuses what
is harmless, such as `60 * 60`, and lets through what is not, such as `os` by way of another module.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from itertools import islice

#: characters that are looked at. Python's parser holds up all else while it works: 0.3 s for the worst of this size,
#: and 13 s for that of eight times as much
CODE_MAX = 32 * 1024
#: problems of one node and what is in it that are kept
ISSUES_MAX = 100
#: calls within calls that the reference has for a tree, in Python 3.11; nested more deeply is no Python to it
FRAMES_MAX = 950

IMPORTS = frozenset({
    "asyncio", "builtins", "ctypes", "ftplib", "multiprocessing", "os", "pickle", "shutil", "socket", "subprocess",
    "sys", "telnetlib", "threading",
})  # fmt: skip
NAMES = frozenset({
    "__import__", "chdir", "chmod", "chown", "compile", "ctypes", "eval", "exec", "getattr", "globals", "input",
    "locals", "open", "popen", "remove", "rename", "rmdir", "setattr", "system",
})  # fmt: skip
#: where the result of a call is looked at: the node's field, and what is said of it
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
_LOOKED_AT = (
    ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.BinOp, ast.FunctionDef, ast.Assign, *_RESULTS
)  # fmt: skip

#: of which there are many, and nothing to say
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
    """What the analyser says, as `Line N: Issue`; nothing: it lets it pass.

    Args:
        code: the source.
        language: others than Python and JavaScript are refused as a whole.
    """
    if len(code) > CODE_MAX:
        return [f"Line -1: the code is longer than {CODE_MAX} characters, and is not looked at"]
    if language == "python":
        return _python(code)
    if language == "javascript":
        return _javascript(code)
    return [f"Line -1: Unsupported language for security analysis: {language}"]


def _javascript(code: str) -> list[str]:
    """The reference puts a line that exports `main` behind the code, in which there is nothing to be found."""
    return [
        f"Line {code.count(chr(10), 0, found.start()) + 1}: {issue}"
        for issue, pattern in _JAVASCRIPT.items()
        for found in islice(pattern.finditer(code), ISSUES_MAX)
    ]


def _python(code: str) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of "\d" is the client's business
            tree = ast.parse(code)
        return _found(tree, FRAMES_MAX)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        return [f"Line -1: Parsing Error: {error}"]


def _found(node: ast.AST, frames: int) -> list[str]:
    """The problems in a tree, in the order of the reference, which looks twice at what a comprehension goes through.

    Raises:
        RecursionError: it is nested too deeply.
    """
    looked_at = isinstance(node, _LOOKED_AT)
    frames -= 3 if looked_at else 2
    if frames < 0:
        raise RecursionError("maximum recursion depth exceeded")
    parts: list[str] = []
    through: list[str] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LEAVES):
            # once each, or comprehensions in comprehensions would take for ever
            (through if isinstance(child, ast.comprehension) else parts).extend(_found(child, frames))
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
