"""CrewAI's tools for E2B's sandboxes, in an environment of its own."""

from __future__ import annotations

from crewai_tools import E2BExecTool, E2BFileTool, E2BPythonTool

python = E2BPythonTool(persistent=True)
said = python.run(code="x = 20; print('hello'); x + 1")
assert (said["text"], said["stdout"], said["error"]) == ("21", ["hello\n"], None), said
assert python.run(code="x")["text"] == "20"
assert "ZeroDivisionError" in str(python.run(code="1 / 0")["error"])

command = E2BExecTool()
ran = command.run(command="echo $WHO; pwd", cwd="/workspace", envs={"WHO": "me"})
assert (ran["exit_code"], ran["stdout"]) == (0, "me\n/home/user\n"), ran

files = E2BFileTool(persistent=True)
files.run(action="mkdir", path="/workspace/made")
files.run(action="write", path="/workspace/made/a.txt", content="one\n")  # `append` fails in the client, in E2B's SDK
assert "one\n" in str(files.run(action="read", path="/workspace/made/a.txt")["content"])
assert "a.txt" in str(files.run(action="list", path="/workspace/made"))
files.run(action="delete", path="/workspace/made/a.txt")
assert files.run(action="exists", path="/workspace/made/a.txt")["exists"] is False
for tool in (python, files):
    tool.close()
