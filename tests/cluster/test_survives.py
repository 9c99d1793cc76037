"""The table of what survives what in a Kubernetes cluster, in docs/state.md: each cell is held to its words."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.access import PODS, api, cluster, end_program, gateway, pod_of, pods, wait_for
from tests.gateways import Gateway
from tests.kernel_gateway import survival
from tests.kernel_gateway.survival import Event, Life
from tests.kernel_gateway.test_survives import check, rows

TITLE = "What survives what in a Kubernetes cluster"


class ClusterLife(Life):
    """A session, and gateways whose kernels are Pods."""

    def own(self, *_: str, keep_sessions: str = "false", **_others: Any) -> Gateway:
        """Start a gateway for this session alone, the next one on the same state."""
        return self.stack.enter_context(gateway(state_dir=str(self.state_dir), keep_sessions=keep_sessions))


def pod_ends(how: Callable[[str], None]) -> Event:
    """Something outside of the gateway ends the Pod."""

    def happens(life: Life) -> Gateway:
        serving = life.begin(life.shared)
        life.change(serving)
        how(pod_of(serving, life.name))
        life.wait(serving, "dead")
        return serving

    return happens


def delete(name: str) -> None:
    api("DELETE", f"{PODS}/{name}")


def evict(name: str) -> None:
    api("POST", f"{PODS}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})


def lose_node(life: Life) -> Gateway:
    serving = life.begin(life.shared)
    life.change(serving)
    node = pods()[pod_of(serving, life.name)]["spec"]["nodeName"]
    link = ["ip", "link", "set", node]
    subprocess.run([*link, "down"], check=True)
    life.stack.callback(subprocess.run, [*link, "up"], check=True)
    wait_for(lambda: life.ask(serving, "GET").json()["state"] == "dead", 120)
    return serving


def lose_api(life: Life) -> Gateway:
    serving = life.begin(life.shared)
    life.change(serving)
    end_program("apiserver")
    try:
        wait_for(lambda: not serving.ready())
    finally:
        cluster("start_api")
    wait_for(serving.ready)
    return serving


#: the events of each row
EVENTS: dict[str, dict[str, Event]] = {
    **survival.EVERYWHERE,
    "the session is culled or ended; or the gateway is stopped without `keep_sessions`": {
        "cull": survival.cull,
        "end": survival.end,
        "stop": survival.stop("kubernetes", keep=False),
    },
    "the gateway is killed and started again; or stopped with `keep_sessions`": {
        "kill": survival.kill("kubernetes"),
        "stop": survival.stop("kubernetes", keep=True),
    },
    "the Pod is deleted, or its node is drained or lost": {
        "delete": pod_ends(delete),
        "drain": pod_ends(evict),
        "lost": lose_node,
    },
    "the cluster's API does not answer for a while": {"api": lose_api},
}
BY_NAME = survival.by_name(rows(TITLE), EVENTS)


def test_each_row_of_the_table_is_checked() -> None:
    assert set(rows(TITLE)) == set(EVENTS)


@pytest.fixture(scope="module")
def serving() -> Iterator[Gateway]:
    with gateway(pool_size="1") as serving:
        yield serving


@pytest.mark.cluster
@pytest.mark.full
@pytest.mark.parametrize("named", BY_NAME.values(), ids=BY_NAME)
def test_what_survives_is_what_the_table_says(named: tuple[str, Event], serving: Gateway, tmp_path: Path) -> None:
    row, event = named
    with ExitStack() as stack:
        life = ClusterLife(uuid.uuid4().hex, serving, lambda: serving, stack, tmp_path)
        check(life, event(life), rows(TITLE)[row])
