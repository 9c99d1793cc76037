"""How the Python kernel differs from stock ipykernel, seen from the other end of its channels."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kernel_gateway.http.terminal_text import without_escapes
from kernel_image.python_kernel.app import config
from kernel_image.python_kernel.publishing import PIECE
from sessions.backends.base import Launch
from sessions.backends.process import ProcessBackend
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import SessionClosed
from tests.fakes import KERNELSPECS, Listener

PYTHON = KERNELSPECS.find("python")
#: a stock kernel, started in the usual way
STOCK = replace(PYTHON, argv=("{python}", "-m", "ipykernel_launcher", "-f", "{connection_file}"))


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[ProcessBackend]:
    backend = ProcessBackend()
    yield backend
    await backend.close()


class Conversation:
    """Collects the messages of one cell until the kernel is idle."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.said: list[Message] = []
        self._over = asyncio.Event()
        kernel.attach(Listener(self._note))

    def _note(self, message: Message) -> None:
        if message.parent_id == self._id and message.channel == "iopub":
            self.said.append(message)
            if message.content.get("execution_state") == "idle":
                self._over.set()

    async def sends(self, code: str, *, while_nobody_reads: float = 0, patience: float = 60) -> bool:
        """Run a cell.

        Returns:
            True if the kernel has reported that it is idle.
        """
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        self._over.clear()
        self._id = self.kernel.connection.send("shell", "execute_request", content)
        await asyncio.sleep(0.05)
        time.sleep(while_nobody_reads)  # noqa: ASYNC251 - blocks the whole gateway
        try:
            async with asyncio.timeout(patience):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    @property
    def texts(self) -> list[str]:
        return [message.content["text"] for message in self.said if message.type == "stream"]


async def test_thirty_megabytes_in_one_line_arrive_whole_and_in_pieces(backend: ProcessBackend) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends("print('x' * 30_000_000)")
    assert sum(map(len, conversation.texts)) == 30_000_001
    assert max(map(len, conversation.texts)) == PIECE
    assert conversation.said[-1].type == "status"
    await kernel.kill(SessionClosed())


@pytest.mark.parametrize(
    "code", ["for _ in range(100): print('y' * 1_000_000)", "text = 'z' * 100_000_000; base = most(); print(text)"]
)
async def test_a_large_output_that_nobody_reads_yet_waits_in_the_cell_and_not_in_memory(
    backend: ProcessBackend, code: str
) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends(
        "import resource\nmost = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\nbase = most()"
    )
    assert await conversation.sends(code, while_nobody_reads=3)
    assert sum(map(len, conversation.texts)) > 100_000_000
    conversation.said.clear()
    assert await conversation.sends("print(most() - base)")
    assert int("".join(conversation.texts)) < 70  # MiB; without a limit, more than all of it
    await kernel.kill(SessionClosed())


async def test_the_kernel_keeps_no_outputs(backend: ProcessBackend) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends("print(1); display({'text/plain': 'two'}, raw=True); 3")
    assert await conversation.sends("print(get_ipython().history_manager.outputs)")
    assert conversation.texts == ["1\n", "{}\n"]
    await kernel.kill(SessionClosed())


#: more messages than the queues between two processes hold
FLOOD = """
kernel = get_ipython().kernel
for number in range(2000):
    content = {"name": "stdout", "text": f"{number:05}" * 1000}
    kernel.session.send(kernel.iopub_socket, "stream", content, kernel.get_parent())
"""


async def test_no_output_is_lost_while_the_gateway_is_blocked(backend: ProcessBackend) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends(FLOOD, while_nobody_reads=1)
    assert [text[:5] for text in conversation.texts] == [f"{number:05}" for number in range(2000)]
    await kernel.kill(SessionClosed())


async def test_a_stock_kernel_loses_output(backend: ProcessBackend) -> None:
    kernel = await Kernel.start(backend, Launch(STOCK))
    conversation = Conversation(kernel)
    await conversation.sends(FLOOD, while_nobody_reads=1, patience=0.3)
    assert len(conversation.texts) < 2000
    await kernel.kill(SessionClosed())


async def test_a_pip_that_fails_fails_its_cell_with_pips_last_error(backend: ProcessBackend) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends("%pip install --no-index no-such-package")
    (error,) = (message.content for message in conversation.said if message.type == "error")
    said = "No matching distribution found for no-such-package"
    assert (error["ename"], error["evalue"]) == ("PipFailed", said)
    assert f"ERROR: {said}\n" in "".join(conversation.texts)
    conversation = Conversation(kernel)
    assert await conversation.sends("%pip --version")
    assert "".join(conversation.texts).startswith("pip ")
    assert "error" not in {message.type for message in conversation.said}
    await kernel.kill(SessionClosed())


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def f():\n  try:\n    1 / 0\n  finally:\n    print()\nf()", [6, 3]),
        ("def f():\n  try:\n    1 / 0\n  except ValueError:\n    pass\n\ntry:\n  f()\nfinally:\n  print()", [8, 3]),
        ("def f():\n  try:\n    int('q')\n  except ValueError:\n    raise KeyError\nf()", [3, 6, 5]),
        ("try:\n  1 / 0\nexcept OSError:\n  pass\nexcept Exception as error:\n  raise error", [6, 2]),
        ("def f(n):\n  try:\n    1 / n\n    f(n - 1)\n  finally:\n    n = 9\nf(3)", [7, 4, 4, 4, 3]),
    ],
)
async def test_a_traceback_points_at_the_lines_of_the_error(
    backend: ProcessBackend, code: str, lines: list[int]
) -> None:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    conversation = Conversation(kernel)
    assert await conversation.sends(code)
    (error,) = (message.content for message in conversation.said if message.type == "error")
    shown = without_escapes("\n".join(error["traceback"]))
    assert [int(line) for line in re.findall(r"^Cell In\[1\], line (\d+)", shown, re.MULTILINE)] == lines
    assert [int(line) for line in re.findall(r"^-+> (\d+)", shown, re.MULTILINE)] == lines
    await kernel.kill(SessionClosed())


def test_no_history_is_written() -> None:
    assert config().HistoryManager.enabled is False
