"""Workspaces on disk: they outlive containers, gateways and the loop devices that show them, up to their limit."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import docker
import pytest

import sessions.backends.docker as docker_module
from sessions.backends.base import KernelHandle, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.disks.helper import helper_config
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.engine.stdio_channel import StdioChannel
from sessions.backends.docker.isolation.proof import Proven
from sessions.backends.docker.profile import DISKS_LABEL, Disk, volume_names
from sessions.model.errors import NotInitialized, StartFailed
from sessions.model.kernelspecs import NO_KERNEL, Inventory
from sessions.model.tasks import spawn
from sessions.model.values import Limits
from tests.attacks.bench import IMAGE, NETWORK_PREFIX, RUN, forget_network, require_root
from tests.fakes import until

pytestmark = pytest.mark.engine
MIB = 1024**2
DISK = 16 * MIB
NETWORK = f"{NETWORK_PREFIX}{RUN}-disks"
LAUNCH = Launch(NO_KERNEL, Limits(disk=DISK))


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[DockerBackend]:
    require_root()
    backend = DockerBackend(DockerSettings("runsc", IMAGE, NETWORK, f"disks-{uuid.uuid4().hex[:8]}"))
    await ready(backend)
    yield backend
    await backend.close()
    forget_network(NETWORK)


async def ready(backend: DockerBackend) -> None:
    """Prepare a backend, without the proof of its isolation, which other tests show."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            docker_module, "prove_isolation", lambda *_: Proven(gvisor=True, inventory=Inventory("3.11", {}))
        )
        await backend.prepare()


async def successor(backend: DockerBackend, *kept: str) -> DockerBackend:
    """Return the backend of the next gateway, which knows these workspaces."""
    after = DockerBackend(backend.settings)
    await ready(after)
    await after.adopt({}, kept)
    return after


async def tool(handle: KernelHandle, op: str, path: str, content: bytes = b"") -> bytes:
    argument = json.dumps({"op": op, "path": path, "size": len(content)})

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    async with aclosing(handle.run_tool("files", argument, pieces())) as output:
        return b"".join([piece async for piece in output])


async def write(backend: DockerBackend, workspace: str, content: bytes) -> None:
    """Write a file in a container that is ended afterwards."""
    handle = await backend.start(replace(LAUNCH, workspace=workspace))
    assert b"error" not in await tool(handle, "write", "a", content)
    await handle.kill()


async def read(backend: DockerBackend, workspace: str) -> bytes:
    """Return what a new container finds in the file; nothing if there is none."""
    handle = await backend.start(replace(LAUNCH, workspace=workspace))
    found = await tool(handle, "read", "a")
    await handle.kill()
    return found.rpartition(b"\n")[2]


def attached() -> dict[str, str]:
    """Return the loop device of each attached image file."""
    found = subprocess.run(["losetup", "--list", "--json"], check=True, capture_output=True, text=True).stdout
    devices = json.loads(found or '{"loopdevices": []}')["loopdevices"]
    return {Path(each["back-file"]).name: each["name"] for each in devices}


def detach(device: str) -> None:
    subprocess.run(["losetup", "--detach", device], check=True)


def images(*workspaces: str) -> set[str]:
    return {f"{volume_names(workspace)[0]}.img" for workspace in workspaces}


@pytest.mark.gate
async def test_files_outlive_their_containers_and_the_gateway_and_go_with_their_workspace(
    backend: DockerBackend,
) -> None:
    mine, forgotten = uuid.uuid4().hex, uuid.uuid4().hex
    await write(backend, mine, b"mine")
    await write(backend, forgotten, b"theirs")
    assert await read(backend, mine) == b"mine"
    await backend.release()
    assert images(mine, forgotten) <= set(attached())
    after = await successor(backend, mine)
    assert await read(after, mine) == b"mine"
    assert images(forgotten).isdisjoint(attached())
    assert await read(after, forgotten) == b"", "a new workspace under the old name"
    for workspace in (mine, forgotten):
        await after.delete_workspace(workspace)
    assert images(mine, forgotten).isdisjoint(attached())
    await after.close()
    with closing(docker.from_env()) as client:
        assert not client.api.volumes(filters={"label": f"{DISKS_LABEL}={backend.settings.instance}"})["Volumes"]


async def test_a_full_workspace_is_refused_more_and_others_have_their_own_room(backend: DockerBackend) -> None:
    greedy, other = uuid.uuid4().hex, uuid.uuid4().hex
    handle = await backend.start(replace(LAUNCH, workspace=greedy))
    most = b"x" * (DISK - MIB)
    assert b"error" not in await tool(handle, "write", "a", most)
    answers = [await tool(handle, "write", f"b{number}", b"x" * MIB) for number in range(4)]
    assert b"full" in answers[-1]
    assert len(await tool(handle, "read", "a")) > len(most)
    await write(backend, other, b"unharmed")
    assert await read(backend, other) == b"unharmed"
    await tool(handle, "delete", "a")
    assert b"error" not in await tool(handle, "write", "c", most)
    await handle.kill()
    for workspace in (greedy, other):
        await backend.delete_workspace(workspace)


async def test_a_workspace_is_found_whichever_device_it_had_before(backend: DockerBackend) -> None:
    """After a restart of the machine no disk is attached, and another one may get its old device."""
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    await write(backend, first, b"first")
    await write(backend, second, b"second")
    before = attached()
    for image in images(first, second):
        detach(before[image])
    # Linux detaches a device once nothing holds it: a container that starts elsewhere copies all mounts for a moment.
    await until(lambda: images(first, second).isdisjoint(attached()))
    assert await read(backend, second) == b"second", "on the lowest free device, which was the first one's"
    assert await read(backend, first) == b"first"
    for workspace in (first, second):
        await backend.delete_workspace(workspace)


