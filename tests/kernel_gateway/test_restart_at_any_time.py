"""A restart that comes at any tenth of a second of a wake, a return or a first start: `state` says what is true."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import gateways
from tests.gateways import Gateway, text_of

pytestmark = pytest.mark.engine

#: seconds from the request of a cell to the restart; a wake, a return and a first start take 0.2 to 0.7
DELAYS = [tenths / 10 for tenths in range(8)]
#: seconds until a session sleeps
SOON = 60.0
#: tells whether the variable that the first cell has set is still there
LOOKS = "print('x' in globals())"
#: states of a cell in whose kernel the variables of earlier cells are gone
GONE = {"restarted", "lost"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", golden_images="auto", preload="", idle_timeout="3") as serving:
        serving.wait_for_sleep()
        yield serving


def asleep(gateway: Gateway, name: str) -> str:
    """Make a session that sleeps; return the code that wakes it."""
    gateway.call("POST", "/v1/sessions", json={"name": name, "on_idle": "sleep"})
    gateway.execute(name, "x = 1")
    deadline = time.monotonic() + SOON
    while gateway.call("GET", f"/v1/sessions/{name}").json()["state"] != "asleep":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return LOOKS


def secured(gateway: Gateway, name: str) -> str:
    """Make a session with a checkpoint before each cell; return code that ends its kernel."""
    gateway.call("POST", "/v1/sessions", json={"name": name, "checkpoints": "auto"})
    gateway.execute(name, "x = 1")
    return "import os; os._exit(1)"


@pytest.mark.parametrize("prepare", [asleep, secured], ids=["wake", "return"])
def test_a_restart_during_a_wake_or_a_return_is_told_truly(
    gateway: Gateway, prepare: Callable[[Gateway, str], str]
) -> None:
    names = {delay: uuid.uuid4().hex for delay in DELAYS}
    with ThreadPoolExecutor(len(names)) as many:
        codes = dict(zip(names, many.map(lambda name: prepare(gateway, name), names.values()), strict=True))
    for delay, name in names.items():
        restart, first, last = restarted_after(gateway, name, codes[delay], delay)
        assert restart == 200
        kept = [reply["state"] not in GONE for reply in (first, last)]
        assert not all(kept), (delay, first, last)  # a client is told of the restart, once
        if codes[delay] == LOOKS and first["status"] == "ok":
            assert text_of(first) == f"{kept[0]}\n", (delay, first)
        assert text_of(last) == f"{all(kept)}\n", (delay, first, last)


def test_a_restart_during_a_first_start_is_told_truly(gateway: Gateway) -> None:
    for delay in DELAYS:
        restart, first, last = restarted_after(gateway, uuid.uuid4().hex, "x = 1", delay)
        assert restart in {200, 404}  # the restart may come before the session
        is_kept = first["status"] == "ok" and last["state"] not in GONE
        assert text_of(last) == f"{is_kept}\n", (delay, first, last)


def restarted_after(gateway: Gateway, name: str, code: str, delay: float) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Send a cell and, `delay` seconds later, a restart.

    Returns:
        status of the restart's answer, result of the cell, result of a cell that looks for the variable afterwards.
    """
    with ThreadPoolExecutor(1) as client:
        cell = client.submit(gateway.call, "POST", f"/v1/sessions/{name}/execute", json={"code": code})
        time.sleep(delay)
        restart = gateway.call("POST", f"/v1/sessions/{name}/restart")
        first, last = cell.result().json(), gateway.execute(name, LOOKS)
    gateway.call("DELETE", f"/v1/sessions/{name}")
    return restart.status_code, first, last
