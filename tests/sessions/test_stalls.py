"""Time that is not what it seems: a gateway that stood still, a clock that was set, a kernel out of reach."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from unittest.mock import Mock

import pytest
import zmq
from structlog.testing import capture_logs

from sessions import culler as culler_module
from sessions import execution as execution_module
from sessions import vigil
from sessions.backends.base import Launch
from sessions.backlog import Backlog
from sessions.connection import Connection
from sessions.culler import Culler
from sessions.errors import ConnectionFailed
from sessions.models import StateChange, Status
from sessions.session import Session
from sessions.tasks import spawn
from sessions.vigil import Vigil
from tests.fakes import PYTHON, Cell, Clock, FakeBackend, FakeKernel, World, run, until

# -- a gateway that stood still --------------------------------------------------------------------------------


async def short(cell: Cell) -> None:
    await asyncio.sleep(0.2)
    cell.ends()


@pytest.mark.parametrize("stands_still", [0.0, 0.8])
async def test_a_cell_that_ended_while_the_gateway_stood_still_is_not_told_that_it_was_too_long(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch, stands_still: float
) -> None:
    monkeypatch.setattr(execution_module, "STALL", 0.2)
    code = world.backend.on("short", short)
    running = spawn(run(session, code, timeout=0.4), "client")
    await asyncio.sleep(0.1)
    time.sleep(stands_still)  # noqa: ASYNC251 - nothing turns meanwhile
    assert (await running).status is Status.OK
    assert world.backend.kernel.interrupts == []


async def test_a_cell_that_is_too_long_is_told_so_all_the_same(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_module, "STALL", 0.2)
    running = spawn(run(session, "import time; time.sleep(60)", timeout=0.4), "client")
    await asyncio.sleep(0.1)
    time.sleep(0.8)  # noqa: ASYNC251
    assert (await running).status is Status.TIMEOUT


@pytest.mark.parametrize("stood_still", [True, False])
async def test_after_it_stood_still_nobody_is_culled_before_they_could_come(
    world: World,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    stood_still: bool,  # noqa: FBT001
) -> None:
    clock = Clock()
    culler = Culler(world.registry, world.sandboxes, clock=clock)
    looks = 0

    async def sleep(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.001)
        if looks == 1:
            world.clock.passes(10**6)
            clock.passes(10**6 if stood_still else culler_module.STALL)
        if looks == 2:  # it has waited since then
            world.registry.get(session.key).touch()

    monkeypatch.setattr(culler_module, "asyncio", _asyncio_with(sleep))
    culling = spawn(culler.run(0.001), "culler")
    await until(lambda: looks > 3 or session not in world.registry.all())
    culling.cancel()
    with suppress(asyncio.CancelledError):
        await culling
    assert (session in world.registry.all()) is stood_still


def _asyncio_with(sleep: object) -> object:
    return type("asyncio", (), {"sleep": sleep, "gather": asyncio.gather, "to_thread": asyncio.to_thread})


# -- a clock that was set --------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0.0, 4e9])
async def test_a_clock_that_is_set_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    session = await world.session()
    culler = Culler(world.registry, world.sandboxes, max_lifetime=3600)
    await run(session, "x = 1")
    monkeypatch.setattr(time, "time", lambda: now)
    running = spawn(run(session, "import time; time.sleep(60)", timeout=0.3), "client")
    assert await culler.sweep() == 0
    assert (await running).status is Status.TIMEOUT, "after its time, neither at once nor never"
    assert (await run(session, "print(x)")).state is StateChange.PRESERVED
    world.clock.passes(3600)  # the other clock, which only goes on
    assert await culler.sweep() == 1


# -- a kernel out of reach -------------------------------------------------------------------------------------


def away(kernel: FakeKernel, channel: str) -> None:
    """Let a channel of a kernel go, while the kernel lives on."""
    socket = kernel._sockets.pop(channel)
    asyncio.get_running_loop().remove_reader(socket.FD)
    socket.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "INTERVAL", 0.01)
    monkeypatch.setattr(vigil, "AWAY_MAX", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("channel", ["iopub", "shell"])
async def test_a_kernel_that_cannot_be_reached_is_ended_and_told_once(
    world: World, session: Session, channel: str
) -> None:
    await run(session, "x = 1")
    running = spawn(run(session, "import time; time.sleep(60)", timeout=30), "client")
    await until(lambda: len(world.backend.kernel.executed) > 1)
    away(world.backend.kernel, channel)
    result = await running
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert isinstance(result.error, ConnectionFailed)
    assert len(world.backend.started[0].executed) == 2, "nothing was sent again"
    first, second = await run(session, "1"), await run(session, "2")
    assert (first.status, first.state) == (Status.OK, StateChange.LOST)
    assert first.state_reason == result.error.message
    assert second.state is StateChange.PRESERVED


@pytest.mark.usefixtures("impatient")
async def test_a_kernel_that_is_back_in_time_is_kept(backend: FakeBackend) -> None:
    kernel = await backend.start(Launch(replace(PYTHON, encryption=False)))
    connection = Connection(kernel.connection_info, max_message_bytes=100_000)
    told: list[bool] = []
    connection.on_away = lambda: told.append(True)
    await connection.ready()
    away(kernel, "shell")
    await until(lambda: connection._vigil._away)
    kernel._sockets["shell"] = kernel._bind("shell", zmq.ROUTER)
    await until(lambda: not connection._vigil._away)
    await connection.ready()
    await asyncio.sleep(0.5)
    assert not told
    connection.close()


@pytest.mark.usefixtures("impatient")
async def test_a_gateway_that_stood_still_does_not_take_its_kernels_for_lost(backend: FakeBackend) -> None:
    kernel = await backend.start(Launch(replace(PYTHON, encryption=False)))
    connection = Connection(kernel.connection_info, max_message_bytes=100_000)
    told: list[bool] = []
    connection.on_away = lambda: told.append(True)
    await connection.ready()
    away(kernel, "shell")
    await until(lambda: connection._vigil._away)
    time.sleep(1)  # noqa: ASYNC251 - longer than a kernel may be away
    kernel._sockets["shell"] = kernel._bind("shell", zmq.ROUTER)
    await until(lambda: not connection._vigil._away)
    assert not told
    connection.close()


async def test_the_vigil_goes_on_when_one_look_has_failed(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "INTERVAL", 0.001)
    broken: list[bool] = []
    backlog = Mock(spec=Backlog)
    backlog.size.side_effect = [OSError("a defect"), 0, 11]
    with capture_logs() as logs:
        Vigil({"shell": backlog}, 10, lambda _channel: False, lambda: broken.append(True), lambda: None)
        await until(lambda: broken)
    assert [entry["log_level"] for entry in logs] == ["error", "warning"]
    await asyncio.sleep(0.01)
    assert backlog.size.call_count == 3, "nobody looks any more"
