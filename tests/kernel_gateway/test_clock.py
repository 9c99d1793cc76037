"""The machine's clock jumps: no session ends, quotas keep the used amounts, and the audit stays whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sessions.store.records import read
from tests import gateways
from tests.gateways import text_of
from tests.kernel_gateway.accounts import execute, refusal
from tests.kernel_gateway.calls import until

DAY = 86400.0
#: Python runs this code at the start of each gateway, but not in the kernels
AHEAD = """
import pathlib, time
real, ahead = time.time, pathlib.Path({path!r})
time.time = lambda: real() + float(ahead.read_text())
"""


@pytest.fixture
def jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the gateways' wall clock a number of days ahead."""
    ahead = tmp_path / "ahead"

    def set_ahead(days: int) -> None:
        (tmp_path / "next").write_text(str(days * DAY))
        (tmp_path / "next").rename(ahead)  # atomically, because the gateways read the file all the time

    set_ahead(0)
    (tmp_path / "sitecustomize.py").write_text(AHEAD.format(path=str(ahead)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return set_ahead


@pytest.mark.full
def test_a_clock_that_jumps_ends_no_session_and_forgets_nothing(tmp_path: Path, jump: Callable[[int], None]) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with gateways.gateway(
        "process", state_dir=str(state), idle_timeout="600", max_lifetime="3600", max_total_output_bytes="1000"
    ) as gateway:
        gateway.execute("s", "n = 0")
        gateway.execute("greedy", "print('x' * 2000)", tenant="bob")
        for count, days in enumerate((10, -20, 0), start=1):
            jump(days)
            gateway.call("POST", "/v1/sessions", json={"name": "short", "idle_timeout": 1})
            until(lambda: gateway.call("GET", "/v1/sessions/short").status_code == 404)  # the culler has looked
            reply = gateway.execute("s", "n += 1; print(n)")
            assert (text_of(reply), reply["state"]) == (f"{count}\n", "preserved")
            refused = execute(gateway, "1", tenant="bob")
            assert "1000 output bytes" in refusal(refused)
            assert int(refused.headers["Retry-After"]) <= 3700
    written = [record.at for record in read(state / "audit.db")]
    assert {round((at - written[0]) / DAY) for at in written} == {10, -20, 0}, "its clock has jumped"
    command = [sys.executable, "-m", "kernel_gateway", "audit", "--state-dir", str(state)]
    assert "nothing was changed" in subprocess.run(command, check=True, capture_output=True, text=True).stderr
