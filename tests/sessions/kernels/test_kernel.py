"""A kernel from its first answer to its end, and starts without a first answer, which leave nothing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import zmq
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.kernels import interrupts
from sessions.kernels import kernel as module
from sessions.kernels.interrupts import Interrupts
from sessions.kernels.kernel import Kernel
from sessions.model.errors import (
    BackendUnavailable,
    ConnectionFailed,
    InvalidRequest,
    KernelDied,
    OutOfMemory,
    SessionClosed,
    StartFailed,
)
from sessions.model.tasks import spawn
from sessions.model.values import NO_PROGRAM, ExitReason
from tests.fakes import KERNELSPECS, OUT_OF_MEMORY, PYTHON, FakeBackend, FakeKernel, Listener, until

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


async def test_every_message_rouses_the_kernel(backend: FakeBackend, kernel: Kernel) -> None:
    for send in (
        lambda: kernel.connection.send("shell", "kernel_info_request", {}),
        lambda: kernel.connection.send("control", "kernel_info_request", {}),
        lambda: kernel.connection.send("stdin", "input_reply", {"value": ""}),
        lambda: kernel.connection.forward(
            "shell", [b'{"msg_id": "1", "msg_type": "comm_info_request"}', *[b"{}"] * 3], []
        ),
    ):
        before = backend.kernel.roused
        send()
        assert backend.kernel.roused == before + 1


async def test_a_kernel_is_in_use_while_a_client_uses_it_or_it_imports(kernel: Kernel) -> None:
    assert not kernel.in_use
    async with kernel.preloading.paused():
        assert kernel.in_use
    listener = Listener()
    kernel.attach(listener)
    assert not kernel.in_use
    listener.in_use = True
    assert kernel.in_use


async def test_a_kernel_gets_its_own_workspace(backend: FakeBackend, kernel: Kernel) -> None:
    assert kernel.launch == replace(LAUNCH, workspace=kernel.launch.workspace)
    assert backend.workspaces == [kernel.launch.workspace]


async def test_starting_a_kernel_that_ends_at_once_fails(backend: FakeBackend) -> None:
    backend.behaves(exits_at_once=7)
    with pytest.raises(StartFailed, match=r"ended while it started \(exit code 7\)"):
        await Kernel.start(backend, LAUNCH)
    assert (backend.alive, backend.workspaces) == ([], [])


@pytest.mark.parametrize(
    ("language", "image", "error", "says"),
    [
        ("python", "", StartFailed, "the kernels' image has no Python 3"),
        ("r", "", InvalidRequest, r"R is not installed here; the image kernel-gateway/python:r has it, which .*"),
        (
            "r",
            "slim:1",
            InvalidRequest,
            r"R is not installed in the image slim:1; the image kernel-gateway/python:r has it, which .* \(`images`\)",
        ),
    ],
)
async def test_a_language_that_an_image_need_not_have_is_its_clients_mistake(
    backend: FakeBackend, language: str, image: str, error: type[Exception], says: str
) -> None:
    backend.behaves(exits_at_once=NO_PROGRAM)
    with pytest.raises(error, match=f"^{says}$"):
        await Kernel.start(backend, Launch(KERNELSPECS.find(language), image=image))
    assert (backend.alive, backend.workspaces) == ([], [])


async def test_starting_a_kernel_that_does_not_answer_fails(
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
async def test_a_failed_start_gives_its_reason_even_when_its_files_cannot_be_deleted(
    backend: FakeBackend, failure: Exception
) -> None:
    backend.behaves(exits_at_once=1)
    backend.failures["delete_workspace"] = failure
    with capture_logs() as logs, pytest.raises(StartFailed):
        await Kernel.start(backend, LAUNCH)
    assert logs[-1]["task"] == "delete workspace"


async def test_a_cancelled_start_leaves_nothing(backend: FakeBackend) -> None:
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
async def test_a_start_without_free_sockets_leaves_nothing(
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


async def test_a_killed_kernel_reports_the_reason(backend: FakeBackend, kernel: Kernel) -> None:
    await kernel.kill(SessionClosed("it was idle"))
    assert not kernel.alive
    assert str(await kernel.wait()) == "it was idle"
    assert not backend.kernel.alive


async def test_the_first_reason_to_kill_a_kernel_counts(kernel: Kernel) -> None:
    await asyncio.gather(kernel.kill(SessionClosed("first")), kernel.kill(KernelDied("second")))
    await kernel.kill(KernelDied("third"))
    assert str(await kernel.wait()) == "first"


async def test_a_kernel_that_ends_on_its_own_reports_its_exit_code(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(9)
    cause = await kernel.wait()
    assert isinstance(cause, KernelDied)
    assert cause.details == {"exit_code": 9}
    await kernel.kill(SessionClosed("too late"))
    assert isinstance(await kernel.wait(), KernelDied)


async def test_a_kernel_that_ran_out_of_memory_reports_that(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(137, ExitReason.OOM)
    error = await kernel.wait()
    assert isinstance(error, OutOfMemory)
    assert (str(error), error.details) == (OUT_OF_MEMORY, {"limit": 512 * 2**20})


async def test_nothing_can_be_sent_to_a_kernel_that_ended(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(1)
    await kernel.wait()
    with pytest.raises(ConnectionFailed):
        kernel.connection.send("shell", "kernel_info_request", {})


async def test_cancelling_one_wait_for_the_end_does_not_stop_others(backend: FakeBackend, kernel: Kernel) -> None:
    impatient, patient = (spawn(kernel.wait(), "waits") for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    backend.kernel.dies(1)
    assert isinstance(await patient, KernelDied)
    with pytest.raises(asyncio.CancelledError):
        await impatient


# -- interruption ----------------------------------------------------------------------------------------------


async def test_a_kernel_is_interrupted_by_message_and_by_signal(backend: FakeBackend, kernel: Kernel) -> None:
    await kernel.interrupts.by_message()
    await kernel.interrupts.by_signal()
    assert backend.kernel.interrupts == ["message", "signal"]


@pytest.mark.parametrize(("messages", "kinds"), [(True, ["message", "signal"]), (False, ["signal", "signal"])])
async def test_a_cell_is_interrupted_twice_and_by_message_only_if_the_kernel_takes_them(
    backend: FakeBackend, kernel: Kernel, *, messages: bool, kinds: list[str]
) -> None:
    never = asyncio.Event()
    interrupts = Interrupts(kernel.connection, kernel.handle, kernel.clock, messages=messages)
    assert not await interrupts.interrupt_until(never, 0.01)
    assert backend.kernel.interrupts == kinds


async def test_interrupting_a_kernel_that_has_ended_does_nothing(backend: FakeBackend, kernel: Kernel) -> None:
    backend.kernel.dies(1)
    await kernel.wait()
    await kernel.interrupts.by_message()


async def test_an_interrupt_that_is_not_acknowledged_is_not_waited_for(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "ACKNOWLEDGE_TIMEOUT", 0.02)
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    async with asyncio.timeout(60):
        await kernel.interrupts.by_message()


async def test_an_interrupt_is_under_way_until_it_is_acknowledged_or_given_up(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "ACKNOWLEDGE_TIMEOUT", 0.02)
    await kernel.interrupts.settle()
    await kernel.interrupts.by_message()
    assert not kernel.interrupts.under_way
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    await kernel.interrupts.by_message()
    assert kernel.interrupts.under_way
    await kernel.interrupts.settle()
    await until(lambda: not kernel.interrupts.under_way)


async def test_only_one_interrupt_is_sent_at_a_time(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "ACKNOWLEDGE_TIMEOUT", 0.02)
    monkeypatch.setattr(backend.kernel, "send", lambda *_: None)
    await asyncio.gather(*(kernel.interrupts.by_message() for _ in range(5)))
    await kernel.interrupts.by_message()
    assert backend.kernel.interrupts == ["message"]


# -- out of memory ---------------------------------------------------------------------------------------------


async def test_a_kernel_that_does_not_take_the_name_of_its_session_has_failed_to_start(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 0.05)
    kernel = await Kernel.start(backend, replace(LAUNCH, session="branch"))
    await kernel.rename()
    assert backend.kernel.taken[-1] == "lease_request"
    backend.kernel.behaviour = replace(backend.behaviour, answers=False)
    with pytest.raises(StartFailed):
        await kernel.rename()
    await kernel.kill(SessionClosed())


async def test_a_kernel_that_answers_after_memory_ran_out_is_kept(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 0.05)
    backend.kernel.runs_out_of_memory()
    await asyncio.sleep(0.1)
    assert kernel.alive


async def test_a_kernel_that_does_not_answer_after_memory_ran_out_is_killed(
    backend: FakeBackend, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PULSE_TIMEOUT", 0.05)
    backend.kernel.behaviour = replace(backend.kernel.behaviour, answers=False)
    backend.kernel.runs_out_of_memory()
    async with asyncio.timeout(60):
        assert isinstance(await kernel.wait(), OutOfMemory)
    assert not backend.kernel.alive
