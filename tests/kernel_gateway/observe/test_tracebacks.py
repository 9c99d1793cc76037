"""The log of a defect: it contains the place of the defect, and no values of variables."""

from __future__ import annotations

import json
import subprocess
import sys

FAILS = """
import structlog
from kernel_gateway.observe import logs

def fails(code):
    key = "a-secret-key"
    raise RuntimeError("a defect")

logs.set_up()
try:
    fails("print('the user''s code')")
except RuntimeError:
    structlog.get_logger().exception("it failed")
"""


def test_a_traceback_contains_no_local_variables() -> None:
    ended = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=True)
    (line,) = ended.stderr.splitlines()
    record = json.loads(line)
    assert (record["event"], record["exception"][0]["exc_value"]) == ("it failed", "a defect")
    assert "fails" in line  # the place of the defect
    assert "a-secret-key" not in line
    assert "print" not in line
