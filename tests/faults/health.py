"""Conditions that must hold while the engine is in trouble, and after it."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import requests

from tests.attacks.vitals import all_the_time, wait_until
from tests.faults.proxy import Proxy
from tests.figures import hold
from tests.gateways import Gateway

#: calls of `/healthz` before a fault; the slowest answer is the control
CALLS = 20
#: seconds between two calls
BEAT = 0.05
#: expected slowness of an answer while the engine is in trouble, as a multiple of the control
IN_TROUBLE = 40.0
#: expected slowness of a refusal without an engine, as a multiple of the refusal of a bad name
AWAY = 5.0
#: seconds after the return of the engine until the gateway serves again, and nothing is left over
RECOVERY = 30.0
#: seconds without a call to the engine; and the calls that do not count, because they are made all the time
REST = 2.0
WATCHING = "GET /(events|version|containers/json|info|images/.*|networks/.*)|DELETE .*"
#: error codes that a client may get while the engine is in trouble, and for a bad name
CODES = {"SB001", "SB002", "SB003", "SB004", "SB009"}


@contextlib.contextmanager
def event_loop_answers(gateway: Gateway) -> Iterator[None]:
    """Check that the event loop is never blocked: `/healthz` is answered promptly."""
    with requests.Session() as http:
        ask = functools.partial(_asked, http, gateway)
        usual = max(ask() for _ in range(CALLS))
        with all_the_time(ask, BEAT) as latencies:
            yield
    hold("the event loop's answer while the engine is in trouble", max(latencies), IN_TROUBLE * usual)


def _asked(http: requests.Session, gateway: Gateway) -> float:
    """Return the seconds until `/healthz` was answered."""
    began = time.monotonic()
    assert http.get(f"{gateway.url}/healthz", timeout=30).status_code == HTTPStatus.OK
    return time.monotonic() - began


@contextlib.contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Do some work in another thread; its result is in the list at the end."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - reported to the test below
            outcome.append(error)

    worker = threading.Thread(target=run, name="meanwhile")
    worker.start()
    try:
        yield outcome
    finally:
        worker.join(120)
    assert not worker.is_alive()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]


def error_code(response: requests.Response) -> str | None:
    """Return the error code of a response; None when the request succeeded."""
    if response.ok:
        return None
    code = str(response.json()["error"]["code"])
    assert code in CODES, response.text
    if code == "SB009":
        assert response.json()["error"]["details"]["retry_after"] > 0
        assert int(response.headers["Retry-After"]) > 0
    return code


def create(gateway: Gateway, session: str) -> requests.Response:
    """Request a new session."""
    return gateway.call("POST", "/v1/sessions", json={"name": session})


def end(gateway: Gateway, session: str) -> requests.Response:
    """End a session."""
    return gateway.call("DELETE", f"/v1/sessions/{session}")


def volumes(gateway: Gateway) -> list[str]:
    """Return the volumes that the engine has for this gateway's workspaces."""
    with contextlib.closing(docker.from_env()) as client:
        found = client.api.volumes(filters={"label": f"kernel-gateway.instance={gateway.instance}"})
        return [volume["Name"] for volume in found["Volumes"] or []]


def kept_on_disk(gateway: Gateway) -> list[str]:
    """Return what is on disk of kernels' memory, of trials to continue with it, and of the files of sessions."""
    with contextlib.closing(docker.from_env()) as client:
        disks = Path(client.api.inspect_volume(f"kernel-gateway-files-{gateway.instance}")["Mountpoint"])
    trials = Path("/dev/shm").glob(f"kernel-gateway-{gateway.instance}-*")
    found = [*(gateway.state_dir / "asleep").glob("*"), *trials, *disks.glob("*.img")]
    return [str(path) for path in found]


def threads(gateway: Gateway) -> int:
    """Return the number of the gateway's threads."""
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def refused_at_once(gateway: Gateway) -> None:
    """Check that a request for a session is refused at once while the engine is known to be away."""
    usual = max(_refusal(gateway, "no name!", "SB002") for _ in range(CALLS))
    hold("a refusal while the engine is away", _refusal(gateway, "any", "SB009"), AWAY * usual)


def _refusal(gateway: Gateway, session: str, code: str) -> float:
    began = time.monotonic()
    response = create(gateway, session)
    took = time.monotonic() - began
    assert error_code(response) == code
    return took


def recovers(gateway: Gateway, session: str) -> None:
    """Check that sessions can be made again without a restart of the gateway."""
    deadline = time.monotonic() + RECOVERY
    while error_code(create(gateway, session)) is not None:
        assert time.monotonic() < deadline, "no session can be made"
        time.sleep(0.2)
    assert gateway.text(session, "print(6 * 7)") == "42\n"
    assert gateway.ready()
    assert end(gateway, session).status_code == HTTPStatus.NO_CONTENT


def at_rest(gateway: Gateway, engine: Proxy) -> None:
    """Wait until the gateway has finished its own probes, which would otherwise meet the next fault."""
    deadline = time.monotonic() + 2 * RECOVERY
    asked, since = -1, time.monotonic()
    while time.monotonic() - since < REST or not gateway.ready():
        assert time.monotonic() < deadline, engine.calls[-20:]
        now = sum(not re.fullmatch(WATCHING, call) for call in engine.calls)
        if now != asked:
            asked, since = now, time.monotonic()
        time.sleep(0.1)


def nothing_is_left(gateway: Gateway, *, containers: int = 1) -> None:
    """Wait until only the containers and workspaces of the remaining sessions exist."""
    wait_until(lambda: len(gateway.containers()) == containers, gateway.containers, RECOVERY)
    wait_until(lambda: len(volumes(gateway)) == containers, lambda: volumes(gateway), RECOVERY)


def no_memory_is_left(gateway: Gateway, *, disks: int = 1) -> None:
    """Wait until no kernel's memory is on disk, and only the disks of the remaining sessions."""
    wait_until(lambda: len(kept_on_disk(gateway)) == disks, lambda: kept_on_disk(gateway), RECOVERY)
