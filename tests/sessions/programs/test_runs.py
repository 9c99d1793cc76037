"""A program has its own session while it runs, and leaves nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_image.protocol import RUN_MIME
from sessions.model.errors import (
    AuditUnavailable,
    ExecutionTimeout,
    InvalidRequest,
    KernelDied,
    QuotaExceeded,
    SessionError,
    StartFailed,
)
from sessions.model.kernelspecs import KernelSpec, KernelSpecs
from sessions.model.tasks import spawn
from sessions.model.values import MEMORY_MIN, Limits, SessionKey, SessionSpec
from sessions.programs.program import Ending, Outcome, Program, Returned
from sessions.programs.runs import ProgramRunner
from sessions.tenants.quotas import TenantLimits
from tests.fakes import PLAIN, Cell, FakeBackend, Saying, Script, World, busy, run, stream, until, world_over

CODE = "def main(): ..."
ANSWER = {"exit_code": 0, "value": "[1]", "error": "", "unread": None, "artifacts": False}


def answers(**changes: Any) -> Saying:
    """Return the answer that the language's part of the cell sends at its end."""
    return Saying("display_data", {"data": {RUN_MIME: ANSWER | changes}, "metadata": {}, "transient": {}})


def ends(*sayings: Saying) -> Script:
    async def script(cell: Cell) -> None:
        cell.says(busy(), *sayings)
        cell.ends()

    return script


async def hangs(cell: Cell) -> None:
    """Run for ever."""
    cell.says(busy(), stream("begun"))
    await asyncio.Event().wait()


def shot(world: World) -> ProgramRunner:
    return ProgramRunner(world.registry, PLAIN, 5.0)


def program(world: World, script: Script, **fields: Any) -> Program:
    """Return a program that makes a kernel follow a script."""
    made = Program(CODE, **fields)
    most = world.registry.defaults.limits.output
    world.backend.on(PLAIN.find(made.language).program_cell(made.code, made.arguments, most), script)
    return made


async def ran(world: World, *sayings: Saying, **fields: Any) -> Outcome:
    return await shot(world).run("acme", program(world, ends(*sayings), **fields))


def rows(world: World) -> int:
    """Return the number of rows in the ledger, for present and ended sessions."""
    tables = ("kept", "ended", "asked")
    return sum(world.ledger._database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)  # noqa: S608


async def gone(world: World) -> None:
    """Check that nothing is left of the program, and that no caller has to wait for that."""
    assert world.registry.all() == []
    await until(lambda: not world.backend.alive and not world.backend.workspaces)
    assert rows(world) == 0


async def test_a_program_reports_its_return_value_and_output(world: World) -> None:
    outcome = await ran(world, stream("out\n"), stream("err\n", "stderr"), answers())
    assert (outcome.ending, outcome.exit_code, outcome.returned) == (Ending.OK, 0, Returned([1]))
    assert (outcome.stdout, outcome.stderr, outcome.error) == ("out\n", "err\n", None)
    await gone(world)


async def test_a_flood_does_not_hide_the_answer(backend: FakeBackend) -> None:
    narrow = SessionSpec(limits=Limits(output=1000))
    async with world_over(backend, defaults=narrow) as world:
        outcome = await ran(world, stream("x" * 990), stream("y" * 990), answers())
        assert (outcome.returned, outcome.truncated, outcome.stdout) == (Returned([1]), True, "x" * 990 + "y" * 10)


async def test_a_large_answer_is_no_output_that_was_left_out(backend: FakeBackend) -> None:
    narrow = SessionSpec(limits=Limits(output=1000))
    async with world_over(backend, defaults=narrow) as world:
        outcome = await ran(world, stream("x" * 990), answers(value=json.dumps("y" * 990)))
        assert (outcome.returned, outcome.truncated, outcome.stdout) == (Returned("y" * 990), False, "x" * 990)


async def test_an_ordinary_session_is_recorded_in_the_ledger(world: World) -> None:
    """Control for the tests that expect an empty ledger."""
    await run(await world.session(), "1")
    assert rows(world) == 1
    await world.registry.end(SessionKey("acme", "s1"))
    assert rows(world) == 1


async def test_a_running_program_has_no_record_so_the_next_gateway_reaps_it(world: World) -> None:
    running = asyncio.create_task(shot(world).run("acme", program(world, hangs)))  # noqa: TID251 - it is cancelled
    await until(lambda: world.open)
    assert len(world.registry.all()) == 1
    assert world.ledger.sessions() == []
    await world.backend.adopt({}, ())
    outcome = await running
    assert outcome.ending is Ending.DIED
    await gone(world)


