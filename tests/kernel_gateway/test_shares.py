"""Budgets that all tenants share: none lets one tenant take what one more needs, and no new one is forgotten."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, get_args
from unittest.mock import Mock

import pytest

from kernel_gateway.config import Settings
from kernel_gateway.wire.admission import Admission as Connections
from kernel_gateway.wire.incoming import Incoming
from kernel_gateway.wire.open_sockets import OpenSockets
from sessions.model.errors import QuotaExceeded, SessionNotFound
from sessions.model.values import Limits, SessionKey, SessionSpec
from sessions.tenants.audit_disk import COST, AuditDisk
from sessions.tenants.quotas import Quotas, TenantLimits
from sessions.tenants.workspaces import WorkspaceDisk
from tests.fakes import Clock, FakeBackend, world_over
from tests.test_layers import FILES, tree_of

MOST = 16
#: takes one more for a tenant; returns False or raises `QuotaExceeded` if it may not have it
Take = Callable[[str], bool]


def connections(share: float) -> Take:
    door, addresses = Connections(MOST, MOST, Mock(), share), iter(range(1000))

    def take(tenant: str) -> bool:
        connection = door.admit(f"192.0.2.{next(addresses)}")  # an address has no share of its own here
        if connection is None:
            return False
        connection.end_head_time()
        connection.assign(tenant)
        return True

    return take


def sockets(share: float) -> Take:
    named = {"max_sockets": MOST, "max_sockets_per_tenant": MOST, "max_share_per_tenant": share}
    settings = Settings.model_validate(named)
    door = OpenSockets(settings, Mock())
    return lambda tenant: bool(door.enter(SessionKey(tenant, "s")))


def executions(share: float) -> Take:
    quotas, running = Quotas(TenantLimits(executions=MOST), Clock(), MOST, share), ExitStack()

    def take(tenant: str) -> bool:
        running.enter_context(quotas.execution_now(tenant))
        return True

    return take


def incoming(share: float) -> Take:
    held = Incoming(MOST, MOST, share)
    return lambda tenant: held.take(tenant, 1)


def workspaces(share: float) -> Take:
    disk, present = WorkspaceDisk(lambda: MOST, share), list[str]()

    def take(tenant: str) -> bool:
        if len(present) == MOST:
            return False
        disk.admit(tenant, 1)
        disk.hold(tenant, 1)
        present.append(tenant)
        return True

    return take


def records(share: float) -> Take:
    disk, room = AuditDisk(share), [MOST * COST]

    def take(tenant: str) -> bool:
        if room[0] < COST:
            return False
        disk.admit(tenant, room[0])
        disk.add(tenant)
        room[0] -= COST
        return True

    return take


#: setting → takes one more of what it bounds
SHARED: dict[str, Callable[[float], Take]] = {
    "max_connections": connections,
    "max_sockets": sockets,
    "max_concurrent": executions,
    "max_incoming_bytes": incoming,
}
#: the same for what no setting bounds
UNSET: dict[str, Callable[[float], Take]] = {
    "the disk of workspaces": workspaces,
    "what is left of the audit's disk": records,
}
#: settings of other shared budgets → their test
ELSEWHERE = {
    "sleep_disk": "sessions/tenants/test_budget.py: the disk on which others sleep",
    "stored_disk": "sessions/file_store/test_store.py: files that belong to no session",
    "max_total_memory": "sessions/tenants/test_budget.py: the memory of all kernels",
    "max_kept_bytes": "sessions/tenants/test_kept_bytes.py: whoever keeps most loses",
    "max_port_connections": "sessions/ports/test_ports.py: a tenant leaves connections to others",
    "max_unread_bytes": "sessions/channels/test_unread.py: whoever is behind most is disconnected",
}
#: settings that bound no budget which tenants share → what they are
OTHER = {
    "port": "an address",
    "kubernetes_lost_node_seconds": "a time",
    "pool_size": "kernels ahead of need, which give way",
    "pool_max": "kernels ahead of need, which give way",
    "sandbox_pool_size": "kernels ahead of need, which give way",
    "golden_disk": "golden images of the operator's images and preload, of which tenants choose none",
    "memory": "of one kernel",
    "processes": "of one kernel",
    "disk": "of one session",
    "temporary": "of one kernel",
    "max_output_bytes": "of one execution",
    "max_total_output_bytes": "of one tenant",
    "max_upload_bytes": "of one tenant",
}
#: modules that share out something, by these classes → why no tenant can take what others need, or the test
CLASSES = {"Admission", "Shares", "Budget", "Semaphore", "BoundedSemaphore", "ThreadPoolExecutor"}
SHARING = {
    "kernel_gateway.app": "stored_disk",
    "kernel_gateway.client.transport": "threads of a client's own program",
    "kernel_image.disks": "requests of the lane for starts, of which one tenant has half",
    "kernel_image.probe": "nothing of a tenant's",
    "kernel_gateway.fair_loop": "turns: a slice takes a moment",
    "kernel_gateway.tools.servers": "turns, and a quarter of the calls: a call has a deadline",
    "kernel_gateway.wire.server": "max_connections",
    "kernel_gateway.wire.admission": "max_connections",
    "kernel_gateway.wire.incoming": "max_incoming_bytes",
    "kernel_gateway.wire.open_sockets": "max_sockets",
    "sessions.backends.docker.engine.engine": "turns, and half of the threads: a call has a deadline",
    "sessions.kernels.start_queue": "turns, and all but one: a start has a deadline",
    "sessions.ports.ports": "max_port_connections",
    "sessions.proving.probes": "requests of the operator's own command",
    "sessions.tenants.admission": "max_concurrent",
    "sessions.tenants.audit_disk": "what is left of the audit's disk",
    "sessions.tenants.memory": "max_total_memory",
    "sessions.tenants.quotas": "max_concurrent",
    "sessions.tenants.sleep_disk": "sleep_disk",
    "sessions.tenants.workspaces": "the disk of workspaces",
}


def may(take: Take, tenant: str) -> bool:
    try:
        return take(tenant)
    except QuotaExceeded:
        return False


@pytest.mark.parametrize("budget", SHARED | UNSET)
async def test_a_tenant_cannot_take_what_another_one_needs(budget: str) -> None:
    take = (SHARED | UNSET)[budget](0.5)
    taken = sum(may(take, "evil") for _ in range(2 * MOST))
    assert MOST // 4 < taken <= MOST // 2
    assert may(take, "acme")
    control = (SHARED | UNSET)[budget](1.0)
    taken = sum(may(control, "evil") for _ in range(2 * MOST))
    assert taken >= MOST - 1, "control: with the whole as its share, it takes all"
    assert not may(control, "acme")


def test_each_setting_is_a_shared_budget_with_a_test_or_none() -> None:
    numbers = {
        name
        for name, field in Settings.model_fields.items()
        if _counts(field.annotation) and not name.endswith(("_per_tenant", "_per_session", "_per_address"))
    }
    assert numbers == SHARED.keys() | ELSEWHERE.keys() | OTHER.keys()


def _counts(annotation: Any) -> bool:
    """Return whether a setting is a number of pieces or bytes, or none."""
    return annotation is int or any(getattr(each, "__origin__", each) is int for each in get_args(annotation))


def test_each_module_that_shares_something_out_is_known() -> None:
    found = {module for module in FILES if CLASSES & set(_calls(tree_of(module)))}
    assert found == SHARING.keys()


def _calls(tree: ast.Module) -> list[str]:
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called]


def filled(door: Connections) -> list[Any]:
    """Admit eight connections; seven become the tenant's, which is all of its part."""
    working: list[Any] = [door.admit(f"192.0.2.{number}") for number in range(8)]
    for connection in working[:7]:
        connection.assign("evil")
    with pytest.raises(QuotaExceeded):
        working[7].assign("evil")
    return working


