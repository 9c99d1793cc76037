"""What all tests share: a fake world, and the proof that a test leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import zmq
from hypothesis import settings

from sessions import tasks
from sessions.backends.docker.engine import connect
from sessions.errors import SessionError
from tests.fakes import FakeBackend, World, world_over

BROWSER_SETUP = Path(__file__).parent / "clients/setup.sh"

# A loaded machine is no failure, and what was found once is written down as a test of its own.
settings.register_profile("default", deadline=None, database=None, derandomize=True)
settings.load_profile("default")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """A test must end with no task, socket or descriptor more than it began with, and without an unseen failure."""
    zmq.Context.instance().socket(zmq.PAIR).close()  # what libzmq opens once
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    before = _descriptors()
    with structlog.testing.capture_logs() as logs:
        yield
        await _quiet(before)
    assert [task.get_name() for task in tasks._running] == []
    assert _descriptors() <= before
    assert failures == []
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def _quiet(descriptors: int) -> None:
    """Give libzmq's own threads, and tasks that are about to end, a moment."""
    for _ in range(100):
        if not tasks._running and _descriptors() <= descriptors:
            return
        await asyncio.sleep(0.01)


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[FakeBackend]:
    """Kernels that follow a script."""
    fake = FakeBackend()
    yield fake
    await fake.close()


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    """Registry, pool and quotas over fake kernels."""
    async with world_over(backend) as world:
        yield world


def _engine_is_there() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the engine's client forgets a socket that did not connect
        try:
            return "runsc" in connect(timeout=5).info()["Runtimes"]
        except SessionError:
            return False
        finally:
            gc.collect()


def _browser_is_there() -> bool:
    return subprocess.run([BROWSER_SETUP, "--check"], check=False, capture_output=True).returncode == 0


#: what not every machine has: the marker of the tests that want it, whether it is there, and what to say if not
WANTED: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (_browser_is_there, "no Chromium in a network of its own: `make browser`"),
    "engine": (_engine_is_there, "no Docker engine with runsc: `make engine`"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without an engine or a browser their tests are skipped; in CI they run, and fail."""
    if os.environ.get("CI") == "true":  # noqa: TID251 - what CI says of itself
        return
    for marker, (is_there, reason) in WANTED.items():
        wanting = [item for item in items if item.get_closest_marker(marker)]
        if wanting and not is_there():
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason=reason))
