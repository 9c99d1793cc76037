from __future__ import annotations

import asyncio
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool

from kernel_image import protocol
from sessions.backends.abilities import Ability
from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.docker import DockerBackend, DockerSettings, doctor, examine
from sessions.backends.docker.checkpoint import trials
from sessions.backends.docker.container.handle import DockerHandle
from sessions.backends.docker.disks.helper import helper_config
from sessions.backends.docker.engine.cgroup import ROOT
from sessions.backends.docker.engine.timer_slack import LATE, PROMPT
from sessions.backends.docker.fairness.idle_slowdown import IdleSlowdown
from sessions.backends.docker.isolation import firewall, network, proof
from sessions.backends.docker.profile import (
    INSTANCE_LABEL,
    PRIVATE,
    WHEELS,
    WORKSPACE,
    SleepSettings,
    disks_of,
    environment,
    host_config,
    volume_names,
)
from sessions.backends.docker.sleep import SLEEPS
from sessions.kernels.kernel import Kernel
from sessions.kernels.messages import Message
from sessions.model.errors import ConnectionFailed, NotInitialized, SessionClosed, StartFailed
from sessions.model.kernelspecs import NO_KERNEL, KernelSpecs
from sessions.model.tasks import spawn
from sessions.model.values import Limits
from tests.fakes import Listener, background, until
from tests.figures import hold
from tests.host import processes
from tests.sessions.backends.docker.kernels import weight_file

PYTHON = KernelSpecs(KERNEL_IMAGE / "kernelspecs").find("python")
#: network of these tests alone, because they remove its rules
NETWORK = "kernel-gateway-proof"
BRIDGE = network.bridge_name(NETWORK)
CHAIN = firewall.chain_name(BRIDGE)
MIB = 1024**2


def remains(container: str, workspace: str) -> list[str]:
    """Return the processes of a container and the mounts of a workspace on this host."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if workspace in line]
    return [*mounts, *processes(container)]


def settings_of(**changes: Any) -> DockerSettings:
    settings = DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, f"test-{uuid.uuid4().hex}")
    return replace(settings, **changes)


def container_of(kernel: Kernel) -> DockerHandle:
    """Return a kernel's container, with all that only this backend knows of it."""
    assert isinstance(kernel.handle, DockerHandle)
    return kernel.handle


def slacks(handle: DockerHandle) -> set[int]:
    """Return the timer slacks of a container's threads, in nanoseconds."""
    found = set()
    for thread in handle.cgroup.threads():
        with suppress(OSError):  # ended meanwhile
            found.add(int(Path(f"/proc/{thread}/timerslack_ns").read_text()))
    return found


async def run(kernel: Kernel, code: str) -> str:
    """Run a cell, and return what it has printed."""
    listener = Listener()
    kernel.attach(listener)
    msg_id = kernel.connection.send("shell", "execute_request", {"code": code, "silent": False, "allow_stdin": False})

    def of_cell() -> list[Message]:
        return [message for message in listener.messages if message.parent_id == msg_id]

    await until(lambda: any(message.content.get("execution_state") == "idle" for message in of_cell()))
    return "".join(message.content["text"] for message in of_cell() if message.type == "stream")


