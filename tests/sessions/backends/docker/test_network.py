"""A network of the kernels' name that lets something through is refused, and the gateway's own lets nothing through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import docker
import pytest
from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool

from sessions.backends.docker.isolation import network
from sessions.model.errors import NotInitialized

pytestmark = pytest.mark.engine

NAME = f"kernel-gateway-walls-{os.getpid()}"
OPTION = "com.docker.network.bridge"
#: how the gateway makes its network
CLOSED = {
    f"{OPTION}.name": network.bridge_name(NAME),
    f"{OPTION}.enable_icc": "false",
    f"{OPTION}.enable_ip_masquerade": "false",
}
SUBNET = {"ipam": IPAMConfig(pool_configs=[IPAMPool(subnet="fd00:7::/64")])}


@pytest.fixture
def api() -> Iterator[docker.APIClient]:
    with closing(docker.from_env()) as client:
        yield client.api
        with suppress(NotFound):
            client.api.remove_network(NAME)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("not made by the gateway", {"options": CLOSED | {f"{OPTION}.name": "other0"}}),
        ("not internal", {"internal": False}),
        ("reach one another", {"options": CLOSED | {f"{OPTION}.enable_icc": "true"}}),
        ("IPv6 is on", {"enable_ipv6": True} | SUBNET),
    ],
)
def test_a_network_that_lets_something_through_is_refused(
    api: docker.APIClient, problem: str, changes: dict[str, Any]
) -> None:
    made: dict[str, Any] = {"driver": "bridge", "internal": True, "options": CLOSED} | changes
    api.create_network(NAME, **made)
    with pytest.raises(NotInitialized, match=problem):
        network.ensure_network(api, NAME)


def test_the_gateways_own_network_is_accepted_and_closed(api: docker.APIClient) -> None:
    network.ensure_network(api, NAME)
    network.ensure_network(api, NAME)
    made = api.inspect_network(NAME)
    assert (made["Driver"], made["Internal"], made["EnableIPv6"], made["Options"]) == ("bridge", True, False, CLOSED)


def test_two_gateways_that_begin_at_the_same_time_make_one_network(api: docker.APIClient) -> None:
    def make(_number: int) -> str:
        with closing(docker.from_env()) as client:
            return network.ensure_network(client.api, NAME)

    with ThreadPoolExecutor(4) as gateways:
        assert len(set(gateways.map(make, range(4)))) == 1
    assert [made["Name"] for made in api.networks(names=[NAME])] == [NAME]
