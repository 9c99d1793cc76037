"""A kernel from its first answer to its end, and what is left when there is no first answer."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import zmq
from structlog.testing import capture_logs

from sessions import kernel as module
from sessions.backends.base import Launch
from sessions.errors import (
    BackendUnavailable,
    ConnectionFailed,
    KernelDied,
    OutOfMemory,
    SessionClosed,
    StartFailed,
)
from sessions.kernel import Kernel
from sessions.models import ExitReason
from sessions.tasks import spawn
from tests.fakes import PYTHON, FakeBackend, FakeKernel, until

LAUNCH = Launch(PYTHON)


@pytest.fixture
async def kernel(backend: FakeBackend) -> AsyncIterator[Kernel]:
    kernel = await Kernel.start(backend, LAUNCH)
    yield kernel
    await kernel.kill(SessionClosed())


# -- beginning -------------------------------------------------------------------------------------------------


async def test_a_kernel_that_was_started_has_answered(backend: FakeBackend, kernel: Kernel) -> None:
    assert kernel.alive
    assert kernel.handle is backend.kernel
    assert (await kernel.connection.request("control", "kernel_info_request", {})).content["status"] == "ok"


async def test_a_kernel_gets_a_workspace_of_its_own(backend: FakeBackend, kernel: Kernel) -> None:
    assert kernel.launch == replace(LAUNCH, workspace=kernel.launch.workspace)
    assert backend.workspaces == [kernel.launch.workspace]


async def test_a_kernel_that_ends_at_once_was_not_started(backend: FakeBackend) -> None:
    backend.behaves(exits_at_once=7)
    with pytest.raises(StartFailed, match=r"ended while it started \(exit code 7\)"):
        await Kernel.start(backend, LAUNCH)
    assert (backend.alive, backend.workspaces) == ([], [])


async def test_a_kernel_that_stays_silent_was_not_started(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_TIMEOUT", 0.05)
    backend.behaves(answers=False)
    with pytest.raises(StartFailed, match="did not answer"):
        await Kernel.start(backend, LAUNCH)
    assert (backend.alive, backend.workspaces) == ([], [])


@pytest.mark.parametrize("refusal", [StartFailed("no room"), BackendUnavailable()])
async def test_a_backend_that_refuses_leaves_nothing(
    backend: FakeBackend, refusal: StartFailed | BackendUnavailable
) -> None:
    backend.refuses = refusal
    with pytest.raises(type(refusal)):
        await Kernel.start(backend, LAUNCH)
    assert backend.workspaces == []


@pytest.mark.parametrize("failure", [BackendUnavailable(), RuntimeError("a defect")])
async def test_why_there_is_no_kernel_is_told_also_when_its_files_cannot_be_deleted(
    backend: FakeBackend, failure: Exception
) -> None:
    backend.behaves(exits_at_once=1)
    backend.failures["delete_workspace"] = failure
    with capture_logs() as logs, pytest.raises(StartFailed):
        await Kernel.start(backend, LAUNCH)
    assert logs[-1]["task"] == "delete workspace"


async def test_who_gives_up_leaves_nothing(backend: FakeBackend) -> None:
    backend.behaves(answers=False)
    starting = asyncio.gather(Kernel.start(backend, LAUNCH))
    await until(lambda: backend.started)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not backend.alive and not backend.workspaces)


async def test_a_session_s_workspace_outlives_a_start_that_fails(backend: FakeBackend) -> None:
    backend.behaves(exits_at_once=1)
    with pytest.raises(StartFailed):
        await Kernel.start(backend, replace(LAUNCH, workspace="theirs"))
    assert backend.workspaces == ["theirs"]


@pytest.mark.parametrize("count", range(8))
async def test_when_there_are_no_more_sockets_nothing_is_left(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The n-th socket cannot be opened, for every n that a connection needs."""
    start = backend.start

    async def start_and_run_out(launch: Launch) -> FakeKernel:
        kernel = await start(launch)
        monkeypatch.setattr(zmq.Context, "socket", _runs_out_after(count))
        return kernel

    monkeypatch.setattr(backend, "start", start_and_run_out)
    with pytest.raises(ConnectionFailed, match="Too many open files"):
        await Kernel.start(backend, LAUNCH)
    monkeypatch.undo()
    assert (backend.alive, backend.workspaces) == ([], [])


