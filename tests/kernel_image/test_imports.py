"""A module that a kernel does not import at its start is complete when a cell imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2] / "kernel_image"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from python_kernel import imports
if sys.argv[2] == "lean":
    imports.lean()
import jupyter_client.jsonutil, tornado.log
print(*({"curses", "dateutil", "dateutil.parser", "dateutil.tz"} & set(sys.modules)))
print(jupyter_client.jsonutil.parse_date("2026-11-22T06:00:00Z").isoformat())
import curses, dateutil.parser, dateutil.tz
print(curses.setupterm.__name__, dateutil.parser.parse("22 Nov 2026").year, dateutil.tz.gettz("UTC"))
"""


def outputs(how: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(HERE), how]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_delayed_module_is_absent_at_first_and_complete_when_imported() -> None:
    lean, stock = outputs("lean"), outputs("stock")
    assert lean[0] == ""
    assert "dateutil.parser" in stock[0]
    assert lean[1:] == stock[1:]
    assert lean[1] == "2026-11-22T06:00:00+00:00"
