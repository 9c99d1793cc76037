"""Our own kernels behind a real gateway's `/run`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sessions.model.errors import NotInitialized
from sessions.providers.self_managed import SelfManaged
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.sessions.providers.contract import *  # noqa: F403 - the suite
from tests.sessions.providers.contract import ECHO, Case
from tests.sessions.providers.runner import LocalRunner
from tests.sessions.providers.test_self_managed import INVALID


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.engine)])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with gateways.gateway(request.param) as serving:
        yield serving


@pytest.fixture
def case(gateway: Gateway) -> Case:
    return Case(
        lambda: SelfManaged(LocalRunner()),
        {"endpoint": gateway.url, "api_key": KEYS["alice"]},
        artifacts=True,
        invalid=INVALID,
        nobody={"endpoint": "http://127.0.0.1:1", "max_retries": 0},
    )


async def test_a_wrong_key_runs_nothing(case: Case) -> None:
    provider = case.make()
    await provider.initialize(case.config | {"api_key": "wrong-key-0123456789"})
    made = await provider.create_instance()
    with pytest.raises(NotInitialized):
        await provider.execute_code(made.instance_id, ECHO["python"], "python")
    await provider.close()
