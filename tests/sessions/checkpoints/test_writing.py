"""What clients have asked a kernel before its memory is written: they get the answers, or the kernel is not written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kernel_image.protocol import FLUSHED
from sessions.checkpoints import writing
from sessions.model.checkpoint import InUse, OnIdle
from sessions.model.errors import CheckpointRefused, ConnectionFailed
from sessions.model.tasks import spawn
from sessions.model.values import SandboxSpec, SessionKey, SessionSpec
from sessions.session.session import Session
from sessions.session.states import State
from tests.fakes import Cell, FakeBackend, FakeKernel, Saying, World, run, until, world_over
from tests.sessions.channels.test_hub import send, waiting

KEY = SessionKey("acme", "s1")


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    async with world_over(backend, defaults=SessionSpec(on_idle=OnIdle.SLEEP)) as world:
        yield world


@pytest.fixture
async def session(world: World) -> Session:
    session = await world.session()
    await run(session, "x = 1")
    return session


def answers_late(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each message of a kernel take a while, and the writing of its memory longer."""
    loop, sends = asyncio.get_running_loop(), backend.kernel.send

    def late(*message: Any) -> None:
        loop.call_later(0.05, sends, *message)

    monkeypatch.setattr(backend.kernel, "send", late)
    backend.sleep.gate.clear()
    loop.call_later(0.5, backend.sleep.gate.set)


def falls_silent(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel answer nothing from now on but cells. Until the test's end nobody waits long for its answers."""
    monkeypatch.setattr(writing, "ANSWER_TIMEOUT", 0.1)
    kernel.behaviour = replace(kernel.behaviour, answers=False)


async def shown(session: Session) -> str:
    return str((await run(session, "print(x)")).outputs[0]["text"])


async def test_jupyters_clients_get_the_answers_to_what_they_asked_before_a_checkpoint(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_late(world.backend, monkeypatch)
    client = session.channels.subscribe("c")
    asked = send(session, client, "", "kernel_info_request")
    await session.checkpoints.take("one")
    assert "shell" in {message.channel for message in await waiting(client) if message.parent_id == asked}


async def test_jupyters_clients_get_the_answers_to_what_they_asked_before_a_sleep(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_late(world.backend, monkeypatch)
    client = session.channels.subscribe("c")
    asked = send(session, client, "", "kernel_info_request")
    assert await session.fall_asleep() == ""
    assert "shell" in {message.channel for message in await waiting(client) if message.parent_id == asked}


async def test_what_a_kernel_was_asked_on_control_before_a_checkpoint_is_answered(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_late(world.backend, monkeypatch)
    asking = spawn(session.variables(), "variables")
    await asyncio.sleep(0)
    await session.checkpoints.take("one")
    with pytest.raises(ConnectionFailed, match="in a form"):  # a fake kernel answers without variables
        await asking


async def test_environment_variables_of_one_cell_are_taken_away_before_a_checkpoint(world: World) -> None:
    session = await world.registry.create(KEY, SessionSpec("javascript"))

    async def takes_away(cell: Cell) -> None:
        await asyncio.sleep(0.05)
        cell.kernel.namespace["taken away"] = True
        cell.ends()

    async def flushes(cell: Cell) -> None:
        cell.says(Saying(FLUSHED, {}))
        cell.ends()

    world.backend.on(session.kernelspec.flush, flushes)
    world.backend.on(session.kernelspec.env_code({"A": None}), takes_away)
    await run(session, "1", env={"A": "b"})
    checkpoint = await session.checkpoints.take("one")
    assert "taken away" in world.backend.sleep.copies[checkpoint.image.id][0]


async def test_a_kernel_that_does_not_answer_is_not_written_and_goes_on(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    falls_silent(world.backend.kernel, monkeypatch)
    with pytest.raises(CheckpointRefused, match=InUse.shown):
        await session.checkpoints.take("one")
    assert await session.fall_asleep() != ""
    assert (world.backend.sleep.copies, session.state, await shown(session)) == ({}, State.IDLE, "1\n")


async def test_if_one_kernel_of_a_sandbox_does_not_answer_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await world.sandboxes.create(KEY, SandboxSpec("template", idle_timeout=0.0, max_execute_timeout=60.0))
    session = await sandbox.default_session("python")
    await run(session, "x = 1")
    other = await sandbox.create_session("python", "")
    await run(other, "x = 2")
    falls_silent(world.backend.kernel, monkeypatch)
    with pytest.raises(CheckpointRefused, match=InUse.shown):
        await world.sandboxes.fork(sandbox, [(SessionKey("acme", "fork"), sandbox.spec)])
    assert (await shown(session), await shown(other)) == ("1\n", "2\n")


async def test_a_kernel_that_has_ended_is_not_written(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers_late(world.backend, monkeypatch)
    taking = spawn(session.checkpoints.take("one"), "checkpoint")
    await until(lambda: not session.reachable)
    world.backend.kernel.dies()
    with pytest.raises(CheckpointRefused, match=r"could not be written.* was ended"):
        await taking
