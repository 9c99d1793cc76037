"""Fixtures: the gateway under attack, and the checks of its health."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.attacks.bench import (
    NETWORK_PREFIX,
    RUN,
    Bench,
    bench,
    forget_network,
    forget_networks_of_the_dead,
    require_root,
)
from tests.attacks.cells import Attacker
from tests.attacks.vitals import Neighbour, Vitals
from tests.gateways import gateway

#: network of this run alone, so that no attack reaches a container of another program
NETWORK = f"{NETWORK_PREFIX}{RUN}"
WARM = 2
#: small values, so that a limit is reached soon
LIMITS = {"memory": "256m", "disk": "16m", "pool_size": str(WARM), "pool_max": str(WARM), "network": NETWORK}
#: seconds: longer than the time in which other tests run and the neighbour is not called
PAUSE = "3600"
#: planted in the gateway's own environment; must appear in no sandbox
CANARY = "canary-5f3b0c77d1"
PLANTED = ("AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "KERNEL_GATEWAY_ADMIN_KEY", "LC_SECRET")

_names = itertools.count()


@pytest.fixture(scope="session")
def network() -> Iterator[str]:
    """The kernels' network of these tests."""
    require_root()
    forget_networks_of_the_dead()
    yield NETWORK
    forget_network(NETWORK)


@contextlib.contextmanager
def siege(**settings: str) -> Iterator[Vitals]:
    """A gateway to attack, in its condition before all attacks, with another tenant's session on it."""
    with pytest.MonkeyPatch.context() as environment:
        for name in PLANTED:
            environment.setenv(name, f"{CANARY}-{name}")
        with gateway("docker", must_be_ready=True, idle_timeout=PAUSE, **LIMITS | settings) as serving:
            yield Vitals(serving, Neighbour(serving), containers=1 + WARM)


@pytest.fixture(scope="session")
def at_rest(network: str) -> Iterator[Vitals]:
    """The gateway that is attacked; a module may have its own."""
    with siege() as vitals:
        yield vitals


@pytest.fixture
def vitals(at_rest: Vitals) -> Iterator[Vitals]:
    """The gateway, whose condition after the test must be the same as before all tests."""
    yield at_rest
    at_rest.check()


@pytest.fixture
def new_attacker(vitals: Vitals) -> Iterator[Callable[[], Attacker]]:
    """Makes sessions for attackers; they are ended before the gateway is checked."""
    made: list[Attacker] = []

    def make() -> Attacker:
        attacker = Attacker(vitals.gateway, f"evil-{next(_names)}", late=lambda: vitals.late)
        made.append(attacker)
        attacker.expect("ok", "pass")
        return attacker

    yield make
    for attacker in made:
        attacker.end()


@pytest.fixture
def evil(new_attacker: Callable[[], Attacker]) -> Attacker:
    """A session that attacks."""
    return new_attacker()


@pytest.fixture
def sibling(new_attacker: Callable[[], Attacker], evil: Attacker) -> Attacker:
    """Another session of the same tenant."""
    return new_attacker()


@pytest.fixture(scope="session")
def own() -> Iterator[Bench]:
    """Containers and networks of the tests, without the gateway's defences."""
    with bench() as made:
        yield made