def _runs_out_after(count: int) -> object:
    socket, left = zmq.Context.socket, iter(range(count))

    def limited(self: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        if next(left, None) is None:
            raise zmq.ZMQError(errno.EMFILE)
        return socket(self, kind)

    return limited


# -- the end ---------------------------------------------------------------------------------------------------


async def test_a_kernel_that_was_ended_says_why(backend: FakeBackend, kernel: Kernel) -> None:
    await kernel.kill(SessionClosed("it was idle"))
    assert not kernel.alive
    assert str(await kernel.wait()) == "it was idle"
    assert not backend.kernel.alive


async def test_the_first_reason_counts(kernel: Kernel) -> None:
    await asyncio.gather(kernel.kill(SessionClosed("first")), kernel.kill(KernelDied("second")))
    await kernel.kill(KernelDied("third"))
    assert str(await kernel.wait()) == "first"


async def test_a_kernel_that_ends_by_itself_says_how(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(9)
    cause = await kernel.wait()
    assert isinstance(cause, KernelDied)
    assert cause.details == {"exit_code": 9}
    await kernel.kill(SessionClosed("too late"))
    assert isinstance(await kernel.wait(), KernelDied)


async def test_a_kernel_that_ran_out_of_memory_says_so(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(137, ExitReason.OOM)
    assert isinstance(await kernel.wait(), OutOfMemory)


async def test_nothing_can_be_sent_to_a_kernel_that_ended(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(1)
    await kernel.wait()
    with pytest.raises(ConnectionFailed):
        kernel.connection.send("shell", "kernel_info_request", {})


async def test_who_gives_up_waiting_does_not_stop_others(backend: FakeBackend, kernel: Kernel) -> None:
    impatient, patient = (spawn(kernel.wait(), "waits") for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    backend.kernel.dies(1)
    assert isinstance(await patient, KernelDied)
    with pytest.raises(asyncio.CancelledError):
        await impatient


# -- interruption ----------------------------------------------------------------------------------------------


async def test_a_kernel_is_interrupted_by_message_and_by_signal(backend: FakeBackend, kernel: Kernel) -> None:
    await kernel.interrupt()
    await kernel.signal()
    assert backend.kernel.interrupts == ["message", "signal"]


async def test_an_interrupt_of_a_kernel_that_ended_is_none(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(1)
    await kernel.wait()
    await kernel.interrupt()


async def test_a_kernel_that_does_not_even_take_the_message_is_not_waited_for(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_TIMEOUT", 0.02)
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    async with asyncio.timeout(60):
        await kernel.interrupt()


async def test_an_interrupt_counts_as_under_way_until_it_is_acknowledged_or_given_up(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_TIMEOUT", 0.02)
    await kernel.settle()
    await kernel.interrupt()
    assert not kernel.interrupting
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    await kernel.interrupt()
    assert kernel.interrupting
    await kernel.settle()
    await until(lambda: not kernel.interrupting)


async def test_one_interrupt_at_a_time_is_enough(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERRUPT_TIMEOUT", 0.02)
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    await asyncio.gather(*(kernel.interrupt() for _ in range(5)))
    await kernel.interrupt()
    assert backend.kernel.interrupts == ["message"]


# -- doubt -----------------------------------------------------------------------------------------------------


async def test_a_kernel_in_doubt_that_answers_lives_on(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 0.05)
    backend.kernel.on_out_of_memory()
    await asyncio.sleep(0.1)
    assert kernel.alive


async def test_a_kernel_in_doubt_that_is_silent_has_run_out_of_memory(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 0.05)
    backend.kernel.behaviour = replace(backend.kernel.behaviour, answers=False)
    backend.kernel.on_out_of_memory()
    async with asyncio.timeout(60):
        assert isinstance(await kernel.wait(), OutOfMemory)
    assert not backend.kernel.alive
