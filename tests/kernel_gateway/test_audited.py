"""Every execution is audited once, in every dialect; an execution that cannot be audited does not run."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import requests

from kernel_gateway.cli import main
from sessions.model.values import Asker, SessionKey
from sessions.store.audit import Audit
from sessions.store.records import Begin, End
from sessions.tenants.audit_disk import COST
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway import jupyter, sockets
from tests.kernel_gateway.accounts import accounts, contains_no_secret, crash, execute, outcomes, refusal
from tests.kernel_gateway.agentrun import boxed
from tests.kernel_gateway.calls import HANGS, exists, failure, until

SLEEPS = "import time; time.sleep(0.5)"


# -- the audit -------------------------------------------------------------------------------------------------


async def test_every_execution_is_audited_once_in_every_dialect_with_every_outcome() -> None:
    with gateways.gateway("process") as gateway, boxed(gateway) as box:
        secret = "a-very-secret-word"  # noqa: S105 - it is part of the code
        gateway.execute("s", f"'{secret}'")
        gateway.execute("s", "1/0")
        gateway.execute("s", SLEEPS, timeout=0.1)
        gateway.execute("s", "import os; os._exit(3)")
        with pytest.raises(requests.ReadTimeout):
            execute(gateway, HANGS, on_disconnect="interrupt", timeout=3)
        box.run("1")
        box.command(f"echo {secret}")
        box.command("exit 3")
        made = gateway.call("POST", "/api/kernels", json={}).json()["id"]
        async with jupyter.connected(gateway, made) as client, sockets.connected(gateway, "s") as stream:
            for code in ("print(1)", "1/0", "import os; os._exit(3)"):
                await client.execute(code)
            await stream.run("1")
        expected = {"ok": 5, "error": 3, "timeout": 1, "died": 2, "interrupted": 1}
        until(lambda: sum(len(records) == 2 for records in accounts(gateway.state_dir).values()) == 12)
        assert outcomes(gateway.state_dir) == expected
        begins = [records[0] for records in accounts(gateway.state_dir).values() if isinstance(records[0], Begin)]
        assert {begin.tenant for begin in begins} == {"alice"}
        assert Counter(begin.language for begin in begins) == {"python": 10, "shell": 2}
        assert Counter(begin.dialect for begin in begins) == {"native": 6, "agentrun": 3, "jupyter": 3}
        assert {begin.address for begin in begins} == {"127.0.0.1"}
        assert {begin.request_id for begin in begins} <= {line.get("request_id") for line in gateway.logged()}
        assert begins[0].code_sha256 == sha256(f"'{secret}'".encode()).hexdigest()
        assert contains_no_secret(gateway, secret, *KEYS.values())


def test_the_next_gateway_closes_audit_records_left_open_by_a_kill(tmp_path: Path) -> None:
    with gateways.gateway("process", state_dir=str(tmp_path)) as gateway, ThreadPoolExecutor(1) as threads:
        cut_off = threads.submit(execute, gateway, HANGS)
        until(lambda: exists(gateway, "s", "begun"))
        crash(gateway)
        with pytest.raises(requests.ConnectionError):
            cut_off.result()
    with gateways.gateway("process", state_dir=str(tmp_path)) as gateway:
        gateway.execute("s", "1")
        assert outcomes(tmp_path) == {"unknown": 1, "ok": 1}


def test_the_audit_has_the_digest_of_the_code_that_the_client_wrote(tmp_path: Path) -> None:
    code = "def main(a): return a"
    encoded = base64.b64encode(code.encode()).decode()
    with gateways.gateway("process", state_dir=str(tmp_path)) as gateway, boxed(gateway) as box:
        assert gateway.execute("s", code, arguments={"a": 1})["status"] == "ok"
        assert box.run(code, arguments={"a": 1})["exitCode"] == 0
        assert gateway.call("POST", "/run", json={"code_b64": encoded, "arguments": {"a": 1}}).json()["exit_code"] == 0
        until(lambda: outcomes(tmp_path) == {"ok": 3})
    begins = [records[0] for records in accounts(tmp_path).values()]
    assert {begin.code_sha256 for begin in begins if isinstance(begin, Begin)} == {sha256(code.encode()).hexdigest()}


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Lock the audit's database from another connection."""
    with closing(sqlite3.connect(state_dir / "audit.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def full(state_dir: Path) -> Iterator[None]:
    """Fill the disk that holds the audit."""
    ballast = state_dir / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    yield
    ballast.unlink()


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of 8 MiB."""
    with TemporaryDirectory(prefix="kgw-small-") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


@contextmanager
def ordinary_disk() -> Iterator[Path]:
    with TemporaryDirectory(prefix="kgw-state-") as directory:
        yield Path(directory)


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")


@pytest.mark.parametrize(
    ("disk", "unwritable"),
    [(ordinary_disk, locked), pytest.param(small_disk, full, marks=[NEEDS_ROOT, pytest.mark.full])],
)
async def test_nothing_runs_while_the_audit_is_unwritable_and_cells_run_again_later(disk: Any, unwritable: Any) -> None:
    with disk() as state_dir, gateways.gateway("process", state_dir=str(state_dir)) as gateway, boxed(gateway) as box:
        made = gateway.call("POST", "/api/kernels", json={}).json()["id"]
        gateway.execute("s", "x = 1")
        gateway.execute("other", "1")
        box.run("1")
        async with jupyter.connected(gateway, made) as client, sockets.connected(gateway, "s") as stream:

            async def over_channels() -> str:
                seen = await client.execute("1")
                return next(str(m["content"].get("ename", "ok")) for m in seen if m["channel"] == "shell")

            assert await over_channels() == "ok"
            with unwritable(state_dir):
                _until_refused(gateway)
                before = len(accounts(state_dir))
                refused = execute(gateway, "x = 2")
                assert failure(refused) == (503, "SB019")
                assert int(refused.headers["Retry-After"]) >= 1
                for path, body in (("/contexts/execute", {"code": "1"}), ("/processes/cmd", {"command": "true"})):
                    response = box.call("POST", path, json=body)
                    assert (response.status_code, response.json()["error"]["code"]) == (503, "SB019")
                assert await over_channels() == "AuditUnavailable"
                await stream.send(code="x = 2")
                assert (await stream.until("error"))[-1]["error"]["code"] == "SB019"
                assert gateway.call("GET", "/v1/sessions").status_code == 200
                assert gateway.call("DELETE", "/v1/sessions/other").status_code == 204
                assert len(accounts(state_dir)) == before
            assert await over_channels() == "ok"
            assert gateway.text("s", "print(x)") == "1\n"
            assert box.text("print(1)") == "1\n"
        assert set(outcomes(state_dir)) == {"ok"}


def _until_refused(gateway: Gateway) -> requests.Response:
    """Run cells until one is refused, and return its answer: the last page of a file may have room for some records."""
    for _ in range(2000):
        if (answer := execute(gateway, "1")).status_code != 200:
            return answer
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], ["a b", "a b end", "a c", "d b", "a c end"]),
        (["--tenant", "a"], ["a b", "a b end", "a c", "a c end"]),
        (["--session", "b"], ["a b", "a b end", "d b"]),
        (["--tenant", "a", "--session", "b"], ["a b", "a b end"]),
        (["--key-id", "4f071b64"], ["a c", "a c end"]),
        (["--since", "2026-01-31T09:00Z"], ["a c", "d b", "a c end"]),
        (["--until", "2026-01-31T09:00Z"], ["a b", "a b end"]),
        (["--since", "2026-01-31T09:00Z", "--until", "2026-01-31T10:00Z"], ["a c", "a c end"]),
    ],
    ids=str,
)
def test_the_command_prints_the_executions_that_its_flags_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], shown: list[str]
) -> None:
    eight, nine, ten = (datetime(2026, 1, 31, hour, tzinfo=UTC).timestamp() for hour in (8, 9, 10))
    times = iter([eight, nine, nine, ten, ten])
    with closing(Audit(tmp_path / "audit.db", lambda: next(times))) as audit:
        ids = {(first := audit.begin(SessionKey("a", "b"), "python", "1")): "a b"}
        audit.end(first, End(outcome="ok"))
        ids[second := audit.begin(SessionKey("a", "c"), "python", "2", Asker(key_id="4f071b64"))] = "a c"
        ids[audit.begin(SessionKey("d", "b"), "python", "3")] = "d b"
        audit.end(second, End(outcome="ok"))
    assert main(["audit", "--state-dir", str(tmp_path), *flags]) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [ids[line["execution"]] + (" end" if "outcome" in line else "") for line in lines] == shown
    assert printed.err.startswith("nothing was changed; "), "all records are checked"


def test_the_command_reports_a_file_that_is_no_audit(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_text("no database, but long enough to be read as one" * 100)
    command = [sys.executable, "-m", "kernel_gateway", "audit", "--state-dir", str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "kernel-gateway: file is not a database\n"


# -- a disk that is nearly full --------------------------------------------------------------------------------

#: executions that a tenant has behind it, and bytes beyond their records that the disk has left
BEHIND, BEYOND = 8000, 6 * 2**20


@pytest.fixture
def nearly_full(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory with many records of alice, on a disk that has room for some more than that."""
    written = tmp_path_factory.mktemp("written") / "audit.db"  # elsewhere: the log of so many writes is large
    with closing(Audit(written)) as audit:
        for _ in range(BEHIND):
            audit.end(audit.begin(SessionKey("alice", "s"), "python", "1"), End(outcome="ok"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(tmp_path)], check=True)
    try:
        shutil.copy(written, tmp_path)
        free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
        (tmp_path / "ballast").write_bytes(bytes(free - BEHIND * COST - BEYOND))
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
async def test_a_tenant_that_fills_the_disk_of_the_audit_stops_no_other_tenant(nearly_full: Path) -> None:
    with gateways.gateway("process", state_dir=str(nearly_full)) as gateway, boxed(gateway) as box:
        made = gateway.call("POST", "/api/kernels", json={}).json()["id"]
        async with jupyter.connected(gateway, made) as client, sockets.connected(gateway, "s") as stream:
            assert gateway.text("s", "x = 1; print(x)") == "1\n"
            assert "nearly full" in refusal(_until_refused(gateway))
            before = len(accounts(nearly_full))
            for path, body in (("/contexts/execute", {"code": "1"}), ("/processes/cmd", {"command": "true"})):
                assert "nearly full" in refusal(box.call("POST", path, json=body))
            seen = await client.execute("1")
            assert "QuotaExceeded" in {message["content"].get("ename") for message in seen}
            await stream.send(code="1")
            assert (await stream.until("error"))[-1]["error"]["details"]["limit"] == "audit_of_tenant"
            assert len(accounts(nearly_full)) == before, "a refusal takes no room itself"
        for _ in range(100):
            assert gateway.text("s", "print(2)", tenant="bob") == "2\n"
        assert gateway.ready()
        (nearly_full / "ballast").unlink()
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=512m", str(nearly_full)], check=True)
        assert gateway.text("s", "print(x)") == "1\n", "with room, it runs again"
        assert [each["tenant"] for each in gateway.logged() if "nearly full" in each["event"]] == ["alice"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_one_tenant_that_may_have_all_can_fill_the_disk_of_the_audit(nearly_full: Path) -> None:
    """The control for the test above."""
    with gateways.gateway("process", state_dir=str(nearly_full), max_share_per_tenant="1") as gateway:
        for tenant in ("alice", "bob"):
            gateway.execute("s", "1", tenant=tenant)
        with full(nearly_full):
            assert failure(_until_refused(gateway)) == (503, "SB019")
            assert failure(execute(gateway, "1", tenant="bob")) == (503, "SB019")
