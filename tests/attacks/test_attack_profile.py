"""Each line of the hardening profile keeps something out: without the line, the same attack succeeds.

The containers have exactly the gateway's profile, so that a test needs no gateway. Where gVisor refuses an attack in
any case, the attack runs on the plain runtime, for which the profile is the wall.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.types import LogConfig, Ulimit

from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.docker.container import containers
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.profile import (
    INSTANCE_LABEL,
    PRIVATE,
    PYTHON,
    UID,
    WORKSPACE,
    DockerSettings,
    host_config,
)
from sessions.model.kernelspecs import KernelSpecs
from sessions.model.values import Limits
from tests.attacks import probes
from tests.attacks.bench import IMAGE, RUN
from tests.attacks.cells import MARK, answer_in, call_of
from tests.attacks.vitals import wait_until

pytestmark = pytest.mark.engine

MIB = 1024**2
LIMITS = Limits(memory=300 * MIB, cpus=0.5, processes=40, disk=24 * MIB)
#: seconds that a throw-away container may take
PATIENCE = 60
#: the only difference to the profile in every container, so that its answer can be read
READABLE = LogConfig(type="json-file")
#: planted among the host's shared memory
PLANTED = f"planted-{RUN}"

PROXY = "http://operator:password-5f3b@192.0.2.1:3128"

Config = dict[str, Any]


@dataclass
class Cell:
    """Makes containers with the profile of a kernel."""

    client: docker.DockerClient
    made: list[str] = field(default_factory=list)

    def start(self, program: str, runtime: str = "runsc", **loosened: Any) -> str:
        """Start a container that runs a Python program, with changes to the profile, and return its id."""
        settings = DockerSettings(runtime, IMAGE, "none", f"attack-{RUN}")
        config = host_config(settings, LIMITS, uuid.uuid4().hex, gvisor=runtime == "runsc")
        api = self.client.api
        host = api.create_host_config(**config | loosened)
        command = [PYTHON, "-I", "-S", "-c", program]
        container = api.create_container(IMAGE, command, user=f"{UID}:{UID}", use_config_proxy=False, host_config=host)
        self.made.append(container["Id"])
        api.start(container["Id"])
        return str(container["Id"])

    def probe(self, function: Callable[..., Any], *arguments: Any, runtime: str = "runsc", **loosened: Any) -> Any:
        """Run a probe in a container; None when the container was killed before it answered."""
        container = self.start(call_of(function, *arguments), runtime, **{"log_config": READABLE} | loosened)
        killed = self.client.api.wait(container, timeout=PATIENCE)["StatusCode"] == 137
        said = self.client.api.logs(container).decode(errors="replace")
        return None if killed and MARK not in said else answer_in(said)

    def clear(self) -> None:
        """Remove all that was made."""
        api = self.client.api
        for container in self.made:
            volumes = [mount["Name"] for mount in api.inspect_container(container)["Mounts"] if "Name" in mount]
            api.remove_container(container, force=True)
            for volume in volumes:
                api.remove_volume(volume, force=True)


@pytest.fixture
def cell() -> Iterator[Cell]:
    """Containers with the profile, removed afterwards."""
    with contextlib.closing(docker.from_env(timeout=PATIENCE)) as client:
        made = Cell(client)
        try:
            yield made
        finally:
            made.clear()


def mounts(**options: str) -> list[docker.types.Mount]:
    """Return a mount of the workspace with other options of its volume."""
    driver = docker.types.DriverConfig("local", options)
    name = f"kernel-gateway-attack-{uuid.uuid4().hex}"
    return [docker.types.Mount(WORKSPACE, name, type="volume", no_copy=True, driver_config=driver)]


def ulimits_without(name: str) -> list[Ulimit]:
    """Return the limits of a process with one of them so high that no attack reaches it."""
    config = host_config(DockerSettings("runsc", IMAGE, "none", "x"), LIMITS, "w", gvisor=True)
    most = {"nofile": 65536, "core": -1, "fsize": -1, "nproc": 4096}[name]
    return [*(one for one in config["ulimits"] if one["Name"] != name), Ulimit(name=name, soft=most, hard=most)]


# -- identity ---------------------------------------------------------------------------------------------------


def test_the_runtime_is_gvisor(cell: Cell) -> None:
    assert "Starting gVisor" in cell.probe(probes.boot_log)
    assert "Starting gVisor" not in cell.probe(probes.boot_log, runtime="runc")


@pytest.mark.parametrize("runtime", ["runsc", "runc"])
def test_no_capability_can_be_gained(cell: Cell, runtime: str) -> None:
    assert set(cell.probe(probes.identity, runtime=runtime)["capabilities"].values()) == {0}
    assert cell.probe(probes.identity, runtime=runtime, cap_drop=[])["capabilities"]["CapBnd"] > 0


def test_no_program_gives_more_privileges(cell: Cell) -> None:
    """On gVisor every process has this bit."""
    assert cell.probe(probes.identity, runtime="runc")["no_new_privileges"] == 1
    assert cell.probe(probes.identity, runtime="runc", security_opt=[])["no_new_privileges"] == 0


# -- files ------------------------------------------------------------------------------------------------------


def test_the_image_is_read_only(cell: Cell) -> None:
    assert cell.probe(probes.writable, ["/var/tmp", "/tmp"]) == ["/tmp"]
    assert cell.probe(probes.writable, ["/var/tmp", "/tmp"], read_only=False) == ["/var/tmp", "/tmp"]


def test_folders_are_the_kernels_own(cell: Cell) -> None:
    private = [UID, UID, "0o700"]
    found = cell.probe(probes.mounted, [PRIVATE, WORKSPACE])
    assert [owner for _, *owner, _ in found] == [private, private]
    loose: Config = {"tmpfs": {PRIVATE: "rw,mode=0777"}, "mounts": mounts(type="tmpfs", device="tmpfs", o="mode=0777")}
    found = cell.probe(probes.mounted, [PRIVATE, WORKSPACE], **loose)
    assert [owner for _, *owner, _ in found] == [[0, 0, "0o777"]] * 2


def test_folders_are_memory_and_refuse_devices_and_set_uid_files(cell: Cell) -> None:
    """gVisor does not show these options, so the plain runtime shows them."""
    folders = [PRIVATE, WORKSPACE, "/tmp"]
    found = cell.probe(probes.mounted, folders, runtime="runc")
    assert [(kind, options) for kind, *_, options in found] == [("tmpfs", ["nosuid", "nodev"])] * 3
    loose: Config = {"tmpfs": {PRIVATE: "rw,suid,dev", "/tmp": "rw,suid,dev"}, "mounts": mounts()}
    found = cell.probe(probes.mounted, folders, runtime="runc", **loose)
    assert [options for *_, options in found] == [[], [], []]
    assert found[1][0] != "tmpfs"


@pytest.mark.parametrize(
    ("folder", "size", "loosened"),
    [
        ("/tmp", 64, {"tmpfs": {"/tmp": "rw"}}),
        (PRIVATE, 16, {"tmpfs": {PRIVATE: f"rw,uid={UID}"}}),
        (WORKSPACE, 24, {"mounts": mounts(type="tmpfs", device="tmpfs", o="mode=0777")}),
        ("/dev/shm", 64, {"shm_size": 128 * MIB}),
    ],
)
@pytest.mark.parametrize("runtime", ["runsc", "runc"])
def test_folders_hold_so_much_and_no_more(cell: Cell, folder: str, size: int, loosened: Config, runtime: str) -> None:
    written, error = cell.probe(probes.filled, folder, size + 32, runtime=runtime)
    assert written <= size, error
    assert error in {"ENOSPC", "short"}
    assert cell.probe(probes.filled, folder, size + 32, runtime=runtime, **loosened) == [size + 32, None]


@pytest.mark.parametrize("runtime", ["runsc", "runc"])
def test_one_file_has_a_limited_size(cell: Cell, runtime: str) -> None:
    written, error = cell.probe(probes.grown, "/tmp/large", 40, runtime=runtime)
    assert (written, error in {"EFBIG", "short"}) == (24, True)
    loose = ulimits_without("fsize")
    assert cell.probe(probes.grown, "/tmp/large", 40, runtime=runtime, ulimits=loose) == [40, None]


def test_the_hosts_shared_memory_is_not_there(cell: Cell) -> None:
    with contextlib.ExitStack() as stack:
        planted = Path("/dev/shm", PLANTED)
        planted.touch()
        stack.callback(planted.unlink)
        assert PLANTED not in cell.probe(probes.listed, "/dev/shm")
        assert PLANTED in cell.probe(probes.listed, "/dev/shm", ipc_mode="host")


# -- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["runsc", "runc"])
def test_memory_is_limited(cell: Cell, runtime: str) -> None:
    assert cell.probe(probes.allocated, 100, runtime=runtime) == 100
    assert cell.probe(probes.allocated, 400, runtime=runtime) is None
    loose = {"mem_limit": None, "memswap_limit": None}
    assert cell.probe(probes.allocated, 400, runtime=runtime, **loose) == 400


def test_swap_is_no_further_memory(cell: Cell) -> None:
    def swap(**loosened: Any) -> int:
        record = cell.client.api.inspect_container(cell.start("", **loosened))["HostConfig"]
        return int(record["MemorySwap"]) - int(record["Memory"])

    assert swap() == 0
    assert swap(memswap_limit=None) != 0


def test_processors_are_limited(cell: Cell) -> None:
    """The host counts the periods of a share only where there is one."""

    def periods(container: str) -> int:
        usage = cell.client.api.stats(container, stream=False, one_shot=True)["cpu_stats"]
        return int(usage["throttling_data"]["periods"])

    held, free = cell.start("while True: pass"), cell.start("while True: pass", cpu_quota=None)
    wait_until(lambda: periods(held) > 5)
    assert periods(free) == 0


@pytest.mark.parametrize(
    ("runtime", "control"), [("runsc", {"ulimits": ulimits_without("nproc")}), ("runc", {"pids_limit": 512})]
)
def test_processes_are_limited(cell: Cell, runtime: str, control: Config) -> None:
    assert 10 < cell.probe(probes.spawned, 60, runtime=runtime) < 40
    assert cell.probe(probes.spawned, 60, runtime=runtime, **control) == 60


def test_the_host_counts_gvisors_own_processes(cell: Cell) -> None:
    def most(**loosened: Any) -> int | None:
        found = cell.client.api.inspect_container(cell.start("", **loosened))["HostConfig"]["PidsLimit"]
        return None if found is None else int(found)

    assert most() == 512
    assert most(pids_limit=None) is None


def test_descriptors_are_limited(cell: Cell) -> None:
    assert 500 < cell.probe(probes.opened, 2000) < 1024
    assert cell.probe(probes.opened, 2000, ulimits=ulimits_without("nofile")) == 2000


def test_the_host_dumps_no_memory_of_a_crashed_process(cell: Cell) -> None:
    """gVisor never dumps memory; on the plain runtime the host's kernel may start a program of the host for it."""
    assert cell.probe(probes.dumped, runtime="runc") is False
    assert cell.probe(probes.dumped, runtime="runc", ulimits=ulimits_without("core")) is True


