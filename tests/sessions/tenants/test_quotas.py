"""Quotas: which execution may begin, which waits and how long. However one ends, its place is free again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from sessions.model.errors import QuotaExceeded
from sessions.model.tasks import spawn
from sessions.tenants.quotas import Quotas, TenantLimits
from sessions.tenants.usage import Allowance
from tests.fakes import Clock, until
from tests.sessions.tenants.test_admission import jain

NO_WAITING = TenantLimits(sessions=2, executions=2)
WAITING = TenantLimits(executions=1, queued=2)


@pytest.fixture
def quotas() -> Quotas:
    return Quotas(NO_WAITING, Clock())


async def hold(quotas: Quotas, tenant: str, over: asyncio.Event) -> None:
    async with quotas.execution(tenant):
        await over.wait()


# -- sessions --------------------------------------------------------------------------------------------------


def test_sessions_within_the_limit_are_admitted(quotas: Quotas) -> None:
    quotas.admit_session("acme", 0, 9.5)
    quotas.admit_session("acme", 1, 9.5)


@pytest.mark.parametrize("present", [2, 3])
def test_a_session_above_the_limit_is_refused(quotas: Quotas, present: int) -> None:
    with pytest.raises(QuotaExceeded, match="at most 2 sessions") as refused:
        quotas.admit_session("acme", present, 9.5)
    assert refused.value.details == {"limit": "sessions", "max": 2, "retry_after": 10}


# -- concurrent executions -------------------------------------------------------------------------------------


async def test_a_tenants_limit_counts_execution_and_execution_now(quotas: Quotas) -> None:
    async with quotas.execution("acme"):
        with quotas.execution_now("acme"):
            with pytest.raises(QuotaExceeded, match="at most 2 executions of a tenant") as refused:
                await hold(quotas, "acme", asyncio.Event())
            assert refused.value.details == {"limit": "executions", "max": 2, "retry_after": 1}
            with pytest.raises(QuotaExceeded, match="at most 2 executions of a tenant"), quotas.execution_now("acme"):
                pass
            async with quotas.execution("umbrella"):
                assert quotas.running == 3


async def test_executions_of_all_tenants_together_are_limited() -> None:
    quotas = Quotas(NO_WAITING, Clock(), concurrent=3)
    async with AsyncExitStack() as running:
        for tenant in "abc":
            await running.enter_async_context(quotas.execution(tenant))
        with pytest.raises(QuotaExceeded, match="at most 3 executions of all tenants") as refused:
            await hold(quotas, "d", asyncio.Event())
        assert refused.value.details == {"limit": "executions_in_all", "max": 3, "retry_after": 1}
    assert (quotas.running, quotas.waiting) == (0, 0)


async def test_a_failed_execution_frees_its_place(quotas: Quotas) -> None:
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            async with quotas.execution("acme"):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), quotas.execution_now("acme"):
            raise ZeroDivisionError
    assert quotas.running == 0


# -- waiting executions ----------------------------------------------------------------------------------------


async def test_an_execution_waits_for_its_turn_and_a_full_queue_refuses(nothing_left: None) -> None:
    quotas, order = Quotas(WAITING, Clock()), list[int]()

    async def execute(number: int) -> None:
        async with quotas.execution("acme"):
            order.append(number)

    over = asyncio.Event()
    first = spawn(hold(quotas, "acme", over), "first")
    await until(lambda: quotas.running)
    waiting = [spawn(execute(number), "waiting") for number in range(2)]
    await until(lambda: quotas.waiting == 2)
    with pytest.raises(QuotaExceeded, match=r"at most 1 executions of a tenant at a time, and 2 that wait") as refused:
        await execute(2)
    assert refused.value.details["retry_after"] == 1
    over.set()
    await asyncio.gather(first, *waiting)
    assert order == [0, 1]
    assert (quotas.running, quotas.waiting) == (0, 0)


async def test_a_waiting_execution_is_refused_after_its_timeout(nothing_left: None) -> None:
    quotas = Quotas(TenantLimits(executions=1, queued=1, queue_timeout=0.02), Clock())
    async with quotas.execution("acme"):
        with pytest.raises(QuotaExceeded, match=r"this one has waited 0\.02 s") as refused:
            await hold(quotas, "acme", asyncio.Event())
        assert refused.value.details == {"limit": "executions", "max": 1, "retry_after": 1}
        assert (quotas.running, quotas.waiting) == (1, 0)


async def test_a_cancelled_execution_gives_up_its_place_before_and_at_its_turn(nothing_left: None) -> None:
    quotas, running = Quotas(WAITING, Clock()), AsyncExitStack()
    await running.enter_async_context(quotas.execution("acme"))
    early, late = (spawn(hold(quotas, "acme", asyncio.Event()), "waiting") for _ in range(2))
    await until(lambda: quotas.waiting == 2)
    early.cancel()
    await until(lambda: quotas.waiting == 1)
    await running.aclose()
    assert (quotas.running, quotas.waiting) == (1, 0)  # `late` is admitted, but has not run yet
    late.cancel()
    await asyncio.wait({early, late})
    assert early.cancelled()
    assert late.cancelled()
    assert quotas.running == 0
    async with quotas.execution("acme"):
        pass


async def test_tenants_that_execute_continuously_get_equal_shares(nothing_left: None) -> None:
    quotas, begun = Quotas(TenantLimits(executions=10, queued=50), Clock(), concurrent=7), Counter[str]()

    async def ask(tenant: str) -> None:
        while begun.total() < 2000:
            async with quotas.execution(tenant):
                begun[tenant] += 1
                await asyncio.sleep(0)

    tenants = [f"tenant-{number}" for number in range(20)]
    clients = [tenant for number, tenant in enumerate(tenants) for _ in range(50 if number == 0 else 2)]
    await asyncio.gather(*map(ask, clients))
    assert jain([begun[tenant] for tenant in tenants]) > 0.9
    # Control: shares by the number of clients.
    assert jain([clients.count(tenant) for tenant in tenants]) < 0.4
    assert (quotas.running, quotas.waiting) == (0, 0)


# -- allowance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "output"), [(10, 0), (0, 100)])
async def test_a_used_up_allowance_refuses_execution_and_execution_now(seconds: int, output: int) -> None:
    clock = Clock()
    quotas = Quotas(TenantLimits(allowance=Allowance(60, 10, 100, 0)), clock)
    quotas.charge_execution("acme", seconds, output)
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="used up"):
            await hold(quotas, "acme", asyncio.Event())
        with pytest.raises(QuotaExceeded, match="used up"), quotas.execution_now("acme"):
            pass
    quotas.charge_upload("acme", 1000)
    async with quotas.execution("umbrella"):
        pass
    clock.passes(61)
    async with quotas.execution("acme"):
        pass
    assert quotas.running == 0


async def test_an_allowance_used_up_during_the_wait_refuses_the_execution(nothing_left: None) -> None:
    quotas, over = Quotas(TenantLimits(executions=1, queued=1, allowance=Allowance(60, 10)), Clock()), asyncio.Event()
    first = spawn(hold(quotas, "acme", over), "first")
    await until(lambda: quotas.running)
    waiting = spawn(hold(quotas, "acme", over), "waiting")
    await until(lambda: quotas.waiting)
    quotas.charge_execution("acme", 11, 0)
    over.set()
    await first
    with pytest.raises(QuotaExceeded, match="used up"):
        await waiting
    assert (quotas.running, quotas.waiting) == (0, 0)


def test_uploads_are_refused_when_their_allowance_is_used_up() -> None:
    quotas = Quotas(TenantLimits(allowance=Allowance(60, 0, 0, 1000)), Clock())
    quotas.charge_upload("acme", 0)
    quotas.charge_upload("acme", 1000)
    for size in (0, 1):
        with pytest.raises(QuotaExceeded, match="1000 upload bytes per 60 s are used up"):
            quotas.charge_upload("acme", size)
    quotas.charge_upload("umbrella", 1)