async def test_each_program_has_its_own_kernel(world: World) -> None:
    for _ in range(3):
        await ran(world, answers())
    assert len(world.backend.started) == 3
    await gone(world)


async def test_a_program_uses_a_warm_kernel(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, pool_max=1) as world:
        world.pool.keep_warm(PLAIN.find("python"))
        await until(lambda: world.pool.depth() == 1)
        waiting = backend.kernel
        await ran(world, answers())
        assert waiting.executed


async def test_a_program_with_its_own_memory_limit_starts_cold(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, pool_max=1) as world:
        world.pool.keep_warm(PLAIN.find("python"))
        await until(lambda: world.pool.depth() == 1)
        await ran(world, answers(), memory=200 * 1024**2)
        assert backend.kernel.launch.limits == replace(Limits(), memory=200 * 1024**2)
        assert world.pool.depth() == 1


@pytest.mark.parametrize(("language", "least"), [("python", MEMORY_MIN), ("javascript", 256 * 1024**2)])
async def test_a_memory_limit_below_what_a_kernel_needs_means_what_it_needs(
    world: World, language: str, least: int
) -> None:
    running = spawn(ran(world, answers(), memory=1024, language=language), "program")
    await until(lambda: world.backend.alive)
    assert world.backend.kernel.launch.limits == replace(Limits(), memory=least)
    running.cancel()
    await asyncio.wait({running})


async def test_a_memory_limit_above_the_maximum_means_the_maximum(backend: FakeBackend) -> None:
    async with world_over(backend, pool_size=1, pool_max=1) as world:
        world.pool.keep_warm(PLAIN.find("python"))
        await until(lambda: world.pool.depth() == 1)
        waiting = backend.kernel
        await ran(world, answers(), memory=2 * Limits().memory)
        assert waiting.executed


async def test_audit_and_policy_get_the_code_that_the_client_wrote(world: World) -> None:
    await ran(world, answers(), arguments={"a": 1})
    ((_, request, _),) = world.observed
    assert (request.client_code, request.arguments) == (CODE, {"a": 1})
    assert request.code != CODE


# -- cancelled callers, and programs that do not begin ---------------------------------------------------------


async def test_cancelling_the_caller_ends_a_program_that_ignores_interrupts(backend: FakeBackend) -> None:
    backend.behaves(heeds_messages=False, heeds_signals=False)
    async with world_over(backend) as world:
        running = asyncio.create_task(shot(world).run("acme", program(world, hangs)))  # noqa: TID251 - it is awaited
        await until(lambda: world.open)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await gone(world)


async def test_cancelling_the_caller_during_the_kernel_start_leaves_nothing(world: World) -> None:
    world.backend.gate.clear()
    running = asyncio.create_task(shot(world).run("acme", program(world, hangs)))  # noqa: TID251 - it is awaited
    await until(lambda: world.backend.asked)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    world.backend.gate.set()
    await gone(world)


async def test_a_failed_start_leaves_nothing(world: World) -> None:
    world.backend.refuses = StartFailed("no room")
    with pytest.raises(StartFailed):
        await ran(world)
    await gone(world)


async def test_a_program_without_an_audit_record_does_not_run(world: World) -> None:
    world.refuses = AuditUnavailable()
    with pytest.raises(AuditUnavailable):
        await ran(world, answers())
    assert world.backend.kernel.executed == []
    await gone(world)


@pytest.mark.parametrize("limits", [TenantLimits(sessions=1), TenantLimits(executions=1)])
async def test_a_tenants_limits_hold_for_programs_too(backend: FakeBackend, limits: TenantLimits) -> None:
    async with world_over(backend, quotas=limits) as world:
        running = asyncio.create_task(shot(world).run("acme", program(world, hangs)))  # noqa: TID251 - it is awaited
        await until(lambda: world.open)
        with pytest.raises(QuotaExceeded):
            await ran(world, answers(), arguments={"a": 1})
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await ran(world, answers())).returned == Returned([1])


