"""The chart on a real cluster: a release is installed, used, upgraded, moved to the other node, and removed."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.cluster.access import API, CACHE, IMAGE, KUBECONFIG, api, cluster, wait_for
from tests.compose import Checkout, compose_command
from tests.gateways import text_of
from tests.helm import CHART, FOLDER, helm
from tests.test_examples import example, shell

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.helm, pytest.mark.timeout(600)]
GATEWAY_IMAGE = "kernel-gateway/gateway:cluster-test"
#: names of the page's example
NAMESPACE, NAME = "code", "kernel-gateway"
POD = f"/api/v1/namespaces/{NAMESPACE}/pods/{NAME}-0"
#: everything that a release or its gateway makes
LISTS = [f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("pods", "services", "secrets", "persistentvolumeclaims")]
LISTS += [
    f"/apis/{group}/namespaces/{NAMESPACE}/{kind}"
    for group, kind in (
        ("apps/v1", "statefulsets"),
        ("policy/v1", "poddisruptionbudgets"),
        ("networking.k8s.io/v1", "networkpolicies"),
        ("rbac.authorization.k8s.io/v1", "roles"),
        ("rbac.authorization.k8s.io/v1", "rolebindings"),
    )
]
HOST, _, PORT = API.removeprefix("https://").partition(":")
VALUES: dict[str, Any] = {
    "image": {"tag": "cluster-test", "pullPolicy": "Never"},
    "settings": {"image": IMAGE, "kubernetes_image_pull_policy": "Never", "memory": "256m", "cpus": 0.5},
    "state": {"size": "1Gi", "storageClass": "", "keep": False},
    "podDisruptionBudget": {"kernels": True},
    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    # This cluster has no Services.
    "extraEnv": [
        {"name": "KUBERNETES_SERVICE_HOST", "value": HOST},
        {"name": "KUBERNETES_SERVICE_PORT", "value": PORT},
    ],
}


def install_as_shown(folder: Path) -> dict[str, Any]:
    """Run the commands of the page with the values of this cluster, and return the reply to their cell."""
    (folder / "values.yaml").write_text(json.dumps(VALUES))
    [commands] = example("docs/kubernetes.md", "helm install")
    commands, replaced = re.subn(r"--set .*", f"--values {folder}/values.yaml", commands)
    assert replaced == 1
    said = shell(f"{commands}\nkill %1", KUBECONFIG=KUBECONFIG, HOME=str(folder), PATH=f"{FOLDER}:/usr/bin:/bin")
    reply: dict[str, Any] = json.loads(said.splitlines()[-1])
    return reply


def release(action: str, *arguments: str, values: dict[str, Any] | None = None) -> None:
    """Run Helm for the release, and wait until it has done its work."""
    chart = [] if values is None else [CHART]
    flags = (f"--namespace={NAMESPACE}", "--wait", "--timeout=120s", *arguments)
    helm(action, NAME, *chart, *flags, values=values, KUBECONFIG=KUBECONFIG)


def found() -> list[str]:
    """Return the names of all objects of the release and of its gateway."""
    return [each["metadata"]["name"] for path in LISTS for each in api("GET", path)["items"]]


def key_of_team() -> str:
    """Return the key in the release's Secret."""
    secret = api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}")
    return base64.b64decode(secret["data"]["keys"]).decode().partition(":")[2]


def run(code: str) -> dict[str, Any]:
    """Run a cell as a client in the cluster does."""
    answer = requests.post(
        f"http://{api('GET', POD)['status']['podIP']}:8888/v1/sessions/s/execute",
        headers={"Authorization": f"Bearer {key_of_team()}"},
        json={"code": code},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    reply: dict[str, Any] = answer.json()
    return reply


def is_ready() -> bool:
    """Return whether the gateway's Pod is there and ready."""
    pods = [pod for pod in api("GET", LISTS[0])["items"] if pod["metadata"]["name"] == f"{NAME}-0"]
    conditions = [each for pod in pods for each in pod["status"].get("conditions", [])]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def running() -> list[str]:
    """Return the names of the Pods that run: the gateway and its kernels. A budget does not protect one that starts."""
    pods = [pod for pod in api("GET", LISTS[0])["items"] if "deletionTimestamp" not in pod["metadata"]]
    names = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
    assert len(names) >= 2, pods
    return names


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[None]:
    """A namespace that admits only restricted Pods, a disk that both nodes reach, and the gateway's image."""
    command = compose_command()
    assert command, "docker-compose is not installed (make engine installs it)"
    Checkout.into(tmp_path, command).build("gateway", image=GATEWAY_IMAGE)
    cluster("add_image", GATEWAY_IMAGE)
    disk = CACHE / "run" / "chart"
    disk.mkdir()
    disk.chmod(0o777)
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": restricted}})
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(disk)}}
    api("POST", "/api/v1/persistentvolumes", {"metadata": {"name": NAMESPACE}, "spec": volume})
    yield
    api("DELETE", f"/api/v1/persistentvolumes/{NAMESPACE}")
    api("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


def test_a_release_is_installed_upgraded_moved_and_removed(namespace: None, tmp_path: Path) -> None:
    assert text_of(install_as_shown(tmp_path)) == "42"
    assert text_of(run("x = 41; import subprocess; subprocess.getoutput('dmesg')")).count("Starting gVisor") == 1

    for name in running():
        with pytest.raises(AssertionError, match="disruption budget"):
            api("POST", f"{LISTS[0]}/{name}/eviction", {"metadata": {"name": name}})

    before, key = api("GET", POD), key_of_team()
    release("upgrade", values=VALUES | {"podAnnotations": {"upgraded": "yes"}})
    upgraded = api("GET", POD)
    assert upgraded["metadata"]["uid"] != before["metadata"]["uid"]
    assert key_of_team() == key
    reply = run("x = x + 1; x")
    assert (text_of(reply), reply["state"]) == ("42", "preserved")

    node = f"/api/v1/nodes/{upgraded['spec']['nodeName']}"
    api("PATCH", node, {"spec": {"unschedulable": True}})
    try:
        api("DELETE", POD)
        wait_for(lambda: is_ready() and api("GET", POD)["spec"]["nodeName"] != upgraded["spec"]["nodeName"])
    finally:
        api("PATCH", node, {"spec": {"unschedulable": False}})
    assert text_of(run("x")) == "42"

    assert len(found()) > len(LISTS)
    release("uninstall")
    wait_for(lambda: not found())
