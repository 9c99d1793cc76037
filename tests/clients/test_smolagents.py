"""smolagents' Docker executor, all of it but the container: the gateway replaces the server in its container.

The executor generates a key for its container, so the tests replace the generator. It sends the key only as `?token=`.

The executor returns at the first error message, before the cell has ended. The kernel would take code that is sent at
that moment for a part of the same batch and skip it (`stop_on_error`), so these tests wait, as for a model that thinks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import numpy as np
import PIL.Image
import pytest
from smolagents import CodeAgent, FinalAnswerTool, tool
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor
from smolagents.utils import AgentError

from tests.gateways import KEYS, Gateway


@pytest.fixture
def executor(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerExecutor]:
    engine = MagicMock()
    engine.containers.run.return_value.status = "running"
    monkeypatch.setattr("docker.from_env", lambda: engine)
    made = SimpleNamespace(token_urlsafe=lambda _size: KEYS["alice"])
    monkeypatch.setattr("smolagents.remote_executors.secrets", made)
    at = urlsplit(gateway.url)
    executor = DockerExecutor(
        [], AgentLogger(level=LogLevel.OFF), host=str(at.hostname), port=int(at.port or 0), build_new_image=False
    )
    # The kernels already have the packages that the tools import; a kernel without a network installs nothing.
    executor.installed_packages = ["numpy", "PIL"]
    yield executor
    executor.cleanup()
    # The real executor would end its container, and with it the kernel.
    assert gateway.call("DELETE", f"/api/kernels/{executor.kernel_id}").status_code == 204
    assert gateway.kernels() == []


def wait_until_idle(gateway: Gateway) -> None:
    """Wait until the kernel has ended its cell."""
    while gateway.call("GET", "/api/kernels").json()[0]["execution_state"] != "idle":
        time.sleep(0.02)
    time.sleep(0.2)


def test_state_is_kept_and_what_is_printed_is_logged(executor: DockerExecutor) -> None:
    first = executor("x = 40\nprint('hello')\nx + 2")
    assert (first.output, first.logs, first.is_final_answer) == ("42", "hello\n", False)
    executor.send_variables({"given": {"a": [1, (2, 3)]}, "table": np.arange(3)})
    assert executor("given['a'][1], x, int(table.sum())").output == "((2, 3), 40, 3)"


def test_an_error_is_raised_and_keeps_the_state(gateway: Gateway, executor: DockerExecutor) -> None:
    executor("x = 1")
    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("x = 2\n1 / 0")
    wait_until_idle(gateway)
    assert executor("x").output == "2"


def test_a_kernel_that_dies_is_an_error_and_another_follows(executor: DockerExecutor) -> None:
    with pytest.raises(AgentError, match="Run the setup cells again"):
        executor("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert executor("1 + 1").output == "2"


@pytest.mark.parametrize("code", ["{'a': (1, 2.5)}", "np.array([[1, 2]])", "PIL.Image.new('RGB', (2, 1), 'red')"])
def test_a_final_answer_comes_back_as_a_value(executor: DockerExecutor, code: str) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    answer = executor(f"import numpy as np, PIL.Image\nfinal_answer({code})")
    assert answer.is_final_answer
    if isinstance(answer.output, PIL.Image.Image):
        assert (answer.output.size, answer.output.getpixel((0, 0))) == ((2, 1), (255, 0, 0))
    else:
        assert repr(answer.output) == repr(eval(code, {"np": np}))  # noqa: S307 - the code is the test's own


class Script(Model):  # type: ignore[misc]
    """A model that returns the given steps one by one."""

    def __init__(self, gateway: Gateway, *steps: str) -> None:
        super().__init__(model_id="script")
        self._gateway = gateway
        self._steps = iter(steps)
        #: content of the last message that the model was given
        self.seen = ""

    def generate(self, messages: list[ChatMessage], **_options: Any) -> ChatMessage:
        wait_until_idle(self._gateway)
        self.seen = str(messages[-1].content)
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: on.\n<code>\n{next(self._steps)}\n</code>")


@tool  # type: ignore[untyped-decorator]
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: what to double.
    """
    return number * 2


def test_an_agent_works_to_its_answer(gateway: Gateway, executor: DockerExecutor) -> None:
    model = Script(gateway, "x = double(20)\nprint('x is', x)", "1 / 0", "final_answer({'x': x + 2})")
    agent = CodeAgent(tools=[double], model=model, executor=executor, logger=AgentLogger(level=LogLevel.OFF))
    assert agent.run("Double 20.") == {"x": 42}
    first, failed, last = agent.memory.get_succinct_steps()[1:]
    assert "x is 40" in first["observations"]
    assert "ZeroDivisionError" in failed["error"]["message"]
    assert last["is_final_answer"]
    assert "ZeroDivisionError" in model.seen
