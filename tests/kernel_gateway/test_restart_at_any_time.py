"""A restart that comes at any tenth of a second of a wake, a return or a first start: `state` says what is true."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import gateways
from tests.gateways import Gateway

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
    with gateways.gateway("docker", checkpoints="auto", preload="", idle_timeout="3") as serving:
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


def absent(_gateway: Gateway, _name: str) -> str:
    """Make nothing; return a session's first cell."""
    return "x = 1"


@pytest.mark.parametrize("prepare", [asleep, secured, absent], ids=["wake", "return", "first start"])
def test_state_is_true_whenever_a_restart_comes(gateway: Gateway, prepare: Callable[[Gateway, str], str]) -> None:
    names = {delay: uuid.uuid4().hex for delay in DELAYS}
    with ThreadPoolExecutor(len(names)) as many:
        codes = dict(zip(names, many.map(lambda name: prepare(gateway, name), names.values()), strict=True))
    for delay, name in names.items():
        with ThreadPoolExecutor(1) as client:
            cell = client.submit(gateway.call, "POST", f"/v1/sessions/{name}/execute", json={"code": codes[delay]})
            time.sleep(delay)
            restart = gateway.call("POST", f"/v1/sessions/{name}/restart")
            replies = [cell.result().json(), gateway.execute(name, LOOKS)]
        gateway.call("DELETE", f"/v1/sessions/{name}")
        is_told = bool(GONE & {reply["state"] for reply in replies})
        if prepare is absent and not is_told:  # the restart came before the cell, or even before the session
            assert restart.status_code in {200, 404}, restart.text
        else:
            assert (restart.status_code, is_told) == (200, True), (delay, replies, restart.text)
        is_set = replies[0]["state"] not in GONE or (prepare is absent and replies[0]["status"] == "ok")
        if codes[delay] == LOOKS and replies[0]["status"] == "ok":
            assert shown(replies[0]) == f"{is_set}\n", (delay, replies)
        assert shown(replies[1]) == f"{is_set and replies[1]['state'] not in GONE}\n", (delay, replies)


def shown(reply: dict[str, Any]) -> str:
    return "".join(output["text"] for output in reply["outputs"] if output["type"] == "stream")
