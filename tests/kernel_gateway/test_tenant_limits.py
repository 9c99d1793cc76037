"""Limits of single tenants at the wire: admins change them while the gateway runs, and they hold in every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import agentrun, e2b, jupyter, ragflow
from tests.kernel_gateway.accounts import refusal
from tests.kernel_gateway.calls import failure

MIB = 1024**2
ADMIN = "the-admins-own-key"
NOTE = ": this is the limit of tenant 'alice', which an admin of the gateway can change"
NAMES = ("sessions", "memory", "cpus", "disk", "timeout", "images", "egress")


def limits(gateway: Gateway, tenant: str = "alice", /, **changes: Any) -> requests.Response:
    """Change limits of a tenant as an admin; without changes, ask for them."""
    path = f"/v1/admin/tenants/{tenant}/limits"
    headers = {"Authorization": f"Bearer {ADMIN}"}
    if not changes:
        return gateway.call("GET", path, tenant=None, headers=headers)
    return gateway.call("PATCH", path, tenant=None, headers=headers, json=changes)


@pytest.fixture(scope="module")
def run() -> Iterator[Gateway]:
    """A gateway with an admin, whose settings fix a limit of the tenant bob."""
    with gateways.gateway(
        "process",
        admin_key=ADMIN,
        images="stats:1,maps:2",
        tenants='{"bob": {"sessions": 40}}',
        max_total_memory="0",
    ) as serving:
        yield serving


@pytest.fixture(autouse=True)
def _clean(run: Gateway) -> Iterator[None]:
    """Take back alice's limits and end all sessions after each test."""
    yield
    limits(run, **dict.fromkeys(NAMES)).raise_for_status()
    for tenant in KEYS:
        for session in run.call("GET", "/v1/sessions", tenant=tenant).json()["sessions"]:
            run.call("DELETE", f"/v1/sessions/{session['name']}", tenant=tenant)


# -- what a tenant sees -----------------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_limits_and_no_others(run: Gateway) -> None:
    limits(run, sessions=5).raise_for_status()
    alice, bob = (run.call("GET", "/v1/limits", tenant=tenant) for tenant in ("alice", "bob"))
    assert alice.json() == limits(run).json()
    assert bob.json() == limits(run, "bob").json()
    assert (alice.json()["sessions"]["value"], bob.json()["sessions"]["value"]) == (5, 40)
    assert failure(run.call("PATCH", "/v1/limits", json={"sessions": 6})) == (405, "SB023")
    assert failure(run.call("GET", "/v1/limits", tenant=None)) == (401, "SB020")


# -- the admin API ---------------------------------------------------------------------------------------------


def test_an_admin_sees_and_changes_the_limits_of_a_tenant(run: Gateway) -> None:
    told = limits(run).json()
    assert set(told) == set(NAMES)
    assert told["memory"] == {"value": 512 * MIB, "most": 512 * MIB, "source": "gateway"}
    assert told["images"] == {"value": ["maps:2", "stats:1"], "most": ["maps:2", "stats:1"], "source": "gateway"}
    changed = limits(run, sessions=5, memory="256m", cpus=1, timeout=60, images=["stats:1"], egress=False)
    assert changed.status_code == 200
    assert changed.json() == limits(run).json()
    assert changed.json()["memory"] == {"value": 256 * MIB, "most": 512 * MIB, "source": "admin"}
    assert changed.json()["images"] == {"value": ["stats:1"], "most": ["maps:2", "stats:1"], "source": "admin"}
    assert changed.json()["disk"]["source"] == "gateway"
    assert limits(run, "bob").json()["memory"]["source"] == "gateway"
    assert limits(run, sessions=None).json()["sessions"] == {"value": 50, "most": 50, "source": "gateway"}
    assert limits(run).json()["memory"]["source"] == "admin"


