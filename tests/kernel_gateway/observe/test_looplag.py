"""The event loop's lag is measured, and the task that blocks the loop is logged."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import MutableMapping
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from kernel_gateway.observe.looplag import LoopLag
from sessions.model import tasks
from sessions.model.tasks import spawn
from tests import gateways
from tests.fakes import until

Logs = list[MutableMapping[str, Any]]

STANDS_STILL = "the event loop stands still"
GOES_ON = "the event loop runs again"


def of(logs: Logs, event: str) -> Logs:
    return [entry for entry in logs if entry["event"] == event]


async def holds_everybody_up(logs: Logs, secret: str) -> None:
    """Block the loop until the watcher has logged it."""
    deadline = time.monotonic() + 60
    while not of(logs, STANDS_STILL):
        assert time.monotonic() < deadline, f"nobody has noticed {secret}"
        time.sleep(0.01)  # noqa: ASYNC251 - the blocking call is the defect


async def test_a_task_that_blocks_the_loop_is_logged_while_it_blocks(nothing_left: None) -> None:
    late: list[float] = []
    with capture_logs() as logs:
        watching = spawn(LoopLag(late.append, stall=0.3).run(), "loop lag")
        await until(lambda: late)
        await spawn(holds_everybody_up(logs, "opensesame"), "the culprit")
        await until(lambda: of(logs, GOES_ON))
        watching.cancel()
        await asyncio.wait({watching})
    entry = of(logs, STANDS_STILL)[0]
    assert entry["task"] == "the culprit"
    assert any(line.endswith(" holds_everybody_up") for line in entry["stack"])
    assert "opensesame" not in str(logs)
    assert of(logs, GOES_ON)[0]["stalled_s"] > 0.2
    assert max(late) > 0.2
    await until(lambda: "loop lag" not in {thread.name for thread in threading.enumerate()})


async def test_nothing_is_logged_while_the_loop_runs(nothing_left: None) -> None:
    late: list[float] = []
    with capture_logs() as logs:
        watching = spawn(LoopLag(late.append, stall=60).run(), "loop lag")
        await until(lambda: len(late) > 3)
        watching.cancel()
        await asyncio.wait({watching})
    assert logs == []
    assert min(late) >= 0


async def test_the_lag_is_still_measured_after_a_report_failed(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "PAUSE", 0.001)
    tell = Mock(side_effect=[ZeroDivisionError(), None, None])
    with capture_logs() as logs:
        watching = spawn(LoopLag(tell).run(), "loop lag")
        await until(lambda: tell.call_count == 3)
        watching.cancel()
        await asyncio.wait({watching})
    assert logs[0]["task"] == "loop lag"


@pytest.mark.parametrize("seconds", [2.5])
def test_a_gateway_that_was_suspended_has_lost_no_kernel(seconds: float) -> None:
    """C22, C24: the whole gateway process is suspended, and its kernels are not."""
    with gateways.gateway("process") as gateway:
        gateway.execute("s", "x = 1")
        gateway.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        gateway.process.send_signal(signal.SIGCONT)
        reply = gateway.execute("s", "x")
        assert (reply["state"], reply["incarnation"], reply["outputs"][0]["data"]["text/plain"]) == (
            "preserved",
            1,
            "1",
        )
        told = gateway.call("GET", "/metrics", tenant=None).text
        late = next(line for line in told.splitlines() if line.startswith("kernel_gateway_loop_lag_seconds_sum "))
        assert float(late.split()[1]) > seconds / 2
        assert {entry["event"] for entry in gateway.logged()} >= {GOES_ON}