@pytest.mark.parametrize(
    "changes",
    [
        {"language": "ruby"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": 600.1},
        {"code": "x = '\ud800'"},
        {"arguments": {"a": float("nan")}},
        {"arguments": {"a": {1}}},
    ],
    ids=lambda changes: str(next(iter(changes.items())))[:30],
)
async def test_an_invalid_program_starts_no_kernel(world: World, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await shot(world).run("acme", replace(Program(CODE), **changes))
    assert world.backend.asked == 0


async def test_a_language_without_a_program_cell_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "mute").mkdir()
    (tmp_path / "mute/kernel.json").write_text(json.dumps({"display_name": "Mute", "argv": []}))
    with pytest.raises(InvalidRequest, match="mute programs cannot be run"):
        await ProgramRunner(world.registry, KernelSpecs(tmp_path), 5.0).run("acme", Program(CODE, "mute"))
    assert world.backend.asked == 0


# -- other ends ------------------------------------------------------------------------------------------------


async def test_a_program_is_ended_at_its_deadline(backend: FakeBackend) -> None:
    backend.behaves(heeds_messages=False, heeds_signals=False)
    async with world_over(backend) as world:
        outcome = await shot(world).run("acme", program(world, hangs, timeout=0.1))
        assert (outcome.ending, outcome.exit_code, outcome.stdout) == (Ending.TIMEOUT, 124, "begun")
        assert isinstance(outcome.error, ExecutionTimeout)
        await gone(world)


async def test_the_exit_code_of_a_dead_kernel_is_reported(world: World) -> None:
    async def dies(cell: Cell) -> None:
        cell.says(busy())
        cell.kernel.dies(3)

    outcome = await shot(world).run("acme", program(world, dies))
    assert (outcome.ending, outcome.exit_code) == (Ending.DIED, 3)
    assert isinstance(outcome.error, KernelDied)
    await gone(world)


# -- artifacts -------------------------------------------------------------------------------------------------


def tool(*answers_: dict[str, Any] | bytes) -> Callable[[str], bytes]:
    """Return a tool that gives these answers, one per call."""
    left = [answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n" for answer in answers_]
    return lambda _argument: left.pop(0)


def entry(name: str, size: int) -> dict[str, Any]:
    about = {"type": "file", "modified": 0, "mode": 0, "permissions": "", "owner": "", "group": ""}
    return {"name": name, "path": f"artifacts/{name}", "size": size} | about


async def with_tool(backend: FakeBackend, told: Callable[[str], bytes] | None, **changes: Any) -> Outcome:
    backend.behaviour = replace(backend.behaviour, tool=told)
    async with world_over(backend) as world:
        return await ran(world, answers(**changes))


def opened(size: int) -> bytes:
    """Return the first line of the tool's answer to a read of a whole file."""
    told = {"size": size, "modified": 1.5, "tag": "a-1", "start": 0, "count": size, "partial": False}
    return json.dumps(told).encode() + b"\n"


async def test_artifacts_are_read_when_there_are_some(backend: FakeBackend) -> None:
    told = tool({"entries": [entry("a.csv", 3)]}, opened(3) + b"1,2")
    outcome = await with_tool(backend, told, artifacts=True)
    assert [(artifact.name, artifact.mime_type, artifact.content) for artifact in outcome.artifacts] == [
        ("a.csv", "text/csv", b"1,2")
    ]


async def test_no_tool_is_called_when_a_program_reports_no_artifacts_or_fails(backend: FakeBackend) -> None:
    for changes in ({"artifacts": False}, {"artifacts": True, "exit_code": 1}):
        assert (await with_tool(backend, tool(), **changes)).artifacts == ()


@pytest.mark.parametrize("answer", [{"error": "absent"}, {"error": "outside"}, {"entries": []}, {"entries": "x"}])
async def test_an_invalid_folder_has_no_artifacts(backend: FakeBackend, answer: dict[str, Any]) -> None:
    outcome = await with_tool(backend, tool(answer), artifacts=True)
    assert (outcome.ending, outcome.artifacts) == (Ending.OK, ())


async def test_an_artifact_that_vanished_or_grew_is_left_out(backend: FakeBackend) -> None:
    entries = {"entries": [entry("a.csv", 3), entry("b.csv", 3), entry("c.csv", 3)]}
    told = tool(entries, {"error": "absent"}, opened(10 * 1024**2 + 1), opened(1) + b"1")
    outcome = await with_tool(backend, told, artifacts=True)
    assert [artifact.name for artifact in outcome.artifacts] == ["c.csv"]


async def test_a_program_with_unreadable_artifacts_fails(backend: FakeBackend) -> None:
    outcome = await with_tool(backend, tool(b"garbage\n"), artifacts=True)
    assert (outcome.ending, outcome.returned) == (Ending.DIED, None)
    assert isinstance(outcome.error, SessionError)


def test_every_language_for_programs_has_a_program_cell_with_the_code_as_a_string() -> None:
    spec: KernelSpec
    assert {spec.name for spec in PLAIN.all if not spec.run} == {"bash", "r", "ruby"}
    for spec in (each for each in PLAIN.all if each.run):
        assert spec.run.count("{json}") == 1
        cell = spec.program_cell("'''\"\n{json}\\", {"a": "\u2028'\"\\"}, 10)
        assert cell.splitlines()[: spec.run.count("\n")] == spec.run.splitlines()[:-1]
        assert cell.isascii() or not spec.run.isascii()
