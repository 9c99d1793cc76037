"""Commands that run on their own: who listens and writes, what they count as, and what a hostile sandbox says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.guest.attached import LINE_MAX, Data, Ended, Program
from sessions.model.errors import (
    ConnectionFailed,
    FileNotFound,
    InvalidRequest,
    ProcessNotFound,
    QuotaExceeded,
    SessionError,
)
from sessions.model.tasks import spawn
from sessions.model.values import ExecutionEnd, SandboxSpec, SessionKey, Status
from sessions.sandbox import commands
from sessions.sandbox.commands import AttachedCommand, Listener
from sessions.sandbox.sandbox import Sandbox
from sessions.tenants.quotas import TenantLimits
from tests.fakes import FakeBackend, World, background, until, world_over

KEY = SessionKey("acme", "s1")


def shell(command: str, *, takes_input: bool = False, cwd: str = "") -> Program:
    return Program(("/bin/sh", "-c", command), cwd, {"B": "more"}, takes_input)


async def heard(listener: Listener) -> tuple[bytes, Ended | None]:
    """Return all output and the end."""
    output, end = b"", None
    async for event in listener:
        match event:
            case Data(content=content):
                output += content
            case Ended():
                end = event
    return output, end


async def test_a_command_runs_with_both_environments_and_is_recorded(world: World, sandbox: Sandbox) -> None:
    command, listener = await sandbox.commands.start(shell("echo $A $B; exit 3"), "tag")
    assert (command.pid > 0, command.tag) == (True, "tag")
    assert await heard(listener) == (b"own more\n", Ended(3, timed_out=False))
    await until(lambda: not sandbox.commands.attached())
    ((_, request, result),) = world.observed
    assert request.code == "/bin/sh -c 'echo $A $B; exit 3'"
    assert isinstance(result, ExecutionEnd)
    assert (result.status, result.output_bytes) == (Status.ERROR, 9)


async def test_a_command_is_gone_as_soon_as_anybody_hears_of_its_end(sandbox: Sandbox) -> None:
    command, listener = await sandbox.commands.start(shell("read line; exit 3", takes_input=True), None)
    assert sandbox.commands.attached() == [command]
    await command.write(b"go\n")
    async for event in listener:
        if isinstance(event, Ended):
            break
    assert sandbox.commands.attached() == []
    with pytest.raises(ProcessNotFound):
        sandbox.commands.find(command.pid)


async def test_listeners_come_and_go_and_the_command_continues(sandbox: Sandbox, place: Path) -> None:
    command, first = await sandbox.commands.start(shell("until test -e go; do sleep 0.02; done; echo late"), None)
    command.leave(first)
    assert await heard(first) == (b"", None)
    assert sandbox.commands.find(command.pid) is command
    assert sandbox.idle_for() == 0
    second, third = command.listen(), command.listen()
    (place / "go").touch()
    late = (b"late\n", Ended(0, timed_out=False))
    assert [*await asyncio.gather(heard(second), heard(third))] == [late, late]
    with pytest.raises(ProcessNotFound):
        sandbox.commands.find(command.pid)
    assert await heard(command.listen()) == (b"", None)


async def test_input_is_written_until_it_is_closed(sandbox: Sandbox) -> None:
    command, listener = await sandbox.commands.start(shell("cat", takes_input=True), None)
    content = bytes(range(256)) * 1000
    hearing = spawn(heard(listener), "listener")
    await command.write(content)
    await command.close_input()
    assert await hearing == (content, Ended(0, timed_out=False))
    with pytest.raises(ProcessNotFound):
        await command.write(b"late")


async def test_what_a_command_was_started_without_is_refused(sandbox: Sandbox) -> None:
    command, _ = await sandbox.commands.start(shell("sleep 60"), None)
    for attempt in (command.write(b"x"), command.close_input(), command.resize((80, 24))):
        with pytest.raises(InvalidRequest):
            await attempt


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (shell("true", cwd="absent"), FileNotFound),
        (shell("true", cwd="/etc\0"), InvalidRequest),
        (Program(("/absent",)), InvalidRequest),
        (Program(()), InvalidRequest),
        (Program(("/bin/sh", "\0")), InvalidRequest),
        (Program(("/bin/sh", "x" * 200_000)), InvalidRequest),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_program_that_cannot_be_run_is_refused(
    world: World, sandbox: Sandbox, program: Program, error: type[SessionError]
) -> None:
    with pytest.raises(error):
        await sandbox.commands.start(program, None)
    assert sandbox.commands.attached() == []
    assert world.observed == []  # it never ran


async def test_commands_count_as_executions_and_are_limited(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_over(backend, quotas=TenantLimits(executions=2)) as world:
        sandbox = await world.sandboxes.create(KEY, SandboxSpec("template"))
        for _ in range(2):
            await sandbox.commands.start(shell("sleep 60"), None)
        with pytest.raises(QuotaExceeded):
            await sandbox.commands.start(shell("true"), None)
        monkeypatch.setattr(commands, "ATTACHED_MAX", 2)
        with pytest.raises(QuotaExceeded, match="at most 2 commands"):
            await sandbox.commands.start(shell("true"), None)
        assert len(sandbox.commands.attached()) == 2


async def test_a_command_that_runs_too_long_is_ended(world: World) -> None:
    sandbox = await world.sandboxes.create(KEY, SandboxSpec("template", max_execute_timeout=0.5))
    _, listener = await sandbox.commands.start(shell("sleep 60"), None)
    assert await heard(listener) == (b"", Ended(-9, timed_out=True))


async def test_a_command_with_a_timeout_is_ended_then(sandbox: Sandbox) -> None:
    for program, end in (("sleep 60", Ended(-9, timed_out=True)), ("exit 3", Ended(3, timed_out=False))):
        _, listener = await sandbox.commands.start(replace(shell(program), timeout=0.5), None)
        assert (await heard(listener))[1] == end


async def test_a_command_ends_with_its_sandbox(world: World, sandbox: Sandbox) -> None:
    command, listener = await sandbox.commands.start(shell("sleep 60"), None)
    hearing = spawn(heard(listener), "listener")
    await world.sandboxes.end(KEY)
    assert await hearing == (b"", None)
    assert sandbox.commands.attached() == []
    with pytest.raises(ProcessNotFound):
        sandbox.commands.find(command.pid)


async def test_a_client_that_leaves_before_the_beginning_takes_the_command_along(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "ATTACHED_MAX", 1)
    sandbox = await world.sandboxes.create(KEY, SandboxSpec("template"))
    starting = spawn(sandbox.commands.start(shell("sleep 60"), None), "client")
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    await until(lambda: not background(f"command of {KEY}"))
    assert await sandbox.commands.start(shell("true"), None), "it takes no place"


async def test_a_slow_listener_sets_the_pace_until_it_leaves(sandbox: Sandbox) -> None:
    program = shell("read line; head -c 3000000 /dev/zero; echo end", takes_input=True)
    command, slow = await sandbox.commands.start(program, None)
    other = command.listen()
    hearing = spawn(heard(other), "listener")
    await command.write(b"go\n")  # not before both listen
    await until(lambda: len(slow._events) == commands.QUEUE)
    await asyncio.sleep(0.2)
    assert not hearing.done()
    command.leave(slow)
    output, end = await hearing
    assert (len(output), end) == (3_000_004, Ended(0, timed_out=False))


BEGUN = b'{"pid": 7}\n'


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no json\n",
        b"[]\n",
        b'{"pid": -1}\n',
        b'{"pid": "7"}\n',
        BEGUN,
        BEGUN + b'{"stdout": 7}\n',
        BEGUN + b'{"stdout": "no base64!"}\n',
        BEGUN + b'{"code": 99999999999, "timed_out": false}\n',
        BEGUN + b"x" * (LINE_MAX + 1) + b"\n",
        BEGUN + b"[" * 100_000,
        BEGUN + BEGUN + b"\xff\n",
    ],
    ids=lambda said: str(said[-40:]),
)
async def test_nonsense_from_a_sandbox_is_the_end_of_its_command(
    backend: FakeBackend, world: World, sandbox: Sandbox, said: bytes
) -> None:
    backend.kernel.behaviour.tool = lambda _argument: said
    try:
        command, listener = await sandbox.commands.start(shell("true"), None)
    except ConnectionFailed:
        return
    assert (await heard(listener))[1] is None
    assert isinstance(command.failure, ConnectionFailed)


async def test_a_sandbox_that_tells_the_truth_is_believed(backend: FakeBackend, world: World, sandbox: Sandbox) -> None:
    end = json.dumps({"code": 0, "timed_out": False}).encode()
    backend.kernel.behaviour.tool = lambda _argument: BEGUN + b'{}\n{"stderr": "YQ=="}\n' + end + b"\nmore"
    command, listener = await sandbox.commands.start(shell("true"), None)
    assert command.pid == 7
    assert await heard(listener) == (b"a", Ended(0, timed_out=False))


async def test_output_that_nobody_hears_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    command = AttachedCommand(shell("true"), None)
    await command._send_to_listeners(Data("stdout", b"x"))
    assert slept == [commands.UNHEARD_PAUSE]