# -- the engine -------------------------------------------------------------------------------------------------


def test_the_engine_keeps_no_output(cell: Cell) -> None:
    def kept(**loosened: Any) -> str:
        container = cell.start("print('x' * 1000)", **loosened)
        cell.client.api.wait(container, timeout=PATIENCE)
        return str(cell.client.api.inspect_container(container)["LogPath"])

    assert kept() == ""
    assert Path(kept(log_config=READABLE)).stat().st_size > 1000


def test_an_ended_container_is_not_started_again(cell: Cell) -> None:
    def runs_again(container: str) -> bool:
        record = cell.client.api.inspect_container(container)
        return bool(record["RestartCount"] or record["State"]["Restarting"])

    ended = cell.start("")
    restless = cell.start("", restart_policy={"Name": "always"})
    wait_until(lambda: runs_again(restless))
    assert not runs_again(ended)


def test_no_resolver_of_the_host_is_known(cell: Cell) -> None:
    assert cell.probe(probes.resolvers, network_mode="bridge") == ["127.0.0.1"]
    assert cell.probe(probes.resolvers, network_mode="bridge", dns=["192.0.2.53"]) == ["192.0.2.53"]


#: ways into a container, or out of it, by the engine's name and by its client's; they are never used
OPENINGS: dict[str, tuple[str, Any]] = {
    "PortBindings": ("port_bindings", {50001: 50001}),
    "PublishAllPorts": ("publish_all_ports", True),
    "Binds": ("binds", ["/var/run/docker.sock:/run/docker.sock"]),
    "Devices": ("devices", ["/dev/null"]),
    "DeviceCgroupRules": ("device_cgroup_rules", ["a *:* rwm"]),
    "Privileged": ("privileged", True),
    "CapAdd": ("cap_add", ["SYS_ADMIN"]),
    "GroupAdd": ("group_add", ["0"]),
    "PidMode": ("pid_mode", "host"),
    "UTSMode": ("uts_mode", "host"),
    "UsernsMode": ("userns_mode", "host"),
    "ExtraHosts": ("extra_hosts", {"gateway": "192.0.2.1"}),
    "OomKillDisable": ("oom_kill_disable", True),
}


