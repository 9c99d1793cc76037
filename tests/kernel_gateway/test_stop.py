"""A gateway that is stopped ends its kernels and frees its resources, whichever step fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import HTTPStreamClosedError

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.dialects.native.events import Event
from kernel_gateway.state_dir import AlreadyRunning, lock
from sessions.model.tasks import spawn
from sessions.model.values import SandboxSpec, SessionKey, Status
from sessions.store.audit import Audit
from tests.fakes import FakeBackend, run, stands, until

#: steps of `stop` before the state directory is free, as attributes of the service
STEPS = [
    *("readiness.close", "_listener.stop", "sandboxes.close", "registry.close", "_server.close_all_connections"),
    *("providers.close", "pool.close", "backend.close", "syncer.close", "templates.close", "keystore.close"),
    *("provider_store.close", "audit.close", "ledger.close"),
]


def settings(state_dir: Path, **others: object) -> Settings:
    return Settings.model_validate({"state_dir": state_dir, "port": 0, **others})


@pytest.fixture
async def service(backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A running service with a warm kernel, a session and a sandbox."""
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    service = await Service(settings(tmp_path)).start()
    await service.registry.get_or_create(SessionKey("acme", "s1"))
    await service.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("t"))
    await until(lambda: service.pool.depth() == 1)
    return service


#: names of the tasks that run as long as the gateway
LOOPS = ("readiness", "log", "loop lag", "pool", "culler")


def loops() -> list[asyncio.Task[object]]:
    """Return these tasks."""
    found = [task for task in asyncio.all_tasks() if task.get_name() in LOOPS]
    assert len(found) == len(LOOPS)
    return found


def is_free(state_dir: Path) -> bool:
    try:
        lock(state_dir).close()
    except AlreadyRunning:
        return False
    return True


def replaced(monkeypatch: pytest.MonkeyPatch, service: Service, step: str, by: Callable[..., object]) -> None:
    owner, _, method = step.rpartition(".")
    monkeypatch.setattr(attrgetter(owner)(service), method, by)


def failing(monkeypatch: pytest.MonkeyPatch, service: Service, step: str) -> None:
    """Make a step fail. A coroutine fails before its work, so that other steps must end what it would have ended."""
    method = attrgetter(step)(service)

    def fails() -> None:
        if not iscoroutinefunction(method):
            method()
        raise ZeroDivisionError(step)

    replaced(monkeypatch, service, step, fails)


async def stopped(
    service: Service, left: Callable[[], object] = lambda: asyncio.all_tasks() - {asyncio.current_task()}
) -> int:
    """Stop the service, and wait until its tasks have ended.

    Returns:
        the number of steps that failed, each with a traceback in the log.
    """
    with capture_logs() as logs:
        await service.stop()
        await until(lambda: not left())
    told = [entry for entry in logs if entry.get("task") == "end of the gateway"]
    assert all(entry["exc_info"] for entry in told)
    return len(told)


