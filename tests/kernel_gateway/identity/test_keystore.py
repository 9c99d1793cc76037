"""Keys that are made and revoked while the gateway runs."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kernel_gateway.cli import main
from kernel_gateway.identity.keystore import Key, KeyForm, KeyStore, Role, digest_of
from kernel_gateway.state_dir import instance_id
from sessions.model.errors import InvalidRequest
from tests import gateways
from tests.fakes import Clock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KeyStore]:
    made = KeyStore(tmp_path / "state")
    yield made
    made.close()


def test_a_key_is_found_by_its_secret_alone(store: KeyStore) -> None:
    key, secret = store.add("alice")
    other, _ = store.add("bob", Role.ADMIN)
    assert store.find(secret) == key
    assert (key.tenant, key.role, other.role) == ("alice", Role.USER, Role.ADMIN)
    for wrong in (key.id, secret[:-1], secret.upper(), f"{secret} ", "", KeyForm.OWN, "\ud800"):
        assert store.find(wrong) is None
    assert store.all() == [key, other]


def test_a_revoked_key_is_not_found(store: KeyStore) -> None:
    (key, secret), (_, kept) = store.add("alice"), store.add("alice")
    assert store.revoke(key.id)
    assert store.find(secret) is None
    assert store.find(kept) is not None
    assert not store.revoke(key.id)


def test_no_secret_is_kept_and_nobody_else_reads_the_file(store: KeyStore, tmp_path: Path) -> None:
    _, secret = store.add("alice")
    files = list((tmp_path / "state").iterdir())
    assert files
    for file in files:
        assert secret.removeprefix(KeyForm.OWN).encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_a_key_has_a_name_and_expires(tmp_path: Path) -> None:
    clock = Clock()
    with closing(KeyStore(tmp_path, clock)) as store:
        key, secret = store.add("alice", name="nightly job", expires_at=clock.now + 10)
        lasting, _ = store.add("alice")
        assert (key.name, key.expires_at, lasting.name, lasting.expires_at) == ("nightly job", clock.now + 10, "", None)
        clock.now += 9
        assert store.find(secret) == key
        clock.now += 1
        assert (found := store.find(secret)) is not None
        assert found.expired
        assert {each.id: each.expired for each in store.all()} == {key.id: True, lasting.id: False}


@pytest.mark.parametrize("name", ["x" * 65, "a\nb", "\x1b[31m", "\u202e", "\ud800"])
def test_a_name_that_would_spoil_a_list_is_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^name must be"):
        store.add("alice", name=name)
    assert store.add("alice", name="x" * 64)[0].name == "x" * 64


def test_a_key_must_expire_in_the_future(tmp_path: Path) -> None:
    clock = Clock()
    with closing(KeyStore(tmp_path, clock)) as store:
        with pytest.raises(InvalidRequest, match="in the future"):
            store.add("alice", expires_at=clock.now)
        assert store.all() == []


def test_last_uses_are_written_from_time_to_time_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    with closing(KeyStore(tmp_path, clock)) as reading, closing(KeyStore(tmp_path, clock)) as store:
        key, secret = store.add("alice")
        clock.now = 5.0
        store.note_use(key.id)
        assert [each.used_at for each in (*store.all(), store.get(key.id), store.find(secret)) if each] == [5.0] * 3
        assert [each.used_at for each in reading.all()] == [None], "a use costs no write"
        store.save_uses()
        written = store._database.total_changes
        store.save_uses()
        assert store._database.total_changes == written, "a use is written once"
        assert [each.used_at for each in reading.all()] == [5.0]
        clock.now = 6.0
        store.note_use(key.id)
        store.close()
        assert [each.used_at for each in reading.all()] == [6.0]


def test_last_uses_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    with closing(KeyStore(tmp_path, Clock())) as reading, closing(KeyStore(tmp_path, Clock())) as store:
        key, _ = store.add("alice")
        store.note_use(key.id)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as another, capture_logs() as logs:
            another.execute("BEGIN IMMEDIATE")
            store.save_uses()
        assert [entry["event"] for entry in logs] == ["the last uses of keys cannot be written"]
        assert [each.used_at for each in reading.all()] == [None]
        store.save_uses()
        assert [each.used_at for each in reading.all()] == [1000.0]


OF_LAST_VERSION = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, role TEXT NOT NULL, created REAL NOT NULL
) STRICT;
"""


def test_keys_of_the_last_version_stay_valid(tmp_path: Path) -> None:
    secret = f"{KeyForm.OWN}of-the-last-version"
    with closing(sqlite3.connect(tmp_path / "keys.db", isolation_level=None)) as before:
        before.execute("PRAGMA journal_mode=WAL")
        before.executescript(OF_LAST_VERSION)
        before.execute("INSERT INTO keys VALUES ('0a1b2c3d', ?, 'alice', 'admin', 7.5)", [digest_of(secret)])
    for _ in range(2):
        with closing(KeyStore(tmp_path)) as store:
            assert store.find(secret) == Key("0a1b2c3d", "alice", Role.ADMIN, 7.5)
            store.add("bob", name="new", expires_at=2e9)
    with closing(KeyStore(tmp_path)) as store:
        assert [key.name for key in store.all()] == ["", "new", "new"]


