"""The gateways that these tests share: one for each isolation, started when the first test needs it."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.agentrun import Box, boxed, create

ISOLATIONS = ["process", pytest.param("docker", marks=pytest.mark.engine)]


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], Gateway]]:
    """Return a function that starts each isolation's gateway once."""
    with ExitStack() as stack:
        yield functools.cache(lambda isolation: stack.enter_context(_watched(isolation)))


#: gateways that all tests of a run share
_shared: list[Gateway] = []


@contextmanager
def _watched(isolation: str) -> Iterator[Gateway]:
    with gateways.gateway(isolation, pool_size="1") as gateway:
        _shared.append(gateway)
        yield gateway
        _shared.remove(gateway)


@pytest.fixture(autouse=True)
def no_error_is_logged() -> Iterator[None]:
    """Check after each test that the shared gateways still run and have logged no error, whatever they were sent."""
    yield
    for gateway in _shared:
        assert gateway.process.poll() is None
        errors = gateway.errors()
        assert not errors, json.dumps(errors, indent=1)[:4000]


@pytest.fixture(params=ISOLATIONS)
def gateway(request: pytest.FixtureRequest, started: Callable[[str], Gateway]) -> Gateway:
    """A running gateway; mark tests `wire.process_only` when the isolation makes no difference."""
    return started(request.param)


@pytest.fixture
def session(gateway: Gateway) -> Iterator[str]:
    """A name that no session has yet; sessions with this name are ended after the test."""
    name = f"test-{secrets.token_hex(4)}"
    yield name
    for tenant in KEYS:
        gateway.call("DELETE", f"/v1/sessions/{name}", tenant=tenant)


@pytest.fixture
def debugged(gateway: Gateway) -> Iterator[str]:
    """A session whose kernel has loaded the debugger, which takes long. Tests share it, and leave no trace in it."""
    yield "debugged"
    gateway.call("POST", "/v1/sessions/debugged/debug", json={"command": "terminate"})


@pytest.fixture
def kernel(gateway: Gateway) -> Iterator[str]:
    """The id of a kernel that a Jupyter client has started."""
    made = gateway.call("POST", "/api/kernels", json={})
    assert made.status_code == 201, made.text
    yield made.json()["id"]
    gateway.call("DELETE", f"/api/kernels/{made.json()['id']}")


@pytest.fixture
def own_box(gateway: Gateway) -> Iterator[Box]:
    """An AgentRun sandbox that no other test uses."""
    with boxed(gateway) as box:
        yield box


@pytest.fixture
def box(gateway: Gateway) -> Box:
    """An AgentRun sandbox that tests share when they leave no trace in it."""
    assert create(gateway, sandboxId="shared", sandboxIdleTimeoutSeconds=3600).status_code in {200, 409}
    return Box(gateway, "shared")
