"""Hostile code finds no privilege, secret or device in its sandbox, and can write only to its own directories."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import docker
import pytest

from kernel_image.protocol import PRIVATE_PLACES
from sessions.backends.docker.profile import PRIVATE, UID, WORKSPACE
from tests.attacks import probes
from tests.attacks.bench import IMAGE, Bench
from tests.attacks.cells import Attacker
from tests.attacks.conftest import CANARY
from tests.gateways import KEYS
from tests.host import command_lines

pytestmark = [pytest.mark.engine, pytest.mark.measured]

#: devices that gVisor gives to every sandbox; `fuse` and `tun` are its own, and of no use without privileges
DEVICES = {"full", "fuse", "null", "ptmx", "random", "tty", "tun", "urandom", "zero"}
CLOSED = ["/", "/usr", "/usr/bin", "/etc", "/var/tmp", "/var/log", "/opt", "/opt/kernel", "/home", "/run"]
OPEN = ["/tmp", "/dev/shm", WORKSPACE, PRIVATE]
SITE_PACKAGES = "import os, numpy; print(os.path.dirname(os.path.dirname(numpy.__file__)))"
DISK_MIB, SCRATCH_MIB = 16, 64


def inspected(container: str) -> str:
    """Return the engine's whole record of a container."""
    with closing(docker.from_env()) as client:
        return json.dumps(client.api.inspect_container(container))


# -- the wall ---------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_the_kernel_under_a_session_is_gvisor(evil: Attacker, own: Bench) -> None:
    assert "Starting gVisor" in evil.probe(probes.boot_log)
    assert "Starting gVisor" in own.probe(probes.boot_log)
    assert "gVisor" not in own.probe(probes.boot_log, runtime="runc")


@pytest.mark.gate
def test_hostile_code_runs_without_privileges(evil: Attacker, own: Bench) -> None:
    nobody = evil.probe(probes.identity)
    assert nobody["uids"] == nobody["gids"] == [UID]
    assert set(nobody["capabilities"].values()) == {0}
    assert nobody["no_new_privileges"] == 1
    assert nobody["hostname"] == "sandbox"
    root = own.probe(probes.identity, user="0:0", runtime="runc")
    assert root["uids"] == [0]
    assert root["capabilities"]["CapEff"] > 0
    assert root["no_new_privileges"] == 0


@pytest.mark.gate
def test_system_calls_of_administrators_are_refused(evil: Attacker, own: Bench) -> None:
    assert evil.probe(probes.system_calls) == []
    allowed = own.probe(
        probes.system_calls,
        runtime="runc",
        user="0:0",
        cap_add=["SYS_ADMIN"],
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
    )
    assert set(allowed) >= {"mount", "new mounts", "new network", "host name", "root", "chroot"}
    evil.still_works()


@pytest.mark.gate
def test_no_socket_that_sends_past_the_network_rules_can_be_opened(evil: Attacker, own: Bench) -> None:
    assert evil.probe(probes.raw_sockets) == []
    assert set(own.probe(probes.raw_sockets, runtime="runc", user="0:0")) >= {"packet", "raw-icmp", "raw-tcp"}


def test_a_user_namespace_gives_no_privileges(evil: Attacker) -> None:
    """Where the sandbox allows a user namespace at all, its root has no rights."""
    become_root = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    evil.text(f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {become_root!r}]).returncode)")
    assert evil.probe(probes.system_calls) == []
    assert evil.probe(probes.raw_sockets) == []


# -- devices and sockets ----------------------------------------------------------------------------------------


@pytest.mark.gate
def test_there_are_only_the_standard_devices_and_no_engine_socket(evil: Attacker, own: Bench) -> None:
    found = evil.probe(probes.special_files, ["/dev", "/run", "/var", "/etc", "/home", "/tmp", "/workspace"])
    devices = {Path(path).name for kind, path in found if kind == "character" and not path.startswith("/dev/pts")}
    assert devices <= DEVICES
    assert {kind for kind, _ in found} <= {"character"}
    engine = own.probe(
        probes.special_files,
        ["/dev", "/run"],
        runtime="runc",
        privileged=True,
        volumes={"/var/run/docker.sock": {"bind": "/run/docker.sock", "mode": "ro"}},
    )
    assert ["socket", "/run/docker.sock"] in engine
    assert {kind for kind, _ in engine} > {"character"}


