"""A gateway that is stopped ends its kernels and frees its resources, whichever step fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from operator import attrgetter
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.state_dir import AlreadyRunning, lock
from sessions.model.values import SandboxSpec, SessionKey
from tests.fakes import FakeBackend, until

#: steps of `stop` before the state directory is free, as attributes of the service
STEPS = [
    *("readiness.close", "_listener.stop", "sandboxes.close", "registry.close", "_server.close_all_connections"),
    *("providers.close", "pool.close", "backend.close", "syncer.close", "templates.close", "keystore.close"),
    *("provider_store.close", "audit.close", "ledger.close"),
]


def settings(state_dir: Path, *, keep_sessions: bool = False) -> Settings:
    return Settings.model_validate({"state_dir": state_dir, "port": 0, "keep_sessions": keep_sessions})


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
