"""Containers that another program removes, kills, pauses or cuts off; sessions that many clients request at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import docker
import pytest

from tests.attacks.bench import run
from tests.attacks.cells import Attacker, addresses
from tests.attacks.vitals import wait_until
from tests.faults.conftest import Troubled
from tests.faults.health import create, end, event_loop_answers, meanwhile, nothing_is_left
from tests.gateways import Gateway

pytestmark = pytest.mark.engine

#: seconds within which an end is reported for which the engine sends an event
SOON = 5.0
#: seconds within which a kernel is found unreachable: TCP keep-alive probes and attempts to reconnect
OUT_OF_REACH = 45.0
#: a cell that leaves a mark, and runs for a while
MARKED = "open('runs', 'a').write('x'); import time; time.sleep({}); print(open('runs').read())"


@pytest.fixture
def client() -> Iterator[docker.APIClient]:
    with contextlib.closing(docker.from_env()) as made:
        yield made.api


def container_of(gateway: Gateway, session: str) -> dict[str, Any]:
    """Return the engine's record of a session's container; start the session if there is none."""
    return Attacker(gateway, session).container


def loss_reported_once(gateway: Gateway, session: str) -> str:
    """Check that the next cell reports the loss and later cells do not; return the reported reason."""
    first, second = gateway.execute(session, "print(1)"), gateway.execute(session, "print(2)")
    assert (first["status"], first["state"]) == ("ok", "lost"), first
    assert (second["status"], second["state"]) == ("ok", "preserved"), second
    return str(first["state_reason"])


@pytest.mark.parametrize("running", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("how", ["remove", "kill"])
def test_the_loss_of_a_container_is_reported_once(
    troubled: Troubled,
    client: docker.APIClient,
    how: str,
    running: bool,  # noqa: FBT001
) -> None:
    gateway = troubled.gateway
    container = container_of(gateway, "gone")["Id"]
    ends: dict[str, Callable[[], Any]] = {
        "remove": lambda: client.remove_container(container, force=True),
        "kill": lambda: client.kill(container),
    }
    if running:
        with meanwhile(lambda: gateway.execute("gone", MARKED.format(60), timeout=90)) as outcome:
            time.sleep(1)
            ends[how]()
            wait_until(lambda: bool(outcome), seconds=SOON)
        assert (outcome[0]["status"], outcome[0]["state"]) == ("died", "lost")
    else:
        ends[how]()
        wait_until(lambda: gateway.call("GET", "/v1/sessions/gone").json()["state"] == "dead", seconds=SOON)
    assert "ended" in loss_reported_once(gateway, "gone")
    end(gateway, "gone")
    nothing_is_left(gateway)


@contextlib.contextmanager
def dropped(address: str) -> Iterator[None]:
    """Drop all packets from and to a kernel."""
    rules = (("INPUT", "-s", address), ("OUTPUT", "-d", address))
    for chain, *rule in rules:
        run("iptables", "-w", "-I", chain, *rule, "-j", "DROP")
    try:
        yield
    finally:
        for chain, *rule in rules:
            run("iptables", "-w", "-D", chain, *rule, "-j", "DROP")


def test_a_short_partition_loses_no_state_and_runs_no_cell_twice(troubled: Troubled) -> None:
    gateway = troubled.gateway
    (address,) = addresses(container_of(gateway, "parted"))
    gateway.execute("parted", "x = 42")
    with meanwhile(lambda: gateway.execute("parted", MARKED.format(2), timeout=60)) as outcome:
        time.sleep(1)
        with dropped(address):
            time.sleep(5)
    assert (outcome[0]["status"], outcome[0]["state"]) == ("ok", "preserved"), outcome
    assert gateway.text("parted", "print(x, open('runs').read())") == "42 x\n"
    end(gateway, "parted")


def test_a_cell_sent_during_a_short_partition_runs_once(troubled: Troubled) -> None:
    gateway = troubled.gateway
    (address,) = addresses(container_of(gateway, "parted"))
    with ThreadPoolExecutor(1) as pool:
        with dropped(address):
            sent = pool.submit(gateway.execute, "parted", MARKED.format(0), timeout=60)
            time.sleep(4)
            assert not sent.done()
        assert sent.result(60)["status"] == "ok"
    assert gateway.text("parted", "print(open('runs').read())") == "x\n"
    end(gateway, "parted")


def test_an_unreachable_kernel_is_found_and_reported_once(
    troubled: Troubled, client: docker.APIClient, network: str
) -> None:
    gateway = troubled.gateway
    names = {"busy": "dropped", "idle": "dropped", "paused": "paused", "unplugged": "unplugged"}
    containers = {session: container_of(gateway, session) for session in names}
    with contextlib.ExitStack() as stack, event_loop_answers(gateway):
        running = stack.enter_context(meanwhile(lambda: gateway.execute("busy", MARKED.format(120), timeout=200)))
        time.sleep(1)
        began = time.monotonic()
        for session in ("busy", "idle"):
            stack.enter_context(dropped(*addresses(containers[session])))
        client.pause(containers["paused"]["Id"])
        client.disconnect_container_from_network(containers["unplugged"]["Id"], network)
        doomed = {container["Id"] for container in containers.values()}
        wait_until(lambda: not doomed & {item["Id"] for item in gateway.containers()}, gateway.containers, OUT_OF_REACH)
        print(f"found after {time.monotonic() - began:.0f} s")
        wait_until(lambda: bool(running))
        died = running[0]
        assert (died["status"], died["state"], died["error"]["code"]) == ("died", "lost", "SB003")
    for session in names:
        assert ("ended" if session == "paused" else "reached") in loss_reported_once(gateway, session)
        end(gateway, session)
    nothing_is_left(gateway)


def test_a_gateway_that_was_stopped_for_a_while_keeps_all_sessions(troubled: Troubled) -> None:
    gateway = troubled.gateway
    sessions = [f"still-{number}" for number in range(3)]
    for session in sessions:
        gateway.execute(session, f"x = {session!r}")
    with meanwhile(lambda: gateway.execute(sessions[0], MARKED.format(5), timeout=10)) as outcome:
        time.sleep(1)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            time.sleep(20)
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
    assert outcome[0]["status"] == "ok", "it has ended in time"
    time.sleep(10)  # any delayed reaction has happened by now
    for session in sessions:
        reply = gateway.execute(session, "print(x)")
        assert (reply["state"], reply["incarnation"]) == ("preserved", 1), reply
        end(gateway, session)


@pytest.mark.parametrize("way", ["create", "execute"])
def test_fifty_requests_for_a_session_at_once_make_one_container(
    troubled: Troubled, client: docker.APIClient, way: str
) -> None:
    gateway, session, since = troubled.gateway, f"one-{way}", int(time.time())
    with ThreadPoolExecutor(50) as pool, event_loop_answers(gateway):
        if way == "create":
            statuses = [answer.status_code for answer in pool.map(lambda _: create(gateway, session), range(50))]
            assert sorted(statuses) == [HTTPStatus.CREATED, *[HTTPStatus.CONFLICT] * 49]
        else:
            replies = list(pool.map(lambda _: gateway.execute(session, "x = 1"), range(50)))
            assert {(reply["status"], reply["state"], reply["incarnation"]) for reply in replies} == {
                ("ok", "new", 1),
                ("ok", "preserved", 1),
            }
            assert sorted(reply["execution_count"] for reply in replies) == list(range(1, 51))
    made = client.events(
        since=since,
        until=int(time.time()) + 1,
        decode=True,
        filters={"type": "container", "event": "create", "label": f"kernel-gateway.instance={gateway.instance}"},
    )
    assert len(list(made)) == 1
    end(gateway, session)
    nothing_is_left(gateway)