class TestProfile:
    LIMITS = Limits(memory=300 * MIB, cpus=1.5, processes=20, disk=40 * MIB)

    def test_memory_includes_swap(self) -> None:
        config = host_config(settings_of(), self.LIMITS, "w", gvisor=True)
        assert config["mem_limit"] == config["memswap_limit"] == 300 * MIB

    def test_only_memory_of_limited_size_is_writable(self) -> None:
        config = host_config(settings_of(), self.LIMITS, "w", gvisor=True)
        assert config["read_only"] is True
        assert set(config["tmpfs"]) == {"/tmp", PRIVATE}
        assert all("size=" in options for options in config["tmpfs"].values())
        (mount,) = config["mounts"]
        assert mount["Target"] == WORKSPACE
        assert f"size={40 * MIB}," in mount["VolumeOptions"]["DriverConfig"]["Options"]["o"]

    @pytest.mark.parametrize(("cpus", "quota"), [(0.1, 1000), (1, 10_000), (2.5, 25_000)])
    def test_a_kernel_that_has_used_its_share_waits_ten_milliseconds_at_most(self, cpus: float, quota: int) -> None:
        config = host_config(settings_of(), replace(self.LIMITS, cpus=cpus), "w", gvisor=True)
        assert (config["cpu_period"], config["cpu_quota"]) == (10_000, quota)

    def test_no_privileges_no_published_ports_no_log(self) -> None:
        config = host_config(settings_of(), self.LIMITS, "w", gvisor=True)
        assert config["cap_drop"] == ["ALL"]
        assert config["security_opt"] == ["no-new-privileges"]
        assert config["log_config"]["Type"] == "none"
        assert not {"privileged", "binds", "port_bindings", "devices", "cap_add", "pid_mode"} & set(config)

    def test_the_sandbox_counts_processes_and_the_host_is_a_backstop(self) -> None:
        guest = host_config(settings_of(), self.LIMITS, "w", gvisor=True)
        assert {limit["Name"]: limit["Hard"] for limit in guest["ulimits"]}["nproc"] == 20
        assert guest["pids_limit"] >= 27 + 6 * 20
        plain = host_config(settings_of(runtime="runc"), self.LIMITS, "w", gvisor=False)
        assert plain["pids_limit"] == 20
        assert "nproc" not in {limit["Name"] for limit in plain["ulimits"]}

    def test_sharing_a_workspace_also_shares_tmp_and_changes_nothing_else(self) -> None:
        settings = settings_of()
        alone = host_config(settings, self.LIMITS, "w", gvisor=True)
        shared = host_config(settings, self.LIMITS, "w", gvisor=True, shared=True)
        assert set(shared["tmpfs"]) == {PRIVATE}
        files, temporary = shared["mounts"]
        assert [files] == alone["mounts"]
        assert temporary["Target"] == "/tmp"
        assert (files["Source"], temporary["Source"]) == volume_names("w")
        options = temporary["VolumeOptions"]["DriverConfig"]["Options"]
        assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
        assert set(options["o"].split(",")) == {
            "nosuid",
            "nodev",
            f"size={64 * MIB}",
            "uid=65532",
            "gid=65532",
            "mode=1777",
        }
        assert temporary["VolumeOptions"]["NoCopy"] is True
        different = {"tmpfs", "mounts"}
        assert {name: str(value) for name, value in shared.items() if name not in different} == {
            name: str(value) for name, value in alone.items() if name not in different
        }

    def test_a_workspace_on_disk_is_the_device_that_was_made_for_it(self) -> None:
        devices = dict(zip(volume_names("w"), ["/dev/loop7", "/dev/loop8"], strict=True))
        config = host_config(settings_of(), self.LIMITS, "w", gvisor=True, shared=True, devices=devices)
        memory = host_config(settings_of(), self.LIMITS, "w", gvisor=True, shared=True)
        for mount, other, device in zip(config["mounts"], memory["mounts"], devices.values(), strict=True):
            options = mount["VolumeOptions"].pop("DriverConfig")["Options"]
            assert (options["type"], options["device"]) == ("ext4", device)
            assert set(options["o"].split(",")) == {"nosuid", "nodev", "noatime", "barrier=0", "noinit_itable"}
            other["VolumeOptions"].pop("DriverConfig")
            assert mount["VolumeOptions"]["NoCopy"] == other["VolumeOptions"]["NoCopy"]
            assert mount["Target"] == other["Target"]

    def test_the_disks_of_a_workspace_have_its_limits_and_are_its_own(self) -> None:
        files, temporary = disks_of(settings_of(temporary=30 * MIB), self.LIMITS, "w", shared=True)
        assert (files.name, temporary.name) == volume_names("w")
        assert (files.target, files.size, files.mode) == (WORKSPACE, 40 * MIB, "0700")
        assert (temporary.target, temporary.size, temporary.mode) == ("/tmp", 30 * MIB, "1777")
        assert disks_of(settings_of(), self.LIMITS, "w", shared=False) == [files]

    def test_the_helper_has_loop_devices_and_its_images_and_nothing_else(self) -> None:
        config = helper_config("images", settings_of())
        devices, images = config.pop("mounts")
        assert (devices["Source"], devices["ReadOnly"], images["Source"]) == ("/dev", True, "images")
        assert config.pop("log_config")["Type"] == "none"
        assert config == {
            "runtime": "runc",
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "device_cgroup_rules": ["b 7:* rw", "c 10:237 rw"],
            "mem_limit": "128m",
            "memswap_limit": "128m",
            "pids_limit": 32,
            "auto_remove": True,
        }

    def test_wheels_can_be_read_and_not_written(self) -> None:
        assert len(host_config(settings_of(), self.LIMITS, "w", gvisor=True)["mounts"]) == 1
        _, mount = host_config(settings_of(wheels="/srv/wheels"), self.LIMITS, "w", gvisor=True)["mounts"]
        assert mount == {"Target": WHEELS, "Source": "/srv/wheels", "Type": "bind", "ReadOnly": True}

    def test_pip_asks_no_index_where_there_are_wheels(self) -> None:
        alone, with_wheels = (environment(settings_of(wheels=wheels), online=False) for wheels in ("", "/srv/wheels"))
        assert with_wheels == alone | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS}
        assert set(with_wheels) == set(protocol.SANDBOX_VARIABLES), "commands get the same ones"

    def test_volumes_of_a_shared_workspace_have_the_labels_of_the_installation(self) -> None:
        settings = settings_of()
        config = host_config(settings, self.LIMITS, "w", gvisor=True, shared=True)
        assert [mount["VolumeOptions"]["Labels"] for mount in config["mounts"]] == [settings.labels] * 2


