"""The executor of smolagents for E2B's sandboxes, in an environment of its own."""

from __future__ import annotations

from smolagents import FinalAnswerTool
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

LARGE = 100_000

executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF), timeout=300)
executor.send_tools({"final_answer": FinalAnswerTool()})
executor.send_variables({"given": [1, 2]})
ran = executor("print('hello'); x = sum(given); x + 1")
assert (ran.output, ran.logs, ran.is_final_answer) == ("4", "hello\n", False), ran
raised = ""
try:
    executor("1 / 0")
except AgentError as error:
    raised = str(error)
assert "ZeroDivisionError" in raised, raised
assert executor("x").output == "3"
# The final answer is the text of an exception, and shall arrive whole.
answered = executor(f"final_answer({{'x': x, 'large': 'a' * {LARGE}}})")
assert answered.is_final_answer
assert answered.output == {"x": 3, "large": "a" * LARGE}, str(answered.output)[:200]
executor.cleanup()
