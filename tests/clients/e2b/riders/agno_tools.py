"""Agno's toolkit for E2B's sandboxes, in an environment of its own."""

from __future__ import annotations

import json

from agno.tools.e2b import E2BTools

tools = E2BTools(timeout=300)
assert "Result 1: 21" in tools.run_python_code("x = 20\nx + 1")
assert "ZeroDivisionError" in tools.run_python_code("1 / 0")
assert "Result 1: 20" in tools.run_python_code("x")
tools.write_file_content("/home/user/a.txt", "text")
assert tools.read_file_content("/home/user/a.txt") == "text"
assert "a.txt" in tools.list_files("/home/user")
assert "text" in str(tools.run_command("cat a.txt"))
assert tools.set_sandbox_timeout(600) == "600"
assert tools.get_sandbox_status()
assert json.loads(tools.shutdown_sandbox())["status"] == "success"
