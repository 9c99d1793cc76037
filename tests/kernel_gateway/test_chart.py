"""The Helm chart: what it renders is what Kubernetes' API takes, and gives the gateway the rights that it uses."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio import client

from kernel_gateway.config import load
from sessions.backends import kubernetes
from sessions.backends.kubernetes.profile import ROLE_LABEL
from tests.helm import CHART, ROOT, helm

pytestmark = pytest.mark.helm

#: values that use every part of the chart
FULL: dict[str, Any] = {
    "image": {"repository": "registry.example/gateway", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "keysSecret": "own",
    "settings": {
        "image": "registry.example/python:1",
        "memory": "300m",
        "max_kept_bytes": 1000000000,
        "keep_sessions": False,
        "kubernetes_node_selector": "pool=kernels",
        "kubernetes_tolerations": [{"key": "sandbox.gke.io/runtime", "operator": "Exists"}],
        "allowed_hosts": ["code.example", "other.example"],
        "tenants": {"team": {"memory": 268435456}},
        "tls": True,
    },
    "state": {"size": "5Gi", "storageClass": "", "keep": False},
    "service": {"type": "LoadBalancer", "port": 80},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"team": "agents"}}}]},
    "podDisruptionBudget": {"kernels": True},
    "runtimeClass": {"create": True},
    "monitoring": {"serviceMonitor": True, "rules": True, "labels": {"release": "prometheus"}},
    "nodeSelector": {"pool": "services"},
    "tolerations": [{"key": "services", "operator": "Exists"}],
    "priorityClassName": "high",
    "podAnnotations": {"note": "x"},
    "extraEnv": [{"name": "KERNEL_GATEWAY_ADMIN_KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
    "extraVolumes": [{"name": "more", "secret": {"secretName": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
VALUES = pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
#: kinds that are rendered, and the version of each; docs/kubernetes.md lists those of Kubernetes
KINDS = {
    "StatefulSet": "apps/v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Secret": "v1",
    "ServiceAccount": "v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "RuntimeClass": "node.k8s.io/v1",
}
OPERATORS = {"ServiceMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1"}


def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the objects that the chart makes in a cluster of the oldest release."""
    text = helm("template", "here", CHART, "--namespace=code", "--kube-version=1.29.0", values=values or {})
    return [each for each in yaml.safe_load_all(text) if each]


