"""The slowdown of idle kernels: they get late timers, and are prompt again before they are used."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.engine.cgroup import SLICE
from sessions.backends.docker.engine.timer_slack import LATE, PROMPT, TimerSlack, may_be_set
from sessions.backends.docker.fairness import idle_slowdown as module
from sessions.backends.docker.fairness.idle_slowdown import AWAKE, UNUSED, IdleSlowdown
from sessions.backends.docker.fairness.usage_loop import UsageLoop
from sessions.model.errors import BackendUnavailable
from sessions.model.tasks import spawn
from tests.fakes import until
from tests.sessions.backends.docker.kernels import Kernels

#: processors that an idle kernel uses under an old gVisor, under a newer one, and at rest
IDLE, IDLE_NEWER, AT_REST = 0.02, 0.0005, 0.001
THREAD = 7


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels(tmp_path)


@pytest.fixture
async def handle(kernels: Kernels) -> DockerHandle:
    handle = kernels.add("a")
    kernels.has_threads(handle, THREAD)
    return handle


class Looks:
    """Looks at a kernel once a second, which uses as many processors meanwhile as is said."""

    def __init__(self, kernels: Kernels, handle: DockerHandle) -> None:
        self.now = handle.used_at
        self._kernels, self._handle = kernels, handle
        self._rounds = UsageLoop(kernels.handles, IdleSlowdown())
        self._seconds = 0.0

    async def pass_by(self, seconds: float, processors: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds)):
            self.now += 1
            self._seconds += processors
            self._kernels.uses(self._handle, self._seconds)
            await self._rounds.round(self.now)


@pytest.fixture
async def looks(kernels: Kernels, handle: DockerHandle) -> Looks:
    return Looks(kernels, handle)


async def test_a_kernel_that_nobody_uses_rests_until_it_is_roused(
    kernels: Kernels, handle: DockerHandle, looks: Looks
) -> None:
    await looks.pass_by(UNUSED - 1, IDLE)
    assert kernels.slack(THREAD) == PROMPT
    await looks.pass_by(1, IDLE)
    assert kernels.slack(THREAD) == LATE
    await looks.pass_by(10, AT_REST)
    assert kernels.slack(THREAD) == LATE
    handle.make_responsive()
    assert kernels.slack(THREAD) == PROMPT


async def uses_a_tool(handle: DockerHandle) -> None:
    with suppress(BackendUnavailable):
        await anext(handle.run_tool("files", "{}"))


@pytest.mark.parametrize("use", ["a client", "a tool"])
async def test_a_kernel_in_use_does_not_rest(kernels: Kernels, handle: DockerHandle, looks: Looks, use: str) -> None:
    listener, over = Mock(in_use=use == "a client"), asyncio.Event()
    handle.attach(listener, "a")

    async def engine_call(*_: object, **__: object) -> None:
        await over.wait()
        raise BackendUnavailable

    kernels.engine.call = engine_call
    if use == "a tool":
        spawn(uses_a_tool(handle), use)
    await until(lambda: handle.in_use)
    await looks.pass_by(10, IDLE)
    assert kernels.slack(THREAD) == PROMPT
    listener.in_use = False
    over.set()
    await until(lambda: not handle.in_use)
    handle.used_at = looks.now  # the clock of the test is not the event loop's
    await looks.pass_by(UNUSED - 1, IDLE)
    assert kernels.slack(THREAD) == PROMPT
    await looks.pass_by(1, IDLE)
    assert kernels.slack(THREAD) == LATE


async def test_a_kernel_that_works_for_itself_is_roused_and_tried_again_later(
    kernels: Kernels, handle: DockerHandle, looks: Looks
) -> None:
    await looks.pass_by(UNUSED, 0.5)
    assert kernels.slack(THREAD) == LATE  # whether it works is seen at rest only
    await looks.pass_by(1, 0.5)
    assert kernels.slack(THREAD) == PROMPT
    await looks.pass_by(AWAKE - 1, 0.5)
    assert kernels.slack(THREAD) == PROMPT
    await looks.pass_by(1, 0.5)
    assert kernels.slack(THREAD) == LATE


async def test_a_kernel_that_costs_nothing_does_not_rest(kernels: Kernels, looks: Looks) -> None:
    await looks.pass_by(10, IDLE_NEWER)
    assert kernels.slack(THREAD) == PROMPT


async def test_the_first_use_ends_a_rest_that_an_earlier_gateway_began(kernels: Kernels, handle: DockerHandle) -> None:
    TimerSlack(handle.cgroup, kernels.proc).make_late()
    assert kernels.slack(THREAD) == LATE
    handle.make_responsive()
    assert kernels.slack(THREAD) == PROMPT


async def test_threads_that_begin_or_end_while_timers_are_set_are_no_matter(
    kernels: Kernels, handle: DockerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.has_threads(handle, THREAD, 8)
    listed = iter([{THREAD, 8, 404}, {THREAD, 8, 9}, {THREAD, 8, 9}])
    (kernels.proc / "9").mkdir()
    monkeypatch.setattr(handle.cgroup, "threads", lambda: next(listed))
    handle.timer_slack.make_late()
    assert [kernels.slack(thread) for thread in (THREAD, 8, 9)] == [LATE] * 3


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
async def test_a_user_who_may_not_put_kernels_to_rest_is_told_once(
    kernels: Kernels, handle: DockerHandle, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(IdleSlowdown, "interval", 0.01)
    monkeypatch.setattr(module, "UNUSED", 0.0)
    monkeypatch.setattr(module, "WORTHWHILE", -1.0)
    refused = Mock(side_effect=OSError(number, "timerslack_ns"))
    monkeypatch.setattr(Path, "write_text", refused)
    handle.make_responsive()  # a message can be sent all the same
    kernels.handles["second"] = handle
    with capture_logs() as logs:
        rounds = spawn(UsageLoop(kernels.handles, IdleSlowdown()).run(), "rest")
        await until(lambda: logs)
        await asyncio.sleep(0.1)  # several more rounds
        rounds.cancel()
        await asyncio.wait({rounds})
    assert [line["log_level"] for line in logs] == ["warning"]


async def test_a_container_that_is_gone_or_not_visible_is_left_alone(kernels: Kernels, handle: DockerHandle) -> None:
    for file in (kernels.root / SLICE / handle.id).iterdir():
        file.unlink()
    rounds = UsageLoop(kernels.handles, IdleSlowdown())
    for second in range(10):
        await rounds.round(handle.used_at + second)
    handle.make_responsive()
    assert kernels.slack(THREAD) == PROMPT


def test_the_doctor_knows_whether_this_user_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "1" / "timerslack_ns"
    file.parent.mkdir()
    file.write_text("50000")
    assert may_be_set(tmp_path)
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError))
    assert not may_be_set(tmp_path)


@pytest.mark.parametrize("what", ["an interrupt", "a tool", "the end"])
async def test_everything_asked_of_a_container_rouses_it_first(
    kernels: Kernels, handle: DockerHandle, what: str
) -> None:
    slacks = []

    async def engine_call(*_: object, **__: object) -> None:
        slacks.append(kernels.slack(THREAD))
        raise BackendUnavailable

    kernels.engine.call = engine_call
    kernels.engine.insist = lambda *_, **__: spawn(engine_call(), "removal")
    handle.timer_slack.make_late()
    with suppress(BackendUnavailable):
        if what == "an interrupt":
            await handle.interrupt()
        elif what == "a tool":
            await uses_a_tool(handle)
        else:
            handle.ended()
    await until(lambda: slacks)
    assert slacks == [PROMPT]
