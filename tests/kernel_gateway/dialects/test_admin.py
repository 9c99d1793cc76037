"""The admin API: keys that admins make and revoke, the audit, live sessions and tenants."""

from __future__ import annotations

import asyncio
import csv
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import requests
from tornado.httpclient import AsyncHTTPClient

from kernel_gateway import app
from kernel_gateway.app import Service
from kernel_gateway.cli import main
from kernel_gateway.config import Settings
from kernel_gateway.identity import keystore
from kernel_gateway.observe import alerts
from kernel_gateway.observe.alert_conditions import Level
from kernel_gateway.observe.alerts import Alert
from sessions.model.errors import BackendUnavailable
from sessions.model.values import SessionKey
from sessions.store import usage_store
from sessions.store.records import Begin, read
from sessions.store.usage_store import usage_of
from tests import fakes, gateways
from tests.fakes import FakeBackend
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import jupyter, sockets
from tests.kernel_gateway.accounts import accounts, contains_no_secret, outcomes
from tests.kernel_gateway.agentrun import CONTROL
from tests.kernel_gateway.calls import HANGS, exists, failure, metric, streamed, until

# -- keys ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Iterator[Gateway]:
    """A gateway on which tests make and revoke keys."""
    with gateways.gateway("process") as serving:
        yield serving


@pytest.fixture(scope="module")
def admin(run: Gateway) -> str:
    """An admin's key."""
    return run.admin_key()


def ask(gateway: Gateway, key: str, method: str, path: str, **options: Any) -> requests.Response:
    return gateway.call(method, path, tenant=None, headers={"Authorization": f"Bearer {key}"}, **options)


def make(gateway: Gateway, admin: str, **body: str) -> tuple[str, str]:
    """Make a key, and return its id and its secret."""
    made = ask(gateway, admin, "POST", "/v1/admin/keys", json=body)
    assert made.status_code == 201, made.text
    assert made.headers["Location"] == f"/v1/admin/keys/{made.json()['id']}"
    return made.json()["id"], made.json()["key"]


ADMINS = [
    ("GET", "/v1/admin/keys"),
    ("POST", "/v1/admin/keys"),
    ("DELETE", "/v1/admin/keys/x"),
    ("GET", "/v1/admin/audit"),
    ("GET", "/v1/admin/usage"),
    ("GET", "/v1/admin/sessions"),
    ("DELETE", "/v1/admin/sessions/alice/none"),
    ("GET", "/v1/admin/tenants"),
    ("DELETE", "/v1/admin/tenants/none"),
    ("GET", "/v1/admin/tenants/alice/limits"),
    ("PATCH", "/v1/admin/tenants/alice/limits"),
    ("GET", "/v1/admin/overview"),
]


@pytest.mark.parametrize(("method", "path"), ADMINS)
def test_only_admins_may_use_the_admin_api(run: Gateway, admin: str, method: str, path: str) -> None:
    _, user = make(run, admin, tenant="carol")
    for key in (user, KEYS["alice"]):
        assert failure(ask(run, key, method, path, json={"tenant": "mallory", "role": "admin"})) == (403, "SB026")
    for key in ("", "nobodys"):
        assert failure(ask(run, key, method, path)) == (401, "SB020")
    assert ask(run, admin, method, path).status_code not in {401, 403}
    assert "mallory" not in ask(run, admin, "GET", "/v1/admin/keys").text


def test_a_key_is_made_used_listed_and_revoked_at_once(run: Gateway, admin: str) -> None:
    key_id, key = make(run, admin, tenant="carol")
    assert ask(run, key, "POST", "/v1/sessions/s/execute", json={"code": "1"}).status_code == 200
    listed = ask(run, admin, "GET", "/v1/admin/keys")
    (mine,) = (entry for entry in listed.json()["keys"] if entry["id"] == key_id)
    facts = {"id", "tenant", "role", "name", "created_at", "expires_at", "expired", "last_used_at"}
    assert (mine["tenant"], mine["role"], set(mine)) == ("carol", "user", facts)
    assert (mine["name"], mine["expires_at"], mine["expired"]) == ("", None, False)
    assert mine["created_at"] <= mine["last_used_at"]
    assert key not in listed.text
    assert contains_no_secret(run, key, admin)
    assert ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}").status_code == 204
    assert failure(ask(run, key, "GET", "/v1/sessions")) == (401, "SB020")
    assert failure(ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}")) == (404, "SB029")