def of(objects: list[dict[str, Any]], kind: str, name: str = "here-kernel-gateway") -> dict[str, Any]:
    """Return the only object of a kind and a name."""
    (found,) = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def variables(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Return the variables of the gateway's container that have a plain value."""
    container = of(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


# -- the API ---------------------------------------------------------------------------------------------------


def wrong(kind: str, value: Any, at: str) -> Iterator[str]:
    """Yield what in a value the API's model of this type does not have."""
    if value is None:
        yield f"{at}: empty"
    elif found := re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", kind):
        if type(value) is not (list if kind.startswith("list") else dict):
            yield f"{at}: no {kind}"
            return
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            yield from wrong(found[1], item, f"{at}.{key}")
    elif plain := {"str": str, "int": int, "bool": bool}.get(kind):
        if type(value) is not plain:
            yield f"{at}: no {kind}"
    elif kind != "object":  # such as a port, which is a number or a name
        yield from _wrong_object(getattr(client, kind), value, at)


def _wrong_object(model: Any, value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: no {model.__name__}"
        return
    names = {json: name for name, json in model.attribute_map.items()}
    yield from (f"{at}.{unknown}: unknown" for unknown in value.keys() - names)
    try:
        model(**{names[name]: item for name, item in value.items() if name in names})
    except ValueError as error:  # a name that must be there
        yield f"{at}: {error}"
    for name, item in value.items():
        if name in names:
            yield from wrong(model.openapi_types[names[name]], item, f"{at}.{name}")


@VALUES
def test_each_object_is_one_of_the_api(values: dict[str, Any]) -> None:
    objects = rendered(values)
    for each in objects:
        assert each["apiVersion"] == (KINDS | OPERATORS)[each["kind"]]
        if each["kind"] in KINDS:
            assert [*wrong(f"V1{each['kind']}", each, each["kind"])] == []
    expected = KINDS.keys() - {"RuntimeClass"} if not values else (KINDS | OPERATORS).keys() - {"Secret"}
    assert {each["kind"] for each in objects} == expected


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [
        ("replica", 1, "x.spec.replica: unknown"),
        ("replicas", "1", "x.spec.replicas: no int"),
        ("template", {}, ""),
        ("selector", None, "`selector`, must not be `None`"),
    ],
)
def test_what_the_api_does_not_have_is_found(at: str, value: Any, found: str) -> None:
    made = of(rendered(), "StatefulSet")
    made["spec"][at] = value
    assert found in " ".join(wrong("V1StatefulSet", made, "x"))


@VALUES
def test_helm_finds_nothing_to_mend(values: dict[str, Any]) -> None:
    helm("lint", "--strict", "--quiet", CHART, values=values)


@pytest.mark.parametrize(
    "values",
    [
        {"setings": {}},
        {"settings": {"memmory": "1g"}},
        {"settings": {"keys": "team:in-clear-0001"}},
        {"keys": "team:short"},
        {"replicas": 2},
        {"image": {"pullPolicy": "Sometimes"}},
        {"service": {"port": 0}},
        {"state": {"size": "much"}},
        {"networkPolicy": {"from": [{"cidr": "10.0.0.0/8"}]}},
        {"resources": {"limits": {"memory": "2 GB"}}},
        {"extraEnv": ["A=b"]},
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=re.escape("values don't meet the specifications of the schema")):
        helm("template", "here", CHART, values=values)


# -- the gateway -----------------------------------------------------------------------------------------------


VERBS = {"read": {"get"}, "list": {"list"}, "create": {"create"}, "delete": {"delete"}, "replace": {"update"}}
#: a WebSocket is opened with GET, and since Kubernetes 1.35 it needs `create`, too
VERBS |= {"patch": {"patch"}, "connect_get": {"get", "create"}}
RESOURCES = {"network_policy": ("networking.k8s.io", "networkpolicies"), "event": ("", "events")}


def called() -> set[tuple[str, str, str]]:
    """Return group, resource and verb of each call of the cluster's API in the backend's code."""
    found = set()
    for path in Path(kubernetes.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for name in names:
            if name.startswith("_") or not (hasattr(client.CoreV1Api, name) or hasattr(client.NetworkingV1Api, name)):
                continue
            method = re.fullmatch(r"(connect_get|[a-z]+)_namespaced_(\w+)", name)
            assert method, f"{name} is no call in one namespace"
            group, resource = RESOURCES.get(method[2], ("", re.sub("^pod_?", "pods/", method[2]).rstrip("/")))
            found |= {(group, resource, verb) for verb in VERBS[method[1]]}
        if "watch" in {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}:
            found.add(("", "pods", "watch"))
    return found


def test_the_role_has_exactly_the_rights_that_the_backend_uses() -> None:
    rules = of(rendered(), "Role")["rules"]
    granted = [
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert set(granted) == called()
    assert len(set(granted)) == len(granted)


@VALUES
def test_the_gateway_accepts_its_settings(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in variables(rendered(values)).items():
        monkeypatch.setenv(name, text.replace("$(POD_IP)", "10.0.0.1"))
    accepted = load({"keys": "team:key-of-team-0001"})
    assert (accepted.isolation, accepted.host, accepted.kubernetes_namespace) == ("kubernetes", "0.0.0.0", "code")  # noqa: S104 - in a Pod
    assert accepted.keep_sessions is not bool(values)
    labels = of(rendered(values), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert accepted.kubernetes_gateway_label.items() <= labels.items()
    if values:
        assert accepted.max_kept_bytes == 1_000_000_000
        assert accepted.kubernetes_tolerations == values["settings"]["kubernetes_tolerations"]
        assert {"code.example", "other.example", "10.0.0.1", "here-kernel-gateway.code"} <= {*accepted.allowed_hosts}


def test_kernels_are_shut_even_without_the_gateways_own_policy() -> None:
    policy = of(rendered(), "NetworkPolicy", "here-kernel-gateway-kernels")["spec"]
    assert policy == {"podSelector": {"matchLabels": {ROLE_LABEL: "kernel"}}, "policyTypes": ["Ingress", "Egress"]}


def test_keys_are_in_a_secret_only() -> None:
    objects = rendered({"keys": "team:key-of-team-0001"})
    assert of(objects, "Secret")["stringData"] == {"keys": "team:key-of-team-0001"}
    assert "key-of-team-0001" not in str([each for each in objects if each["kind"] != "Secret"])
    generated = of(rendered(), "Secret")["stringData"]["keys"]
    assert re.fullmatch("team:[A-Za-z0-9]{48}", generated)
    assert generated != of(rendered(), "Secret")["stringData"]["keys"]


def test_the_rules_are_the_alerts_and_find_the_job_that_is_scraped() -> None:
    objects = rendered(FULL)
    alerts = (ROOT / "kernel_gateway/monitoring/alerts.yml").read_text()
    assert of(objects, "PrometheusRule")["spec"] == yaml.safe_load(alerts)
    job = of(objects, "ServiceMonitor")["spec"]["jobLabel"]
    assert f'job="{of(objects, "Service")["metadata"]["labels"][job]}"' in alerts


def test_the_chart_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_a_name_of_any_length_is_one_that_a_pod_may_have() -> None:
    text = helm("template", "r" * 53, CHART, values={})
    made = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "StatefulSet"]
    assert len(made[0]["metadata"]["name"]) <= 52  # with a revision behind it, it is a label
