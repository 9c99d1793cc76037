"""`kernel-gateway audit` prints the records of the executions that are asked for, and checks all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernel_gateway.cli import main
from sessions.model.values import Asker, SessionKey
from sessions.store.audit import Audit
from sessions.store.records import End


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """The directory of an audit of three executions: at 1000 s, 2000 s and 3000 s."""
    now = [0.0]
    audit = Audit(tmp_path / "audit.db", lambda: now[0])
    for number, (tenant, outcome) in enumerate((("acme", "ok"), ("acme", "error"), ("other", "ok")), 1):
        now[0] = 1000.0 * number
        asker = Asker(key_id=f"k{number}", address=f"10.0.0.{number}", dialect="native", request_id=f"r{number}")
        execution = audit.begin(SessionKey(tenant, f"s{number}"), "python" if number == 1 else "bash", "1", asker)
        now[0] += 500
        if number < 3:
            audit.end(execution, End(outcome=outcome))
    audit.close()
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", ["s1", "ok", "s2", "error", "s3"]),
        ("--tenant acme", ["s1", "ok", "s2", "error"]),
        ("--session s2", ["s2", "error"]),
        ("--language bash", ["s2", "error", "s3"]),
        ("--key-id k3", ["s3"]),
        ("--address 10.0.0.1", ["s1", "ok"]),
        ("--dialect jupyter", []),
        ("--request-id r2", ["s2", "error"]),
        ("--outcome error", ["s2", "error"]),
        ("--since 1970-01-01T00:33:20Z", ["s2", "error", "s3"]),
        ("--until 2000", ["s1", "ok"]),
        ("--tenant acme --outcome ok --since 2000", []),
    ],
)
def test_the_records_of_the_asked_executions_are_printed(
    state_dir: Path, capsys: pytest.CaptureFixture[str], flags: str, found: list[str]
) -> None:
    assert main(["audit", "--state-dir", str(state_dir), *flags.split()]) == 0
    told = capsys.readouterr()
    lines = [*map(json.loads, told.out.splitlines())]
    assert all(re.fullmatch(r"1970-01-01T[0-9:.]{15}Z", line["at"]) for line in lines)
    assert [line.get("session") or line["outcome"] for line in lines] == found
    assert "nothing was changed" in told.err


def test_a_time_that_is_none_is_refused(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--state-dir", str(state_dir), "--since", "soon"]) == 2
    assert "--since" in capsys.readouterr().err
