"""Both AutoGens, `autogen-ext` and its fork `ag2`: each has a different executor for kernel gateways.

Neither interrupts a cell after its timeout: the cell continues in the kernel until a restart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from autogen import ConversableAgent
from autogen.coding import CodeBlock as Ag2Block
from autogen.coding import jupyter as ag2
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor, DockerJupyterCodeResult
from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo
from autogen_ext.tools.code_execution import CodeExecutionInput, PythonCodeExecutionTool

from tests.gateways import KEYS, Gateway

KEY = KEYS["alice"]
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
DIE = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
PNG = b"\x89PNG\r\n\x1a\n"

# -- autogen-ext: aiohttp and websockets ------------------------------------------------------------------------


@pytest.fixture
async def executor(gateway: Gateway, tmp_path: Path) -> AsyncIterator[DockerJupyterCodeExecutor]:
    at = urlsplit(gateway.url)
    server = JupyterConnectionInfo(host=str(at.hostname), use_https=False, port=at.port, token=KEY)
    async with DockerJupyterCodeExecutor(server, timeout=30, output_dir=tmp_path) as executor:
        yield executor
    assert gateway.kernels() == []


async def execute(executor: DockerJupyterCodeExecutor, *codes: str) -> DockerJupyterCodeResult:
    blocks = [CodeBlock(code=code, language="python") for code in codes]
    return await executor.execute_code_blocks(blocks, CancellationToken())


async def test_blocks_run_and_keep_their_state(executor: DockerJupyterCodeExecutor) -> None:
    result = await execute(executor, "x = 40\nprint('hello')", "x + 2")
    assert (result.exit_code, result.output) == (0, "hello\n\n42")
    assert (await execute(executor, "x")).output == "40"


async def test_an_error_is_an_exit_code(executor: DockerJupyterCodeExecutor) -> None:
    result = await execute(executor, "print('before')", "1 / 0", "print('never')")
    assert result.exit_code == 1
    assert result.output.startswith("before\n\nERROR: ERROR: ZeroDivisionError: division by zero")
    assert "never" not in result.output


async def test_plots_and_pages_become_files(executor: DockerJupyterCodeExecutor, tmp_path: Path) -> None:
    result = await execute(executor, PLOT, "import pandas\npandas.DataFrame({'x': [1]})")
    image, page = result.output_files
    assert (image.parent, image.read_bytes()[:8]) == (tmp_path, PNG)
    assert "<table" in page.read_text()


async def test_a_restart_clears_the_variables(executor: DockerJupyterCodeExecutor) -> None:
    await execute(executor, "x = 1")
    await executor.restart()
    assert (await execute(executor, "'x' in globals()")).output == "False"


async def test_a_timeout_is_an_error_and_code_runs_again_after_a_restart(executor: DockerJupyterCodeExecutor) -> None:
    await execute(executor, "1")  # the kernel has started
    executor._timeout = 1
    result = await execute(executor, "import time\ntime.sleep(60)")
    assert (result.exit_code, "Timeout waiting for output" in result.output) == (1, True)
    executor._timeout = 30
    await executor.restart()
    assert (await execute(executor, "1 + 1")).output == "2"


async def test_a_kernel_that_dies_is_an_error_and_another_follows(executor: DockerJupyterCodeExecutor) -> None:
    result = await execute(executor, DIE)
    assert (result.exit_code, "KernelDied" in result.output) == (1, True)
    assert (await execute(executor, "1 + 1")).output == "2"


async def test_the_executor_works_as_a_tool_of_agents(executor: DockerJupyterCodeExecutor) -> None:
    code = CodeExecutionInput(code="sum(range(5))")
    result = await PythonCodeExecutionTool(executor).run(code, CancellationToken())
    assert (result.success, result.output) == (True, "10")


# -- ag2: requests and websocket-client -------------------------------------------------------------------------


@pytest.fixture
def ag2_executor(gateway: Gateway, tmp_path: Path) -> Iterator[ag2.JupyterCodeExecutor]:
    at = urlsplit(gateway.url)
    server = ag2.JupyterConnectionInfo(host=str(at.hostname), use_https=False, port=at.port, token=KEY)
    with ag2.JupyterCodeExecutor(server, timeout=30, output_dir=tmp_path) as executor:
        yield executor
        executor._jupyter_kernel_client.stop()  # the executor's own stop leaves the socket open
        executor._jupyter_client._session.close()
    assert gateway.kernels() == []


def test_an_agent_runs_its_blocks(ag2_executor: ag2.JupyterCodeExecutor) -> None:
    agent = ConversableAgent("runner", llm_config=False, code_execution_config={"executor": ag2_executor})

    def said(code: str) -> str:
        return str(agent.generate_reply(messages=[{"role": "user", "content": f"```python\n{code}\n```"}]))

    assert said("x = 40\nprint('hello')") == "exitcode: 0 (execution succeeded)\nCode output: hello\n"
    assert said("x + 2") == "exitcode: 0 (execution succeeded)\nCode output: 42"
    assert said("1 / 0").startswith("exitcode: 1 (execution failed)\nCode output: ERROR: ERROR: ZeroDivisionError")


def test_ag2_saves_plots_and_restarts(ag2_executor: ag2.JupyterCodeExecutor, tmp_path: Path) -> None:
    result = ag2_executor.execute_code_blocks([Ag2Block(code=f"x = 1\n{PLOT}", language="python")])
    assert [Path(file).read_bytes()[:8] for file in result.output_files] == [PNG]
    ag2_executor._jupyter_kernel_client.stop()  # a restart also leaves the socket open
    ag2_executor.restart()
    result = ag2_executor.execute_code_blocks([Ag2Block(code="'x' in globals()", language="python")])
    assert (result.exit_code, result.output) == (0, "False")
