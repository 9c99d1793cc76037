"""The check whether a cluster has what kernels need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from sessions.backends.abilities import Ability, Finding
from sessions.backends.kubernetes.cluster import Cluster, Refused
from sessions.backends.kubernetes.profile import KubernetesSettings, network_policy, policy_name
from sessions.backends.kubernetes.walls import prove
from sessions.model.errors import SessionError

_FIX = "`kubectl describe pods`, and the events of the namespace, say more"


def examine(settings: KubernetesSettings, *, tried: bool, off: dict[str, Ability]) -> Iterator[Finding]:
    """Check whether the cluster answers, and whether Pods are isolated in it.

    Args:
        settings: settings of the backend.
        tried: True to also start the Pods of the proof.
        off: abilities that this backend does not have, by name.
    """

    async def found() -> list[Finding]:
        return [finding async for finding in _findings(settings, tried=tried)]

    findings = asyncio.run(found())
    yield from findings
    if all(finding.ok for finding in findings):
        yield from (Finding.of(name, ability) for name, ability in off.items())


async def _findings(settings: KubernetesSettings, *, tried: bool) -> AsyncIterator[Finding]:
    cluster = Cluster(settings)
    try:
        try:
            version = await cluster.version()
        except (SessionError, Refused) as error:
            yield Finding("cluster", str(error), "check `kubernetes_config`, or the gateway's service account")
            return
        yield Finding("cluster", None, detail=f"API {version}, namespace {settings.namespace}")
        if tried:
            yield await _isolation(cluster, settings)
    finally:
        await cluster.close()


async def _isolation(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    try:
        await cluster.ensure_policy(network_policy(settings))
        for left in (await cluster.pods())[0]:  # by a check that was killed
            await cluster.delete_pod(left["metadata"]["name"])
        try:
            proven = await prove(cluster, settings)
        finally:
            await cluster.delete_policy(policy_name(settings))
    except (SessionError, Refused) as error:
        return Finding("isolation test", str(error), _FIX)
    walls = "kernels reach neither the cluster nor one another"
    return Finding("isolation test", None, detail=f"{'gVisor' if proven.gvisor else 'no gVisor'}; {walls}")
