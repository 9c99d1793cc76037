"""A session's disk and the disks of other tenants: each workspace is a file system on a loop device of the host.

The tests run over kernels in gVisor and in plain containers, which the host's own kernel serves. What a tenant cannot
make, such as a device node on its disk, the tests make on the host, as if its disk were one that it had written itself.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.docker.profile import UID, WORKSPACE
from tests.attacks import probes
from tests.attacks.bench import Bench
from tests.attacks.cells import Attacker
from tests.attacks.conftest import siege
from tests.attacks.vitals import Vitals

pytestmark = [pytest.mark.engine, pytest.mark.measured]

MIB = 1024**2
DISK = 16 * MIB
#: room for the file system's own tables, which an image has besides the workspace
TABLES = DISK // 16 + MIB
#: folders in which a session may make files: its workspace, and three of its memory
OWN = [WORKSPACE, "/tmp", "/dev/shm", "/home/kernel"]


@pytest.fixture(scope="module", params=["runsc", "runc"])
def at_rest(network: str, request: pytest.FixtureRequest) -> Iterator[Vitals]:
    """A gateway with each runtime."""
    with siege(runtime=request.param) as vitals:
        yield vitals


@dataclass(frozen=True)
class Disk:
    """A session's disk, as the host sees it."""

    #: loop device
    device: str
    #: image file that the device shows
    image: Path
    #: where the host has mounted the device
    mounted: Path

    @property
    def number(self) -> tuple[str, int, int]:
        device = os.stat(self.device).st_rdev  # noqa: PTH116
        return "b", os.major(device), os.minor(device)


def disk_of(session: Attacker) -> Disk:
    (mount,) = (each for each in session.container["Mounts"] if each["Destination"] == WORKSPACE)
    listed = subprocess.run(["losetup", "--list", "--json"], check=True, capture_output=True, text=True).stdout
    (device,) = (
        each["name"] for each in json.loads(listed)["loopdevices"] if Path(each["back-file"]).stem == mount["Name"]
    )
    folder = Path(mount["Source"]).parents[1] / f"kernel-gateway-files-{session.gateway.instance}" / "_data"
    return Disk(device, folder / f"{mount['Name']}.img", Path(mount["Source"]))


@pytest.fixture
def neighbour(vitals: Vitals) -> Attacker:
    """Another tenant's session, which attacks nobody."""
    return Attacker(vitals.gateway, "neighbour", "bob")


@pytest.fixture
def mark(neighbour: Attacker) -> Iterator[str]:
    """A secret in a file of the neighbour's, which is on the disk and not only in the host's memory."""
    text = secrets.token_hex(32)
    neighbour.text(f"import os\nwith open('secret', 'w') as f: f.write({text!r}); f.flush(); os.fsync(f.fileno())")
    os.sync()
    # Linux keeps what an earlier test has read of the device, although the file system has written there since.
    subprocess.run(["blockdev", "--flushbufs", disk_of(neighbour).device], check=True)
    yield text
    neighbour.text("os.remove('secret')")


def test_other_users_of_the_host_read_no_disk(neighbour: Attacker, mark: str) -> None:
    """They see the paths of all images: Linux shows which file a loop device has."""
    theirs = disk_of(neighbour)
    assert probes.holding([str(theirs.image)], mark, [], []), "control: root finds it there"
    assert stat.S_IMODE(theirs.image.stat().st_mode) == 0o600
    assert not Path(theirs.device).stat().st_mode & stat.S_IROTH


@pytest.mark.gate
def test_no_way_leads_to_the_disk_of_another_tenant(evil: Attacker, neighbour: Attacker, mark: str, own: Bench) -> None:
    theirs, mine = disk_of(neighbour), disk_of(evil)
    assert (theirs.device, theirs.image) != (mine.device, mine.image)
    secret = theirs.mounted / "secret"
    direct = [theirs.device, str(theirs.image), str(secret)]
    around = [f"/proc/1/root{path}" for path in direct] + [f"{WORKSPACE}/../../..{path}" for path in direct]
    around += [f"/proc/self/cwd/../..{secret}", f"/sys/dev/block/{theirs.number[1]}:{theirs.number[2]}/../secret"]
    numbers = [list(theirs.number), list(mine.number)]
    assert evil.probe(probes.holding, [*direct, *around], mark, OWN, numbers, timeout=60) == []
    # Root on the host finds it by each of the direct ways, and by a node that it has made for the device's number.
    volumes = {folder: {"bind": folder, "mode": "ro"} for folder in ("/dev", str(theirs.mounted.parents[1]))}
    root = {"runtime": "runc", "user": "0:0", "device_cgroup_rules": ["b 7:* rwm"], "volumes": volumes}
    found = own.probe(probes.holding, direct, mark, ["/tmp"], numbers, **root)
    node = "/tmp/node-{}-{}-{}".format(*theirs.number)
    assert found == [*direct, *(f"/tmp/link-{number}" for number in range(3)), node]


