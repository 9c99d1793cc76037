"""The cluster of `make test-cluster`, which cluster.sh starts and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests

from sessions.backends.kubernetes.profile import INSTANCE_LABEL, digest
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
    answer = requests.request(
        method,
        f"{API}{path}",
        json=body,
        headers={"Content-Type": kind},
        timeout=30,
        cert=(str(KEYS / "admin.crt"), str(KEYS / "admin.key")),
        verify=str(KEYS / "ca.crt"),
    )
    assert answer.ok, answer.text
    return answer.json()


def answers() -> bool:
    """Return whether the cluster's API can be reached."""
    try:
        api("GET", "/version")
    except requests.ConnectionError:
        return False
    return True


def pods() -> dict[str, Any]:
    """Return the Pods of all gateways, by name."""
    return {pod["metadata"]["name"]: pod for pod in api("GET", PODS)["items"]}


def of(serving: Gateway) -> dict[str, Any]:
    """Return the Pods of one gateway, by name."""
    label = digest(serving.instance, "instance")
    return {name: pod for name, pod in pods().items() if pod["metadata"]["labels"][INSTANCE_LABEL] == label}


def wait_for(met: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition is met."""
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, met
        time.sleep(0.2)


@contextlib.contextmanager
def gateway(*, must_be_ready: bool = True, **settings: str) -> Iterator[Gateway]:
    """A gateway whose kernels are Pods of the cluster."""
    usual = {
        "image": IMAGE,
        "kubernetes_config": KUBECONFIG,
        "kubernetes_image_pull_policy": "Never",
        "kubernetes_gateway_address": CONTROL,
        "memory": "256m",
        "cpus": "0.5",
    }
    with gateways.gateway("kubernetes", must_be_ready=must_be_ready, **(usual | settings)) as serving:
        yield serving


def pod_of(serving: Gateway, session: str) -> str:
    """Return the name of the Pod of a session's kernel."""
    key = serving.admin_key()
    answer = serving.http.get(f"{serving.url}/v1/admin/sessions", headers={"Authorization": f"Bearer {key}"})
    (found,) = [each["container"] for each in answer.json()["sessions"] if each["name"] == session]
    return str(found)


def cluster(*command: str) -> None:
    """Run a step of cluster.sh."""
    subprocess.run([Path(__file__).parent / "cluster.sh", *command], check=True, capture_output=True, timeout=120)


def end_program(name: str) -> None:
    """Kill a program of the cluster, by the process id that cluster.sh has recorded."""
    pid = int((CACHE / "run" / f"{name}.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