def test_the_devices_of_the_sandbox_make_no_tunnel_and_no_file_system(evil: Attacker, own: Bench) -> None:
    assert evil.probe(probes.tunnels) == []
    assert own.probe(probes.tunnels, user="0:0", cap_add=["NET_ADMIN", "SYS_ADMIN"]) != []


def test_a_self_made_device_node_opens_no_device_of_the_host(evil: Attacker) -> None:
    """gVisor lets every user make nodes in a tmpfs; they open only its own devices, as the last number shows."""
    memory = [["c", 1, minor] for minor in (1, 2, 4, 11)]
    consoles = [["c", 4, 0], ["c", 4, 64], ["c", 5, 1]]
    others = [["c", 10, 203], ["c", 10, 232], ["c", 10, 237], ["c", 195, 0], ["c", 226, 0], ["c", 511, 0]]
    disks = [["b", major, 0] for major in (1, 7, 8, 11, 202, 252, 253, 254, 259)]
    assert evil.probe(probes.devices_by_number, [*memory, *consoles, *others, *disks, ["c", 1, 5]]) == [["c", 1, 5]]


def test_the_hosts_memory_and_keys_cannot_be_read(evil: Attacker) -> None:
    closed = ["/proc/kcore", "/proc/kmsg", "/dev/mem", "/proc/1/mem", "/sys/firmware/dmi/tables/DMI", "/etc/shadow"]
    opened = ["/etc/passwd", "/proc/self/status"]
    assert evil.probe(probes.readable, [*closed, *opened]) == opened
    switches = ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/kernel/uevent_helper"]
    assert evil.probe(probes.changeable, [*switches, "/dev/null"]) == ["/dev/null"]