@dataclass(frozen=True)
class Records:
    """The engine's records of a container of the gateway, and of one with everything open; neither was started."""

    ours: Config
    open: Config


@pytest.fixture
def records(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    """Both containers, made by an operator who has a proxy with a password."""
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": {"httpProxy": PROXY}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    settings = DockerSettings("runsc", IMAGE, "none", f"attack-{RUN}")
    launch = Launch(KernelSpecs(KERNEL_IMAGE / "kernelspecs").find("python"))
    name, workspace = f"kernel-gateway-attack-{RUN}-{uuid.uuid4().hex}", uuid.uuid4().hex
    engine = Engine()
    with contextlib.closing(engine.api) as api:
        disks = Disks(engine, replace(settings, files="memory"))
        ours = containers.create(engine, disks, settings, launch, name=name, workspace=workspace, gvisor=True)
        cell.made.append(ours)
        host = api.create_host_config(**dict(OPENINGS.values()))
        open_ = api.create_container(IMAGE, ["true"], use_config_proxy=True, host_config=host)["Id"]
        cell.made.append(open_)
        return Records(api.inspect_container(ours), api.inspect_container(open_))


def test_a_container_is_made_for_nobody_and_without_the_operators_proxy(records: Records) -> None:
    assert PROXY in json.dumps(records.open)
    assert PROXY not in json.dumps(records.ours)
    assert (records.ours["Config"]["User"], records.ours["Config"]["Hostname"]) == (f"{UID}:{UID}", "sandbox")


def test_a_container_is_known_as_the_gateways(records: Records) -> None:
    """By the label the next gateway removes what this one has left."""
    assert records.ours["Config"]["Labels"][INSTANCE_LABEL] == f"attack-{RUN}"
    assert INSTANCE_LABEL not in records.open["Config"]["Labels"]


def test_a_container_has_no_opening(records: Records) -> None:
    assert [name for name in OPENINGS if not records.open["HostConfig"][name]] == []
    assert [name for name in OPENINGS if records.ours["HostConfig"][name]] == []
    assert [mount["Type"] for mount in records.ours["HostConfig"]["Mounts"]] == ["volume"]
