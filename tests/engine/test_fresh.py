"""What the pages tell a first user and an operator to do, on a Debian machine that has neither engine nor gVisor.

The engine of that machine is the only one that a test may restart.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/operating.md"
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
      /opt/kernel-gateway/bin/kernel-gateway run -c "$@" && return
    sleep 1
  done
  return 1
}
tests/engine/setup.sh
INSTALL
run 'import subprocess; x = 41; print(subprocess.check_output("dmesg", text=True)[:60])'
run 'x = 42'
UPGRADE
run 'print("after an upgrade:", x)'
systemctl kill -s KILL kernel-gateway
run 'print("after a kill:", x)'
LOSE
REMOVE
echo "left:" $(docker ps -aq --filter label=kernel-gateway.instance) \
  $(docker volume ls -q) $(docker network ls --format '{{.Name}}') $(ls /opt /var/lib | grep kernel-gateway) .
"""

#: what a session loses and keeps when the engine is restarted beside the gateway, and when the machine is: then all is
#: stopped, and the runtime's state, the loop devices and the marks of restores are gone
LOSE = r"""
ask() {
  curl --silent --show-error --fail-with-body --header "X-API-Key: $(sed -n 's/.*team://p' /etc/kernel-gateway.env)" \
    http://127.0.0.1:8888$1 ${2:+--data "$2"}
}
until_says() {
  for _ in $(seq 60); do
    ask "$1" | grep "$2" > /dev/null && return
    sleep 1
  done
  ask "$1"
  return 1
}
write() { run "x = $2; print(open('file', 'w').write('$2'))" -s "$1"; }
tell() {
  run 'import os; print(globals().get("x"), os.path.exists("file") and open("file").read())' -s "$2" --json > reply
  cells=$(ask "/v1/sessions/$2/notebook" | grep -o execution_count | wc -l)
  python3 -c 'import json, sys
reply = json.load(open("reply"))
print("", *sys.argv[1:], reply["state"], reply["outputs"][0]["text"])' "$1" "$2" "$cells"
}
until_says /readyz '"sleep": *{"on": *true'
write awake 1
write undone 2
ask /v1/sessions/undone/checkpoints '{"name": "one"}'
write undone 3
ask /v1/sessions '{"name": "asleep", "on_idle": "sleep", "idle_timeout": 1}'
write asleep 4
until_says /v1/sessions/asleep '"state": *"asleep"'

before=$(systemctl show --property MainPID kernel-gateway)
systemctl restart docker
test "$before" = "$(systemctl show --property MainPID kernel-gateway)"
tell engine awake
until_says /readyz '"sleep": *{"on": *true'
ask /v1/sessions/undone/rollback '{"to": "one"}'
tell engine undone
write undone 5
write awake 6

volumes=$(docker volume ls --quiet --filter label=kernel-gateway.instance)
systemctl stop kernel-gateway docker.socket docker containerd
for volume in $volumes; do
  losetup --list --noheadings --output NAME,BACK-FILE | awk "\$2 ~ /$volume.img/ { print \$1 }"
done | xargs losetup --detach
umount /run/docker/netns/*
rm -rf /run/docker /run/containerd /run/kernel-gateway
systemctl start kernel-gateway
tell machine asleep
tell machine awake
until_says /readyz '"sleep": *{"on": *true'
ask /v1/sessions/undone/rollback '{"to": "one"}'
tell machine undone
if journalctl --unit kernel-gateway | grep -E 'cannot sleep|cannot be put to rest'; then exit 1; fi
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
    program = OPERATE.replace("LOSE", LOSE)
    for word, heading in (("INSTALL", "As a service"), ("UPGRADE", "Upgrade"), ("REMOVE", "Remove everything")):
        program = program.replace(word, section(heading))
    said = run("--systemd", str(ROOT), program)
    assert "[    0.000000] Starting gVisor" in said
    assert "all is well" in said  # doctor
    assert "after an upgrade: 42" in said
    assert "after a kill: 42" in said
    # the machine's event, the session, the cells of its notebook, what its reply says, and its variable and file
    for told in (
        "engine awake 2 lost None 1",
        "engine undone 3 rolled_back 2 2",
        "machine asleep 1 preserved 4 4",
        "machine awake 1 lost None 6",
        "machine undone 1 rolled_back 2 2",
    ):
        assert told in said
    assert "left: bridge host none ." in said
