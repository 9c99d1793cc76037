"""The cluster of `make test-cluster`, which cluster.sh starts and ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests

from tests import gateways
from tests.gateways import Gateway

#: where cluster.sh keeps its files, unless CLUSTER_CACHE names another folder
CACHE = Path.home() / ".cache" / "kernel-gateway-cluster"
KEYS = CACHE / "run" / "keys"
#: credentials of an administrator of the cluster that is up
KUBECONFIG = str(KEYS / "admin.kubeconfig")
#: address from which the tests connect, as a network of one address
CONTROL = "10.77.0.254/32"
API = f"https://{CONTROL.partition('/')[0]}:6443"
PODS = "/api/v1/namespaces/kernel-gateway/pods"
IMAGE = "kernel-gateway/python:slim"
#: seconds for what the cluster does on its own
PATIENCE = 90.0


def is_up() -> bool:
    """Return whether the cluster is up, and this process is beside its control plane."""
    return Path(KUBECONFIG).exists() and CONTROL.partition("/")[0] in Path("/proc/self/net/fib_trie").read_text()


def api(method: str, path: str, body: Any = None) -> Any:
    """Send a request to the cluster's API as administrator, and return the answer."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    certificates = {"cert": (str(KEYS / "admin.crt"), str(KEYS / "admin.key")), "verify": str(KEYS / "ca.crt")}
    answer = requests.request(
        method, f"{API}{path}", json=body, headers={"Content-Type": kind}, timeout=30, **certificates
    )
    assert answer.ok, answer.text
    return answer.json()


def pods() -> dict[str, Any]:
    """Return the Pods of all gateways, by name."""
    return {pod["metadata"]["name"]: pod for pod in api("GET", PODS)["items"]}


def wait_for(met: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition is met."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, met
        time.sleep(0.2)


@contextlib.contextmanager
def gateway(**settings: str) -> Iterator[Gateway]:
    """A gateway whose kernels are Pods of the cluster."""
    usual = {
        "image": IMAGE,
        "kubernetes_config": KUBECONFIG,
        "kubernetes_image_pull_policy": "Never",
        "kubernetes_gateway_address": CONTROL,
        "memory": "256m",
        "cpus": "0.5",
    }
    with gateways.gateway("kubernetes", **(usual | settings)) as serving:
        yield serving