def test_a_tenant_is_removed_with_all_that_it_has(run: Gateway, admin: str) -> None:
    keys = [make(run, admin, tenant="leaving")[1] for _ in range(2)]
    _, other = make(run, admin, tenant="staying")
    for key in (keys[0], other):
        assert ask(run, key, "POST", "/v1/sessions/s/execute", json={"code": "x = 1"}).status_code == 200
        made = ask(run, key, "POST", f"{CONTROL}/templates", json={"templateName": "own"})
        assert made.status_code < 300, made.text
    limits = "/v1/admin/tenants/leaving/limits"
    assert ask(run, admin, "PATCH", limits, json={"sessions": 7}).json()["sessions"]["value"] == 7
    removed = ask(run, admin, "DELETE", "/v1/admin/tenants/leaving")
    assert removed.status_code == 200, removed.text
    assert removed.json() == {"keys": 2, "sessions": 1, "sandboxes": 0, "templates": 1, "files": 0}
    for key in keys:
        assert failure(ask(run, key, "GET", "/v1/sessions")) == (401, "SB020")
    live = ask(run, admin, "GET", "/v1/admin/sessions").json()["sessions"]
    assert "leaving" not in {session["tenant"] for session in live}
    assert "leaving" not in {each["tenant"] for each in ask(run, admin, "GET", "/v1/admin/tenants").json()["tenants"]}
    assert ask(run, admin, "GET", limits).json()["sessions"]["source"] == "gateway"
    assert ask(run, admin, "GET", "/v1/admin/audit?tenant=leaving").json()["executions"] != [], "it stays accountable"
    assert ask(run, other, "POST", "/v1/sessions/s/execute", json={"code": "x"}).json()["state"] == "preserved"
    _, again = make(run, admin, tenant="leaving")
    reply = ask(run, again, "POST", "/v1/sessions/s/execute", json={"code": "1"}).json()
    assert (reply["state"], reply["state_reason"]) == ("lost", "the tenant was removed by an admin")
    (said,) = (line for line in run.logged() if line["event"] == "a tenant was removed" and line["keys"])
    assert (said["tenant"], said["by"], said["keys"]) == ("leaving", "ops", 2)


@pytest.mark.parametrize(("tenant", "word"), [("alice", "settings"), ("ops", "own key"), ("a b", "tenant")])
def test_a_tenant_that_has_a_key_after_all_is_not_removed(run: Gateway, admin: str, tenant: str, word: str) -> None:
    refused = ask(run, admin, "DELETE", f"/v1/admin/tenants/{tenant}")
    assert failure(refused) == (400, "SB002")
    assert word in refused.json()["error"]["message"]
    assert ask(run, admin, "GET", "/v1/admin/keys").status_code == 200


def test_the_log_says_who_made_and_revoked_a_key_and_ended_a_session(run: Gateway, admin: str) -> None:
    key_id, key = make(run, admin, tenant="logged", name="nightly")
    assert ask(run, key, "POST", "/v1/sessions/of-logged/execute", json={"code": "1"}).status_code == 200
    assert ask(run, admin, "DELETE", "/v1/admin/sessions/logged/of-logged").status_code == 204
    assert ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}").status_code == 204
    said = {
        line["event"]: line for line in run.logged() if line.get("key") == key_id or line.get("session") == "of-logged"
    }
    made, ended, revoked = (
        said[event] for event in ("a key was made", "a session was ended by an admin", "a key was revoked")
    )
    assert (made["tenant"], made["role"], made["name"], made["by"]) == ("logged", "user", "nightly", "ops")
    assert (ended["tenant"], ended["by"], revoked["by"]) == ("logged", "ops", "ops")
    assert made["key_id"] == revoked["key_id"] != key_id, "the id of the admin's own key"


