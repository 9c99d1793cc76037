"""A gateway starts no kernel where the cluster does not enforce its policy, or enforces it too late."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.access import CACHE, cluster, end_program, gateway
from tests.gateways import Gateway

pytestmark = [pytest.mark.cluster, pytest.mark.full]
NODES = (1, 2)
#: the jumps to the rules that put packets into the enforcer's queue
JUMPS = (("POSTROUTING", "KGC"), ("INPUT", "KGC-NODE"))


def rule(node: int, *words: str) -> None:
    """Change the rules of a node that lead packets to the enforcer."""
    command = ["nsenter", f"--net=/run/netns/kgc-node{node}", "iptables", "--wait", "--table", "mangle"]
    subprocess.run([*command, *words], check=True)


@contextmanager
def without_enforcer() -> Iterator[None]:
    """No program enforces policies, as in a cluster whose network ignores them."""
    for node in NODES:
        for chain, target in JUMPS:
            rule(node, "--delete", chain, "--jump", target)
    try:
        yield
    finally:
        for node in NODES:
            for chain, target in JUMPS:
                rule(node, "--append", chain, "--jump", target)


@contextmanager
def stopped_enforcer() -> Iterator[None]:
    """The enforcer has ended, and its rules are still there: nothing gets through any more."""
    for node in NODES:
        end_program(f"policies{node}")
    try:
        yield
    finally:
        for node in NODES:
            cluster("start_policies", str(node))


@contextmanager
def late_enforcer() -> Iterator[None]:
    """The enforcer does not know the Pods that start last: each node gives out its addresses one after the other.

    On each node, the proof starts a kernel and a witness, and then a kernel that connects at once.
    """
    late = []
    for node in NODES:
        last = (CACHE / f"run/node{node}/addresses/pods/last_reserved_ip.0").read_text()
        begin = int(last.rpartition(".")[2]) + 3
        late.append(f"10.88.{node}.{begin}-10.88.{node}.254")
    matches = [(node, ["--match", "iprange", "--src-range", addresses]) for node in NODES for addresses in late]
    for node, match in matches:
        rule(node, "--insert", "KGC", *match, "--jump", "RETURN")
    try:
        yield
    finally:
        for node, match in matches:
            rule(node, "--delete", "KGC", *match, "--jump", "RETURN")


def why_not_ready(serving: Gateway) -> str:
    """Return why a gateway starts no kernel."""
    refused = serving.call("POST", "/v1/sessions/any/execute", json={"code": "1"}).json()["error"]
    told = serving.call("GET", "/readyz", tenant=None)
    assert (told.status_code, refused["code"]) == (503, "SB001")
    assert told.json()["error"]["message"] == refused["message"]
    return str(refused["message"])


@pytest.mark.brief
def test_no_kernel_starts_without_an_enforcer() -> None:
    with without_enforcer(), gateway(must_be_ready=False) as serving:
        # Either attempt may get through first: that of a kernel to all addresses, or that of a Pod to a kernel.
        assert "the cluster does not enforce network policies: a " in why_not_ready(serving)


def test_no_kernel_starts_while_the_enforcer_is_stopped() -> None:
    with stopped_enforcer(), gateway(must_be_ready=False) as serving:
        assert "the gateway cannot reach a kernel's Pod" in why_not_ready(serving)


def test_no_kernel_starts_when_the_enforcer_is_late() -> None:
    with late_enforcer(), gateway(must_be_ready=False) as serving:
        assert "enforces network policies too late: a new kernel reached" in why_not_ready(serving)


def test_no_kernel_starts_on_another_runtime_unless_it_is_asked_for_by_name() -> None:
    with gateway(must_be_ready=False, kubernetes_runtime_class="plain") as serving:
        assert "is not gVisor" in why_not_ready(serving)
    with gateway(kubernetes_runtime_class="runc") as serving:
        assert "gVisor" not in serving.text("a", "import subprocess; print(subprocess.getoutput('dmesg'))")
