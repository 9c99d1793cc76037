"""What all tests share: a fake world, and the proof that a test leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import zmq
from hypothesis import settings
from xdist.remote import Producer

from sessions import connection, tasks
from sessions.backends.docker.engine import connect
from sessions.errors import SessionError
from tests.fakes import FakeBackend, World, world_over
from tests.figures import FIGURES
from tests.tiers import ByGateway

BROWSER_SETUP = Path(__file__).parent / "clients/setup.sh"
PROMTOOL_SETUP = Path(__file__).parent / "kernel_gateway/monitoring/setup.sh"

#: how often a test with an engine or a browser is run again when it fails; all others never are
RERUNS = 2

# A loaded machine is no failure, and what was found once is written down as a test of its own.
settings.register_profile("default", deadline=None, database=None, derandomize=True)
settings.load_profile("default")

# jsonschema would build grammars with it, for three seconds in each worker. No schema here has the formats it knows.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # what the import system takes for "not there"


def _descriptors() -> dict[str, str]:
    """What is open, by its number."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of looking
            found[path.name] = str(path.readlink())
    return found


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """A test must end with no task, socket or descriptor more than it began with, and without an unseen failure."""
    for context in (zmq.Context.instance(), connection._context()):  # the tests', and the gateway's
        context.socket(zmq.PAIR).close()  # what libzmq opens once
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    before = _descriptors()
    with structlog.testing.capture_logs() as logs:
        yield
        await _quiet(len(before))
    assert [task.get_name() for task in tasks._running] == []
    after = _descriptors()
    more = {number: what for number, what in after.items() if before.get(number) != what}
    assert len(after) <= len(before), (more, [thread.name for thread in threading.enumerate()])
    assert failures == []
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def _quiet(descriptors: int) -> None:
    """Give libzmq's own threads, and tasks that are about to end, a moment."""
    for _ in range(1000):
        if not tasks._running and len(_descriptors()) <= descriptors:
            return
        await asyncio.sleep(0.01)


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[FakeBackend]:
    """Kernels that follow a script."""
    fake = FakeBackend()
    yield fake
    fake.failures.clear()
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


def _promtool_is_there() -> bool:
    return subprocess.run([PROMTOOL_SETUP, "--check"], check=False, capture_output=True).returncode == 0


#: what not every machine has: the marker of the tests that want it, whether it is there, and what to say if not
WANTED: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (_browser_is_there, "no Chromium in a network of its own: `make browser`"),
    "engine": (_engine_is_there, "no Docker engine with runsc: `make engine`"),
    "promtool": (_promtool_is_there, "no promtool: `make promtool`"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to leave what people look at after a run."""
    parser.addoption("--artifacts", type=Path, help="directory for screenshots of the admin page; else there are none")


def pytest_configure(config: pytest.Config) -> None:
    """Hold no figure against its control while other workers are at work."""
    FIGURES.alone = not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)  # without workers there is none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGateway:
    """Say which tests go to one worker."""
    return ByGateway(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m gate` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the gate's tests, let some run again, put the slow files first, and skip what this machine lacks."""
    for item in items:
        if not needs_a_machine(item):
            if not item.get_closest_marker("full"):
                item.add_marker(pytest.mark.gate)
        else:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
    slow = {item.path for item in items if needs_a_machine(item) and item.get_closest_marker("gate")}
    items.sort(key=lambda item: item.path not in slow)
    if os.environ.get("CI") != "true":  # noqa: TID251 - what CI says of itself; there they run, and fail
        _skip_what_is_not_there(items)


def needs_a_machine(item: pytest.Item) -> bool:
    """Whether a test needs what is no part of this code: an engine or a browser."""
    return any(item.get_closest_marker(marker) for marker in ("browser", "engine"))


def _skip_what_is_not_there(items: list[pytest.Item]) -> None:
    for marker, (is_there, reason) in WANTED.items():
        wanting = [item for item in items if item.get_closest_marker(marker)]
        if wanting and not is_there():
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was measured, and every test that was run again, with the failure that made it so."""
    if table := list(FIGURES.table()):
        terminalreporter.section("figures, each with what a control of this run lets expect")
        terminalreporter.write_line("\n".join(table))
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"run again: {report.nodeid} ({report.when})", yellow=True)
        terminalreporter.line(report.longreprtext)