def test_a_key_has_a_name_and_ends_by_itself_with_its_sockets(run: Gateway, admin: str) -> None:
    made = {"tenant": "carol", "name": "nightly job", "expires_at": "2999-12-31"}
    key_id, _ = make(run, admin, **made)
    (mine,) = (entry for entry in ask(run, admin, "GET", "/v1/admin/keys").json()["keys"] if entry["id"] == key_id)
    assert (mine["name"], mine["expires_at"]) == ("nightly job", "2999-12-31T00:00:00Z")
    assert mine["last_used_at"] is None
    soon = datetime.now(UTC) + timedelta(seconds=3)
    _, short = make(run, admin, tenant="carol", expires_at=soon.isoformat())
    assert ask(run, short, "GET", "/v1/sessions").status_code == 200

    async def closed_with() -> Any:
        async with _stream(run, short) as stream:
            return await stream.end()

    assert asyncio.run(closed_with()) == 4401
    refused = ask(run, short, "GET", "/v1/sessions")
    assert failure(refused) == (401, "SB020")
    assert refused.json()["error"]["message"].startswith("the key has expired: it was valid until 20")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tenant": "a:b"},
        {"tenant": "a", "role": "root"},
        {"tenant": "a", "id": "x"},
        {"tenant": "a", "name": "x" * 65},
        {"tenant": "a", "expires_at": "2001-01-01"},
        {"tenant": "a", "expires_at": "soon"},
    ],
)
def test_an_invalid_request_makes_no_key(run: Gateway, admin: str, body: dict[str, str]) -> None:
    def ids() -> list[str]:
        return [key["id"] for key in ask(run, admin, "GET", "/v1/admin/keys").json()["keys"]]

    before = ids()
    assert failure(ask(run, admin, "POST", "/v1/admin/keys", json=body)) == (400, "SB002")
    assert ids() == before


def test_an_admin_can_make_admins_and_be_revoked(run: Gateway, admin: str) -> None:
    key_id, second = make(run, admin, tenant="carol", role="admin")
    assert ask(run, second, "GET", "/v1/admin/keys").status_code == 200
    ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}")
    assert ask(run, second, "GET", "/v1/admin/keys").status_code == 401


def test_a_token_is_revoked_with_its_key_and_never_has_the_admin_role(run: Gateway, admin: str) -> None:
    key_id, key = make(run, admin, tenant="carol", role="admin")
    _, other = make(run, admin, tenant="carol")

    def token(key: str) -> str:
        answer = ask(run, key, "GET", "/2025-09-10/agents/accessToken").json()
        return str(answer["data"]["accessToken"])

    mine, others, of_settings = token(key), token(other), token(KEYS["alice"])
    assert len({mine, others, of_settings}) == 3
    assert token(mine) == mine
    assert ask(run, mine, "GET", "/sandboxes").status_code == 200
    assert ask(run, mine, "GET", "/v1/admin/keys").status_code == 403
    ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}")
    assert ask(run, mine, "GET", "/sandboxes").status_code == 401
    assert {ask(run, kept, "GET", "/sandboxes").status_code for kept in (others, of_settings)} == {200}


async def test_sockets_are_closed_when_their_key_is_revoked(run: Gateway, admin: str) -> None:
    (key_id, key), (_, kept) = make(run, admin, tenant="carol"), make(run, admin, tenant="carol")
    made = ask(run, kept, "POST", "/api/kernels").json()["id"]
    async with (
        _channels(run, made, key) as listening,
        _channels(run, made, key) as talking,
        _channels(run, made, kept) as staying,
        _stream(run, key) as stream,
    ):
        await talking.execute("1")
        ask(run, admin, "DELETE", f"/v1/admin/keys/{key_id}")
        before = sum(len(records) for records in accounts(run.state_dir).values())
        await talking.send("shell", "execute_request", {"code": "2"})
        await stream.send(code="2")
        assert await talking.end() == 4401
        assert await stream.end() == 4401
        assert await listening.end() == 4401  # this socket was idle
        assert sum(len(records) for records in accounts(run.state_dir).values()) == before
        assert await staying.text("print(3)") == "3\n"


def _channels(gateway: Gateway, kernel: str, key: str) -> Any:
    return jupyter.connected(gateway, kernel, key=key)


def _stream(gateway: Gateway, key: str) -> Any:
    return sockets.connected(gateway, "s", key=key)


