"""Providers' settings survive restarts, are visible to other processes at once, and never contain a plain secret."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from sessions.model.errors import LedgerUnavailable, SettingsUnreadable
from sessions.providers.base import Field
from sessions.providers.store import ProviderStore

SECRET = "a-very-secret-api-key-0123456789"  # noqa: S105 - of no service
SCHEMA = {
    "api_key": Field("string", "Key", secret=True),
    "region": Field("string", "Region"),
    "timeout": Field("integer", "Timeout"),
    "strict": Field("boolean", "Strict"),
}
CONFIG = {"api_key": SECRET, "region": "eu", "timeout": 30, "strict": False}

Open = Callable[[], ProviderStore]


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Open]:
    """Open the same settings again, like another process."""
    opened: list[ProviderStore] = []

    def one() -> ProviderStore:
        opened.append(ProviderStore(tmp_path))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Open) -> ProviderStore:
    return reopen()


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files in the state directory except the key."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "secrets.key"}


def change(directory: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(directory / "providers.db", isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount == 1


def kept(directory: Path, name: str) -> Any:
    with closing(sqlite3.connect(directory / "providers.db")) as database:
        return orjson.loads(database.execute("SELECT value FROM settings WHERE name = ?", [name]).fetchone()[0])


def test_stored_settings_are_read_back_also_by_another_process(
    store: ProviderStore, reopen: Open, tmp_path: Path
) -> None:
    assert (store.active(), store.get("e2b")) == (None, None)
    store.put("e2b", CONFIG, SCHEMA, activate=True)
    store.put("local", {}, SCHEMA)
    for again in (store, reopen()):
        assert (again.active(), again.get("e2b"), again.get("local")) == ("e2b", CONFIG, {})
    script = (
        "import sys; from pathlib import Path; from sessions.providers.store import ProviderStore\n"
        "d = Path(sys.argv[1]); s = ProviderStore(d); s.activate('local')\n"
        "print(s.get('e2b')['timeout'], end='')"
    )
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert other.stdout == "30"
    assert store.active() == "local"


def test_setting_names_are_those_of_ragflow(store: ProviderStore, tmp_path: Path) -> None:
    store.put("e2b", CONFIG, SCHEMA, activate=True)
    assert kept(tmp_path, "sandbox.provider_type") == "e2b"
    assert kept(tmp_path, "sandbox.e2b") | {"api_key": None} == CONFIG | {"api_key": None}


def test_a_secret_is_never_stored_in_plain_text(store: ProviderStore, tmp_path: Path) -> None:
    store.put("e2b", CONFIG | {"region": "a-marker-that-is-no-secret"}, SCHEMA)
    lying = contents(tmp_path)
    assert "providers.db-wal" in lying
    assert any(b"a-marker-that-is-no-secret" in content for content in lying.values())
    assert not any(SECRET.encode() in content for content in lying.values())
    store.close()
    assert not any(SECRET.encode() in content for content in contents(tmp_path).values())


def test_the_same_secret_looks_different_each_time(store: ProviderStore, tmp_path: Path) -> None:
    seen = set()
    for provider in ("e2b", "e2b", "other"):
        store.put(provider, CONFIG, SCHEMA)
        seen.add(str(kept(tmp_path, f"sandbox.{provider}")["api_key"]))
    assert len(seen) == 3


def test_files_are_accessible_only_to_their_user(store: ProviderStore, tmp_path: Path) -> None:
    assert not (tmp_path / "secrets.key").exists()
    store.put("e2b", CONFIG, SCHEMA)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes.keys() == {"providers.db", "providers.db-wal", "providers.db-shm", "secrets.key"}
    assert set(modes.values()) == {0o600}


def test_the_key_may_lie_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "key"
    store = ProviderStore(tmp_path / "state", elsewhere)
    store.put("e2b", CONFIG, SCHEMA)
    store.close()
    assert not (tmp_path / "state" / "secrets.key").exists()
    assert len(bytes.fromhex(elsewhere.read_text())) == 32


def test_without_secrets_no_key_is_made(store: ProviderStore, tmp_path: Path) -> None:
    store.put("e2b", CONFIG | {"api_key": ""}, SCHEMA)
    assert not (tmp_path / "secrets.key").exists()
    assert store.get("e2b") == CONFIG | {"api_key": ""}


def test_the_key_stays_the_one_that_was_made_first(store: ProviderStore, reopen: Open, tmp_path: Path) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    before = (tmp_path / "secrets.key").read_bytes()
    reopen().put("other", CONFIG, SCHEMA)
    assert (tmp_path / "secrets.key").read_bytes() == before
    assert store.get("other") == CONFIG


# -- damaged files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "zz", "00" * 31, "00" * 32, None, "é" * 64])
def test_with_another_key_or_none_only_secrets_are_lost(
    store: ProviderStore, tmp_path: Path, content: str | None
) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    store.put("plain", {"region": "eu"}, SCHEMA, activate=True)
    key = tmp_path / "secrets.key"
    good = key.read_text()
    key.unlink()
    if content is not None:
        key.write_text(content)
    with pytest.raises(SettingsUnreadable) as failure:
        store.get("e2b")
    assert SECRET not in str(failure.value.as_dict())
    assert "key" in failure.value.message
    assert (store.active(), store.get("plain")) == ("plain", {"region": "eu"})
    key.write_text(good)
    assert store.get("e2b") == CONFIG


def test_a_new_key_is_made_when_the_old_one_is_gone_and_settings_are_saved_anew(
    store: ProviderStore, tmp_path: Path
) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    store.put("other", CONFIG, SCHEMA)
    (tmp_path / "secrets.key").unlink()
    store.put("e2b", CONFIG, SCHEMA)
    assert store.get("e2b") == CONFIG
    with pytest.raises(SettingsUnreadable):
        store.get("other")


def test_a_damaged_key_is_not_overwritten(store: ProviderStore, tmp_path: Path) -> None:
    (tmp_path / "secrets.key").write_text("damaged")
    with pytest.raises(SettingsUnreadable):
        store.put("e2b", CONFIG, SCHEMA)
    assert (tmp_path / "secrets.key").read_text() == "damaged"
    assert store.get("e2b") is None


@pytest.mark.parametrize(
    "value",
    ["{", "[]", "1", '"text"', '{"api_key": {}}', '{"api_key": []}', '{"api_key": {"encrypted": 1}}']
    + [f'{{"api_key": {{"encrypted": "{text}"}}}}' for text in ("", "no base64", "AAAA", "A" * 80)],
)
def test_a_damaged_value_is_a_clear_error_and_the_others_are_usable(
    store: ProviderStore, tmp_path: Path, value: str
) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    store.put("other", CONFIG, SCHEMA)
    change(tmp_path, "UPDATE settings SET value = ? WHERE name = 'sandbox.e2b'", value)
    with pytest.raises(SettingsUnreadable):
        store.get("e2b")
    assert store.get("other") == CONFIG
    store.put("e2b", CONFIG, SCHEMA)
    assert store.get("e2b") == CONFIG


@pytest.mark.parametrize("value", ["{", "[]", "1"])
def test_a_damaged_active_provider_is_a_clear_error(store: ProviderStore, tmp_path: Path, value: str) -> None:
    store.activate("e2b")
    change(tmp_path, "UPDATE settings SET value = ? WHERE name = 'sandbox.provider_type'", value)
    with pytest.raises(SettingsUnreadable):
        store.active()


def test_a_secret_cannot_be_moved_to_another_place(store: ProviderStore, tmp_path: Path) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    stolen = orjson.dumps(kept(tmp_path, "sandbox.e2b")).decode()
    store.put("other", {"region": "eu"}, SCHEMA)
    change(tmp_path, "UPDATE settings SET value = ? WHERE name = 'sandbox.other'", stolen)
    with pytest.raises(SettingsUnreadable):
        store.get("other")
    moved = orjson.dumps({"region": kept(tmp_path, "sandbox.e2b")["api_key"]}).decode()
    change(tmp_path, "UPDATE settings SET value = ? WHERE name = 'sandbox.e2b'", moved)
    with pytest.raises(SettingsUnreadable):
        store.get("e2b")


def test_every_flipped_bit_of_a_secret_is_seen(store: ProviderStore, tmp_path: Path) -> None:
    store.put("e2b", CONFIG, SCHEMA)
    sealed = kept(tmp_path, "sandbox.e2b")["api_key"]["encrypted"]
    for place in range(0, len(sealed) - 2, 7):
        other = "A" if sealed[place] != "A" else "B"
        value = orjson.dumps({"api_key": {"encrypted": sealed[:place] + other + sealed[place + 1 :]}}).decode()
        change(tmp_path, "UPDATE settings SET value = ? WHERE name = 'sandbox.e2b'", value)
        with pytest.raises(SettingsUnreadable):
            store.get("e2b")


# -- changes ---------------------------------------------------------------------------------------------------


def test_the_version_changes_with_every_write_of_any_process(store: ProviderStore, reopen: Open) -> None:
    other, seen = reopen(), [store.version]

    def changed() -> bool:
        seen.append(store.version)
        return seen[-1] != seen[-2]

    assert not changed()
    store.put("e2b", CONFIG, SCHEMA)
    assert changed()
    other.put("e2b", CONFIG, SCHEMA)
    assert changed()
    other.activate("e2b")
    assert changed()
    store.activate("e2b")
    assert changed()
    store.get("e2b")
    other.get("e2b")
    assert not changed()
    assert len(set(seen)) == 5


def test_a_failed_write_changes_nothing(store: ProviderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("e2b", CONFIG, SCHEMA, activate=True)
    with closing(sqlite3.connect(tmp_path / "providers.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = store.version
        with pytest.raises(LedgerUnavailable):
            store.put("other", {}, SCHEMA, activate=True)
        assert store.version == before
    assert (store.active(), store.get("other")) == ("e2b", None)
    store.put("other", {}, SCHEMA, activate=True)
    assert store.active() == "other"
