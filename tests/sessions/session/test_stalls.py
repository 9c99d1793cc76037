"""Faults of time and reach: a gateway that stood still, a clock that was set, a kernel that is unreachable."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch, no_op
from sessions.cells import cell as cell_module
from sessions.kernels import watchdog as watchdog_module
from sessions.kernels.backlog import Backlog
from sessions.kernels.watchdog import Watchdog
from sessions.model.errors import ConnectionFailed
from sessions.model.tasks import spawn
from sessions.model.values import StateChange, Status
from sessions.session.session import Session
from sessions.upkeep import culler as culler_module
from sessions.upkeep.culler import Culler
from tests.fakes import PYTHON, Cell, Clock, FakeBackend, Listener, World, connect, run, until

# -- a gateway that stood still --------------------------------------------------------------------------------


async def short(cell: Cell) -> None:
    await asyncio.sleep(0.2)
    cell.ends()


@pytest.mark.parametrize("stands_still", [0.0, 0.8])
async def test_a_cell_that_ended_while_the_gateway_stood_still_does_not_time_out(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch, stands_still: float
) -> None:
    monkeypatch.setattr(cell_module, "STALL", 0.2)
    code = world.backend.on("short", short)
    running = spawn(run(session, code, timeout=0.4), "client")
    await asyncio.sleep(0.1)
    time.sleep(stands_still)  # noqa: ASYNC251 - blocks the event loop
    assert (await running).status is Status.OK
    assert world.backend.kernel.interrupts == []


async def test_a_cell_that_runs_too_long_times_out_after_a_stall(
    world: World, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_module, "STALL", 0.2)
    running = spawn(run(session, "import time; time.sleep(60)", timeout=0.4), "client")
    await asyncio.sleep(0.1)
    time.sleep(0.8)  # noqa: ASYNC251
    assert (await running).status is Status.TIMEOUT


@pytest.mark.parametrize("stood_still", [True, False])
async def test_after_a_stall_no_session_is_culled_before_waiting_requests_are_handled(
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
        if looks == 2:  # a request that has waited since the stall
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
async def test_setting_the_system_clock_ends_no_cell_and_no_session(
    world: World, monkeypatch: pytest.MonkeyPatch, now: float
) -> None:
    session = await world.session()
    culler = Culler(world.registry, world.sandboxes, max_lifetime=3600)
    await run(session, "x = 1")
    monkeypatch.setattr(time, "time", lambda: now)
    running = spawn(run(session, "import time; time.sleep(60)", timeout=0.3), "client")
    assert await culler.sweep() == 0
    assert (await running).status is Status.TIMEOUT, "after its timeout, neither at once nor never"
    assert (await run(session, "print(x)")).state is StateChange.PRESERVED
    world.clock.passes(3600)  # the monotonic clock
    assert await culler.sweep() == 1


# -- a kernel out of reach -------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "INTERVAL", 0.01)
    monkeypatch.setattr(watchdog_module, "AWAY_MAX", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("channel", ["iopub", "shell"])
async def test_an_unreachable_kernel_is_ended_and_reported_once(world: World, session: Session, channel: str) -> None:
    await run(session, "x = 1")
    running = spawn(run(session, "import time; time.sleep(60)", timeout=30), "client")
    await until(lambda: len(world.backend.kernel.executed) > 1)
    world.backend.kernel.unbind(channel)
    result = await running
    assert (result.status, result.state) == (Status.DIED, StateChange.LOST)
    assert isinstance(result.error, ConnectionFailed)
    assert len(world.backend.started[0].executed) == 2, "nothing was sent again"
    first, second = await run(session, "1"), await run(session, "2")
    assert (first.status, first.state) == (Status.OK, StateChange.LOST)
    assert first.state_reason == result.error.message
    assert second.state is StateChange.PRESERVED


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What watchdogs are told of channels that are lost, and back."""
    told: list[tuple[str, str]] = []
    lost, back = Watchdog.disconnected, Watchdog.reconnected

    def note_lost(watchdog: Watchdog, channel: str) -> None:
        told.append(("lost", channel))
        lost(watchdog, channel)

    def note_back(watchdog: Watchdog, channel: str) -> None:
        told.append(("back", channel))
        back(watchdog, channel)

    monkeypatch.setattr(Watchdog, "disconnected", note_lost)
    monkeypatch.setattr(Watchdog, "reconnected", note_back)
    return told


@pytest.mark.usefixtures("impatient")
async def test_a_kernel_that_is_reachable_again_in_time_is_kept(
    backend: FakeBackend, told: list[tuple[str, str]]
) -> None:
    kernel = await backend.start(Launch(replace(PYTHON, encryption=False)))
    listener = Listener()
    connection = connect(kernel.connection_info, listener, most=100_000)
    await connection.ready()
    kernel.unbind("shell")
    await until(lambda: told[-1] == ("lost", "shell"))
    kernel.bind("shell")
    await until(lambda: told[-1] == ("back", "shell"))
    await connection.ready()
    await asyncio.sleep(0.5)
    assert not listener.unreachable.is_set()
    connection.close()


@pytest.mark.usefixtures("impatient")
async def test_after_a_stall_kernels_are_not_taken_for_unreachable(
    backend: FakeBackend, told: list[tuple[str, str]]
) -> None:
    kernel = await backend.start(Launch(replace(PYTHON, encryption=False)))
    listener = Listener()
    connection = connect(kernel.connection_info, listener, most=100_000)
    await connection.ready()
    kernel.unbind("shell")
    await until(lambda: told[-1] == ("lost", "shell"))
    time.sleep(1)  # noqa: ASYNC251 - longer than a kernel may be away
    kernel.bind("shell")
    await until(lambda: told[-1] == ("back", "shell"))
    assert not listener.unreachable.is_set()
    connection.close()


async def test_the_watchdog_continues_after_a_failed_check(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "INTERVAL", 0.001)
    broken: list[bool] = []
    backlog = Mock(spec=Backlog)
    backlog.size.side_effect = [OSError("a defect"), 0, 11]
    with capture_logs() as logs:
        Watchdog(
            {"shell": backlog}, 10, has_messages=lambda _: False, on_broken=lambda: broken.append(True), on_away=no_op
        ).start()
        await until(lambda: broken)
    assert [entry["log_level"] for entry in logs] == ["error", "warning"]
    await asyncio.sleep(0.01)
    assert backlog.size.call_count == 3, "no check after the connection is broken"