def test_the_audit_is_read_page_by_page(run: Gateway, admin: str) -> None:
    tenant = f"dave-{secrets.token_hex(2)}"
    _, key = make(run, admin, tenant=tenant)
    for code in ("1", "print('x' * 10)", "1/0"):
        ask(run, key, "POST", "/v1/sessions/s/execute", json={"code": code})

    def page(**query: Any) -> Any:
        answer = ask(run, admin, "GET", "/v1/admin/audit", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    until(lambda: page(tenant=tenant, limit=1)["executions"][0]["outcome"])  # recorded after the cell's answer
    first = page(tenant=tenant, limit=2)
    assert [entry["outcome"] for entry in first["executions"]] == ["error", "ok"]
    assert first["executions"][1]["output_bytes"] == 11
    assert first["executions"][1]["code_sha256"] == sha256(b"print('x' * 10)").hexdigest()
    assert {entry["tenant"] for entry in first["executions"]} == {tenant}
    assert first["executions"][0]["began_at"] <= first["executions"][0]["ended_at"]
    second = page(tenant=tenant, limit=2, before=first["next"])
    assert (len(second["executions"]), second["next"]) == (1, None)
    full = page(tenant=tenant, limit=3)
    assert (len(full["executions"]), full["next"]) == (3, None)
    assert page(limit=2)["executions"] == first["executions"]
    assert page(tenant="nobody") == {"executions": [], "next": None}
    assert [entry["outcome"] for entry in page(tenant=tenant, outcome="error")["executions"]] == ["error"]
    assert len(page(tenant=tenant, session="s")["executions"]) == 3
    assert page(tenant=tenant, session="t")["executions"] == []
    latest = first["executions"][0]
    for since in (latest["began_at"], datetime.fromisoformat(latest["began_at"]).timestamp()):
        assert page(tenant=tenant, since=since)["executions"] == [latest]
    for query in (
        {"limit": "0"},
        {"limit": "x"},
        {"before": "-1"},
        {"tenant": "a:b"},
        {"session": "a:b"},
        {"since": "yesterday"},
        {"until": "2026-02-30"},
        {"until": "9999-12-31T23:59:59-01:00"},  # in UTC it is in a year that no answer could show
    ):
        assert failure(ask(run, admin, "GET", "/v1/admin/audit", params=query)) == (400, "SB002")


def test_the_audit_is_filtered_by_who_asked_and_when(run: Gateway, admin: str) -> None:
    tenant = f"dave-{secrets.token_hex(2)}"
    key_id, key = make(run, admin, tenant=tenant)
    other_id, other = make(run, admin, tenant=tenant)
    for each in (key, other):
        ran = ask(run, each, "POST", "/v1/sessions/s/execute", json={"code": "1"})

    def found(**query: Any) -> list[str]:
        answer = ask(run, admin, "GET", "/v1/admin/audit", params={"tenant": tenant} | query)
        assert answer.status_code == 200, answer.text
        return [entry["key_id"] for entry in answer.json()["executions"]]

    assert found() == [other_id, key_id]
    assert found(key_id=key_id) == [key_id]
    assert found(request_id=ran.headers["X-Request-Id"]) == [other_id]
    for same, another in (
        ({"address": "127.0.0.1"}, {"address": "127.0.0.2"}),
        ({"dialect": "native"}, {"dialect": "e2b"}),
        ({"language": "python"}, {"language": "r"}),
        ({"since": "2026-01-01"}, {"since": "2999-01-01"}),
        ({"until": "2999-01-01T00:00"}, {"until": "2026-01-01T00:00:00+02:00"}),
    ):
        assert (found(**same), found(**another)) == ([other_id, key_id], [])
    began = ask(run, admin, "GET", "/v1/admin/audit", params={"tenant": tenant}).json()["executions"][0]["began_at"]
    assert found(until=began) == [key_id]


def test_what_tenants_have_used_is_reported_for_a_period(tmp_path: Path) -> None:
    with gateways.gateway("process", state_dir=str(tmp_path), admin_key="the-admins-own-key") as gateway:
        gateway.execute("s", "print('x' * 99)")
        gateway.execute("s", "1", tenant="bob")
        outcomes(tmp_path)  # waits until the ends are recorded

    def command(*arguments: str) -> str:
        call = [sys.executable, "-m", "kernel_gateway", "usage", "--state-dir", str(tmp_path), *arguments]
        return subprocess.run(call, check=True, capture_output=True, text=True).stdout

    with gateways.gateway("process", state_dir=str(tmp_path), admin_key="the-admins-own-key") as gateway:

        def usage(**query: str) -> requests.Response:
            return ask(gateway, "the-admins-own-key", "GET", "/v1/admin/usage", params=query)

        report = usage(since="2026-01-01").json()
        assert (report["since"], report["until"]) == ("2026-01-01T00:00:00Z", None)
        assert [(row["tenant"], row["cells"]) for row in report["tenants"]] == [("alice", 1), ("bob", 1)]
        alice = report["tenants"][0]
        assert alice["output_bytes"] == 100
        assert 0 < alice["cell_seconds"] < 60
        assert usage(since="2999-01-01").json()["tenants"] == usage(until="2026-01-01").json()["tenants"] == []
        table = usage(format="csv")
        assert table.headers["Content-Type"] == "text/csv; charset=utf-8"
        head, first, _ = csv.reader(table.text.splitlines())
        assert (head, first) == (list(alice), [str(value) for value in alice.values()])
        assert failure(usage(format="xml")) == (400, "SB002")
        assert failure(usage(since="yesterday")) == (400, "SB002")
        assert failure(usage(since="2026-02-01", until="2026-01-01")) == (400, "SB002")
        assert json.loads(command("--since", "2026-01-01", "--json")) == report
    assert command("--csv").splitlines() == table.text.splitlines()
    title, row, _ = command().splitlines()
    assert title.split()[:3] == ["TENANT", "CELLS", "CELL"]
    assert row.split()[:2] == ["alice", "1"]


def test_the_command_for_usage_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state-dir", str(tmp_path)]
    assert main(["usage", *place]) == 1
    assert main(["usage", *place, "--since", "yesterday"]) == 2
    (tmp_path / "audit.db").write_text("no database, but long enough to be read as one" * 100)
    assert main(["usage", *place]) == 1
    none, when, damaged = capsys.readouterr().err.splitlines()
    assert none == f"kernel-gateway: there is no audit at {tmp_path}/audit.db"
    assert when.startswith("kernel-gateway: --since must be a date or a time")
    assert damaged == "kernel-gateway: file is not a database"


async def test_messages_of_a_socket_are_uses_of_its_key(run: Gateway, admin: str) -> None:
    key_id, key = make(run, admin, tenant="carol")

    def used_at() -> str:
        (mine,) = (entry for entry in ask(run, admin, "GET", "/v1/admin/keys").json()["keys"] if entry["id"] == key_id)
        return str(mine["last_used_at"])

    async with _stream(run, key) as stream:
        opened = used_at()
        await stream.run("1")
        assert used_at() > opened


async def test_the_gateway_writes_last_uses_while_it_runs_and_removes_old_sums_of_usage(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    for module, name in ((keystore, "USES_INTERVAL"), (usage_store, "LOOK"), (usage_store, "SAVE")):
        monkeypatch.setattr(module, name, 0.01)
    with closing(usage_store.UsageStore(tmp_path / "usage.db", lambda: 5.0 * usage_store.HOUR)) as before:
        before.add(usage_store.Held({"acme": 1}, {}), 1.0)
    assert usage_of(tmp_path, None, None) != [], "the control"
    settings = {"state_dir": tmp_path, "port": 0, "pool_size": 0, "sandbox_pool_size": 0, "audit_retention": 1}
    service = await Service(Settings.model_validate(settings)).start()
    try:
        key, _ = service.keystore.add("acme")
        service.keystore.note_use(key.id)
        with closing(keystore.KeyStore(tmp_path)) as reading:
            await fakes.until(lambda: reading.all()[0].used_at is not None)
        await fakes.until(lambda: usage_of(tmp_path, None, None) == [])
    finally:
        await service.stop()


async def test_memory_and_disk_that_tenants_hold_are_counted(
    backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "make_backend", lambda *_: backend)
    monkeypatch.setattr(usage_store, "LOOK", 0.01)
    monkeypatch.setattr(usage_store, "SAVE", 0.01)
    settings = {"state_dir": tmp_path, "port": 0, "pool_size": 1, "memory": "128m", "disk": "64m"}
    service = await Service(Settings.model_validate(settings)).start()
    try:
        await fakes.until(lambda: service.pool.depth() == 1)
        await service.registry.get_or_create(SessionKey("acme", "s"))
        # The disk counts from the session's beginning, the memory from that of its kernel.
        await fakes.until(lambda: any(usage.memory_byte_seconds for usage in usage_of(tmp_path, None, None)))
        (before,) = usage_of(tmp_path, None, None)
        await fakes.until(lambda: usage_of(tmp_path, None, None) != [before])
        (usage,) = usage_of(tmp_path, None, None)
    finally:
        await service.stop()
    assert usage.tenant == "acme", "warm kernels are nobody's"
    memory, disk = (
        usage.memory_byte_seconds - before.memory_byte_seconds,
        usage.disk_byte_seconds - before.disk_byte_seconds,
    )
    assert memory == pytest.approx(2 * disk, rel=0.01)


@pytest.mark.parametrize("path", ["/v1/admin/audit", "/v1/admin/usage"])
def test_a_query_with_an_unknown_parameter_is_refused_by_name(run: Gateway, admin: str, path: str) -> None:
    refused = ask(run, admin, "GET", path, params={"since": "2026-01-01", "form": "2026-02-01"})
    assert failure(refused) == (400, "SB002")
    assert refused.json()["error"]["message"].startswith("there is no parameter 'form'; there are: ")


def test_live_sessions_of_all_tenants_are_listed_and_ended(run: Gateway, admin: str) -> None:
    tenant = f"erin-{secrets.token_hex(2)}"
    _, key = make(run, admin, tenant=tenant)
    for code in ("x = 1", "x"):
        ask(run, key, "POST", "/v1/sessions/mine/execute", json={"code": code})

    def found() -> list[dict[str, Any]]:
        sessions = ask(run, admin, "GET", "/v1/admin/sessions").json()["sessions"]
        return [session for session in sessions if session["tenant"] == tenant]

    (mine,) = found()
    shown = ask(run, key, "GET", "/v1/sessions/mine").json()
    assert (mine["name"], mine["language"], mine["state"], mine["executions"]) == ("mine", "python", "idle", 2)
    since_then = datetime.fromisoformat(mine["created_at"]) - datetime.fromisoformat(shown["created_at"])
    assert abs(since_then.total_seconds()) < 1
    assert mine["idle_seconds"] >= 0
    assert mine["memory_bytes"] is None  # unknown for a plain process
    assert mine["container"]
    assert failure(ask(run, admin, "DELETE", f"/v1/admin/sessions/{tenant}/other")) == (404, "SB011")
    assert failure(ask(run, admin, "DELETE", "/v1/admin/sessions/a:b/mine")) == (400, "SB002")
    assert ask(run, admin, "DELETE", f"/v1/admin/sessions/{tenant}/mine").status_code == 204
    assert found() == []
    again = ask(run, key, "POST", "/v1/sessions/mine/execute", json={"code": "1"}).json()
    assert (again["state"], again["state_reason"]) == ("lost", "the session was ended by an admin")


@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_an_admin_finds_the_session_of_a_container(gateway: Gateway, session: str) -> None:
    def containers() -> set[str]:
        return {container["Id"] for container in gateway.containers()}

    gateway.execute(session, "1")
    listed = ask(gateway, gateway.admin_key(), "GET", "/v1/admin/sessions").json()["sessions"]
    (container,) = [found["container"] for found in listed if found["name"] == session]
    assert container in containers()
    gateway.call("DELETE", f"/v1/sessions/{session}")
    until(lambda: container not in containers())
    assert containers(), "the pool's containers stay: the right one has gone"


def test_the_overview_says_how_much_is_left(admin_of_limits: tuple[Gateway, str]) -> None:
    gateway, key = admin_of_limits
    gateway.execute("s", "1")
    told = ask(gateway, key, "GET", "/v1/admin/overview").json()
    assert (told["ready"], told["trouble"], told["alerts"]) == (True, None, [])
    assert (told["golden_images"]["on"], told["sleep"]["on"]) == (False, False)
    assert sum(told["sessions"].values()) == len(ask(gateway, key, "GET", "/v1/admin/sessions").json()["sessions"]) > 0
    assert told["state_disk"]["max"] == metric(gateway, "kernel_gateway_state_disk_bytes")
    assert 0 < told["state_disk"]["used"] < told["state_disk"]["max"]
    assert told["sleep_disk"] == {"used": 0, "max": 4 * 1024**3}
    assert told["memory"]["used"] == metric(gateway, "kernel_gateway_promised_memory_bytes") > 0
    assert told["memory"]["max"] == metric(gateway, "kernel_gateway_promised_memory_limit_bytes")


async def overview(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return the overview of a gateway in this process, after its first look for alerts."""
    key = "the-admins-own-key"
    values = {
        "isolation": "process",
        "state_dir": tmp_path,
        "port": 0,
        "pool_size": 0,
        "sandbox_pool_size": 0,
        "admin_key": key,
    } | settings
    service = await Service(Settings.model_validate(values)).start()
    try:
        await fakes.until(service.alerts.firing)
        url = f"http://127.0.0.1:{service.port}/v1/admin/overview"
        answer = await AsyncHTTPClient().fetch(url, headers={"Authorization": f"Bearer {key}"})
    finally:
        await service.stop()
    told: dict[str, Any] = json.loads(answer.body)
    return told


async def test_the_overview_has_the_alerts_that_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    due = Alert("Due", "warning", Level("kernel_gateway_ready", "==", 1), 0, "It is due.", "Do it.")
    monkeypatch.setattr(alerts, "ALERTS", {"any": (due, replace(due, name="Later", minutes=1))})
    told = await overview(tmp_path, max_total_memory=0)
    (alert,) = told["alerts"]
    assert 0 <= alert.pop("seconds") < 60
    assert alert == {"name": "Due", "severity": "warning", "summary": "It is due.", "action": "Do it."}
    assert told["memory"] == {"used": 0, "max": None}


async def test_the_overview_says_why_no_kernel_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = BackendUnavailable("the engine does not answer")
    monkeypatch.setattr(Service, "_trouble", lambda _service: trouble)
    due = Alert("Due", "warning", Level("kernel_gateway_ready", "==", 0), 0, "It is due.", "Do it.")
    monkeypatch.setattr(alerts, "ALERTS", {"any": (due,)})
    told = await overview(tmp_path)
    assert told["ready"] is False
    expected = {"code": "SB009", "message": "the engine does not answer", "resolution": trouble.resolution}
    assert told["trouble"] == expected


def test_tenants_are_listed_with_their_usage_and_quotas(admin_of_limits: tuple[Gateway, str]) -> None:
    gateway, key = admin_of_limits
    gateway.execute("s", "print('x' * 99)")
    with streamed(gateway, "t", HANGS, on_disconnect="interrupt"):
        until(lambda: exists(gateway, "t", "begun"))
        told = ask(gateway, key, "GET", "/v1/admin/tenants").json()
    assert told["window"] == 60
    assert [tenant["tenant"] for tenant in told["tenants"]] == ["admin", "alice", "bob"]
    idle, busy, _ = told["tenants"]
    assert idle["sessions"] == {"used": 0, "max": 50}
    assert busy["sessions"] == {"used": 2, "max": 50}
    assert busy["executions"] == {"used": 1, "max": 10}
    assert busy["queued"] == {"used": 0, "max": 20}
    assert busy["output_bytes"] == {"used": 100, "max": 1024**2}
    assert busy["execution_seconds"] == {"used": None, "max": None}


@pytest.fixture
def admin_of_limits() -> Iterator[tuple[Gateway, str]]:
    """A gateway with a quota and an admin key in its settings."""
    key = "the-admins-own-key"
    with gateways.gateway("process", admin_key=key, quota_window="60", max_total_output_bytes="1m") as serving:
        yield serving, key


def test_the_admin_key_of_the_settings_has_its_own_tenant(admin_of_limits: tuple[Gateway, str]) -> None:
    gateway, key = admin_of_limits
    assert ask(gateway, key, "GET", "/v1/admin/keys").status_code == 200
    assert failure(ask(gateway, KEYS["alice"], "GET", "/v1/admin/keys")) == (403, "SB026")
    assert ask(gateway, key, "POST", "/v1/sessions/s/execute", json={"code": "1"}).status_code == 200
    (session,) = ask(gateway, key, "GET", "/v1/admin/sessions").json()["sessions"]
    assert session["tenant"] == "admin"
    assert contains_no_secret(gateway, key)


@pytest.mark.full
def test_the_command_still_checks_an_audit_after_its_retention_period(tmp_path: Path) -> None:
    for _ in range(2):
        with gateways.gateway("process", state_dir=str(tmp_path)) as gateway:
            gateway.execute("s", "1")
    with gateways.gateway("process", state_dir=str(tmp_path), audit_retention="0.000001"):
        until(lambda: not any(isinstance(record.what, Begin) for record in read(tmp_path / "audit.db")))
    command = [sys.executable, "-m", "kernel_gateway", "audit", "--state-dir", str(tmp_path)]
    checked = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "nothing was changed" in checked.stderr
    assert [set(json.loads(line)) & {"through", "digest"} for line in checked.stdout.splitlines()] == [
        {"through", "digest"}
    ]
