"""Calls to an engine that hangs, fails and recovers. The engine is a fake, the failures of its connections are real."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock, Mock

import docker
import pytest
from docker.errors import APIError
from structlog.testing import capture_logs

import sessions.backends.docker as docker_module
import sessions.backends.docker.starter as starter_module
from kernel_image.protocol import PORTS_TOOL
from sessions.backends.base import Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.container import cleanup as lost_module
from sessions.backends.docker.container import watch as watch_module
from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.container.watch import Watch
from sessions.backends.docker.engine import engine as module
from sessions.backends.docker.engine.breaker import FAILURES, Breaker
from sessions.backends.docker.engine.engine import END, START, TOOL, Engine, Lane
from sessions.backends.docker.isolation.egress import Egress
from sessions.backends.docker.isolation.firewall import Rules
from sessions.backends.docker.isolation.proof import Proven, prove
from sessions.backends.docker.profile import volume_names
from sessions.backends.handshake import new_connection_info
from sessions.model.errors import BackendUnavailable, ConnectionFailed, NotInitialized, SessionError
from sessions.model.kernelspecs import Inventory
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit
from tests.fakes import PYTHON, background, until
from tests.faults.pretence import NETWORK, TOOL_SAYS, FakeEngine, pretence
from tests.faults.proxy import Fault, Proxy, proxy
from tests.tiers import some

#: seconds: the shortest useful timeout of a test
BRIEF = 0.6
CREATE = "POST /containers/create"
LAUNCH = Launch(PYTHON)
PROVEN = Proven(gvisor=True, inventory=Inventory("3.0", {}))
FAULTS = [Fault.HANG, Fault.MUTE, Fault.CUT, Fault.REFUSE]


@pytest.fixture
def fake_engine() -> Iterator[FakeEngine]:
    with pretence() as server:
        yield server


@pytest.fixture
def faulty(fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(fake_engine.path) as made:
        monkeypatch.setenv("DOCKER_HOST", made.url)
        yield made


def brief(lane: Lane) -> Lane:
    return replace(lane, request=BRIEF, call=2 * BRIEF)


@pytest.fixture
async def engine(faulty: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(module, "RETRY", 0.02)
    engine = Engine()
    await ask(engine)
    yield engine
    await end(engine, faulty)


async def end(engine: Engine, faulty: Proxy) -> None:
    """Close a client and wait for its threads: none may connect to the proxy after its socket is gone."""
    await engine.close()
    faulty.heal()
    await threads_end()


async def ask(engine: Engine, lane: Lane = START) -> object:
    return await engine.call(lambda: engine.api.inspect_container("x"), lane=lane)


def threads() -> list[threading.Thread]:
    """Return the threads that make calls to the engine, or follow its events."""
    names = tuple(f"docker-{kind}" for kind in ("events", *(lane.name for lane in module.LANES)))
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


async def threads_end() -> None:
    """Wait until there are none."""
    for thread in threads():
        await asyncio.to_thread(thread.join, 10)
    assert not threads()


# -- the breaker -----------------------------------------------------------------------------------------------


def test_the_breaker_opens_after_failures_in_a_row_and_gives_a_retry_time() -> None:
    opened: list[bool] = []
    breaker = Breaker(lambda: opened.append(True))
    for _ in range(FAILURES - 1):
        breaker.failed()
    breaker.answered()
    for _ in range(FAILURES - 1):
        breaker.failed()
    breaker.require()
    breaker.failed()
    breaker.failed()
    assert opened == [True]
    with pytest.raises(BackendUnavailable) as refused:
        breaker.require()
    assert refused.value.details["retry_after"] > 0


def test_only_a_proof_closes_the_breaker() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed()
    breaker.answered()
    assert breaker.open
    breaker.close()
    breaker.require()
    for _ in range(FAILURES - 1):
        breaker.failed()
    assert not breaker.open


# -- calls -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def backend(faulty: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DockerBackend]:
    """A backend after its proof, with short timeouts."""
    monkeypatch.setattr(module, "RETRY", 0.02)
    monkeypatch.setattr(lost_module, "SOON", (0.0, 0.05, 0.05))
    backend = DockerBackend(DockerSettings("runsc", "image", NETWORK, "test", files="memory"))
    monkeypatch.setattr(starter_module, "START", brief(START))
    backend.inventory = PROVEN.inventory
    yield backend
    await backend.close()
    faulty.heal()
    await threads_end()


@pytest.mark.parametrize(("version", "oldest"), [((1, 41), (1, 12)), ((1, 51), (1, 24)), ((1, 52), (1, 44))])
def test_every_engine_is_spoken_to_in_its_own_version(
    fake_engine: FakeEngine, faulty: Proxy, version: tuple[int, int], oldest: tuple[int, int]
) -> None:
    """Docker 29 refuses requests of versions before 1.44."""
    fake_engine.version, fake_engine.oldest = version, oldest
    with closing(module.connect()) as client:
        assert client.info()["NCPU"] == 64
    with closing(docker.APIClient(base_url=faulty.url, version="1.41")) as old:  # the positive control
        if oldest > (1, 41):
            with pytest.raises(APIError, match="too old"):
                old.info()
        else:
            assert old.info()["NCPU"] == 64


async def test_a_container_is_made(backend: DockerBackend) -> None:
    assert (await backend.start(LAUNCH)).id == "made"


@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failing_engine_gets_no_more_requests_until_a_proof(
    backend: DockerBackend, faulty: Proxy, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    doubts: list[bool] = []
    backend.report_doubts(lambda: doubts.append(True))
    faulty.fail(fault, CREATE)
    for _ in range(FAILURES):
        with pytest.raises(BackendUnavailable):
            await backend.start(LAUNCH)
    faulty.heal()
    asked = faulty.calls.count(CREATE)
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            await backend.start(LAUNCH)
    assert faulty.calls.count(CREATE) == asked, "no request reaches the engine"
    assert doubts == [True]
    assert isinstance(backend.refusal, BackendUnavailable), "`/readyz` must say so before the proof has ended"
    await prove_again(backend, monkeypatch)
    assert backend.refusal is None
    assert (await backend.start(LAUNCH)).id == "made"


async def test_a_call_waiting_for_a_thread_is_refused_when_the_breaker_opens(
    backend: DockerBackend, faulty: Proxy
) -> None:
    faulty.fail(Fault.HANG, CREATE)
    creates = [backend.start(LAUNCH) for _ in range(4 * START.threads)]
    outcomes = await asyncio.gather(*creates, return_exceptions=True)
    assert all(isinstance(outcome, BackendUnavailable) for outcome in outcomes)
    assert faulty.calls.count(CREATE) <= 2 * START.threads


@pytest.mark.parametrize("call", [CREATE, "POST /containers/made/start"])
async def test_the_engines_own_words_are_logged_and_not_sent_to_clients(
    backend: DockerBackend, faulty: Proxy, call: str
) -> None:
    faulty.fail(Fault.ERROR, call)
    with capture_logs() as logs, pytest.raises(SessionError) as refused:
        await backend.start(LAUNCH)
    assert "a fault was injected" not in str(refused.value.as_dict())
    assert [line["reason"] for line in logs if "reason" in line] == ["a fault was injected"]


async def test_error_answers_of_the_engine_do_not_open_the_breaker(backend: DockerBackend, faulty: Proxy) -> None:
    faulty.fail(Fault.ERROR, CREATE)
    for _ in range(2 * FAILURES):
        with pytest.raises(BackendUnavailable):
            await backend.start(LAUNCH)
    faulty.heal()
    assert (await backend.start(LAUNCH)).id == "made"


@pytest.mark.parametrize("fault", [*FAULTS, Fault.ERROR])
async def test_a_container_that_may_have_been_made_is_removed(
    backend: DockerBackend, faulty: Proxy, fault: Fault
) -> None:
    faulty.fail(fault, CREATE)
    with pytest.raises(BackendUnavailable):
        await backend.start(LAUNCH)
    await until(lambda: any(re.fullmatch("DELETE /containers/kernel-gateway-[0-9a-f]{32}", it) for it in faulty.calls))


async def test_a_container_whose_creation_was_cancelled_is_removed(backend: DockerBackend, faulty: Proxy) -> None:
    rule = faulty.fail(Fault.MUTE, CREATE)
    creating = spawn(backend.start(LAUNCH), "create")
    await until(lambda: rule.struck)
    creating.cancel()
    await until(lambda: any(call.startswith("DELETE /containers/kernel-gateway-") for call in faulty.calls))


WORKSPACE = "w0rk"


async def leaves(creating: asyncio.Task[Any]) -> None:
    """Cancel the caller that waits for a container."""
    creating.cancel()
    await asyncio.wait({creating})


async def runs_out_of_time(creating: asyncio.Task[Any]) -> None:
    """Let the engine exceed the timeout."""
    with pytest.raises(BackendUnavailable):
        await creating


def searches() -> list[asyncio.Task[Any]]:
    """Return the searches for containers that may have been made."""
    return background("look for a container")


@pytest.fixture
def frequent_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the later searches as frequent as the first ones."""
    monkeypatch.setattr(lost_module, "LATER", 0.05)