def test_a_file_has_a_second_name_only_on_its_own_disk(evil: Attacker) -> None:
    evil.text("open('file', 'w').write('own'); open('/tmp/file', 'w').write('own')")
    others = ["/etc/passwd", "/opt/kernel/launcher.py", "/tmp/file", "/home/kernel/.connection.json"]
    assert evil.probe(probes.linked, [*others, f"{WORKSPACE}/file"], WORKSPACE) == [f"{WORKSPACE}/file"]


def test_a_device_on_a_disk_is_opened_by_no_cell_no_file_tool_and_not_by_the_host(
    evil: Attacker, neighbour: Attacker, mark: str
) -> None:
    theirs, mine = disk_of(neighbour), disk_of(evil)
    _, major, minor = theirs.number
    with ExitStack() as stack:
        for folder in (mine.mounted, Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev")))):
            node = folder / "node"
            os.mknod(node, stat.S_IFBLK | 0o666, os.makedev(major, minor))
            os.chown(node, UID, UID)
            stack.callback(node.unlink)
        assert probes.holding([str(node)], mark, [], []) == [str(node)], "control: the node shows the neighbour's disk"
        assert probes.holding([str(mine.mounted / "node")], mark, [], []) == []
        assert evil.text("import os; print(os.listdir())") == "['node']\n", "control: it is there"
        assert evil.probe(probes.holding, [f"{WORKSPACE}/node"], mark, [], []) == []
        files = f"/v1/sessions/{evil.session}/files"
        for answer in (
            evil.gateway.call("GET", f"{files}/node", tenant=evil.tenant),
            evil.gateway.call("GET", f"{files}/node", tenant=evil.tenant, headers={"Range": "bytes=0-1048575"}),
        ):
            assert answer.status_code in {400, 403, 404, 409}, answer.text[:200]
            assert mark not in answer.text
        assert evil.gateway.call("PUT", f"{files}/node", tenant=evil.tenant, data=b"own").status_code < 500
        assert neighbour.text("print(open('secret').read())").strip() == mark
    evil.still_works()
    neighbour.still_works()


def test_a_program_of_root_on_a_disk_gives_no_rights(evil: Attacker) -> None:
    """The engine mounts disks without set-uid, and no process of a sandbox may gain rights."""
    mine = disk_of(evil)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for copy in (Path(folder) / "id", mine.mounted / "id"):
            shutil.copy("/usr/bin/id", copy)
            copy.chmod(0o6755)
        assert who(Path(folder) / "id") == 0, "control: elsewhere it runs as root"
        assert who(mine.mounted / "id") == UID
        told = evil.text(f"import subprocess; print(subprocess.run(['{WORKSPACE}/id', '-u'], capture_output=True))")
        assert f"stdout=b'{UID}" in told
        (mine.mounted / "id").unlink()


def who(program: Path) -> int:
    """Return the effective user of a program that a user without rights starts on the host."""
    asked: dict[str, Any] = {"cwd": program.parent, "user": UID, "group": UID, "extra_groups": []}
    done = subprocess.run([f"./{program.name}", "-u"], check=True, capture_output=True, text=True, **asked)
    return int(done.stdout)


def test_a_full_disk_takes_no_room_of_others(evil: Attacker, neighbour: Attacker) -> None:
    mine = disk_of(evil)
    written, error = evil.probe(probes.filled, WORKSPACE, timeout=60)
    assert (written <= (DISK + TABLES) // MIB, error) == (True, "ENOSPC")
    files, error = evil.probe(probes.crowded, WORKSPACE, 10 * DISK // 8192, timeout=60)
    assert (files <= 2 * DISK // 8192, error) == (True, "ENOSPC")
    os.sync()
    assert mine.image.stat().st_size <= DISK + TABLES
    assert mine.image.stat().st_blocks * 512 <= DISK + TABLES
    assert neighbour.probe(probes.filled, WORKSPACE, DISK // MIB // 2) == [DISK // MIB // 2, None]