def test_a_tenant_has_a_valid_name(store: KeyStore) -> None:
    with pytest.raises(InvalidRequest):
        store.add("a:b")
    assert store.all() == []


def command(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(state_dir), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["keys", "list"], ["serve", "--port", "0", "--isolation", "process"]])
def test_damaged_keys_are_not_replaced_by_none(tmp_path: Path, arguments: list[str]) -> None:
    damaged = b"no database, but long enough to be read as one" * 100
    (tmp_path / "keys.db").write_bytes(damaged)
    instance_id(tmp_path)
    name, *rest = arguments
    command = [sys.executable, "-m", "kernel_gateway", name, "--state-dir", str(tmp_path), *rest]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"the database {tmp_path}/keys.db cannot be used: file is not a database" in ended.stderr.splitlines()[-1]
    assert (tmp_path / "keys.db").read_bytes() == damaged


def test_the_command_reports_a_change_that_cannot_be_saved(store: KeyStore, tmp_path: Path) -> None:
    key, _ = store.add("alice")
    instance_id(tmp_path / "state")
    path = tmp_path / "state" / "keys.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        for change in (["add", "bob"], ["revoke", key.id]):
            ended = command(tmp_path / "state", *change)
            assert (ended.returncode, ended.stdout) == (1, "")
            assert ended.stderr.startswith("kernel-gateway: the ")
            assert ended.stderr.endswith(" cannot be saved\n")
    assert store.all() == [key]


def test_where_no_gateway_was_no_key_is_made(tmp_path: Path) -> None:
    refused = command(tmp_path, "add", "bob")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"kernel-gateway: no gateway has used {tmp_path} yet")
    assert list(tmp_path.iterdir()) == []
    instance_id(tmp_path)
    made = command(tmp_path, "add", "bob")
    assert (made.returncode, f"written to {tmp_path}/keys.db" in made.stderr) == (0, True)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("by_file", [True, False])
def test_the_state_directory_may_be_named_before_and_after_the_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, before: bool, by_file: bool
) -> None:
    instance_id(tmp_path / "state")
    (tmp_path / "gateway.toml").write_text(f'state_dir = "{tmp_path}/state"\nport = 1\n')
    place = ["--config", f"{tmp_path}/gateway.toml"] if by_file else ["--state-dir", f"{tmp_path}/state"]
    assert main(["keys", *place, "add", "bob"] if before else ["keys", "add", "bob", *place]) == 0
    assert f"written to {tmp_path}/state/keys.db" in capsys.readouterr().err


def test_a_change_by_the_command_takes_effect_at_once() -> None:
    with gateways.gateway("process") as gateway:

        def status(key: str) -> int:
            return gateway.call("GET", "/v1/sessions", tenant=None, headers={"X-API-Key": key}).status_code

        made = command(gateway.state_dir, "add", "carol")
        secret = made.stdout.strip()
        assert secret.startswith(KeyForm.OWN)
        assert status(secret) == 200
        assert status(f"{secret}x") == 401
        head, line = command(gateway.state_dir, "list").stdout.splitlines()
        assert head.split() == ["ID", "ROLE", "MADE", "EXPIRES", "LAST", "USED", "NAME", "TENANT"]
        assert line.endswith("carol")
        assert secret not in line
        assert command(gateway.state_dir, "revoke", line.split()[0]).returncode == 0
        assert status(secret) == 401
        again = command(gateway.state_dir, "revoke", line.split()[0])
        assert (again.returncode, "there is no key" in again.stderr) == (1, True)
        assert command(gateway.state_dir, "add", "no:name").returncode == 2


def test_the_command_names_keys_and_lets_them_expire(tmp_path: Path) -> None:
    instance_id(tmp_path)
    made = command(tmp_path, "add", "carol", "--name", "nightly job", "--expires", "2999-12-31")
    assert "valid until 2999-12-31 00:00 UTC" in made.stderr
    for expires, hours in (("36h", 36), ("2d", 48)):
        assert command(tmp_path, "add", "carol", "--expires", expires).returncode == 0
        with closing(KeyStore(tmp_path)) as store:
            key = store.all()[-1]
        assert key.expires_at is not None
        assert abs(key.expires_at - key.created_at - hours * 3600) < 60
    line = command(tmp_path, "list").stdout.splitlines()[1]
    assert re.search(r"  2999-12-31 00:00  - +nightly job  carol$", line)
    for wrong in ("soon", "2001-01-01", "1", "-1d", ""):
        refused = command(tmp_path, "add", "carol", f"--expires={wrong}")
        assert (refused.returncode, refused.stdout) == (2, ""), wrong
        assert refused.stderr.startswith("kernel-gateway: "), wrong


def test_the_list_shows_that_a_key_has_expired(tmp_path: Path) -> None:
    instance_id(tmp_path)
    with closing(KeyStore(tmp_path, lambda: 60.0)) as store:
        key, _ = store.add("carol", expires_at=120.0)
        store.note_use(key.id)
    line = command(tmp_path, "list").stdout.splitlines()[1]
    assert line.split("  ")[2:5] == ["1970-01-01 00:01", "1970-01-01 00:02 (expired)", "1970-01-01 00:01"]
