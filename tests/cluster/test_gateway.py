"""A gateway whose kernels are Pods: what its clients see, and what happens to sessions when it or the cluster fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.access import CONTROL, IMAGE, KUBECONFIG, gateway, pod_of, pods, wait_for
from tests.gateways import Gateway, text_of

pytestmark = [pytest.mark.cluster, pytest.mark.full]
WARM = 'kernel_gateway_pool_kernels{language="python"} 1.0'
RESTARTED = "the gateway was restarted; the kernel kept running"


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    """A gateway with a warm kernel."""
    with gateway(pool_size="1") as serving:
        yield serving


def test_a_cell_runs_in_gvisor_and_variables_stay(serving: Gateway) -> None:
    assert "gVisor" in serving.text("first", "import subprocess; x = 41; print(subprocess.getoutput('dmesg'))")
    assert serving.text("first", "x + 1") == "42"


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


def test_a_gateway_that_is_killed_loses_no_variable(tmp_path: Path) -> None:
    with gateway(state_dir=str(tmp_path), memory="200m") as first:
        for number in range(10):
            first.execute(f"s{number}", f"n = {number}; open('file', 'w').write('{number}')")
        before = set(pods())
        first.process.kill()
        first.process.wait()
    with gateway(state_dir=str(tmp_path), memory="200m") as second:
        for number in range(10):
            reply = second.execute(f"s{number}", "print(n, open('file').read())")
            assert (text_of(reply), reply["state"]) == (f"{number} {number}\n", "preserved")
            assert reply["state_reason"] == RESTARTED
            assert second.execute(f"s{number}", "1")["state_reason"] is None
        wait_for(lambda: set(pods()) == before)
        # the files of an adopted workspace go on to the session's next kernel
        assert second.call("POST", "/v1/sessions/s0/restart").ok
        assert second.text("s0", "print(open('file').read())") == "0\n"
