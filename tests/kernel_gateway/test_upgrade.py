"""A gateway continues where one of an earlier version was killed.

`earlier/` is the state directory of the version of 2026-11-25: each database as SQL, with texts in place of blobs, and
the key of its one secret, which is the word `e2b_0`. That gateway had plain processes as kernels.

No container of that version runs here. A scripted kernel stands for one whose session continues, so these tests do not
show that a container which an earlier image has started still speaks with the gateway.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from kernel_gateway.cli import main
from sessions.backends.base import Launch
from sessions.model.connection_info import ConnectionInfo
from sessions.model.values import SessionKey, StateChange, Status
from sessions.providers.store import ProviderStore
from tests.fakes import PYTHON, FakeBackend, run, world_over
from tests.gateways import gateway

EARLIER = Path(__file__).parent / "earlier"
KEY = SessionKey("acme", "s1")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A copy of the earlier version's state directory."""
    for file in EARLIER.glob("*.sql"):
        with closing(sqlite3.connect(tmp_path / f"{file.stem}.db")) as database:
            database.executescript(file.read_text())
    shutil.copy(EARLIER / "secrets.key", tmp_path)
    return tmp_path


def test_keys_templates_settings_and_the_audit_are_continued(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gateway("process", state_dir=str(state_dir), keys="acme:acme-key-0000000001") as serving:
        acme, umbrella = ({"Authorization": f"Bearer {key}"} for key in ("acme-key-0000000001", f"kg-{43 * '0'}"))

        def call(method: str, path: str, key: dict[str, str] = acme, **options: Any) -> Any:
            return serving.call(method, path, tenant=None, headers=key, **options)

        def cell(session: str, **body: Any) -> Any:
            return call("POST", f"/v1/sessions/{session}/execute", json={"code": "1", **body})

        assert call("GET", "/v1/sessions", umbrella).json() == {"sessions": []}
        templates = call("GET", "/2025-09-10/templates").json()["data"]["items"]
        assert [each["templateName"] for each in templates if each["createdAt"] == "2026-11-27T21:07:58Z"] == ["mine"]
        assert call("GET", "/sandboxes/box").json()["data"]["status"] == "READY"
        retried = cell("s1", idempotency_key="once", code="x = 41")
        assert retried.status_code == 400, "nothing runs twice, but this version's requests have another digest"
        told = cell("s1").json()
        assert (told["state"], told["incarnation"]) == ("lost", 2), "plain processes end with their gateway"
        assert (cell("gone").json()["state_reason"]) == "the session was ended"
        assert serving.errors() == []
    with closing(ProviderStore(state_dir)) as settings:
        assert settings.active() == "local"
        assert (settings.get("e2b") or {})["api_key"] == "e2b_0"
    assert main(["audit", "--state-dir", str(state_dir)]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["seq"] for record in records[:2]] == [1, 2]
    assert len(records) > 2


def columns(state_dir: Path) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """Return the name, the type and the constraints of all columns, by database and table."""
    found = {}
    for file in state_dir.glob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                found[file.stem, table] = sorted(row[1:] for row in database.execute(f"PRAGMA table_info({table})"))
    return found


def test_tables_of_an_earlier_version_get_the_columns_of_this_one(
    state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fresh = tmp_path_factory.mktemp("fresh")
    earlier = columns(state_dir)
    for place in (state_dir, fresh):
        with gateway("process", state_dir=str(place)):
            pass
    assert earlier.keys() <= columns(fresh).keys(), "the control: these tables were made by the earlier version"
    assert columns(state_dir) == columns(fresh)


async def test_a_session_whose_kernel_still_runs_continues_with_its_variables(
    backend: FakeBackend, state_dir: Path
) -> None:
    with closing(sqlite3.connect(state_dir / "ledger.db")) as ledger, ledger:
        [written] = ledger.execute("SELECT record FROM kept WHERE kind = 'SessionRecord'").fetchone()
        record = json.loads(written)
        kernel = await backend.start(Launch(PYTHON, workspace=record["container"]["workspace"]))
        present = TypeAdapter(ConnectionInfo).dump_python(kernel.connection_info, mode="json")
        info = record["container"]["info"]
        record["container"] |= {"id": kernel.id, "info": {name: present[name] for name in info}}
        ledger.execute("UPDATE kept SET record = ? WHERE kind = 'SessionRecord'", [json.dumps(record).encode()])
    kernel.namespace["x"] = 41
    async with world_over(backend, ledger=state_dir / "ledger.db") as world:
        session = world.registry.get(KEY)
        assert (session.id, session.created_at) == (record["id"], record["created_at"])
        assert (session.spec.env, session.spec.cwd) == ({"A": "b"}, "deep")
        result = await run(session, "print(x + 1)")
        assert (result.status, result.outputs[0]["text"]) == (Status.OK, "42\n")
        assert (result.state, result.incarnation) == (StateChange.PRESERVED, 1)
        assert world.backend.alive == [kernel]


def test_the_state_directory_is_of_an_earlier_version() -> None:
    """The control: its tables lack what today's have."""
    assert not re.search(r"\bplace\b", (EARLIER / "ledger.sql").read_text())
