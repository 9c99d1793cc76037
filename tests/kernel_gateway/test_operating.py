"""The page for operators names what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernel_gateway.config import Settings
from tests import gateways

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "kernel_gateway/operating/kernel-gateway.service").read_text()
PAGE = (ROOT / "docs/operating.md").read_text()


def test_every_file_of_the_state_directory_is_named() -> None:
    with gateways.gateway("process", tls="true") as gateway:
        gateway.execute("s", "1")
        found = {re.sub("-(wal|shm)$", "", path.name) for path in gateway.state_dir.iterdir() if path.is_file()}
    assert {"keys.db", "ledger.db", "audit.db"} <= found
    table = PAGE[PAGE.index("| file |") : PAGE.index("`sqlite3")]
    found.remove("log")  # the test's own
    assert found <= set(re.findall(r"`([\w.]+)`", table))


def test_the_unit_sets_only_settings_that_exist() -> None:
    names = re.findall(r"KERNEL_GATEWAY_([A-Z_]+)=", UNIT + PAGE)
    assert names
    assert {name.lower() for name in names} <= set(Settings.model_fields)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    command = tmp_path / "kernel-gateway"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    file = tmp_path / "kernel-gateway.service"
    file.write_text(UNIT.replace("/opt/kernel-gateway/bin/kernel-gateway", str(command)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "kernel-gateway" in line] == []
    file.write_text(file.read_text().replace("Type=exec", "Type=wrong"))
    assert subprocess.run(["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, check=False).stderr
