"""The own limits of a tenant hold for its next sessions, sandboxes and programs, and for those of no other tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sessions.model.errors import InvalidRequest, NetworkNotAllowed, QuotaExceeded
from sessions.model.tenant_limits import OwnLimits
from sessions.model.values import MEMORY_MIN, Limits, Network, SandboxSpec, SessionKey, SessionSpec
from sessions.programs.program import Program
from sessions.programs.runs import ProgramRunner
from tests.fakes import PLAIN, FakeBackend, World, world_over

MIB = 1024**2
DEFAULTS = SessionSpec()
NOTE = ": this is the limit of tenant 'acme', which an admin of the gateway can change"
#: kernel's limit → a tenant's own, lower one
LOWER: dict[str, Any] = {"memory": MEMORY_MIN, "cpus": 0.5, "disk": MIB}
OWN: dict[str, OwnLimits] = {}


@pytest.fixture
async def world(backend: FakeBackend) -> AsyncIterator[World]:
    """A world whose tenants have the limits in `OWN`."""
    OWN.clear()

    def own_limits(tenant: str) -> OwnLimits:
        return OWN.get(tenant, OwnLimits(tenant))

    async with world_over(backend, own_limits=own_limits, egress_tenants=["*"]) as world:
        yield world


def limit(**limits: Any) -> None:
    """Give the tenant acme limits of its own."""
    OWN["acme"] = OwnLimits("acme", **limits)


def sessions(world: World, spec: SessionSpec) -> Callable[[str], Awaitable[Any]]:
    return lambda tenant: world.registry.create(SessionKey(tenant, "new"), spec)


def sandboxes(world: World, spec: SessionSpec) -> Callable[[str], Awaitable[Any]]:
    return lambda tenant: world.sandboxes.create(SessionKey(tenant, "box"), SandboxSpec("template", spec.limits))


MADE = {"session": sessions, "sandbox": sandboxes}


@pytest.mark.parametrize("name", LOWER)
async def test_a_session_that_asks_for_nothing_gets_the_tenants_limit(world: World, name: str) -> None:
    limit(**{name: LOWER[name]})
    assert (await world.session()).spec.limits == replace(Limits(), **{name: LOWER[name]})
    assert world.backend.kernel.launch.limits == replace(Limits(), **{name: LOWER[name]})
    assert (await world.session(tenant="umbrella")).spec == DEFAULTS


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("kind", MADE)
async def test_nothing_that_asks_for_more_than_the_tenants_limit_is_started(world: World, kind: str, name: str) -> None:
    limit(**{name: LOWER[name]})
    create = MADE[kind](world, DEFAULTS)
    with pytest.raises(InvalidRequest) as refused:
        await create("acme")
    assert refused.value.message.startswith(f"limit {name} must be at most ")
    assert refused.value.message.endswith(NOTE)
    assert refused.value.details == {"field": f"limits.{name}", "max": LOWER[name]}
    assert world.backend.asked == 0
    await create("umbrella")
    lowered = replace(DEFAULTS, limits=replace(DEFAULTS.limits, **{name: LOWER[name]}))
    await MADE[kind](world, lowered)("acme")


@pytest.mark.parametrize("kind", MADE)
async def test_a_tenant_has_its_own_number_of_sessions_and_sandboxes_together(world: World, kind: str) -> None:
    limit(sessions=2)
    await world.session("one")
    await world.sandboxes.create(SessionKey("acme", "two"), SandboxSpec("template"))
    create = MADE[kind](world, DEFAULTS)
    with pytest.raises(QuotaExceeded) as refused:
        await create("acme")
    assert refused.value.message == f"at most 2 sessions and sandboxes at a time{NOTE}"
    assert (refused.value.details["limit"], refused.value.details["max"]) == ("sessions", 2)
    for name in ("one", "two", "three"):
        await world.session(name, "umbrella")
    limit(sessions=3)
    await create("acme")


def test_a_tenants_quota_is_shown_as_its_own(world: World) -> None:
    limit(sessions=2)
    assert (world.quotas.uses("acme", 1)["sessions"].max, world.quotas.uses("umbrella", 1)["sessions"].max) == (2, 50)
    limit(sessions=51)  # the operator has lowered the gateway's limit since
    assert world.quotas.uses("acme", 1)["sessions"].max == 50


async def test_a_session_has_only_images_of_the_tenant(world: World) -> None:
    limit(images=frozenset({"stats:1"}))
    with pytest.raises(InvalidRequest) as refused:
        await sessions(world, replace(DEFAULTS, image="maps:2"))("acme")
    assert refused.value.message == f"image must be one of the usual image, stats:1{NOTE}"
    await sessions(world, replace(DEFAULTS, image="maps:2"))("umbrella")
    await sessions(world, replace(DEFAULTS, image="stats:1"))("acme")
    await world.session("usual")


async def test_a_tenant_without_egress_gets_no_session_with_a_network(world: World) -> None:
    limit(egress=False)
    online = replace(DEFAULTS, network=Network.ALLOWLIST)
    with pytest.raises(NetworkNotAllowed) as refused:
        await sessions(world, online)("acme")
    assert refused.value.message == f"this session may not have the network `allowlist`{NOTE}"
    await sessions(world, online)("umbrella")
    limit(egress=True)
    await sessions(world, online)("acme")


async def test_a_session_that_asks_for_nothing_runs_cells_as_long_as_its_tenant_may(world: World) -> None:
    limit(timeout=7.0)
    assert (await world.session()).spec.max_execute_timeout == 7.0
    assert (await world.session(tenant="umbrella")).spec.max_execute_timeout == DEFAULTS.max_execute_timeout


async def test_a_session_and_a_sandbox_keep_what_they_have_and_a_new_one_gets_less(world: World) -> None:
    old = await world.session("old")
    box = await world.sandboxes.create(SessionKey("acme", "box"), SandboxSpec("template"))
    limit(memory=MEMORY_MIN, sessions=50)
    await old.restart()
    assert world.backend.kernel.launch.limits == old.spec.limits == DEFAULTS.limits
    assert (await box.default_session("python")).spec.limits == DEFAULTS.limits
    assert (await world.session("new")).spec.limits.memory == MEMORY_MIN


async def test_a_branch_has_no_more_than_its_tenant_may_have_now(world: World) -> None:
    old = await world.session("old")
    limit(memory=MEMORY_MIN)
    with pytest.raises(InvalidRequest, match="limit memory must be at most 128 MiB: this is the limit of tenant"):
        await world.registry.branch(old, SessionKey("acme", "branch"), None)
    limit()
    branch = await world.registry.branch(old, SessionKey("acme", "branch"), None)
    assert branch.spec == old.spec


@pytest.mark.parametrize("program", [Program("1", "python", timeout=8), Program("1", "python", memory=512 * MIB)])
async def test_programs_have_the_limits_of_their_tenant(world: World, program: Program) -> None:
    runner = ProgramRunner(world.registry, PLAIN, 30.0)
    limit(timeout=7.0, memory=MEMORY_MIN)
    if program.timeout is None:
        await runner.run("acme", program)
        assert world.backend.kernel.launch.limits.memory == MEMORY_MIN
        assert world.observed[-1][1].timeout == 7.0
    else:
        with pytest.raises(InvalidRequest, match="timeout must be above 0 and at most 7 s"):
            await runner.run("acme", program)
    await runner.run("umbrella", program)
    assert world.backend.kernel.launch.limits.memory == DEFAULTS.limits.memory
    assert world.observed[-1][1].timeout == (program.timeout or 30.0)
