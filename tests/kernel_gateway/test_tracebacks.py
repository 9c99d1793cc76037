"""What a defect leaves in the log: where it is, and nothing of what was at work."""

from __future__ import annotations

import json
import subprocess
import sys

FAILS = """
import structlog
from kernel_gateway import logs

def fails(code):
    key = "a-secret-key"
    raise RuntimeError("a defect")

logs.set_up()
try:
    fails("print('the user''s code')")
except RuntimeError:
    structlog.get_logger().exception("it failed")
"""


def test_a_traceback_tells_no_local_variables() -> None:
    ended = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=True)
    (line,) = ended.stderr.splitlines()
    record = json.loads(line)
    assert (record["event"], record["exception"][0]["exc_value"]) == ("it failed", "a defect")
    assert "fails" in line  # where it is
    assert "a-secret-key" not in line
    assert "print" not in line
