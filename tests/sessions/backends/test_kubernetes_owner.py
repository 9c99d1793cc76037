"""What a gateway makes in a cluster belongs to the StatefulSet of its Pod, and so goes with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from sessions.backends.kubernetes import KubernetesSettings
from sessions.backends.kubernetes.cluster import Cluster

SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "gateway", "uid": "1"}


@dataclass
class Answer:
    """An answer of the API."""

    status: int
    body: Any

    async def read(self) -> bytes:
        return orjson.dumps(self.body)


@dataclass
class Api:
    """Answers with the gateway's own Pod, and keeps what is made."""

    own: Answer
    made: list[dict[str, Any]] = field(default_factory=list)

    async def read_namespaced_pod(self, *_names: str, **_options: object) -> Answer:
        return self.own

    async def create_namespaced_pod(self, _namespace: str, manifest: dict[str, Any], **_options: object) -> Answer:
        self.made.append(manifest)
        return Answer(201, {})


async def owners(own: Answer, kubeconfig: str = "") -> Any:
    """Return the owners of a Pod that a gateway makes."""
    cluster = Cluster(KubernetesSettings("kernels:1", "instance", kubeconfig=kubeconfig))
    cluster._plain = api = Api(own)
    await cluster.create_pod({"metadata": {"name": "kernel"}})
    assert api.made[0]["metadata"]["name"] == "kernel"
    return api.made[0]["metadata"]["ownerReferences"]


async def test_a_pod_belongs_to_the_set_of_the_gateway() -> None:
    own = Answer(200, {"metadata": {"ownerReferences": [{**SET, "controller": True}]}})
    assert await owners(own) == [SET]
    assert await owners(own, kubeconfig="file") == []  # a gateway outside the cluster is no Pod


@pytest.mark.parametrize(
    "own",
    [
        Answer(200, {"metadata": {}}),
        # such a set is replaced with each release, and its kernels would go with it
        Answer(200, {"metadata": {"ownerReferences": [{**SET, "kind": "ReplicaSet"}]}}),
        Answer(403, {"message": "forbidden"}),
    ],
    ids=["a Pod alone", "of a Deployment", "not allowed"],
)
async def test_without_a_set_a_pod_belongs_to_nobody(own: Answer) -> None:
    assert await owners(own) == []