async def test_requests_that_end_give_their_place_back() -> None:
    door = Connections(MOST, MOST, Mock(), 0.5)
    working = filled(door)
    door.mark_spare(working[0])  # for the next request
    working[7].assign("evil")
    working[1].report_end()
    working[0].assign("evil")
    working[0].assign("evil")  # one connection has one place
    refused: Any = door.admit("192.0.2.9")
    with pytest.raises(QuotaExceeded):
        refused.assign("evil")
    for connection in (*working, refused):
        connection.report_end()
    assert door.open == 0
    filled(door)  # there are as many places as before


async def test_a_tenant_gets_no_session_beyond_its_part_of_the_disk(backend: FakeBackend) -> None:
    backend.room = 8 * 2**20
    spec = SessionSpec(limits=Limits(disk=2**20))
    async with world_over(backend, defaults=spec, share=0.5) as world:
        for number in range(4):
            await world.session(f"s{number}", "evil")
        with pytest.raises(QuotaExceeded) as refused:
            await world.session("s4", "evil")
        assert (refused.value.details["limit"], refused.value.details["max"]) == ("disk_of_tenant", 4 * 2**20)
        await world.session("s", "acme")
        for ended in ("s0", "s1"):  # acme leaves less than before
            await world.registry.end(SessionKey("evil", ended))
        await world.session("s5", "evil")
        with pytest.raises(SessionNotFound):
            world.registry.get(SessionKey("evil", "s4"))
