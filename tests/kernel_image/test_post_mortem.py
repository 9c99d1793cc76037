"""The frames of an exception are described without code of the user's, and are few."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_image.python_kernel.post_mortem import FRAMES, described, entered

CELL = "/tmp/ipykernel_1/7.py"


@pytest.fixture
def shell() -> Iterator[Any]:
    """A shell that has run one cell, with the last exception restored afterwards."""
    names: dict[str, Any] = {"In": [], "Out": {}, "_dh": [], "_oh": {}, "get_ipython": None}
    shell = SimpleNamespace(user_ns=names, user_module=None, user_ns_hidden={})
    shell.compile = SimpleNamespace(_filename_map={CELL: 4})
    before = {name: getattr(sys, name) for name in ("last_value", "last_traceback") if hasattr(sys, name)}
    yield shell
    vars(sys).update(before)


def fail(shell: Any, code: str) -> None:
    """Run a cell that fails."""
    try:
        exec(compile(code, CELL, "exec"), shell.user_ns)  # noqa: S102
    except Exception as error:  # noqa: BLE001 - any error is the point
        sys.last_value, sys.last_traceback = error, error.__traceback__


def test_no_code_of_the_user_runs(shell: Any) -> None:
    fail(
        shell,
        "class Trap(Exception):\n"
        "    def __str__(self): raise SystemExit\n"
        "    __repr__ = __str__\n"
        "def f(x):\n"
        "    raise Trap(x)\n"
        "f(Trap())",
    )
    told = described(shell, 0)
    assert (told["exception"], told["text"]) == ("Trap", "<Trap>")
    assert [(frame["name"], frame["line"], frame["source"]) for frame in told["frames"]] == [
        ("f", 5, "cell 4"),
        ("<module>", 6, "cell 4"),
    ]
    assert told["variables"] == [{"name": "x", "type": "Trap", "preview": "<Trap>"}]


def test_of_an_endless_recursion_the_innermost_frames_are_told(shell: Any) -> None:
    fail(shell, "def f(n):\n    if n == 500: raise ValueError\n    f(n + 1)\nf(0)")
    told = described(shell, 0)
    assert len(told["frames"]) == FRAMES
    assert told["variables"][0]["preview"] == "500"
    assert "variables" not in described(shell, FRAMES)


def test_without_an_exception_there_are_no_frames(shell: Any) -> None:
    sys.last_traceback = None
    assert described(shell, 0) == {"frames": []}


def test_code_in_a_frame_changes_neither_the_session_nor_the_last_exception(shell: Any) -> None:
    fail(shell, "def f(x):\n    raise ValueError(x)\nf(1)")
    names, last = shell.user_ns, sys.last_value
    with entered(shell, 0) as problem:
        assert problem == ""
        exec("y = [x for _ in range(2)]; z = (lambda: x)()", shell.user_module.__dict__, shell.user_ns)  # noqa: S102
        assert shell.user_ns["y"] == [1, 1]
        sys.last_value = KeyError()
    assert shell.user_ns is names
    assert "y" not in names
    assert sys.last_value is last
    with entered(shell, 9) as problem:
        assert problem == "there is no frame 9"
        assert shell.user_ns is names
