"""What the READMEs tell a first user and an operator to do, on a Debian machine that has neither engine nor gVisor."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "kernel_gateway/operating/README.md"
#: serves, waits for at most ten minutes, and runs two cells as a user would
SERVE = r"""
! command -v docker && ! command -v runsc || exit 1
make serve &
for _ in $(seq 600); do
  sleep 1
  .venv/bin/kernel-gateway run -c 'x = 41' 2>/dev/null && break
done
.venv/bin/kernel-gateway run -c 'import subprocess; print(x + 1, subprocess.check_output("dmesg", text=True)[:60])'
"""
#: a gateway's life under systemd; the parts of the guide are put in for the words in capital letters
OPERATE = r"""
set -e
run() {
  for _ in $(seq 60); do
    KERNEL_GATEWAY_KEY=$(sed -n 's/.*team://p' /etc/kernel-gateway.env) \
      /opt/kernel-gateway/bin/kernel-gateway run -c "$1" && return
    sleep 1
  done
  return 1
}
tests/engine/setup.sh
INSTALL
run 'import subprocess; x = 41; print(subprocess.check_output("dmesg", text=True)[:60])'
echo KERNEL_GATEWAY_KEEP_SESSIONS=true >> /etc/kernel-gateway.env
systemctl restart kernel-gateway
run 'x = 42'
UPGRADE
run 'print("after an upgrade:", x)'
systemctl kill -s KILL kernel-gateway
run 'print("after a kill:", x)'
REMOVE
echo "left:" $(docker ps -aq --filter label=kernel-gateway.instance) \
  $(docker volume ls -q) $(docker network ls --format '{{.Name}}') $(ls /opt /var/lib | grep kernel-gateway) .
"""


def section(heading: str) -> str:
    """Return the commands of a section of the operators' guide."""
    part = GUIDE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(re.findall(r"```sh\n(.*?)```", part, re.DOTALL))


def run(*arguments: str) -> str:
    """Run a program on a fresh machine, and return what it has printed."""
    command = [str(ROOT / "tests/engine/fresh.sh"), *arguments]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1100, check=False
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_make_serve_sets_up_everything() -> None:
    said = run(str(ROOT), SERVE)
    assert "no Docker engine answers: setting one up with gVisor" in said
    assert "isolation: docker with runsc (gVisor)" in said
    assert "42 [    0.000000] Starting gVisor" in said


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not Path("/sys/fs/cgroup/systemd").is_dir(), reason="needs control groups version 1")
def test_a_gateway_is_installed_upgraded_and_removed_as_the_guide_says() -> None:
    program = OPERATE
    for word, heading in (("INSTALL", "As a service"), ("UPGRADE", "Upgrade"), ("REMOVE", "Remove everything")):
        program = program.replace(word, section(heading))
    said = run("--systemd", str(ROOT), program)
    assert "[    0.000000] Starting gVisor" in said
    assert "all is well" in said  # doctor
    assert "after an upgrade: 42" in said
    assert "after a kill: 42" in said
    assert "left: bridge host none ." in said
