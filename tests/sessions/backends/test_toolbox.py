"""Tools that one program runs: with the real program on this machine, and with programs that are not there."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from kernel_image.procfs import is_running
from kernel_image.protocol import FILES_TOOL, PROCESSES_TOOL, RELAY_WINDOW, SEARCHING_TOOL, TOOLBOX, RelayFrame
from sessions.backends import relay, toolbox
from sessions.backends.toolbox import Toolbox
from sessions.guest.tools import ask, open_end
from sessions.model.errors import ConnectionFailed, QuotaExceeded
from sessions.model.tasks import spawn
from tests.conftest import nothing_left  # noqa: F401 - a fixture
from tests.fakes import until
from tests.sessions.backends.relays import Real, Scripted, frame

pytestmark = pytest.mark.usefixtures("nothing_left")

#: variables of a command that do not fit into the window of a connection
LONG = {name: name * 100_000 for name in "ABCD"}
assert sum(map(len, LONG.values())) > RELAY_WINDOW


@pytest.fixture
def programs(tmp_path: Path) -> Real:
    return Real(tmp_path)


@pytest.fixture
async def tools(programs: Real) -> AsyncIterator[Toolbox]:
    made = Toolbox(programs.run_tool)
    yield made
    await made.end()
    await until(lambda: not programs.running)


async def run(tools: Toolbox, command: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    request = {"op": "run", "command": command, "cwd": "", "env": env or {}, "timeout": 30.0}
    return await ask(tools, PROCESSES_TOOL, request, open_end())


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


def said(ended: dict[str, Any]) -> bytes:
    return base64.b64decode(ended["stdout"])


async def test_one_program_runs_all_tools_one_after_the_other_and_at_once(tools: Toolbox, programs: Real) -> None:
    content = os.urandom(3_000_000)
    assert await ask(tools, FILES_TOOL, {"op": "write", "path": "a", "size": len(content)}, pieces(content)) == {
        "size": len(content)
    }
    async with aclosing(tools.run_tool(FILES_TOOL, '{"op": "read", "path": "a"}')) as output:
        answer = b"".join([piece async for piece in output])
    assert answer.endswith(content)
    ended = await asyncio.gather(*(run(tools, f"sleep 0.1; echo {number}; exit {number}") for number in range(10)))
    assert [(said(each), each["code"]) for each in ended] == [(b"%d\n" % number, number) for number in range(10)]
    assert programs.started == [TOOLBOX]


async def test_an_argument_may_be_longer_than_a_connections_window(tools: Toolbox) -> None:
    ended = await run(tools, "echo $A$B$C$D", LONG)
    assert said(ended).strip().decode() == "".join(LONG.values())


async def test_a_tool_may_answer_before_it_has_read_all_its_input(tools: Toolbox) -> None:
    request = {"op": "write", "path": "/etc/x", "size": 50_000_000}
    assert (await ask(tools, FILES_TOOL, request, pieces(*[bytes(1_000_000)] * 50)))["error"] == "outside"


async def test_a_download_ends_although_a_command_that_began_meanwhile_runs_on(tools: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(3_000_000))  # more than waits on its way
    async with aclosing(tools.run_tool(FILES_TOOL, '{"op": "read", "path": "a"}')) as output:
        read = len(await anext(output))
        command = spawn(run(tools, "ls -l /proc/$PPID/fd > began; while [ ! -e go ]; do sleep 0.02; done"), "client")
        await until(lambda: (tmp_path / "began").exists() and (tmp_path / "began").read_text())
        async for piece in output:
            read += len(piece)
    assert read > 3_000_000
    assert str(tmp_path / "a") not in (tmp_path / "began").read_text()
    assert not command.done()
    (tmp_path / "go").touch()
    await command


async def test_leaving_a_command_ends_it_and_a_process_in_the_background_stays(tools: Toolbox, tmp_path: Path) -> None:
    await run(tools, "sleep 60 & echo $! > background")
    background = int((tmp_path / "background").read_text())
    running = spawn(run(tools, "echo $$ > pid; sleep 60"), "client")
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    command = int((tmp_path / "pid").read_text())
    assert is_running(command)
    running.cancel()
    await until(lambda: not is_running(command))
    await tools.end()
    assert is_running(background)
    os.kill(background, signal.SIGKILL)


async def test_after_a_violent_end_of_the_program_the_next_tool_starts_it_again(tools: Toolbox, programs: Real) -> None:
    running = spawn(run(tools, "sleep 60"), "client")
    await until(lambda: programs.running)
    assert (await run(tools, "true"))["code"] == 0
    programs.running[0].kill()
    with pytest.raises(ConnectionFailed, match="ended during a file operation"):
        await running
    assert (await run(tools, "true"))["code"] == 0
    assert programs.started == [TOOLBOX, TOOLBOX]


async def test_a_tool_that_the_image_lacks_is_refused_and_others_go_on(tools: Toolbox, programs: Real) -> None:
    with pytest.raises(ConnectionFailed, match="cannot run a file operation now"):
        await ask(tools, "no_such_tool", {})
    assert (await run(tools, "true"))["code"] == 0
    assert programs.started == [TOOLBOX]


async def test_so_many_tools_run_at_a_time(tools: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "TOOLS_MAX", 2)
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    running = [spawn(run(tools, wait), "client") for _ in range(2)]
    await until(lambda: tools.tools.number == 2)
    with pytest.raises(QuotaExceeded, match="at most 2 file operations"):
        await run(tools, "true")
    (tmp_path / "go").touch()
    await asyncio.gather(*running)
    assert (await run(tools, "true"))["code"] == 0


async def test_a_tool_that_says_nothing_for_too_long_is_left(
    tools: Toolbox, programs: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "TIMEOUT", 0.2)
    with pytest.raises(ConnectionFailed, match="no progress"):
        await run(tools, "sleep 60")
    monkeypatch.undo()
    assert (await run(tools, "true"))["code"] == 0
    assert programs.started == [TOOLBOX]


async def test_a_search_that_does_not_end_is_ended(tmp_path: Path) -> None:
    programs = Real(tmp_path, "from kernel_image import searching; searching.SEARCH_SECONDS = 0.5")
    tools = Toolbox(programs.run_tool)
    (tmp_path / "a.txt").write_text("a" * 64 + "b")
    search = {"op": "grep", "path": "", "include": ["*"], "ignore_case": False, "regex": True, "per_line": True}
    assert (await ask(tools, SEARCHING_TOOL, search | {"query": "a+b$", "limit": 1}))["matches"]
    with pytest.raises(ConnectionFailed, match="no valid answer"):  # it has ended, and was not left
        await ask(tools, SEARCHING_TOOL, search | {"query": "(a+)+$", "limit": 1})
    await tools.end()
    assert programs.started == [TOOLBOX]


@pytest.mark.parametrize("env", [{}, LONG], ids=["short", "long"])
async def test_a_program_that_was_stopped_is_replaced_and_may_go_on_with_its_tools(
    tools: Toolbox, programs: Real, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    monkeypatch.setattr(toolbox, "STARTS", 1.0)
    long = spawn(run(tools, "sleep 3; echo done"), "client")
    assert (await run(tools, "true"))["code"] == 0
    stopped = programs.running[0]
    stopped.send_signal(signal.SIGSTOP)
    with pytest.raises(ConnectionFailed, match="no progress"):
        await run(tools, "true", env)
    assert (await run(tools, "true"))["code"] == 0
    stopped.send_signal(signal.SIGCONT)
    assert said(await long) == b"done\n"
    assert programs.started == [TOOLBOX, TOOLBOX]


async def test_without_tools_the_program_ends(programs: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "LINGER", 0.1)
    tools = Toolbox(programs.run_tool)
    assert (await run(tools, "true"))["code"] == 0
    await until(lambda: not programs.running)
    assert (await run(tools, "true"))["code"] == 0
    assert programs.started == [TOOLBOX, TOOLBOX]
    await until(lambda: not programs.running)


async def test_an_image_without_the_program_runs_each_tool_by_itself(programs: Real, tmp_path: Path) -> None:
    asked: list[str] = []

    async def older(name: str, argument: str, stdin: AsyncIterable[bytes] | None = None) -> AsyncGenerator[bytes, None]:
        asked.append(name)
        runner = Scripted(ends=True) if name == TOOLBOX else programs
        async with aclosing(runner.run_tool(name, argument, stdin)) as output:
            async for piece in output:
                yield piece

    tools = Toolbox(older)
    for content in (b"first", b"second"):
        request = {"op": "write", "path": "a", "size": len(content)}
        assert await ask(tools, FILES_TOOL, request, pieces(content)) == {"size": len(content)}
        assert (tmp_path / "a").read_bytes() == content, "its input was not lost"
    assert asked == [TOOLBOX, FILES_TOOL, FILES_TOOL]


async def test_frames_without_end_that_no_connection_needs_are_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "USELESS_PAUSE", 0.05)
    read = 0

    async def flood(
        _name: str, _argument: str, _stdin: AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[bytes, None]:
        nonlocal read
        while True:
            read += 1
            yield frame(RelayFrame.ALIVE, 0)

    tools = Toolbox(flood)
    waiting = spawn(run(tools, "true"), "client")
    await asyncio.sleep(0.5)
    waiting.cancel()
    await tools.end()
    assert relay.USELESS_MAX < read <= relay.USELESS_MAX + 12
