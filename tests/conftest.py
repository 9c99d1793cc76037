"""Fixtures and hooks of all tests: a fake world, and the check that a test leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
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

from sessions.backends.docker.engine.engine import connect
from sessions.kernels import sockets
from sessions.model.errors import SessionError
from tests import helm
from tests.cluster.access import is_up as cluster_is_up
from tests.fakes import FakeBackend, World, world_over
from tests.figures import FIGURES
from tests.tiers import ByGateway

BROWSER_SETUP = Path(__file__).parent / "clients/setup.sh"
PROMTOOL_SETUP = Path(__file__).parent / "kernel_gateway/monitoring/setup.sh"

#: why a test is skipped that `pytest FILE` would surprise people with
UNASKED = "builds images or starts containers, which takes minutes: say so with `pytest -m engine`, or run `make test`"

#: reruns of a failed test with an engine or a browser; other tests are never run again
RERUNS = 2

# A loaded machine is no failure, and each failure that was found has become a separate test.
settings.register_profile("default", deadline=None, database=None, derandomize=True)
settings.load_profile("default")

# jsonschema would build grammars with it, for three seconds in each worker. No schema here uses its formats.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # the import system treats None as "not installed"


def _descriptors() -> dict[str, str]:
    """Return the targets of all open descriptors, by number."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing
            found[path.name] = str(path.readlink())
    return found


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """Check that a test leaves no task, socket or descriptor, and no unnoticed failure."""
    for context in (zmq.Context.instance(), sockets.context()):  # the tests' context, and the gateway's
        context.socket(zmq.PAIR).close()  # opens the descriptors that libzmq opens only once
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    before = _descriptors()
    with structlog.testing.capture_logs() as logs:
        yield
        await _quiet(len(before))
    assert [task.get_name() for task in _other_tasks()] == []
    after = _descriptors()
    more = {number: what for number, what in after.items() if before.get(number) != what}
    assert len(after) <= len(before), (more, [thread.name for thread in threading.enumerate()])
    assert failures == []
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


def _other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def _quiet(descriptors: int) -> None:
    """Wait for libzmq's own threads, and for tasks that are about to end."""
    for _ in range(1000):
        if not _other_tasks() and len(_descriptors()) <= descriptors:
            return
        await asyncio.sleep(0.01)


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[FakeBackend]:
    """A backend with scripted kernels."""
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
        warnings.simplefilter("ignore", ResourceWarning)  # the engine's client leaves a failed socket open
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


#: tools that some machines lack: marker of the tests that need one, check for it, and reason for a skip
WANTED: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (_browser_is_there, "no Chromium in a network of its own: `make browser`"),
    "cluster": (cluster_is_up, "no cluster beside this process: `make test-cluster`"),
    "curl": (lambda: shutil.which("curl") is not None, "no curl"),
    "engine": (_engine_is_there, "no Docker engine with runsc: `make engine`"),
    "helm": (helm.is_there, "no Helm: `make helm`"),
    "promtool": (_promtool_is_there, "no promtool: `make promtool`"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the directory of screenshots."""
    parser.addoption("--artifacts", type=Path, help="directory for screenshots of the pages; else there are none")


def pytest_configure(config: pytest.Config) -> None:
    """Check no figure against its control while other workers run."""
    FIGURES.alone = not hasattr(config, "workerinput")


@pytest.hookimpl(optionalhook=True)  # this hook exists only with workers
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByGateway:
    """Choose the scheduler that groups tests for the workers."""
    return ByGateway(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m gate` selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the gate's tests, let some run again, put slow files first, skip tests that lack tools or are not wanted."""
    for item in items:
        if not needs_a_machine(item):
            if not item.get_closest_marker("full"):
                item.add_marker(pytest.mark.gate)
        else:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
            if item.get_closest_marker("full"):  # one case of a test of the gate may be left out
                item.own_markers = [marker for marker in item.own_markers if marker.name != "gate"]
    slow = {item.path for item in items if needs_a_machine(item) and item.get_closest_marker("gate")}
    items.sort(key=lambda item: item.path not in slow)
    if os.environ.get("CI") != "true":  # noqa: TID251 - set by CI, where these tests run and fail
        asked = items if config.getoption("markexpr") else _skip_containers(items)
        _skip_what_is_not_there(asked)


def needs_a_machine(item: pytest.Item) -> bool:
    """Return whether a test needs an engine or a browser, which are no part of this code."""
    return any(item.get_closest_marker(marker) for marker in ("browser", "engine"))


def _skip_containers(items: list[pytest.Item]) -> list[pytest.Item]:
    """Skip the tests that build images or start containers, and return the others."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.skip(reason=UNASKED))
    return [item for item in items if not item.get_closest_marker("engine")]


def _skip_what_is_not_there(items: list[pytest.Item]) -> None:
    for marker, (is_there, reason) in WANTED.items():
        wanting = [item for item in items if item.get_closest_marker(marker)]
        if wanting and not is_there():
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List all figures, and every test that was run again with the failure that caused it."""
    if table := list(FIGURES.table()):
        terminalreporter.section("figures, each with the expectation from a control of this run")
        terminalreporter.write_line("\n".join(table))
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"run again: {report.nodeid} ({report.when})", yellow=True)
        terminalreporter.line(report.longreprtext)
