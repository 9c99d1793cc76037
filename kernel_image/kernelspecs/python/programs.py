# noqa: INP001 - the kernel loads it by its path
"""Runs a whole program in a fresh kernel. The kernel loads this module, and the gateway sends a call of `run_program`.

`sessions/programs/outcomes.py` reads the answer. The program becomes the module `main` in the file `main.py`, as if it
were imported; a script becomes the module `__main__`. Its errors are formatted like in plain Python.
"""

import ast
import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any, cast

from IPython import get_ipython

_MIME = "application/vnd.kernel-gateway.run+json"
#: exit code of an interrupted program, as in a shell
_INTERRUPTED = 130
#: maximum characters of the JSON that is published with a value
_JSON_MAX = 1024**2
#: maximum number of lists, objects and keys in that JSON. The gateway drops a message with twice as many
_PARTS_MAX = 100_000
#: maximum characters of an error's text
_ERROR_MAX = 200_000


def run_program(text: str) -> None:
    """Run the program that the JSON text describes, and publish its outcome."""
    publish = get_ipython().display_pub.publish
    program, path, artifacts = json.loads(text), os.path.abspath("main.py"), os.path.abspath("artifacts")
    answer: dict[str, Any] = {"exit_code": 1, "value": None, "error": "", "unread": None, "artifacts": False}
    loop = asyncio._get_running_loop()  # noqa: SLF001 - a documented function, despite its name
    try:
        os.makedirs(artifacts, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(program["code"])
        tree = _parsed(program["code"], path, answer)
        asyncio._set_running_loop(None)  # noqa: SLF001 - lets the program run its own loops
        if program["script"]:
            _script(tree, path)
        else:
            answer["value"] = _value(tree, path, program)
        answer["exit_code"] = 0
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            answer["exit_code"] = (left.code or 0) & 0xFF
        else:
            answer["error"] = _bounded(f"{_printed(left.code)}\n")
    except BaseException as error:  # noqa: BLE001 - all errors of the program are reported
        if isinstance(error, KeyboardInterrupt):
            answer["exit_code"] = _INTERRUPTED
        below = None if answer["unread"] else _below(error.__traceback__)
        answer["error"] = _bounded("".join(traceback.format_exception(type(error), error, below)))
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
    with contextlib.suppress(OSError):  # the program may have removed it
        answer["artifacts"] = bool(os.listdir(artifacts))
    publish({_MIME: answer}, {})


def shown(value: object) -> object:
    """Return the value of a cell's `main`. If possible, the cell's result then also contains the value as JSON."""
    try:
        text = json.dumps(value, allow_nan=False)
    except Exception:  # noqa: BLE001 - the value's own methods may run here
        return value
    if len(text) > _JSON_MAX or sum(map(text.count, "[{:")) > _PARTS_MAX:
        return value
    shell, kind = get_ipython(), type(value)
    formatter = shell.display_formatter.mimebundle_formatter
    before = formatter.type_printers.get(kind)

    def bundle(found: Any, **_: object) -> dict[str, Any] | None:
        return {"application/json": json.loads(text)} if found is value else None

    def restore(*_: object) -> None:
        shell.events.unregister("post_run_cell", restore)
        formatter.type_printers.pop(kind, None)
        if before is not None:
            formatter.for_type(kind, before)

    formatter.for_type(kind, bundle)
    shell.events.register("post_run_cell", restore)
    return value


def _printed(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - the program's own methods run here
        return f"<unprintable {type(value).__name__} object>"


def _bounded(text: str) -> str:
    return text[:_ERROR_MAX].encode(errors="backslashreplace").decode()


def _parsed(code: str, path: str, answer: dict[str, Any]) -> ast.Module:
    try:
        return ast.parse(code, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        answer["unread"] = str(error)
        raise


def _value(tree: ast.Module, path: str, program: dict[str, Any]) -> str:
    """Return the result of `main` as JSON."""
    spec = importlib.util.spec_from_file_location("main", path)
    module = sys.modules["main"] = importlib.util.module_from_spec(cast("ModuleSpec", spec))
    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this module's purpose
    value = json.dumps(module.main(**program["arguments"]), allow_nan=False, ensure_ascii=False)
    value.encode()
    if len(json.dumps(value)) > program["most"]:
        raise ValueError(f"the value of main() is larger than {program['most']} bytes")
    return value


def _script(tree: ast.Module, path: str) -> None:
    """Run a script, as `python main.py` does."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = path
    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this module's purpose


def _below(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this module."""
    while tb is not None and tb.tb_frame.f_code.co_filename == run_program.__code__.co_filename:
        tb = tb.tb_next
    return tb