def test_a_tenant_with_limits_is_listed_before_it_has_a_key(run: Gateway) -> None:
    def listed() -> dict[str, Any]:
        answer = run.call("GET", "/v1/admin/tenants", tenant=None, headers={"Authorization": f"Bearer {ADMIN}"})
        return {tenant["tenant"]: tenant for tenant in answer.json()["tenants"]}

    assert "carol" not in listed()
    limits(run, "carol", sessions=3)
    assert listed()["carol"]["sessions"] == {"used": 0, "max": 3}
    assert listed()["carol"]["limits"] == limits(run, "carol").json()
    limits(run, "carol", sessions=None)
    assert "carol" not in listed()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory": "1g"}, "memory must be at most 512 MiB: the gateway's setting `memory` is the most for any tenant"),
        ({"sessions": 51}, "sessions must be at most 50: the gateway's setting `max_sessions_per_tenant`"),
        ({"egress": True}, "egress needs the gateway's settings `egress_allow` and `egress_tenants`"),
        ({"images": ["other:3"]}, "images: 'other:3' is not in the gateway's setting `images`"),
        ({"sessions": 0}, "sessions: Input should be greater than 0"),
        ({"memory": "64m"}, "memory: "),
        ({"processes": 5}, "processes: Extra inputs are not permitted"),
        ({"sessions": "5"}, "sessions: Input should be a valid integer"),
    ],
)
def test_a_limit_that_no_tenant_may_have_is_refused(run: Gateway, changes: dict[str, Any], told: str) -> None:
    refused = limits(run, **{"cpus": 0.5} | changes)
    assert failure(refused) == (400, "SB002")
    assert refused.json()["error"]["message"].startswith(told)
    assert limits(run).json()["cpus"]["source"] == "gateway", "nothing of it has changed"


def test_what_the_settings_fix_an_admin_cannot_change(run: Gateway) -> None:
    assert limits(run, "bob").json()["sessions"] == {"value": 40, "most": 50, "source": "settings"}
    refused = limits(run, "bob", sessions=30)
    assert failure(refused) == (400, "SB002")
    assert "the gateway's settings fix the limit sessions of tenant 'bob'" in refused.json()["error"]["message"]
    assert limits(run, "bob", cpus=0.5).json()["cpus"]["source"] == "admin"
    limits(run, "bob", cpus=None)


def test_limits_survive_a_restart_of_the_gateway(tmp_path: Path) -> None:
    for first in (True, False):
        with gateways.gateway("process", admin_key=ADMIN, state_dir=str(tmp_path)) as gateway:
            if first:
                limits(gateway, sessions=1).raise_for_status()
            gateway.execute("one", "1")
            refused = gateway.call("POST", "/v1/sessions", json={"name": "two"})
            assert refusal(refused) == f"at most 1 sessions and sandboxes at a time{NOTE}"
            assert gateway.call("POST", "/v1/sessions", tenant="bob", json={}).status_code == 201


# -- in every dialect ------------------------------------------------------------------------------------------