@pytest.fixture
def looked(faulty: Proxy) -> Callable[[], int]:
    """Function that returns the number of searches for a container."""
    return lambda: sum(call.startswith("DELETE /containers/kernel-gateway-") for call in faulty.calls)


@pytest.mark.usefixtures("frequent_searches")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("gives_up", [leaves, runs_out_of_time])
async def test_a_container_that_is_made_late_is_removed_with_its_volumes(
    backend: DockerBackend,
    fake_engine: FakeEngine,
    looked: Callable[[], int],
    gives_up: Callable[[asyncio.Task[Any]], Awaitable[None]],
    shared: bool,  # noqa: FBT001
) -> None:
    fake_engine.may_make.clear()
    creating = spawn(backend.start(replace(LAUNCH, workspace=WORKSPACE, shared=shared)), "create")
    await until(lambda: fake_engine.asked)
    await gives_up(creating)
    await backend.delete_workspace(WORKSPACE)  # the session ends before its volumes exist
    await until(lambda: looked() > len(lost_module.SOON) + 2)
    fake_engine.volume_failures = 2
    fake_engine.may_make.set()
    await until(lambda: not searches())
    assert (fake_engine.made, fake_engine.volumes) == ({}, set())


async def test_a_container_is_removed_when_the_caller_leaves_as_the_answer_arrives(
    backend: DockerBackend, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Engine.call

    async def leaves_with_the_answer(engine: Engine, *work: Any, **lane: Any) -> None:
        monkeypatch.setattr(Engine, "call", call)
        await call(engine, *work, **lane)
        raise asyncio.CancelledError

    monkeypatch.setattr(Engine, "call", leaves_with_the_answer)
    with pytest.raises(asyncio.CancelledError):
        await backend.start(LAUNCH)
    await until(lambda: not searches())
    assert (fake_engine.made, fake_engine.volumes) == ({}, set())


@pytest.mark.parametrize("gives_up", [leaves, runs_out_of_time])
async def test_a_container_that_is_not_started_in_time_is_removed(
    backend: DockerBackend, faulty: Proxy, gives_up: Callable[[asyncio.Task[Any]], Awaitable[None]]
) -> None:
    rule = faulty.fail(Fault.HANG, "POST /containers/made/attach")
    starting = spawn(backend.start(LAUNCH), "start")
    await until(lambda: rule.struck)
    await gives_up(starting)
    await until(lambda: "DELETE /containers/made" in faulty.calls)


@pytest.mark.usefixtures("frequent_searches")
async def test_volumes_of_a_container_without_a_given_workspace_are_removed(
    backend: DockerBackend, fake_engine: FakeEngine
) -> None:
    fake_engine.may_make.clear()
    creating = spawn(backend.start(LAUNCH), "create")
    await until(lambda: fake_engine.asked)
    await leaves(creating)
    fake_engine.may_make.set()
    await until(lambda: not searches())
    assert (fake_engine.made, fake_engine.volumes) == ({}, set())


@pytest.mark.usefixtures("frequent_searches")
async def test_a_volume_that_is_made_late_without_its_container_is_removed(
    backend: DockerBackend, fake_engine: FakeEngine, looked: Callable[[], int]
) -> None:
    fake_engine.may_make.clear()
    creating = spawn(backend.start(replace(LAUNCH, workspace=WORKSPACE)), "create")
    await until(lambda: fake_engine.asked)
    await leaves(creating)
    await until(looked)
    (volume, _) = volume_names(WORKSPACE)
    fake_engine.volumes.add(volume)
    await until(lambda: not fake_engine.volumes)
    fake_engine.may_make.set()
    await until(lambda: not searches())


@pytest.mark.usefixtures("frequent_searches")
async def test_a_volume_that_another_container_uses_is_kept(
    backend: DockerBackend, fake_engine: FakeEngine, looked: Callable[[], int]
) -> None:
    launch = replace(LAUNCH, workspace=WORKSPACE)
    await backend.start(launch)
    (first,) = fake_engine.made
    fake_engine.may_make.clear()
    creating = spawn(backend.start(launch), "create")
    await until(lambda: fake_engine.asked == 2)
    await leaves(creating)
    await until(looked)
    fake_engine.may_make.set()
    await until(lambda: not searches())
    assert list(fake_engine.made) == [first]
    assert fake_engine.volumes == {volume_names(WORKSPACE)[0]}


async def test_a_search_without_a_result_does_not_keep_the_gateway_from_ending(
    backend: DockerBackend, fake_engine: FakeEngine
) -> None:
    fake_engine.may_make.clear()
    creating = spawn(backend.start(LAUNCH), "create")
    await until(lambda: fake_engine.asked)
    await leaves(creating)
    await until(searches)
    await asyncio.wait(searches())  # the first ones
    (search,) = searches()
    await backend.close()
    await asyncio.wait({search})
    assert search.cancelled()
    fake_engine.may_make.set()


@pytest.fixture
def walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has the image and the runtime, and network and firewall stand."""
    monkeypatch.setattr(docker_module, "require_image", lambda *_: "image")
    for name in ("require_runtime", "network.ensure_network", "network.bridge_name"):
        monkeypatch.setattr(f"sessions.backends.docker.isolation.isolation.{name}", lambda *_: "")
    monkeypatch.setattr("sessions.backends.docker.isolation.firewall.ensure_rules", lambda _: Rules.SET)
    monkeypatch.setattr(Egress, "ensure", lambda *_: True)


async def prove_again(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a proof of isolation succeed, in which no container runs."""
    with monkeypatch.context() as patched:
        patched.setattr(docker_module, "prove_isolation", lambda *_: PROVEN)
        await backend.prepare()


@pytest.mark.usefixtures("walls")
async def test_a_probe_that_is_made_late_is_removed(
    backend: DockerBackend, fake_engine: FakeEngine, faulty: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prove_again(backend, monkeypatch)
    fake_engine.running.add("probe")
    await backend.prepare()
    assert "DELETE /containers/probe" in faulty.calls


@pytest.mark.usefixtures("walls")
async def test_a_new_driver_of_control_groups_is_proven_before_kernels_start_with_it(
    backend: DockerBackend, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prove_again(backend, monkeypatch)
    fake_engine.driver, fake_engine.refusal = "systemd", "cgroup-parent for systemd cgroup should be a valid slice"
    for _ in range(2):  # what is not proven is proven again
        with pytest.raises(NotInitialized, match=r"in the control group 'kernels\.slice'.*valid slice.*run it as root"):
            await backend.prepare()
    assert fake_engine.parents == ["kernels.slice"] * 2
    fake_engine.refusal = ""
    await backend.start(LAUNCH)
    assert fake_engine.parents[2:] == ["kernels.slice"]


async def test_hanging_calls_delay_no_other_lane_and_keep_no_thread(engine: Engine, faulty: Proxy) -> None:
    hasty = brief(TOOL)
    faulty.fail(Fault.HANG, "GET /containers/stuck/json")
    stuck = [engine.call(lambda: engine.api.inspect_container("stuck"), lane=hasty) for _ in range(4 * TOOL.threads)]
    hanging = asyncio.gather(*stuck, return_exceptions=True)
    await until(lambda: faulty.rule is not None and faulty.rule.struck == TOOL.threads)
    assert await ask(engine)
    assert await ask(engine, END)
    assert all(isinstance(outcome, BackendUnavailable) for outcome in await hanging)
    assert await ask(engine, TOOL), "the threads of the lane are free again"
    assert len(threads()) <= sum(lane.threads for lane in module.LANES)


async def test_hanging_calls_of_one_owner_do_not_delay_another(engine: Engine, faulty: Proxy) -> None:
    hasty = brief(TOOL)
    rule = faulty.fail(Fault.HANG, "GET /containers/stuck/json")

    def stuck() -> object:
        return engine.api.inspect_container("stuck")

    calls = [engine.call(stuck, lane=hasty, owner="hostile") for _ in range(4 * TOOL.threads)]
    hanging = asyncio.gather(*calls, return_exceptions=True)
    await until(lambda: rule.struck == TOOL.threads // 2)
    assert await engine.call(lambda: engine.api.inspect_container("x"), lane=TOOL, owner="other")
    assert not hanging.done()
    assert rule.struck == TOOL.threads // 2
    assert all(isinstance(outcome, BackendUnavailable) for outcome in await hanging)


async def test_a_turn_lasts_as_long_as_the_work_in_its_thread(engine: Engine) -> None:
    """Otherwise a caller that comes and leaves again and again would take all threads."""
    going_on = threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        going_on.wait(60)

    for number in range(TOOL.threads // 2):
        calling = spawn(engine.call(work, number, lane=TOOL, owner="hostile"), "call")
        await until(lambda number=number: number in begun)  # type: ignore[misc]
        calling.cancel()
    last = spawn(engine.call(work, -1, lane=TOOL, owner="hostile"), "call")
    await engine.call(lambda: None, lane=TOOL, owner="other")
    assert -1 not in begun
    going_on.set()
    await last


async def test_interrupts_do_not_wait_for_tools(engine: Engine, faulty: Proxy) -> None:
    info = new_connection_info("tcp", "127.0.0.1", first_port=1, encryption=False)
    handle = DockerHandle(engine, "made", info, "acme")
    rule = faulty.fail(Fault.HANG, "POST /containers/made/exec")

    async def use_tool() -> None:
        async with aclosing(handle.run_tool(PORTS_TOOL, "")) as output:  # a program by itself
            async for _ in output:
                pass

    tools = [spawn(use_tool(), "tool") for _ in range(TOOL.threads)]
    await until(lambda: rule.struck >= TOOL.threads // 2)
    await handle.interrupt()
    assert any(call.startswith("POST /containers/made/kill") for call in faulty.calls)
    assert not any(tool.done() for tool in tools)
    faulty.heal()
    await asyncio.gather(*tools, return_exceptions=True)


async def test_hanging_calls_do_not_block_the_event_loop(engine: Engine, faulty: Proxy) -> None:
    hasty = brief(TOOL)
    faulty.fail(Fault.HANG)
    asking = asyncio.gather(*(ask(engine, hasty) for _ in range(20)), return_exceptions=True)
    turns = 0
    while not asking.done():
        await asyncio.sleep(0.001)
        turns += 1
    await asking
    assert turns > 20


async def test_a_request_that_would_begin_too_late_is_not_sent(engine: Engine, faulty: Proxy) -> None:
    hasty = brief(TOOL)
    ended = threading.Event()

    def late() -> None:
        time.sleep(3 * BRIEF)
        try:
            engine.api.start("x")
        finally:
            ended.set()

    with pytest.raises(BackendUnavailable):
        await engine.call(late, lane=hasty)
    assert await asyncio.to_thread(ended.wait, 5)
    assert not [call for call in faulty.calls if call.endswith("/start")]


async def test_what_cannot_be_removed_yet_is_counted(backend: DockerBackend, fake_engine: FakeEngine) -> None:
    (volume, _) = volume_names(WORKSPACE)
    fake_engine.volumes.add(volume)
    fake_engine.volume_failures = 10**6
    removal = spawn(backend.delete_workspace(WORKSPACE), "removal")
    await until(lambda: backend.leftovers == 2)  # the workspace's other volume cannot be removed either
    fake_engine.volume_failures = 0
    await removal
    assert (backend.leftovers, fake_engine.volumes) == (0, set())


async def test_what_an_earlier_gateway_could_not_remove_is_removed_later(
    backend: DockerBackend, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_module, "VOLUMES_WAIT", 0.05)
    fake_engine.volumes.add("kernel-gateway-left")
    fake_engine.volume_failures = 10**6
    assert await backend.adopt({}, ()) == {}
    assert backend.leftovers == 1
    fake_engine.volume_failures = 0
    await until(lambda: not fake_engine.volumes)
    await until(lambda: backend.leftovers == 0)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.MUTE, Fault.REFUSE, Fault.ERROR])
async def test_insisted_work_is_done_when_the_engine_is_back(
    engine: Engine, faulty: Proxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = brief(END)
    monkeypatch.setattr(module, "END", hasty)
    rule = faulty.fail(fault)
    removal = engine.insist(lambda: engine.api.remove_container("x"), name="removal")
    await until(lambda: rule.struck > 1)
    assert not removal.done()
    faulty.heal()
    async with asyncio.timeout(60):
        await removal


async def test_insisted_work_does_not_keep_the_engine_from_being_closed(faulty: Proxy) -> None:
    engine = Engine()
    await ask(engine)
    faulty.fail(Fault.REFUSE)
    removal = engine.insist(lambda: engine.api.remove_container("x"), name="removal")
    await until(lambda: len(faulty.calls) > 2)
    await end(engine, faulty)
    assert removal.cancelled()
    with pytest.raises(SessionError):
        await ask(engine)


# -- the watch -------------------------------------------------------------------------------------------------


class FakeHandle:
    """A fake handle that records notifications."""

    def __init__(self, container: str) -> None:
        self.id = container
        self.was_running = True
        self.gone = asyncio.Event()
        self.out_of_memory = asyncio.Event()
        self.pauses: list[str] = []
        self.kills: list[str] = []

    def ended(self) -> None:
        self.gone.set()

    def note_out_of_memory(self) -> None:
        self.out_of_memory.set()

    def note_killed(self) -> None:
        self.kills.append("killed")

    def note_paused(self) -> None:
        self.pauses.append("paused")

    def note_resumed(self) -> None:
        self.pauses.append("resumed")


@pytest.fixture
def changes() -> list[bool]:
    return []


@pytest.fixture
async def handle(
    fake_engine: FakeEngine, faulty: Proxy, changes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FakeHandle]:
    monkeypatch.setattr(watch_module, "SILENCE", 1)
    monkeypatch.setattr(watch_module, "RECONNECT", 0.02)
    handle = FakeHandle("c1")
    fake_engine.running.add("c1")
    watch = Watch("test", {"c1": handle}, lambda: changes.append(True))  # type: ignore[dict-item]
    await until(lambda: "GET /containers/json" in faulty.calls)
    yield handle
    watch.stop()
    faulty.cut_all()
    await threads_end()


def listened(faulty: Proxy) -> int:
    return faulty.calls.count("GET /events")


async def test_the_end_of_a_container_is_reported(fake_engine: FakeEngine, handle: FakeHandle) -> None:
    fake_engine.tell({"id": "c1", "Action": "oom"})
    fake_engine.tell({"id": "another", "Action": "die"})
    fake_engine.tell({"id": "c1", "Action": "die"})
    async with asyncio.timeout(60):
        await handle.out_of_memory.wait()
        await handle.gone.wait()


async def test_a_pause_and_its_end_are_reported(fake_engine: FakeEngine, handle: FakeHandle) -> None:
    for action in ("pause", "unpause"):
        fake_engine.tell({"id": "c1", "Action": action})
    await until(lambda: [told for told in handle.pauses if told == "paused"] and handle.pauses[-1] == "resumed")
    assert not handle.gone.is_set()


@pytest.mark.parametrize("fault", [*FAULTS, Fault.ERROR])
async def test_the_end_of_a_container_without_an_event_is_found(
    fake_engine: FakeEngine, faulty: Proxy, handle: FakeHandle, fault: Fault
) -> None:
    faulty.fail(fault, "GET /events")
    faulty.cut_all()
    await asyncio.sleep(0.1)
    fake_engine.running.clear()
    async with asyncio.timeout(60):
        await handle.gone.wait()


@pytest.mark.parametrize("fault", some(FAULTS, gate=2))
async def test_a_running_container_does_not_count_as_ended_while_the_engine_fails(
    faulty: Proxy, handle: FakeHandle, fault: Fault, changes: list[bool]
) -> None:
    rule = faulty.fail(fault)
    faulty.cut_all()
    await until(lambda: rule.struck > 1, seconds=10)
    faulty.heal()
    before = listened(faulty)
    await until(lambda: listened(faulty) > before + 1, seconds=10)
    await until(lambda: len(changes) == 2, seconds=10)  # the stream was lost, and is open again
    assert not handle.gone.is_set()


async def test_a_refused_event_stream_does_not_count_as_open(
    faulty: Proxy, handle: FakeHandle, changes: list[bool]
) -> None:
    rule = faulty.fail(Fault.ERROR, "GET /events")
    faulty.cut_all()
    await until(lambda: rule.struck > 3, seconds=10)
    assert len(changes) == 1, "the stream is lost, and not open again"
    assert not handle.gone.is_set()


@pytest.mark.parametrize("fault", some([None, *FAULTS], gate=3))
async def test_no_connection_outlives_the_watch(
    faulty: Proxy, monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    monkeypatch.setattr(watch_module, "SILENCE", 1)
    watch = Watch("test", {}, lambda: None)
    await until(lambda: connections(faulty))
    if fault is not None:
        rule = faulty.fail(fault, "GET /containers/json")  # the request after that for the events
        faulty.cut_all()
        await until(lambda: rule.struck, seconds=10)
    watch.stop()
    await threads_end()
    assert connections(faulty) == 0


def connections(faulty: Proxy) -> int:
    """Return the number of connections of this process to the proxy."""
    # by type, because `isinstance` asks a weak proxy for the class of an object that is perhaps gone
    sockets = [thing for thing in gc.get_objects() if issubclass(type(thing), socket.socket) and thing.fileno() != -1]
    return sum(leads_to(faulty, thing) for thing in sockets)


def leads_to(faulty: Proxy, connection: socket.socket) -> bool:
    try:
        return bool(connection.getpeername() == str(faulty.path))
    except OSError:  # not connected
        return False


async def test_the_end_of_a_container_is_reported_after_an_unexpected_failure(
    fake_engine: FakeEngine, faulty: Proxy, handle: FakeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(Watch, "_open", Mock(side_effect=AttributeError("the stream lost its connection")))
        faulty.cut_all()
        await until(lambda: any(entry.get("task") == "docker-events" for entry in logs))
    before = listened(faulty)
    await until(lambda: listened(faulty) > before)
    fake_engine.running.clear()
    fake_engine.tell({"id": "c1", "Action": "die"})
    async with asyncio.timeout(60):
        await handle.gone.wait()


async def test_a_silent_event_stream_does_not_count_as_lost(
    faulty: Proxy, handle: FakeHandle, changes: list[bool]
) -> None:
    before = listened(faulty)
    await until(lambda: listened(faulty) > before + 1, seconds=10)
    assert not changes
    assert not handle.gone.is_set()


async def test_a_container_that_starts_during_a_listing_does_not_count_as_ended(
    fake_engine: FakeEngine, faulty: Proxy
) -> None:
    late = FakeHandle("c2")
    late.was_running = False

    def starts() -> None:
        fake_engine.running.add("c2")  # only the next list contains it
        late.was_running = True

    fake_engine.on_list = starts
    watch = Watch("test", {"c2": late}, lambda: None)  # type: ignore[dict-item]
    await until(lambda: late.was_running)
    await asyncio.sleep(0.2)
    assert not late.gone.is_set()
    watch.stop()
    faulty.cut_all()
    await threads_end()


# -- a handle --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumes", [True, False])
async def test_a_container_that_stays_paused_is_ended(
    engine: Engine,
    faulty: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    resumes: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("sessions.backends.docker.container.pauses.PAUSE_MAX", 0.1)
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    handle.note_paused()
    if resumes:
        handle.note_resumed()
        await asyncio.sleep(0.3)
        assert "DELETE /containers/c1" not in faulty.calls
    else:
        await until(lambda: "DELETE /containers/c1" in faulty.calls)
    await handle.kill()


@pytest.mark.parametrize("paused_before", [True, False])
async def test_a_container_that_the_gateway_has_paused_may_stay_paused(
    engine: Engine,
    faulty: Proxy,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    paused_before: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("sessions.backends.docker.container.pauses.PAUSE_MAX", 0.3)
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    if paused_before:
        handle.note_paused()  # and the event of its end is missed
    await handle.pause()
    handle.note_paused()
    await asyncio.sleep(0.6)
    assert "DELETE /containers/c1" not in faulty.calls
    fake_engine.state = {"Running": True, "Paused": True}
    await handle.resume()
    assert [call for call in faulty.calls if "pause" in call] == [
        "POST /containers/c1/pause",
        "POST /containers/c1/unpause",
    ]
    await handle.kill()


@pytest.mark.parametrize("paused_meanwhile", [True, False])
async def test_a_refused_pause_leaves_pauses_from_outside_limited(
    engine: Engine,
    faulty: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    paused_meanwhile: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("sessions.backends.docker.container.pauses.PAUSE_MAX", 0.1)
    rule = faulty.fail(Fault.ERROR, "POST /containers/c1/pause")
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    pausing = spawn(handle.pause(), "pause")
    if paused_meanwhile:
        await asyncio.sleep(0)  # the engine is being asked
        handle.note_paused()
    with pytest.raises(BackendUnavailable):
        await pausing
    assert rule.struck
    if not paused_meanwhile:
        handle.note_paused()
    await until(lambda: "DELETE /containers/c1" in faulty.calls)
    await handle.kill()


async def test_a_container_that_the_engine_fails_to_resume_is_still_paused_by_the_gateway(
    engine: Engine, faulty: Proxy, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.backends.docker.container.pauses.PAUSE_MAX", 0.1)
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    await handle.pause()
    fake_engine.state = {"Running": True, "Paused": True}
    faulty.fail(Fault.ERROR, "POST /containers/c1/unpause")
    with pytest.raises(ConnectionFailed):
        await handle.resume()
    handle.note_paused()  # found in the engine's list, for example
    await asyncio.sleep(0.3)
    assert "DELETE /containers/c1" not in faulty.calls
    faulty.heal()
    await handle.resume()
    await handle.kill()


@pytest.mark.parametrize("gone", [True, False])
async def test_to_resume_a_container_that_is_gone_or_runs_is_no_failure(
    engine: Engine,
    faulty: Proxy,
    fake_engine: FakeEngine,
    gone: bool,  # noqa: FBT001
) -> None:
    fake_engine.state = {} if gone else {"Running": True, "Paused": False}
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    await handle.resume()
    assert "POST /containers/c1/unpause" not in faulty.calls
    await handle.kill()


@pytest.mark.parametrize("fault", [None, Fault.ERROR])
async def test_a_container_is_stopped_and_removed_even_when_the_stop_fails(
    engine: Engine, faulty: Proxy, fault: Fault | None
) -> None:
    if fault is not None:
        faulty.fail(fault, "POST /containers/c1/stop")
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    await handle.kill()
    assert faulty.calls[-2:] == ["POST /containers/c1/stop", "DELETE /containers/c1"]


async def test_a_paused_container_is_resumed_before_it_is_stopped(
    engine: Engine, faulty: Proxy, fake_engine: FakeEngine
) -> None:
    fake_engine.state = {"Running": True, "Paused": True}
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    await handle.kill()
    ended = ["POST /containers/c1/unpause", "POST /containers/c1/stop", "DELETE /containers/c1"]
    assert faulty.calls[-3:] == ended


async def test_a_kill_during_the_removal_after_an_end_keeps_the_exit_code(
    engine: Engine, faulty: Proxy, fake_engine: FakeEngine
) -> None:
    fake_engine.state = {"Running": False, "ExitCode": 7}
    rule = faulty.fail(Fault.ERROR, "DELETE /containers/c1")
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    handle.ended()
    await until(lambda: rule.struck)
    killing = spawn(handle.kill(), "kill")
    await until(lambda: rule.struck > 1)
    faulty.heal()
    await killing
    assert await handle.wait() == KernelExit(ExitReason.EXITED, 7)


async def test_a_kill_that_succeeds_late_counts_as_a_kill(
    engine: Engine, faulty: Proxy, fake_engine: FakeEngine
) -> None:
    rule = faulty.fail(Fault.ERROR, "DELETE /containers/c1")
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    killing = spawn(handle.kill(), "kill")
    await until(lambda: rule.struck)
    fake_engine.state = {"Running": False, "ExitCode": 143}  # the stop has ended it, the removal failed
    faulty.heal()
    await killing
    assert await handle.wait() == KernelExit(ExitReason.KILLED)


@pytest.mark.parametrize(("signal", "kills"), [("9", ["killed"]), ("15", ["killed"]), ("2", [])])
async def test_only_a_deadly_signal_from_outside_is_reported(
    fake_engine: FakeEngine, handle: FakeHandle, signal: str, kills: list[str]
) -> None:
    fake_engine.tell({"id": "c1", "Action": "kill", "Actor": {"Attributes": {"signal": signal}}})
    fake_engine.tell({"id": "c1", "Action": "oom"})
    async with asyncio.timeout(60):
        await handle.out_of_memory.wait()
    assert handle.kills == kills


async def test_early_output_of_a_tool_is_not_lost(engine: Engine) -> None:
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    assert b"".join([piece async for piece in handle.run_tool(PORTS_TOOL, "")]) == TOOL_SAYS


async def test_a_kill_returns_while_the_engine_does_not_answer(
    engine: Engine, faulty: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions.backends.docker.container.handle.GIVE_UP", 0.1)
    handle = DockerHandle(engine, "c1", None)  # type: ignore[arg-type]
    faulty.fail(Fault.REFUSE)
    async with asyncio.timeout(60):
        await handle.kill()
        assert isinstance(await handle.wait(), KernelExit)
    assert "GET /containers/c1/json" in faulty.calls
    faulty.heal()
    await until(lambda: "DELETE /containers/c1" in faulty.calls)
    await until(lambda: not background("removal of container"))


# -- deletions in the background -------------------------------------------------------------------------------

VOLUME = "DELETE /volumes/.*"


def removals(faulty: Proxy) -> int:
    """Return how often the engine was asked to remove a volume."""
    return sum(call.startswith("DELETE /volumes/") for call in faulty.calls)


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.MUTE, Fault.REFUSE, Fault.ERROR])
async def test_deleting_a_workspace_returns_soon_and_is_done_when_the_engine_is_back(
    backend: DockerBackend, faulty: Proxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_module, "SOON", 0.01)
    hasty = brief(END)
    monkeypatch.setattr(module, "END", hasty)
    rule = faulty.fail(fault, VOLUME)
    async with asyncio.timeout(60):
        await backend.delete_workspace("w")
    await until(lambda: rule.struck > len(volume_names("w")))
    assert background("removal of volume")
    faulty.heal()
    await until(lambda: not background("removal of volume"))
    assert removals(faulty) == rule.struck + len(volume_names("w"))


async def test_insisted_work_is_retried_after_unexpected_exceptions(engine: Engine) -> None:
    work = Mock(side_effect=[KeyError("Id"), TypeError(), "done"])
    with capture_logs() as logs:
        assert await engine.insist(work, name="removal") == "done"
    assert [entry["task"] for entry in logs] == ["removal", "removal"]


def test_a_proof_says_why_no_container_runs_and_names_nothing_of_the_host() -> None:
    said = (
        "failed to create shim task: OCI runtime create failed: creating container: cannot create sandbox:\n"
        f"open /run/containerd/io.containerd.runtime.v2.task/moby/{'a1' * 32}/log.json: permission denied: unknown"
    )
    api = MagicMock()
    api.create_container.side_effect = APIError("500 Server Error", explanation=said)
    with pytest.raises(NotInitialized) as raised:
        prove(api, DockerSettings("runsc", "image", "network", "tests"), "127.0.0.1")
    assert raised.value.message.startswith("runtime 'runsc' cannot run a container: failed to create shim task: OCI")
    assert raised.value.message.endswith("open ... permission denied: unknown")
    assert "kernel-gateway doctor" in raised.value.resolution