async def test_the_steps_run_in_order(
    service: Service, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    running = loops()

    def noted(step: str, method: Callable[[], object]) -> object:
        taken.append(step)
        assert not is_free(tmp_path)
        return method()

    for step in STEPS:
        replaced(monkeypatch, service, step, partial(noted, step, attrgetter(step)(service)))
    await service.stop()
    assert taken == STEPS
    assert (backend.alive, backend.workspaces) == ([], [])
    assert all(task.cancelling() for task in running)
    assert is_free(tmp_path)


def opened(directory: Path) -> list[str]:
    """Return the files in a directory that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found.append(descriptor.readlink())
    return [path.name for path in found if directory in path.parents]


async def test_a_running_service_has_its_databases_open(service: Service, tmp_path: Path) -> None:
    assert {"audit.db", "ledger.db", "keys.db"} <= set(opened(tmp_path))
    await service.stop()
    assert opened(tmp_path) == []


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails_does_not_prevent_the_others(
    service: Service, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    failing(monkeypatch, service, step)
    running = loops()
    assert await stopped(service) == 1
    assert backend.alive == []
    assert all(task.cancelling() for task in running)
    assert is_free(tmp_path)
    assert opened(tmp_path) == []


async def test_the_kernels_end_when_every_other_step_fails(
    service: Service, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [step for step in STEPS if step != "backend.close"]
    for step in others:
        failing(monkeypatch, service, step)
    assert await stopped(service) == len(others)
    assert backend.alive == []
    assert is_free(tmp_path)


async def test_a_step_that_is_cancelled_does_not_prevent_the_others(
    service: Service, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.providers, "close", Mock(side_effect=asyncio.CancelledError))
    with pytest.raises(asyncio.CancelledError):
        await service.stop()
    assert backend.alive == []
    assert is_free(tmp_path)


async def test_one_kernel_that_cannot_be_ended_does_not_keep_others_alive(
    service: Service, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.registry.get_or_create(SessionKey("acme", "s2"))
    session = service.registry.get(SessionKey("acme", "s1"))
    stubborn = session.container
    monkeypatch.setattr(stubborn, "kill", Mock(side_effect=ZeroDivisionError))
    monkeypatch.setattr(backend, "close", backend.release)
    assert await stopped(service, lambda: len(backend.alive) > 1) == 1
    assert backend.alive == [stubborn]
    assert is_free(tmp_path)


async def test_kept_sessions_stay_when_a_step_fails(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    service = await Service(settings(tmp_path, keep_sessions=True)).start()
    session = await service.registry.get_or_create(SessionKey("acme", "s1"))
    await until(lambda: service.pool.depth() == 1)
    backend.failures["release"] = ZeroDivisionError()
    assert await stopped(service, lambda: len(backend.alive) > 1) == 1
    assert backend.alive == [session.container]
    assert is_free(tmp_path)


# -- cells that run when the gateway is stopped ----------------------------------------------------------------

SLEEP = "import time; time.sleep(60)"


def replace_timeout(before: Settings, seconds: float) -> Settings:
    """Return settings with another `drain_timeout`."""
    return before.model_copy(update={"drain_timeout": seconds})


class Stopping:
    """A gateway that keeps its sessions, with a cell that runs, and is about to be stopped."""

    def __init__(self, service: Service, backend: FakeBackend) -> None:
        self.service = service
        self.backend = backend
        self._client = AsyncHTTPClient()

    def posts(self, path: str, accept: str = "application/json", **body: object) -> asyncio.Future[HTTPResponse]:
        """Send a request in the background."""
        key = self.service.local_key[0] if self.service.local_key else ""
        headers = {"Authorization": f"Bearer {key}", "Accept": accept}
        url = f"http://127.0.0.1:{self.service.port}{path}"
        request = HTTPRequest(url, "POST", headers, json.dumps(body), request_timeout=60)
        return self._client.fetch(request, raise_error=False)

    async def runs(self, path: str = "/v1/sessions/s/execute", **options: Any) -> asyncio.Future[HTTPResponse]:
        """Run a cell that sleeps, and return when the kernel has it."""
        sent = self.posts(path, code=SLEEP, **options)
        await until(lambda: any(SLEEP in kernel.executed for kernel in self.backend.started))
        return sent

    @property
    def interrupts(self) -> list[str]:
        return [how for kernel in self.backend.started for how in kernel.interrupts]


@pytest.fixture
async def stopping(backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stopping]:
    """Such a gateway, which would wait for ten minutes for the cells that it must interrupt."""
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    monkeypatch.setattr(app, "SOON", 0.2)
    chosen = settings(tmp_path, keep_sessions=True, drain_timeout=600, pool_size=0)
    service = await Service(chosen).start()
    yield Stopping(service, backend)
    await service.stop()


async def test_a_cell_of_a_kept_session_runs_on_and_its_client_is_told_not_to_send_it_again(stopping: Stopping) -> None:
    whole = await stopping.runs()
    queued = stopping.posts("/v1/sessions/s/execute", code="1")
    await until(lambda: stopping.service.quotas.under_way() == 2)
    await stopping.service.drain()
    answer = await whole
    error = json.loads(answer.body)["error"]
    assert (answer.code, error["code"], "Retry-After" in answer.headers) == (409, "SB048", False)
    assert "Do not send the code again" in error["resolution"]
    refused = await queued  # it was not run, so it can be sent again
    assert (refused.code, json.loads(refused.body)["error"]["code"]) == (503, "SB028")
    await stopping.service.stop()
    assert stopping.interrupts == []
    assert stopping.backend.alive == stopping.backend.started


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
async def test_the_last_event_of_a_stream_says_that_its_cell_runs_on(stopping: Stopping, accept: str) -> None:
    streamed = await stopping.runs(accept=accept)
    await stopping.service.drain()
    answer = await streamed
    last = json.loads(answer.body.strip().splitlines()[-1].removeprefix(b"data: "))
    Event.model_validate(last)
    assert (answer.code, last["type"], last["error"]["code"]) == (200, "error", "SB048")


async def test_a_debugged_cell_is_ended_and_its_client_is_told_why(stopping: Stopping) -> None:
    stopping.backend.on(SLEEP, stands)
    launched = await stopping.posts("/v1/sessions/s/debug", command="launch", code=SLEEP)
    seen = json.loads(launched.body)
    assert seen["state"] == "stopped"
    await stopping.service.drain()
    session = stopping.service.registry.get(SessionKey("local", "s"))
    ended = session.runs.find(seen["execution"]).end
    assert ended is not None
    assert ended.result is not None
    assert ended.result.error is not None
    assert (ended.result.status, ended.result.error.code) == (Status.INTERRUPTED, "SB028")
    assert "the variables stay" in ended.result.error.message
    assert (len(stopping.interrupts), stopping.backend.kernel.breakpoints) == (1, None)


async def test_a_cell_that_ends_soon_gets_its_answer(stopping: Stopping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SOON", 60.0)
    running = await stopping.runs()
    draining = spawn(stopping.service.drain(), "drain")
    await until(lambda: stopping.service.readiness.trouble is not None)
    stopping.backend.kernel.interrupted.set()  # the cell ends with an error of its own
    assert json.loads((await running).body)["status"] == "error"
    await draining


async def test_a_kept_sessions_cell_is_unknown_to_the_audit_until_the_next_gateway(stopping: Stopping) -> None:
    running = await stopping.runs()
    await stopping.service.drain()
    await running
    await stopping.service.stop()
    with closing(Audit(stopping.service.state_dir / "audit.db")) as audit:
        assert audit.interrupted == {SessionKey("local", "s")}


async def test_the_second_signal_does_not_interrupt_cells_that_run_on(stopping: Stopping) -> None:
    running = await stopping.runs(on_disconnect="interrupt")
    await stopping.service.stop()
    with suppress(HTTPStreamClosedError):  # the answer may still be sent
        await running
    assert stopping.interrupts == []
    assert stopping.backend.alive == stopping.backend.started


async def test_a_cell_whose_kernel_ends_with_the_gateway_is_interrupted(stopping: Stopping) -> None:
    stopping.backend.keeps_kernels = False
    stopping.service.settings = replace_timeout(stopping.service.settings, 0)
    running = await stopping.runs()
    await stopping.service.drain()
    assert json.loads((await running).body)["status"] == "interrupted"


async def test_a_program_is_interrupted_because_nobody_could_get_its_end_later(stopping: Stopping) -> None:
    stopping.service.settings = replace_timeout(stopping.service.settings, 0)
    registry = stopping.service.registry
    program = await registry.create(SessionKey("local", "run-1"), replace(registry.defaults, throwaway=True))
    ended = spawn(run(program, SLEEP), "program")
    await until(lambda: stopping.backend.kernel.executed == [SLEEP])
    cell = await stopping.runs()
    await until(lambda: stopping.backend.kernel.executed == [SLEEP] and len(stopping.backend.started) == 2)
    await stopping.service.drain()
    assert (await ended).status is Status.INTERRUPTED
    assert json.loads((await cell).body)["error"]["code"] == "SB048"
    assert [len(kernel.interrupts) for kernel in stopping.backend.started] == [1, 0]