def test_the_number_of_sessions_holds_in_every_dialect_from_the_next_session_on(run: Gateway) -> None:
    run.execute("one", "1")
    made: dict[str, Callable[[str], requests.Response]] = {
        "native": lambda tenant: run.call("POST", "/v1/sessions", tenant=tenant, json={"name": "two"}),
        "first use": lambda tenant: run.call("POST", "/v1/sessions/3/execute", tenant=tenant, json={"code": "1"}),
        "jupyter": lambda tenant: run.call("POST", "/api/kernels", tenant=tenant, json={}),
        "agentrun": lambda tenant: agentrun.create(run, tenant, sandboxId="box"),
        "e2b": lambda tenant: e2b.control(run, "POST", "/v2/sandboxes", tenant, json={"templateID": "base"}),
    }
    limits(run, sessions=1)
    for name, make in made.items():
        refused = make("alice")
        assert (name, refused.status_code) == (name, 429)
        assert f"at most 1 sessions and sandboxes at a time{NOTE}" in refused.text
    assert ragflow.run(run, "def main(): return 1")["status"] != "success"
    assert run.execute("one", "2")["state"] == "preserved", "what is there stays"
    for name, make in made.items():
        assert (name, make("bob").status_code // 100) == (name, 2)
    run.call("DELETE", "/sandboxes/box", tenant="bob")
    limits(run, sessions=None)
    assert made["native"]("alice").status_code == 201
    assert ragflow.value(run, "def main(): return 1") == 1


@contextmanager
def everywhere(gateway: Gateway) -> Iterator[None]:
    """Make a session, or a sandbox with one, of the tenant alice in every dialect."""
    gateway.call("POST", "/v1/sessions", json={"name": "native"}).raise_for_status()
    gateway.execute("first-use", "1")
    gateway.call("POST", "/api/kernels", json={}).raise_for_status()
    with agentrun.boxed(gateway) as box, e2b.boxed(gateway) as other:
        assert box.text("print(1)") == "1\n"
        assert other.text("1") == "1"
        yield


def found(gateway: Gateway, name: str) -> list[Any]:
    """Return one limit of each session of the tenant alice."""
    sessions = gateway.call("GET", "/v1/sessions").json()["sessions"]
    assert len(sessions) == 5
    return [session["limits"][name] for session in sessions]


@pytest.mark.parametrize(("name", "value", "usual"), [("memory", 128 * MIB, 512 * MIB), ("disk", 16 * MIB, 256 * MIB)])
def test_memory_and_disk_hold_in_every_dialect(run: Gateway, name: str, value: int, usual: int) -> None:
    with everywhere(run):
        assert found(run, name) == [usual] * 5, "control"
        limits(run, **{name: value})
        assert found(run, name) == [usual] * 5, "what runs keeps what it has"
    _end_all(run)
    with everywhere(run):
        assert found(run, name) == [value] * 5
    refused = run.call("POST", "/v1/sessions", json={"limits": {name: value + 1}})
    assert failure(refused) == (400, "SB002")
    assert refused.json()["error"]["message"].endswith(f"at most {value // MIB} MiB{NOTE}")
    asked = run.call("POST", "/v1/sessions", tenant="bob", json={"limits": {name: value + 1}})
    assert asked.json()["limits"][name] == value + 1


def _end_all(gateway: Gateway) -> None:
    for session in gateway.call("GET", "/v1/sessions").json()["sessions"]:
        gateway.call("DELETE", f"/v1/sessions/{session['name']}")


def test_processors_hold_for_the_tenant(run: Gateway) -> None:
    limits(run, cpus=0.5)
    assert run.call("POST", "/v1/sessions", json={"name": "a"}).json()["limits"]["cpus"] == 0.5
    refused = run.call("POST", "/v1/sessions", json={"limits": {"cpus": 0.6}})
    assert refused.json()["error"]["message"] == f"limit cpus must be at least 0.1 and at most 0.5{NOTE}"
    assert run.call("POST", "/v1/sessions", tenant="bob", json={"name": "a"}).json()["limits"]["cpus"] == 1.0


def test_a_session_may_ask_only_for_its_tenants_images(run: Gateway) -> None:
    limits(run, images=["stats:1"])
    refused = run.call("POST", "/v1/sessions", json={"image": "maps:2"})
    assert failure(refused) == (400, "SB002")
    assert refused.json()["error"]["message"] == f"image must be one of the usual image, stats:1{NOTE}"
    for tenant, image in (("alice", "stats:1"), ("bob", "maps:2")):  # plain processes have no images
        asked = run.call("POST", "/v1/sessions", tenant=tenant, json={"image": image})
        assert failure(asked)[1] == "SB004"


SLEEPS = "import time; time.sleep(2.5); print('slept')"


def test_a_cell_runs_as_long_as_its_tenant_may_from_the_next_cell_on(run: Gateway) -> None:
    with agentrun.boxed(run) as box, e2b.boxed(run) as other:
        assert run.text("s", SLEEPS) == "slept\n", "control"
        limits(run, timeout=1)
        assert run.execute("s", SLEEPS)["status"] == "timeout"
        refused = run.call("POST", "/v1/sessions/s/execute", json={"code": "1", "timeout": 2})
        assert failure(refused) == (400, "SB002")
        assert refused.json()["error"]["message"] == f"timeout must be at most 1 s{NOTE}"
        assert agentrun.end(box.run(SLEEPS, timeout=30)) != "ok"
        assert box.command("sleep 2.5; echo slept", timeout=30)["stdout"] == ""
        assert [event["type"] for event in other.run(SLEEPS)][-1] == "error"
        slept = "import time\ndef main(): time.sleep(2.5)"
        assert ragflow.run(run, slept)["status"] != "success"
        assert ragflow.run(run, slept, path="/execute", timeout=30)["status"] != "success"
        assert run.text("s", SLEEPS, tenant="bob", timeout=30) == "slept\n"


async def test_a_notebooks_cell_runs_as_long_as_its_tenant_may_from_the_next_session_on(run: Gateway) -> None:
    async def texts(kernel: str) -> str:
        async with jupyter.connected(run, kernel) as client:
            return await client.text(SLEEPS)

    old = run.call("POST", "/api/kernels", json={}).json()["id"]
    limits(run, timeout=1)
    new = run.call("POST", "/api/kernels", json={}).json()["id"]
    before, after = await asyncio.gather(texts(old), texts(new))
    assert before == "slept\n"
    assert "slept" not in after
