"""A gateway whose kernels are Pods: what its clients see, and what happens to sessions when it or the cluster fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2b_code_interpreter import Sandbox

from tests.clients.test_e2b import options
from tests.cluster.access import (
    CONTROL,
    IMAGE,
    KUBECONFIG,
    PODS,
    answers,
    api,
    cluster,
    end_program,
    gateway,
    of,
    pod_of,
    pods,
    wait_for,
)
from tests.gateways import Gateway, text_of

pytestmark = [pytest.mark.cluster, pytest.mark.full]
WARM = 'kernel_gateway_pool_kernels{language="python"} 1.0'
#: seconds without the API, and for the whole cluster to work again
AWAY, BACK = 60.0, 180.0
RESTARTED = "the gateway was restarted; the kernel kept running"


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    """A gateway with a warm kernel."""
    with gateway(pool_size="1") as serving:
        yield serving


@pytest.mark.brief
def test_a_cell_runs_in_gvisor_and_variables_stay(serving: Gateway) -> None:
    assert "gVisor" in serving.text("first", "import subprocess; x = 41; print(subprocess.getoutput('dmesg'))")
    assert serving.text("first", "x + 1") == "42"


@pytest.mark.brief
def test_readyz_says_what_is_off(serving: Gateway) -> None:
    told = serving.call("GET", "/readyz", tenant=None).json()
    assert told["ready"]
    for name in ("sleep", "golden_images", "pauses"):
        assert not told[name]["on"]
        assert "Kubernetes" in told[name]["detail"]


def test_what_is_off_says_so_in_its_error(serving: Gateway) -> None:
    serving.execute("off", "1")
    refused = serving.call("POST", "/v1/sessions/off/checkpoints", json={"name": "a"})
    assert refused.status_code >= 400
    assert "readyz" in refused.text
    assert serving.text("off", "'still here'") == "'still here'"


@pytest.mark.brief
def test_a_first_result_comes_from_the_pool(serving: Gateway) -> None:
    wait_for(lambda: serving.call("GET", "/metrics", tenant=None).text.count(WARM) == 1)
    before = set(pods())
    assert serving.text("warm", "1+1") == "2"
    assert pod_of(serving, "warm") in before


def test_doctor_tries_the_walls_and_leaves_nothing(tmp_path: Path) -> None:
    flags = ["--kubernetes-config", KUBECONFIG, "--kubernetes-gateway-address", CONTROL, "--image", IMAGE]
    flags += ["--kubernetes-image-pull-policy", "Never", "--state-dir", str(tmp_path)]
    before = set(pods())
    command = [sys.executable, "-m", "kernel_gateway", "doctor", "--isolation", "kubernetes", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ})  # noqa: TID251 - a child gets this environment
    assert done.returncode == 0, done.stdout + done.stderr
    assert "isolation test: gVisor; kernels reach neither" in done.stdout
    assert "off: golden images, sleep, pauses" in done.stdout
    wait_for(lambda: not {name for name in set(pods()) - before if "early" in name or "witness" in name})


@pytest.mark.brief
def test_a_gateway_that_is_killed_loses_no_variable(tmp_path: Path) -> None:
    with gateway(state_dir=str(tmp_path), memory="200m") as first:
        with ThreadPoolExecutor(5) as clients:
            cells = {f"s{number}": f"n = {number}; open('file', 'w').write('{number}')" for number in range(10)}
            assert [*clients.map(first.text, *zip(*cells.items(), strict=True))] == ["1"] * 10
        before = set(of(first))
        first.process.kill()
        first.process.wait()
    with gateway(state_dir=str(tmp_path), memory="200m") as second:
        for number in range(10):
            reply = second.execute(f"s{number}", "print(n, open('file').read())")
            assert (text_of(reply), reply["state"]) == (f"{number} {number}\n", "preserved")
            assert reply["state_reason"] == RESTARTED
            assert second.execute(f"s{number}", "1")["state_reason"] is None
        wait_for(lambda: set(of(second)) == before)
        # the files of an adopted workspace go on to the session's next kernel
        assert second.call("POST", "/v1/sessions/s0/restart").ok
        assert second.text("s0", "print(open('file').read())") == "0\n"


@pytest.mark.timeout(400)
def test_the_next_gateway_waits_for_an_api_that_is_away(tmp_path: Path) -> None:
    """The Pod of a start that never finished is removed, and a cell that runs goes on meanwhile."""
    with gateway(state_dir=str(tmp_path)) as first, ThreadPoolExecutor(2) as clients:
        first.text("kept", "x = 1")
        kept = set(of(first))
        cell = clients.submit(first.execute, "kept", "import time; time.sleep(20); x = 2")
        wait_for(lambda: first.call("GET", "/v1/sessions/kept").json()["state"] == "busy")
        start = clients.submit(first.execute, "unfinished", "1")
        wait_for(lambda: set(of(first)) > kept)
        first.process.kill()
        first.process.wait()
        assert cell.exception()
        assert start.exception()
    end_program("apiserver")
    try:
        with gateway(state_dir=str(tmp_path), must_be_ready=False) as second:
            time.sleep(AWAY)
            assert not second.ready()
            cluster("start_api")
            wait_for(second.ready, BACK)
            reply = second.execute("kept", "x")
            assert (text_of(reply), reply["state"]) == ("2", "preserved")
            assert reply["state_reason"].startswith("the gateway was restarted while a cell ran")
            wait_for(lambda: set(of(second)) == kept)
    finally:
        if not answers():
            cluster("start_api")


def test_the_contexts_of_a_sandbox_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    with gateway(state_dir=str(tmp_path)) as first:
        before = Sandbox.create(timeout=300, **options(first))
        before.files.write("file", "text")
        assert before.run_code("x = open('file').read(); x").text == "text"
        further = before.create_code_context()
        assert before.run_code("x = 2; x", context=further).text == "2"
        pod = set(of(first))
        first.process.kill()
        first.process.wait()
    with gateway(state_dir=str(tmp_path)) as second:
        after = Sandbox.connect(before.sandbox_id, **options(second))
        assert after.run_code("x").text == "text"
        assert after.run_code("x", context=further).text == "2"
        assert after.commands.run("cat file").stdout == "text"
        wait_for(lambda: set(of(second)) == pod)
        assert after.kill()
        wait_for(lambda: not of(second))


def test_the_files_of_a_kernel_that_has_ended_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    with gateway(state_dir=str(tmp_path)) as first:
        first.text("dead", "open('file', 'w').write('text')")
        assert first.execute("dead", "import os; os._exit(3)")["status"] == "died"
        first.process.kill()
        first.process.wait()
    with gateway(state_dir=str(tmp_path)) as second:
        for _ in range(3):  # each kernel's Pod stays once
            reply = second.execute("dead", "open('file').read()")
            assert (text_of(reply), reply["state"]) == ("'text'", "lost")
            assert second.execute("dead", "import os; os._exit(3)")["status"] == "died"
        assert second.call("DELETE", "/v1/sessions/dead").ok
        wait_for(lambda: not of(second))


@pytest.mark.timeout(500)
def test_forty_sessions_over_both_nodes_and_nothing_left() -> None:
    with gateway(memory="160m", cpus="0.2", max_concurrent_per_tenant="40", max_queued_per_tenant="40") as many:
        names = [f"many{number}" for number in range(40)]
        with ThreadPoolExecutor(10) as clients:
            assert [*clients.map(lambda name: many.text(name, f"x = '{name}'; x"), names)] == [repr(n) for n in names]
            assert [*clients.map(lambda name: many.text(name, "x"), names)] == [repr(name) for name in names]
        nodes = Counter(pod["spec"]["nodeName"] for pod in of(many).values())
        assert sorted(nodes) == ["node1", "node2"]
        assert sum(nodes.values()) == 40
        mine = set(of(many))  # the gateway has a minute for its end
    wait_for(lambda: mine.isdisjoint(pods()))


def test_what_a_start_has_left_is_removed(serving: Gateway) -> None:
    """A start can end while the API does not answer, and its Pod appears later."""
    serving.execute("any", "1")
    pod = of(serving)[pod_of(serving, "any")]
    copied = {"name": "kernel-gateway-left", "labels": pod["metadata"]["labels"]}
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    api("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": copied, "spec": spec})
    wait_for(lambda: "kernel-gateway-left" not in pods())


def test_a_scenario_over_many_turns(serving: Gateway) -> None:
    serving.text("turns", "import json, pathlib; seen = []")
    for turn in range(20):
        assert serving.text("turns", f"seen.append({turn}); sum(seen)") == str(sum(range(turn + 1)))
    assert serving.execute("turns", "1 / 0")["status"] == "error"
    assert serving.execute("turns", "while True: pass", timeout=1)["status"] == "timeout"
    assert serving.text("turns", "len(seen)") == "20"
    serving.text("turns", "pathlib.Path('seen.json').write_text(json.dumps(seen))")
    assert serving.call("GET", "/v1/sessions/turns/files/seen.json").json() == [*range(20)]
    assert serving.call("PUT", "/v1/sessions/turns/files/more.txt", data=b"more").ok
    assert serving.text("turns", "pathlib.Path('more.txt').read_text()") == "'more'"
    assert len(serving.call("GET", "/v1/sessions/turns/notebook").json()["cells"]) >= 25
    assert serving.call("POST", "/v1/sessions/turns/restart").ok
    reply = serving.execute("turns", "print(pathlib.Path('seen.json').exists()) if 'pathlib' in globals() else 'new'")
    assert (text_of(reply), reply["state"]) == ("'new'", "restarted")
    assert serving.text("turns", "import os; sorted(os.listdir())") == "['more.txt', 'seen.json']"
