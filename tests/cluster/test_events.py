"""What happens to Pods and nodes from outside of the gateway: the session's next reply tells it, once and rightly."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.access import PODS, api, cluster, end_program, gateway, pod_of, pods, wait_for
from tests.gateways import Gateway, text_of

pytestmark = [pytest.mark.cluster, pytest.mark.full]
FILL = "held = []\nwhile True: held.append(bytearray(8 * 2**20))"


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    with gateway(images="local/absent:1") as serving:
        yield serving


def began(serving: Gateway, session: str) -> str:
    """Begin a session with a variable, and return the name of its Pod."""
    assert serving.text(session, "x = 1; x") == "1"
    return pod_of(serving, session)


def dead(serving: Gateway, session: str) -> bool:
    return bool(serving.call("GET", f"/v1/sessions/{session}").json()["state"] == "dead")


def told_once(serving: Gateway, session: str) -> str:
    """Return what the next reply says of the lost variables; the one after it says nothing."""
    reply = serving.execute(session, "print('x' in globals())")
    assert (text_of(reply), reply["state"]) == ("False\n", "lost"), reply
    after = serving.execute(session, "1")
    assert (after["state"], after["state_reason"]) == ("preserved", None)
    return str(reply["state_reason"])


def refused(serving: Gateway, session: str, **fields: Any) -> dict[str, Any]:
    """Return the error of a session's first cell, which has no kernel."""
    made = serving.call("POST", "/v1/sessions", json={"name": session, **fields})
    if made.ok:
        made = serving.call("POST", f"/v1/sessions/{session}/execute", json={"code": "1"})
    error: dict[str, Any] = made.json()["error"]
    return error


@pytest.mark.brief
def test_a_deleted_pod(serving: Gateway) -> None:
    api("DELETE", f"{PODS}/{began(serving, 'deleted')}")
    wait_for(lambda: dead(serving, "deleted"))
    assert "its Pod was deleted from outside of the gateway" in told_once(serving, "deleted")


def test_a_pod_that_is_deleted_while_a_cell_runs(serving: Gateway) -> None:
    name = began(serving, "running")
    answers: list[dict[str, Any]] = []
    cell = threading.Thread(target=lambda: answers.append(serving.execute("running", "import time; time.sleep(60)")))
    cell.start()
    wait_for(lambda: serving.call("GET", "/v1/sessions/running").json()["state"] == "busy")
    api("DELETE", f"{PODS}/{name}")
    cell.join()
    assert answers[0]["status"] == "died"
    assert "deleted from outside" in answers[0]["error"]["message"]


def test_a_node_that_is_drained(serving: Gateway) -> None:
    name = began(serving, "drained")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    api("POST", f"{PODS}/{name}/eviction", eviction)
    wait_for(lambda: dead(serving, "drained"))
    assert "its node is being emptied" in told_once(serving, "drained")


@pytest.mark.brief
def test_out_of_memory_is_named(serving: Gateway) -> None:
    began(serving, "full")
    reply = serving.execute("full", FILL, timeout=60)
    assert (reply["status"], reply["error"]["code"]) == ("died", "SB006"), reply
    assert "more memory than its limit of 256 MiB" in told_once(serving, "full")


def test_code_that_kills_everything_has_not_run_out_of_memory(serving: Gateway) -> None:
    began(serving, "killed")
    reply = serving.execute("killed", "import os, time; os.kill(1, 9); time.sleep(60)", timeout=60)
    assert (reply["status"], reply["error"]["code"]) == ("died", "SB010"), reply
    assert "SIGKILL" in told_once(serving, "killed")


def test_an_image_that_is_not_there(serving: Gateway) -> None:
    error = refused(serving, "absent", image="local/absent:1")
    assert error["code"] == "SB004"
    assert "no node of the cluster has the image" in error["message"]


def test_no_node_has_room() -> None:
    with gateway(memory="900g") as large:
        error = refused(large, "large")
        assert error["code"] == "SB004"
        assert "no node of the cluster has room" in error["message"]
        assert "Insufficient memory" in error["message"]


def test_an_api_that_is_away(serving: Gateway) -> None:
    began(serving, "away")
    end_program("apiserver")
    wait_for(lambda: not serving.ready())
    assert serving.text("away", "x") == "1"
    assert refused(serving, "new")["code"] == "SB009"
    time.sleep(30)
    assert serving.text("away", "x + 1") == "2"
    cluster("start_api")
    wait_for(serving.ready)
    assert serving.text("new", "1") == "1"
    time.sleep(25)  # nodes that could not report themselves must not be given up now
    reply = serving.execute("away", "x")
    assert (text_of(reply), reply["state"]) == ("1", "preserved")


def test_a_node_that_vanishes_and_comes_back(serving: Gateway) -> None:
    name = began(serving, "vanished")
    node = pods()[name]["spec"]["nodeName"]
    subprocess.run(["ip", "link", "set", node, "down"], check=True)
    try:
        wait_for(lambda: dead(serving, "vanished"), 120)
        assert "could not be reached any more" in told_once(serving, "vanished")
    finally:
        subprocess.run(["ip", "link", "set", node, "up"], check=True)
    wait_for(lambda: name not in pods())
    assert serving.text("vanished", "2") == "2"