@pytest.fixture
def api() -> Iterator[docker.APIClient]:
    client = docker.from_env()
    yield client.api
    remove_network(client.api)
    remove_rules()
    client.close()


def remove_network(api: docker.APIClient) -> None:
    for _ in range(50):
        try:
            return api.remove_network(NETWORK)
        except NotFound:
            return None
        except APIError:  # the engine has not disconnected the last container yet
            time.sleep(0.1)
    raise AssertionError("the network stays in use")


def remove_rules() -> None:
    for program, rule in firewall.rules(BRIDGE):
        while subprocess.run([program, "-w", "-D", *rule], check=False, capture_output=True).returncode == 0:
            continue
    iptables("-F", CHAIN)
    iptables("-X", CHAIN)


@pytest.fixture
async def backend(api: docker.APIClient) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(settings_of())
    yield backend
    await backend.close()


def iptables(*arguments: str) -> int:
    return subprocess.run(["iptables", "-w", *arguments], check=False, capture_output=True).returncode


@pytest.mark.engine
class TestProof:
    @pytest.mark.gate
    async def test_the_gateways_own_network_and_rules_pass(self, backend: DockerBackend) -> None:
        await backend.prepare()
        assert firewall.ensure_rules(BRIDGE) is firewall.Rules.SET

    @pytest.mark.parametrize(
        "rule",
        [["INPUT", "-i", BRIDGE, "-j", CHAIN], pytest.param([CHAIN, "-j", "DROP"], marks=pytest.mark.gate)],
        ids=" ".join,
    )
    async def test_a_rule_that_is_taken_away_is_put_up_again(self, backend: DockerBackend, rule: list[str]) -> None:
        await backend.prepare()
        assert iptables("-D", *rule) == 0
        await backend.prepare()
        assert iptables("-C", *rule) == 0

    async def test_gateways_that_set_up_one_bridge_at_once_do_not_lock_themselves_out(
        self, api: docker.APIClient
    ) -> None:
        address = network.ensure_network(api, NETWORK)
        for _ in range(5):
            remove_rules()
            await asyncio.gather(*(asyncio.to_thread(firewall.ensure_rules, BRIDGE) for _ in range(4)))
        proven = await asyncio.to_thread(proof.prove, api, settings_of(), address)
        assert proven.gvisor
        assert proven.inventory.packages["ipykernel"] >= "7"

    @pytest.mark.gate
    def test_without_the_rules_a_kernel_reaches_the_host_and_the_proof_says_so(self, api: docker.APIClient) -> None:
        address = network.ensure_network(api, NETWORK)
        with pytest.raises(NotInitialized, match="reaches the host"):
            proof.prove(api, settings_of(), address)

    @pytest.mark.gate
    def test_on_an_open_bridge_kernels_reach_one_another_and_the_proof_says_so(self, api: docker.APIClient) -> None:
        api.create_network(NETWORK, internal=True, options={"com.docker.network.bridge.name": BRIDGE})
        firewall.ensure_rules(BRIDGE)
        assert iptables("-D", "DOCKER-USER", "-i", BRIDGE, "-j", "DROP") == 0  # the host is closed, the peer is open
        address = api.inspect_network(NETWORK)["IPAM"]["Config"][0]["Gateway"]
        with pytest.raises(NotInitialized, match="reaches another kernel"):
            proof.prove(api, settings_of(), address)

    def test_the_proof_notices_who_reaches_the_proxy(self, api: docker.APIClient) -> None:
        """A service of another network stands for the proxy; an address where nothing answers, for one out of reach."""
        address = network.ensure_network(api, NETWORK)
        firewall.ensure_rules(BRIDGE)
        nothing = ("192.0.2.1", 3128)
        assert proof.prove(api, settings_of(), address, nothing).gvisor
        with pytest.raises(NotInitialized, match="does not reach the egress proxy"):
            proof.prove(api, settings_of(), address, nothing, proxied=True)
        with closing(socket.create_server((address, 0))) as proxy:
            port = proxy.getsockname()[1]
            assert iptables("-I", CHAIN, "-p", "tcp", "--dport", str(port), "-j", "ACCEPT") == 0
            with pytest.raises(NotInitialized, match="without a network reaches the egress proxy"):
                proof.prove(api, settings_of(), address, (address, port))
            assert proof.prove(api, settings_of(), address, (address, port), proxied=True).gvisor

    def test_another_networks_name_is_refused(self, api: docker.APIClient) -> None:
        api.create_network(NETWORK, ipam=IPAMConfig(pool_configs=[IPAMPool(subnet="10.254.253.0/24")]))
        with pytest.raises(NotInitialized, match="not made by the gateway"):
            network.ensure_network(api, NETWORK)

    @pytest.mark.gate
    def test_a_runtime_that_is_no_gvisor_is_refused_under_another_name(self, api: docker.APIClient) -> None:
        address = network.ensure_network(api, NETWORK)
        firewall.ensure_rules(BRIDGE)
        assert not proof.prove(api, settings_of(runtime="runc"), address).gvisor, "runc is allowed by its name"
        with pytest.raises(NotInitialized, match="not gVisor"):
            proof.prove(api, settings_of(runtime="io.containerd.runc.v2"), address)

    @pytest.mark.usefixtures("api")
    def test_the_doctor_writes_as_a_trial_of_a_sleeping_kernel_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = settings_of(sleep=SleepSettings(tmp_path, lambda: b""))
        proven = Ability(on=True, detail="the runtime restores sandboxes")
        monkeypatch.setattr(doctor, "_golden", lambda _: (proven, proven))

        def said() -> str:
            return {finding.name: finding.detail for finding in examine(settings)}["sleep"]

        assert said() == f"on, {SLEEPS}"
        monkeypatch.setattr(trials, "_SHARED_MEMORY", Path("/proc"))  # nothing can be made there
        assert said().startswith("off, /proc/")
        assert list(Path("/dev/shm").glob(f"kernel-gateway-{settings.instance}-*")) == []

    @pytest.mark.usefixtures("api")
    def test_the_doctor_finds_no_problem_and_reports_missing_requirements(self) -> None:
        assert not any(finding.problem for finding in examine(settings_of()))
        sick = {finding.name: finding for finding in examine(settings_of(image="no/such:image", runtime="no-such"))}
        assert not sick["image"].ok
        assert not sick["runtime"].ok
        assert sick["image"].fix
        assert "files" not in sick, "its check needs the image, so it would name a wrong cause"


