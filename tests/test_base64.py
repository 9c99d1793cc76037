"""No base64 is read leniently: Python's default drops what is none, so any text would be the base64 of something."""

from __future__ import annotations

import ast

from tests.test_layers import FILES, tree_of

#: functions of Python that read base64, and those of them that can be strict
READERS = {"b64decode", "urlsafe_b64decode", "standard_b64decode", "decodebytes", "a2b_base64"}
STRICT = {"b64decode": "validate=True", "a2b_base64": "strict_mode=True"}


def lenient(tree: ast.AST) -> list[str]:
    """Return the calls that read base64 leniently."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(ast.unparse(call.func).rpartition(".")[2], call) for call in calls]
    return [
        f"{call.lineno}: {ast.unparse(call)}"
        for name, call in named
        if name in READERS and STRICT.get(name, "never") not in [ast.unparse(keyword) for keyword in call.keywords]
    ]


def test_all_base64_is_read_strictly() -> None:
    found = {module: calls for module in FILES if (calls := lenient(tree_of(module)))}
    assert not found


def test_lenient_calls_are_found() -> None:
    code = "b64decode(a)\nbase64.b64decode(a, validate=False)\nbase64.decodebytes(a)\nb64decode(a, validate=True)"
    assert len(lenient(ast.parse(code))) == 3
