"""The own limits of tenants: admins change them within the gateway's limits, and they outlive the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sessions.model.errors import InvalidRequest, LedgerUnavailable
from sessions.model.tenant_limits import SETTINGS, Limit, OwnLimits
from sessions.store.database import Database
from sessions.store.tenant_limits import TenantLimitStore

MIB = 1024**2
IMAGES = frozenset({"stats:1", "maps:2"})
#: the gateway's limits
MOST: dict[str, Any] = {
    "sessions": 50,
    "memory": 512 * MIB,
    "cpus": 1.0,
    "disk": 256 * MIB,
    "timeout": 600.0,
    "images": IMAGES,
    "egress": True,
}
#: for each limit a value below the gateway's
BELOW: dict[str, Any] = {
    "sessions": 5,
    "memory": 128 * MIB,
    "cpus": 0.5,
    "disk": MIB,
    "timeout": 60.0,
    "images": frozenset({"stats:1"}),
    "egress": False,
}
#: for each limit a value above the gateway's, with the values at which it is refused
ABOVE: dict[str, tuple[Limit, str]] = {
    "sessions": (51, "sessions must be at most 50: the gateway's setting `max_sessions_per_tenant`"),
    "memory": (513 * MIB, "memory must be at most 512 MiB: the gateway's setting `memory` is the most for any tenant"),
    "cpus": (1.5, "cpus must be at most 1.0: the gateway's setting `cpus`"),
    "disk": (257 * MIB, "disk must be at most 256 MiB: the gateway's setting `disk`"),
    "timeout": (601.0, "timeout must be at most 600 s: the gateway's setting `max_execute_timeout`"),
    "images": (frozenset({"stats:1", "other:3"}), "images: 'other:3' is not in the gateway's setting `images`"),
}


def most(**changes: Any) -> Callable[[str], OwnLimits]:
    """Return the gateway's limits, the same for all tenants."""
    return lambda tenant: OwnLimits(tenant, **MOST | changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenants.db"


@pytest.fixture
def store(path: Path) -> Iterator[TenantLimitStore]:
    with closing(TenantLimitStore(path, most())) as store:
        yield store


def test_each_limit_has_a_maximum_and_a_test() -> None:
    assert set(MOST) == set(BELOW) == set(SETTINGS) == {*ABOVE, "egress"}


@pytest.mark.parametrize("name", BELOW)
def test_a_limit_is_of_one_tenant_until_it_is_taken_back(store: TenantLimitStore, name: str) -> None:
    assert store.change("acme", {name: BELOW[name]}) == store.of("acme") == OwnLimits("acme", **{name: BELOW[name]})
    assert store.of("umbrella") == OwnLimits("umbrella")
    assert store.tenants() == {"acme"}
    store.change("acme", {name: None})
    assert store.of("acme") == OwnLimits("acme")
    assert store.tenants() == set()


def test_limits_outlive_the_gateway(store: TenantLimitStore, path: Path) -> None:
    store.change("acme", BELOW)
    store.change("acme", {"cpus": None})
    store.change("gone", {"cpus": 0.5})
    store.change("gone", {"cpus": None})
    with closing(TenantLimitStore(path, most())) as after:
        assert after.of("acme").named() == {name: value for name, value in BELOW.items() if name != "cpus"}
        assert after.tenants() == {"acme"}


def test_a_change_keeps_the_other_limits(store: TenantLimitStore) -> None:
    store.change("acme", {"sessions": 5, "cpus": 0.5})
    assert store.change("acme", {"sessions": 6}) == OwnLimits("acme", sessions=6, cpus=0.5)


@pytest.mark.parametrize("name", ABOVE)
def test_a_limit_may_be_as_high_as_the_gateways_and_not_higher(store: TenantLimitStore, name: str) -> None:
    value, told = ABOVE[name]
    with pytest.raises(InvalidRequest) as refused:
        store.change("acme", {"egress": False, name: value})
    assert refused.value.message.startswith(told)
    assert refused.value.details["field"] == name
    assert store.of("acme") == OwnLimits("acme"), "nothing of it has changed"
    assert store.change("acme", {name: MOST[name]}).named() == {name: MOST[name]}


def test_a_tenant_gets_no_egress_that_the_gateway_does_not_give(path: Path) -> None:
    with closing(TenantLimitStore(path, most(egress=False))) as store:
        with pytest.raises(InvalidRequest, match="egress needs the gateway's settings `egress_allow`"):
            store.change("acme", {"egress": True})
        assert store.change("acme", {"egress": False}).egress is False


def test_the_name_of_a_tenant_is_checked(store: TenantLimitStore) -> None:
    with pytest.raises(InvalidRequest, match="tenant must be"):
        store.change("a:b", {"sessions": 1})


def test_only_the_settings_change_what_they_fix(path: Path) -> None:
    with closing(TenantLimitStore(path, most())) as before:
        before.change("acme", {"sessions": 9, "cpus": 0.5})
    fixed = {"acme": OwnLimits("acme", sessions=7)}
    with closing(TenantLimitStore(path, most(), fixed)) as store:
        assert store.of("acme") == OwnLimits("acme", sessions=7, cpus=0.5)
        for value in (8, None):
            with pytest.raises(InvalidRequest, match="settings fix the limit sessions of tenant 'acme'"):
                store.change("acme", {"sessions": value})
        assert store.change("acme", {"cpus": 0.25}) == OwnLimits("acme", sessions=7, cpus=0.25)
        assert store.change("umbrella", {"sessions": 8}).sessions == 8
        assert store.tenants() == {"acme", "umbrella"}
    with closing(TenantLimitStore(path, most())) as after:
        assert after.of("acme") == OwnLimits("acme", sessions=9, cpus=0.25)


def test_a_limit_above_the_gateways_lowered_one_has_no_effect_until_that_is_raised_again(path: Path) -> None:
    with closing(TenantLimitStore(path, most())) as before:
        before.change("acme", {"memory": 256 * MIB, "sessions": 9, "images": IMAGES, "egress": True})
    lowered = most(memory=200 * MIB, images=frozenset({"maps:2"}), egress=False)
    with closing(TenantLimitStore(path, lowered)) as store:
        assert store.of("acme") == OwnLimits("acme", sessions=9, images=frozenset({"maps:2"}))
        store.change("acme", {"sessions": 8})
    with closing(TenantLimitStore(path, most())) as after:
        assert after.of("acme") == OwnLimits("acme", sessions=8, memory=256 * MIB, images=IMAGES, egress=True)


def test_limits_that_cannot_be_saved_do_not_hold(connections: list[Database], path: Path) -> None:
    with closing(TenantLimitStore(path, most())) as store:
        store.change("acme", {"sessions": 5})
        (connection,) = connections
        connection.execute("PRAGMA query_only=ON")
        for value in (6, None):
            with pytest.raises(LedgerUnavailable, match="the limits cannot be saved"):
                store.change("acme", {"sessions": value})
            assert store.of("acme").sessions == 5
