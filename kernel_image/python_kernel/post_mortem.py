"""The frames of the last uncaught exception: their names, lines and variables, and code that runs in one of them.

The frames are described in the thread of the control channel, without running code of the user's (see `variables.py`).
Code runs in a frame as a cell does, in the main thread, on a copy of the frame's names: what it assigns is forgotten.
"""

from __future__ import annotations

import linecache
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from . import variables

#: maximum frames, and characters of a line of source
FRAMES, LINE = 50, 200
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_args_of = vars(BaseException)["args"].__get__


def described(shell: Any, number: int | None) -> dict[str, Any]:
    """Describe the last uncaught exception, its frames, the innermost first, and the variables of one of them.

    Args:
        shell: IPython's shell.
        number: number of the frame. None: the variables of none.
    """
    error = getattr(sys, "last_value", None)
    steps = _steps(shell)
    if not steps:
        return {"frames": []}
    answer: dict[str, Any] = {
        "exception": variables.type_name(type(error))[: variables.NAME],
        "text": ", ".join(_told(one) for one in _args_of(error)[:3]),
        "frames": [_frame(shell, frame, line) for frame, line in steps],
    }
    if number is not None and number < len(steps):
        hidden = shell.user_ns_hidden if steps[number][0].f_locals is shell.user_ns else {}
        answer["variables"] = variables.listed(steps[number][0].f_locals, hidden)["variables"]
    return answer


def _told(value: object) -> str:
    return value[: variables.SHORT] if type(value) is str else variables.preview(value, variables.SHORT)


def _steps(shell: Any) -> list[tuple[FrameType, int]]:
    """Return the frames from the cell's code on, each with its line, the innermost first."""
    step, own, kept = getattr(sys, "last_traceback", None), False, deque[tuple[FrameType, int]](maxlen=FRAMES)
    while step is not None:
        own = own or step.tb_frame.f_code.co_filename in _cells(shell)
        if own:
            kept.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return list(reversed(kept))


def _cells(shell: Any) -> Mapping[str, int]:
    """Return the numbers of the cells that were run, by the names of their files."""
    numbers: Mapping[str, int] = shell.compile._filename_map  # noqa: SLF001 - IPython tells it in tracebacks only
    return numbers


def _frame(shell: Any, frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    number = _cells(shell).get(code.co_filename)
    return {
        "name": code.co_name[: variables.NAME],
        "line": line or 0,
        "source": code.co_filename[-variables.NAME :] if number is None else f"cell {number}",
        "text": linecache.getline(code.co_filename, line or 0).strip()[:LINE],
    }


@contextmanager
def entered(shell: Any, number: int) -> Iterator[str]:
    """Let the shell run code in a frame. Yield why that is not possible; empty if it is.

    An error of the code is not the last exception afterwards, so the next code still finds the frame.
    """
    steps = _steps(shell)
    if number >= len(steps):
        yield f"there is no frame {number}"
        return
    frame = steps[number][0]
    module = ModuleType("__main__")
    names = {name: shell.user_ns[name] for name in ("In", "Out", "_dh", "get_ipython")} | {"_oh": {}}
    vars(module).update(names | frame.f_globals | frame.f_locals | {"_oh": {}})
    before = shell.user_module, shell.user_ns
    last = {name: getattr(sys, name) for name in _LAST if hasattr(sys, name)}
    shell.user_module, shell.user_ns = module, vars(module)
    try:
        yield ""
    finally:
        shell.user_module, shell.user_ns = before
        vars(sys).update(last)