async def test_contexts_that_start_at_once_find_one_disk(backend: DockerBackend) -> None:
    """A disk that was attached twice would be mounted twice, and destroyed."""
    workspaces = [uuid.uuid4().hex for _ in range(3)]
    asked = [replace(LAUNCH, workspace=workspace, shared=True) for workspace in workspaces for _ in range(3)]
    handles = await asyncio.gather(*map(backend.start, asked))
    for number, handle in enumerate(handles):
        assert b"error" not in await tool(handle, "write", str(number), b"content")
    for number, handle in enumerate(handles):
        of_its_workspace = [f"{other}" for other in range(9) if other // 3 == number // 3]
        entries = json.loads((await tool(handle, "list", "")).splitlines()[-1])["entries"]
        assert sorted(entry["path"] for entry in entries) == of_its_workspace
        await handle.kill()
    for workspace in workspaces:
        await backend.delete_workspace(workspace)


@pytest.fixture
async def disks(backend: DockerBackend) -> AsyncIterator[Disks]:
    """The backend's disks, reached through another helper."""
    engine = Engine()
    disks = Disks(engine, backend.settings)
    yield disks
    await asyncio.to_thread(disks.close)
    await engine.close()


def helpers(backend: DockerBackend) -> dict[str, int]:
    """Return the process of each helper, by the id of its container."""
    with closing(docker.from_env()) as client:
        found = client.containers.list(filters={"label": f"{DISKS_LABEL}={backend.settings.instance}"})
    return {str(helper.id): int(helper.attrs["State"]["Pid"]) for helper in found}


async def test_a_request_to_the_helper_that_fails_with_it_is_repeated(
    backend: DockerBackend, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that wait for an answer are: the helper may be ended for one of them."""
    wanted = [Disk(f"kernel-gateway-{uuid.uuid4().hex}", "", DISK, "0700") for _ in range(4)]
    others = helpers(backend)
    await asyncio.to_thread(disks.prove)
    (helper,) = (process for container, process in helpers(backend).items() if container not in others)
    said: list[bytes] = []
    say = StdioChannel.send

    def count(channel: StdioChannel, line: bytes) -> None:
        say(channel, line)
        said.append(line)

    monkeypatch.setattr(StdioChannel, "send", count)
    os.kill(helper, signal.SIGSTOP)
    waiting = [spawn(asyncio.to_thread(disks.attach, [disk]), "attach") for disk in wanted]
    await until(lambda: len(said) == len(wanted))
    os.kill(helper, signal.SIGKILL)
    devices = [devices for devices in await asyncio.gather(*waiting) if devices]
    assert len({*chain.from_iterable(each.values() for each in devices)}) == len(wanted)
    for disk in wanted:
        await asyncio.to_thread(disks.delete, disk.name)


async def test_proofs_that_fail_again_and_again_leave_one_disk(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_name: str) -> None:
        raise StartFailed("no")

    with monkeypatch.context() as patched:
        patched.setattr(disks, "delete", fails)
        for _ in range(3):
            with pytest.raises(NotInitialized):
                await asyncio.to_thread(disks.prove)
    assert len(await asyncio.to_thread(disks.names)) == 1
    await asyncio.to_thread(disks.prove)
    assert not await asyncio.to_thread(disks.names)


async def test_a_gateway_knows_the_names_of_thousands_of_disks(backend: DockerBackend, disks: Disks) -> None:
    with closing(docker.from_env()) as client:
        volumes = client.api.volumes(filters={"label": f"{DISKS_LABEL}={backend.settings.instance}"})["Volumes"]
    images = [Path(volumes[0]["Mountpoint"]) / f"kernel-gateway-{uuid.uuid4().hex}.img" for _ in range(3000)]
    for image in images:
        image.touch()
    assert set(await asyncio.to_thread(disks.names)) == {image.stem for image in images}
    for image in images:
        image.unlink()


async def test_a_helper_that_was_removed_is_started_again(backend: DockerBackend) -> None:
    workspace = uuid.uuid4().hex
    await write(backend, workspace, b"kept")
    with closing(docker.from_env()) as client:
        (helper,) = client.containers.list(filters={"label": f"{DISKS_LABEL}={backend.settings.instance}"})
        helper.remove(force=True)
    assert await read(backend, workspace) == b"kept"
    await backend.delete_workspace(workspace)


async def test_a_disk_that_the_machine_has_no_room_for_is_refused_with_its_reason(
    backend: DockerBackend, disks: Disks
) -> None:
    with pytest.raises(StartFailed, match="no room"):
        await backend.start(replace(LAUNCH, limits=Limits(disk=1024**5)))
    assert not await asyncio.to_thread(disks.names)


def test_the_helper_opens_loop_devices_and_no_other_disk() -> None:
    """The control is the same container with access to all devices."""
    disk = next(each.name for each in Path("/sys/block").iterdir() if not each.name.startswith(("loop", "ram")))
    program = f"open('/devices/{disk}', 'rb').close()"
    config = helper_config("unused", DockerSettings("runsc", IMAGE, NETWORK, "disks"))
    devices, _ = config["mounts"]
    config |= {"mounts": [devices], "auto_remove": False}
    opened = {}
    with closing(docker.from_env()) as client:
        for name, rules in {"ours": config["device_cgroup_rules"], "control": ["b *:* r"]}.items():
            host = client.api.create_host_config(**config | {"device_cgroup_rules": rules})
            made = client.api.create_container(IMAGE, ["python", "-c", program], user="0:0", host_config=host)["Id"]
            client.api.start(made)
            opened[name] = client.api.wait(made)["StatusCode"] == 0
            client.api.remove_container(made)
    assert opened == {"ours": False, "control": True}