def test_no_program_of_the_image_gives_its_owners_rights(own: Bench) -> None:
    search = (
        "import os, shutil, subprocess\n"
        "shutil.copy('/bin/true', '/tmp/control'); os.chmod('/tmp/control', 0o6755)\n"
        "command = ['find', '/', '-xdev', '-perm', '/6000', '-type', 'f']\n"
        "print(subprocess.run(command, capture_output=True, text=True).stdout.split())"
    )
    assert own.output(search, runtime="runc") == "['/tmp/control']\n"


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_only_the_sandboxs_own_directories_are_writable(evil: Attacker, own: Bench) -> None:
    closed = [*CLOSED, evil.text(SITE_PACKAGES).strip()]
    assert evil.probe(probes.writable, [*closed, *OPEN]) == OPEN
    programs = ["/opt/kernel/launcher.py", "/opt/venv/bin/python", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf"]
    assert evil.probe(probes.changeable, programs) == []
    assert own.probe(probes.writable, closed, user="0:0") == closed


@pytest.mark.parametrize(("folder", "size"), [(WORKSPACE, DISK_MIB), ("/tmp", SCRATCH_MIB), ("/dev/shm", SCRATCH_MIB)])
def test_a_full_folder_causes_only_an_error(evil: Attacker, folder: str, size: int) -> None:
    assert evil.probe(probes.filled, folder, size // 2) == [size // 2, None]
    written, error = evil.probe(probes.filled, folder)
    assert error == "ENOSPC" or (folder == WORKSPACE and error == "short")
    if folder == WORKSPACE:  # a disk, larger than its limit by what its file system may need (`_make` in disks.py)
        assert size <= written <= size + size // 16 + 1
    else:
        assert size - 2 <= written <= size
    assert evil.probe(probes.filled, folder, size // 2) == [size // 2, None]
    evil.still_works()


def test_a_workspace_that_stays_full_leaves_the_session_usable(evil: Attacker) -> None:
    fill = f"open('{WORKSPACE}/big', 'wb').write(b'x' * {2 * DISK_MIB * 1024**2})"
    assert re.search(r"OSError.*(No space|too large)", evil.expect("error", fill).text)
    evil.still_works()
    assert evil.text(f"import os; os.remove('{WORKSPACE}/big'); open('{WORKSPACE}/small', 'w').write('fits')") == "4"


# -- secrets ----------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_nothing_of_the_gateway_is_in_the_sandbox(evil: Attacker) -> None:
    there = Path(f"/proc/{evil.gateway.process.pid}/environ").read_text()
    assert CANARY in there  # the canary is planted, and the search uses the same words
    secrets = [CANARY, *KEYS.values(), str(evil.gateway.state_dir), evil.gateway.instance]
    seen = evil.probe(probes.surroundings)
    assert [secret for secret in secrets if secret in seen] == []
    assert "connection.json" in seen  # arguments were searched
    assert "KERNEL_GATEWAY" not in seen.replace("KERNEL_GATEWAY_SESSION", "")
    assert f"HOME={WORKSPACE}" in seen  # environments were searched, too


@pytest.mark.gate
def test_the_environment_is_an_allow_list(evil: Attacker) -> None:
    names = set(json.loads(evil.text("import os, json; print(json.dumps(sorted(os.environ)))")))
    set_by_ipykernel = {"CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER", "MPLBACKEND", "PAGER"}
    set_by_us = {"HOME", "LANG", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PATH", "TERM"}
    of_the_sandbox = {
        "KERNEL_GATEWAY_SESSION",
        "KERNEL_NETWORK",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "PIP_RETRIES",
        "PYTHONUSERBASE",
        *PRIVATE_PLACES,
    }
    assert names - set_by_ipykernel - {"PYDEVD_USE_FRAME_EVAL"} == set_by_us | of_the_sandbox


def test_outside_its_sandbox_a_kernels_keys_are_only_in_the_ledger(evil: Attacker) -> None:
    connection = json.loads(evil.text(f"print(open('{PRIVATE}/.connection.json').read())"))
    used = evil.text("print(get_ipython().kernel.session.key.decode())").strip()
    assert connection["key"] == used
    secrets = [connection[name] for name in ("key", "curve_publickey", "curve_secretkey")]
    container = evil.container["Id"]
    with_engine = inspected(container)
    files = [file for file in evil.gateway.state_dir.iterdir() if file.is_file()]
    # The next gateway needs them: they are in the ledger, which only the gateway's user can read.
    ledger = [file for file in files if file.name.startswith("ledger.db")]
    assert all(any(secret.encode() in file.read_bytes() for file in ledger) for secret in secrets)
    assert [file for file in ledger if file.stat().st_mode & 0o077] == []
    elsewhere = [
        with_engine,
        evil.gateway.log.read_text(),
        *(file.read_bytes().decode(errors="replace") for file in files if file not in ledger),
        *map(" ".join, command_lines()),
    ]
    assert [secret for secret in secrets if any(secret in place for place in elsewhere)] == []
    assert container in with_engine  # the record was searched
    assert evil.session in elsewhere[1]  # the log was searched, too


def test_every_kernel_and_every_restart_has_its_own_keys(evil: Attacker) -> None:
    show = "print(get_ipython().kernel.session.key.decode())"
    before = evil.text(show)
    assert evil.gateway.call("POST", f"/v1/sessions/{evil.session}/restart").status_code == 200
    assert evil.text(show) not in {before, evil.gateway.text("neighbour", show, tenant="bob")}


def test_output_outside_the_channels_fills_no_log(evil: Attacker) -> None:
    record = json.loads(inspected(evil.container["Id"]))
    assert record["HostConfig"]["LogConfig"] == {"Type": "none", "Config": {}}
    assert record["LogPath"] == ""
    evil.expect("ok", "import os\nfor _ in range(20):\n    os.write(1, b'x' * 2**20)", timeout=30)
    folder = Path("/var/lib/docker/containers") / record["Id"]
    assert [file.name for file in folder.glob("*.log*")] == []
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 2**20


def test_the_image_brings_no_secret(own: Bench) -> None:
    image = own.client.images.get(IMAGE)
    assert {entry.partition("=")[0] for entry in image.attrs["Config"]["Env"]} <= {"PATH", "LANG"}
    history = json.dumps(image.history())
    assert "pip install" in history
    assert not re.search(r"(?i)(password|token|secret|https?://[^ ]*@)", history)