@pytest.mark.engine
class TestContainers:
    @pytest.mark.gate
    async def test_containers_of_an_earlier_gateway_are_removed_and_foreign_ones_are_kept(
        self, api: docker.APIClient
    ) -> None:
        mine, foreign = settings_of(), settings_of()
        left = DockerBackend(mine)
        other = DockerBackend(foreign)
        await left.prepare()
        await other.prepare()
        lost = await Kernel.start(left, Launch(PYTHON))
        kept = await Kernel.start(other, Launch(PYTHON))
        lost.connection.close()
        after = DockerBackend(mine)
        await after.prepare()
        assert api.containers(filters={"id": lost.handle.id}), "the kernel can still be taken over"
        assert await after.adopt({}, ()) == {}
        assert not api.containers(all=True, filters={"id": lost.handle.id})
        assert api.containers(filters={"id": kept.handle.id})
        await asyncio.gather(left.close(), other.close(), after.close())
        await kept.kill(SessionClosed())

    async def test_deleting_a_workspace_deletes_both_its_volumes(
        self, api: docker.APIClient, backend: DockerBackend
    ) -> None:
        await backend.prepare()
        label = f"{INSTANCE_LABEL}={backend.settings.instance}"

        def volumes() -> set[str]:
            return {volume["Name"] for volume in api.volumes(filters={"label": label})["Volumes"] or []}

        workspace = uuid.uuid4().hex
        handle = await backend.start(Launch(NO_KERNEL, workspace=workspace, shared=True))
        assert volumes() == set(volume_names(workspace))
        await handle.kill()
        assert volumes() == set(volume_names(workspace))
        await backend.delete_workspace(workspace)
        assert volumes() == set()

    async def test_gvisor_sees_a_second_processor_beside_that_of_a_kernel(
        self, api: docker.APIClient, backend: DockerBackend
    ) -> None:
        """With one only, gVisor's network waits up to 20 ms for the processor at each message after a pause."""
        await backend.prepare()
        handle = await backend.start(Launch(NO_KERNEL, workspace=uuid.uuid4().hex))
        program = ["nproc", "--all"]
        seen = int(api.exec_start(api.exec_create(handle.id, program)["Id"]))
        assert seen == min(2, api.info()["NCPU"])

    @pytest.mark.gate
    async def test_a_container_removed_behind_our_back_is_noticed(
        self, api: docker.APIClient, backend: DockerBackend
    ) -> None:
        await backend.prepare()
        kernel = await Kernel.start(backend, Launch(PYTHON))
        await asyncio.to_thread(api.remove_container, kernel.handle.id, force=True)
        async with asyncio.timeout(60):
            await kernel.wait()

    async def test_a_kernel_that_computes_gets_less_weight_than_one_of_another_tenant(
        self, backend: DockerBackend
    ) -> None:
        await backend.prepare()
        busy, idle = [await Kernel.start(backend, Launch(PYTHON, tenant=tenant)) for tenant in ("a", "b")]
        busy.connection.send("shell", "execute_request", {"code": "while True: pass", "silent": True})

        def weight_of(kernel: Kernel) -> int:
            return int(weight_file(kernel.handle.id).read_text())

        await until(lambda: 5 * weight_of(busy) < weight_of(idle))

    @pytest.mark.gate
    async def test_all_kernels_are_in_one_group_with_little_weight(self, backend: DockerBackend) -> None:
        await backend.prepare()
        kernel = await Kernel.start(backend, Launch(PYTHON))
        assert (kernel.handle.memory() or 0) > MIB
        assert (kernel.handle.processor_seconds() or 0) > 0
        files = {ROOT / "kernels.slice" / "cpu.weight": 100, ROOT / "cpu" / "kernels.slice" / "cpu.shares": 1024}
        ((file, usual),) = [each for each in files.items() if each[0].exists()]
        file.write_text(str(usual))  # the group, and what an earlier gateway has set, may be older than this one
        await until(lambda: 5 * int(file.read_text()) < usual)

    @pytest.mark.full
    async def test_a_kernel_that_nobody_uses_costs_little_and_answers_with_its_variables(
        self, backend: DockerBackend
    ) -> None:
        await backend.prepare()
        control, kernel = [await Kernel.start(backend, Launch(PYTHON)) for _ in range(2)]
        used = Listener()
        used.in_use = True
        control.attach(used)
        await run(kernel, "x = 41")
        handles = [container_of(each) for each in (control, kernel)]
        await until(lambda: handles[1].timer_slack.late)

        def seconds() -> list[float]:
            return [handle.cgroup.seconds() or 0.0 for handle in handles]

        before = seconds()
        await asyncio.sleep(25)  # longer than a kernel that does not answer the system's questions is kept
        usual, at_rest = [after - earlier for after, earlier in zip(seconds(), before, strict=True)]
        assert [slacks(handle) for handle in handles] == [{PROMPT}, {LATE}]
        hold("processor time of an idle kernel at rest", at_rest, usual / 4)
        assert await run(kernel, "print(x + 1)") == "42\n"
        assert slacks(handles[1]) == {PROMPT}

    async def test_a_kernel_at_rest_goes_on_with_what_it_does_for_itself(
        self, backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(IdleSlowdown, "interval", 3600.0)  # else this work would end the rest
        await backend.prepare()
        kernel = await Kernel.start(backend, Launch(PYTHON))
        handle = container_of(kernel)
        await run(
            kernel,
            "import threading, time\n"
            "def tick():\n    while True: print('tick', flush=True); time.sleep(0.2)\n"
            "threading.Thread(target=tick, daemon=True).start()",
        )
        ticks: list[Message] = []
        kernel.attach(Listener(ticks.append))
        handle.timer_slack.make_late()
        await until(lambda: sum(message.type == "stream" for message in ticks) > 5)
        assert slacks(handle) == {LATE}

    @pytest.mark.parametrize("what", ["files", "interrupt", "end", "docker rm -f", "docker exec", "new gateway"])
    async def test_nothing_that_is_asked_of_a_kernel_at_rest_hangs(
        self, api: docker.APIClient, backend: DockerBackend, what: str
    ) -> None:
        await backend.prepare()
        kernel = await Kernel.start(backend, Launch(PYTHON))
        handle = container_of(kernel)
        await run(kernel, "x = 41")
        if what == "interrupt":
            cell = spawn(run(kernel, "import time; time.sleep(60)"), "cell")
            await asyncio.sleep(1)  # it has begun
        await until(lambda: not handle.in_use)
        handle.timer_slack.make_late()
        assert slacks(handle) == {LATE}
        match what:
            case "files":
                output = handle.run_tool("files", '{"op": "list", "path": "", "size": 0}')
                assert b"entries" in b"".join([piece async for piece in output])
            case "interrupt":
                await handle.interrupt()
                await cell
            case "end":
                await kernel.kill(SessionClosed())
            case "docker rm -f":
                await asyncio.to_thread(api.remove_container, handle.id, force=True)
                await kernel.wait()
            case "docker exec":
                made = await asyncio.to_thread(api.exec_create, handle.id, ["/bin/echo", "here"])
                assert await asyncio.to_thread(api.exec_start, made["Id"]) == b"here\n"
            case "new gateway":
                kernel.connection.close()
                later = DockerBackend(backend.settings)
                await later.prepare()
                adopted = await later.adopt({handle.id: handle.connection_info}, [str(kernel.launch.workspace)])
                after = await Kernel.take_over(kernel.launch, adopted[handle.id])
                await after.first_answer()
                assert await run(after, "print(x + 1)") == "42\n"
                assert slacks(handle) == {PROMPT}
                after.connection.close()
                await later.release()

    @pytest.mark.parametrize("how", ["end of the session", "docker rm -f", "docker kill"])
    async def test_a_container_that_is_paused_or_has_an_unread_download_leaves_nothing(
        self, api: docker.APIClient, backend: DockerBackend, how: str
    ) -> None:
        await backend.prepare()
        kernel = await Kernel.start(backend, Launch(PYTHON, tenant="a"))
        container, workspace = kernel.handle.id, str(kernel.launch.workspace)
        if how == "end of the session":
            await asyncio.to_thread(api.pause, container)
            await kernel.kill(SessionClosed())
        else:
            large = {"code": f"open('/home/user/big', 'wb').write(bytes({100 * MIB}))", "silent": True}
            await kernel.connection.request("shell", "execute_request", large)
            download = kernel.handle.run_tool("files", '{"op": "read", "path": "big"}')
            await anext(download)
            await asyncio.sleep(0.5)  # the tool has filled all buffers
            # The control: the container's processes and its workspace are found while it runs.
            assert remains(container, workspace)
            end = api.kill if how == "docker kill" else partial(api.remove_container, force=True)
            await asyncio.to_thread(end, container)
            await kernel.wait()
            with pytest.raises(ConnectionFailed):
                async for _ in download:
                    pass
        await backend.delete_workspace(workspace)
        await until(lambda: not remains(container, workspace))

    async def test_a_missing_kernel_program_is_a_failed_start(
        self, api: docker.APIClient, backend: DockerBackend
    ) -> None:
        await backend.prepare()
        broken = replace(PYTHON, argv=("/no/such/kernel",))
        with pytest.raises(StartFailed, match="the kernels' image has no Python 3"):
            await Kernel.start(backend, Launch(broken))
        label = f"{INSTANCE_LABEL}={backend.settings.instance}"
        assert await asyncio.to_thread(api.containers, all=True, filters={"label": label}) == []
        assert background("forget container") == []
