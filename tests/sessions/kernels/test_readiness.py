"""While the proof of the sandbox fails, no kernel is started; when it holds again, kernels are started again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from sessions.kernels import readiness as module
from sessions.kernels.readiness import Readiness
from sessions.model.errors import BackendUnavailable, NotInitialized, SessionError, ShuttingDown
from sessions.model.tasks import spawn
from tests.fakes import FakeBackend, until


@pytest.fixture
def readiness(backend: FakeBackend) -> Readiness:
    return Readiness(backend)


@pytest.fixture
async def watched(readiness: Readiness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Readiness]:
    """A readiness that repeats its proof without a pause."""
    monkeypatch.setattr(module, "RETRY", 0.001)
    monkeypatch.setattr(module, "RECHECK", 0.001)
    watching = spawn(readiness.run(), "readiness")
    yield readiness
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def test_nothing_is_ready_before_it_was_proven(backend: FakeBackend, readiness: Readiness) -> None:
    with pytest.raises(NotInitialized, match="still preparing"):
        readiness.require()


async def test_a_proof_that_holds_makes_the_sandbox_ready(readiness: Readiness) -> None:
    assert await readiness.check()
    readiness.require()
    assert readiness.trouble is None


@pytest.mark.parametrize("trouble", [NotInitialized("no runsc", runtime="runsc"), BackendUnavailable()])
async def test_a_proof_that_fails_gives_the_reason(
    backend: FakeBackend, readiness: Readiness, trouble: SessionError
) -> None:
    backend.unprepared = trouble
    with capture_logs() as logs:
        assert not await readiness.check()
        assert not await readiness.check()
    for _ in range(2):
        with pytest.raises(type(trouble)) as refused:
            readiness.require()
        assert refused.value.as_dict() == trouble.as_dict()
        assert refused.value is not trouble
    assert [entry["code"] for entry in logs] == [trouble.code]


async def test_nothing_is_ready_while_the_backend_refuses_although_the_last_proof_holds(
    backend: FakeBackend, readiness: Readiness
) -> None:
    await readiness.check()
    backend.refusal = BackendUnavailable()
    assert readiness.trouble is backend.refusal
    with pytest.raises(BackendUnavailable):
        readiness.require()
    backend.refusal = None
    readiness.require()


async def test_later_trouble_and_its_end_are_noticed(backend: FakeBackend, watched: Readiness) -> None:
    await until(lambda: watched.trouble is None)
    with capture_logs() as logs:
        backend.unprepared = NotInitialized("a rule is gone")
        await until(lambda: watched.trouble is not None)
        backend.unprepared = None
        await until(lambda: watched.trouble is None)
    assert [entry["event"] for entry in logs] == ["not ready", "ready"]


async def test_a_proof_that_the_backend_asks_for_is_made_at_once(
    backend: FakeBackend, readiness: Readiness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK", 3600.0)
    monkeypatch.setattr(module, "RETRY_ENGINE", 3600.0)
    await readiness.check()
    watching = spawn(readiness.run(), "readiness")
    backend.unprepared = BackendUnavailable()
    await asyncio.sleep(0.02)
    assert readiness.trouble is None, "no proof was requested"
    backend.doubt()
    await until(lambda: readiness.trouble is not None)
    backend.unprepared = None
    await asyncio.sleep(0.02)
    assert readiness.trouble is not None, "no proof was requested"
    backend.doubt()
    await until(lambda: readiness.trouble is None)
    watching.cancel()


async def test_an_engine_that_does_not_answer_is_asked_again_soon(
    backend: FakeBackend, readiness: Readiness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY", 3600.0)
    monkeypatch.setattr(module, "RETRY_ENGINE", 0.001)
    backend.unprepared = BackendUnavailable()
    await readiness.check()
    watching = spawn(readiness.run(), "readiness")
    backend.unprepared = None
    await until(lambda: readiness.trouble is None)
    watching.cancel()


@pytest.mark.parametrize("failure", [subprocess.TimeoutExpired("iptables", 10), ValueError("no JSON"), KeyError("Id")])
async def test_a_proof_with_an_unexpected_error_has_failed(
    backend: FakeBackend, watched: Readiness, failure: Exception
) -> None:
    await until(lambda: watched.trouble is None)
    with capture_logs() as logs:
        backend.failures["prepare"] = failure
        await until(lambda: watched.trouble is not None)
        with pytest.raises(NotInitialized, match="failed unexpectedly"):
            watched.require()
        backend.failures.clear()
        await until(lambda: watched.trouble is None)
    assert [entry["event"] for entry in logs if entry["log_level"] != "error"] == ["not ready", "ready"]
    assert next(entry for entry in logs if entry["log_level"] == "error")["exc_info"]


async def test_a_first_proof_with_an_unexpected_error_is_repeated(backend: FakeBackend, readiness: Readiness) -> None:
    backend.failures["prepare"] = ZeroDivisionError()
    with capture_logs():
        assert not await readiness.check()
    with pytest.raises(NotInitialized, match="failed unexpectedly"):
        readiness.require()
    backend.failures.clear()
    assert await readiness.check()


async def test_a_proof_that_fails_while_the_gateway_stops_changes_nothing(
    backend: FakeBackend, readiness: Readiness
) -> None:
    readiness.close()
    backend.failures["prepare"] = ZeroDivisionError()
    with capture_logs():
        assert not await readiness.check()
    with pytest.raises(ShuttingDown):
        readiness.require()
