"""Random values as clients and kernels may send them. Code and commands among them do nothing on this machine."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\ud800", "\x00", "a" * 300, "1e999"])
)
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner), max_leaves=8
)


def nested(value: Any, depth: int) -> Any:
    """Return a value inside many lists."""
    for _ in range(depth):
        value = [value]
    return value


DEEP = st.builds(nested, JSON, st.sampled_from([90, 110, 260, 600, 900]))
VALUE = JSON | DEEP


def fields(
    needed: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields: half of them as they should be, the others with one field of any kind."""
    right = st.fixed_dictionaries(needed, optional=optional or {})
    names = st.sampled_from([*needed, *(optional or {}), "other"])
    return right | st.builds(lambda body, name, value: body | {name: value}, right, names, VALUE)


def harmless(code: Any) -> Any:
    """Return code that has the same characters and does nothing."""
    return f"text = {code!r}" if isinstance(code, str) else code


def as_text(value: Any) -> str:
    """Return a value as JSON; if it is a body with code, the code does nothing."""
    if isinstance(value, dict) and not str(value.get("code", "text = ")).startswith("text = "):
        value = value | {"code": harmless(value["code"])}
    return json.dumps(value)
