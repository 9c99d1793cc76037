"""Fixtures: a gateway whose engine fails on demand, and the checks of its health."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.bench import NETWORK_PREFIX, RUN, forget_network, forget_networks_of_the_dead, require_root
from tests.attacks.vitals import Neighbour, Vitals
from tests.faults.health import at_rest, threads
from tests.faults.proxy import Proxy, proxy
from tests.gateways import Gateway, gateway

#: network of this run alone
NETWORK = f"{NETWORK_PREFIX}{RUN}-faults"
IMPATIENT = Path(__file__).parent / "impatient"
RUNTIME = Path(__file__).parent / "runtime"
ROOT = Path(__file__).parents[2]
#: settings of a gateway whose kernels start plainly
USUAL: Mapping[str, Any] = {
    "pool_size": "0",
    "memory": "256m",
    "disk": "16m",
    "idle_timeout": "3600",
    "max_concurrent_per_tenant": "60",
}
#: with these, kernels can be copied and sleep
SLEEPING: Mapping[str, Any] = {**USUAL, "golden_images": "auto", "memory": "512m"}
#: no command to gVisor fails
NEVER = "0 early"
#: threads allowed beyond those at rest: those of all lanes, which are kept after their first use
THREADS_MORE = 21


@dataclass(frozen=True)
class Troubled:
    """A gateway, and the proxy between it and the engine."""

    gateway: Gateway
    engine: Proxy
    vitals: Vitals


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """The kernels' network of these tests."""
    require_root()
    forget_networks_of_the_dead()
    yield NETWORK
    forget_network(NETWORK)


@contextlib.contextmanager
def troubled_gateway(network: str, *, settings: Mapping[str, Any] = USUAL, **environment: str) -> Iterator[Troubled]:
    """A gateway behind a proxy, with another tenant's session on it.

    Args:
        network: the kernels' network.
        settings: of the gateway.
        **environment: further variables of the gateway's process.
    """
    with proxy() as engine, contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            # For the gateway; the tests call the engine directly.
            for name, value in {"DOCKER_HOST": engine.url, **environment}.items():
                patch.setenv(name, value)
            serving = stack.enter_context(gateway("docker", network=network, **settings))
            if "golden_images" in settings:
                serving.wait_for_sleep()
        vitals = Vitals(serving, Neighbour(serving), containers=1)
        before = threads(serving)
        yield Troubled(serving, engine, vitals)
        engine.heal()
        assert threads(serving) <= before + THREADS_MORE


def changed(site: Path) -> str:
    """Return the `PYTHONPATH` of a gateway with this checkout's code, changed by the `sitecustomize` of a directory."""
    return os.pathsep.join(map(str, (site, ROOT)))


@pytest.fixture(scope="module")
def shared(network: str) -> Iterator[Troubled]:
    """The gateway of these tests."""
    with troubled_gateway(network) as troubled:
        yield troubled


@pytest.fixture(scope="module")
def impatient(network: str) -> Iterator[Troubled]:
    """A gateway with short time limits for calls to the engine; after the tests its condition must be as before."""
    with troubled_gateway(network, PYTHONPATH=changed(IMPATIENT)) as troubled:
        yield troubled
        troubled.engine.heal()
        at_rest(troubled.gateway, troubled.engine)
        troubled.vitals.check()


@dataclass(frozen=True)
class Sleepy(Troubled):
    """A gateway whose kernels can be copied and sleep, and whose commands to gVisor fail on demand."""

    #: number of the command that fails, and the way; see `runtime/sitecustomize.py`
    countdown: Path


@pytest.fixture(scope="module")
def sleepy(network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sleepy]:
    """Such a gateway."""
    countdown = tmp_path_factory.mktemp("runtime") / "countdown"
    countdown.write_text(NEVER)
    environment = {"PYTHONPATH": changed(RUNTIME), "FAIL_RUNTIME": str(countdown)}
    with troubled_gateway(network, settings=SLEEPING, **environment) as troubled:
        yield Sleepy(troubled.gateway, troubled.engine, troubled.vitals, countdown)


@pytest.fixture
def troubled(shared: Troubled) -> Iterator[Troubled]:
    """The same gateway; after each test its condition must be as before, and nothing may be left."""
    yield shared
    shared.engine.heal()
    at_rest(shared.gateway, shared.engine)
    shared.vitals.check()
