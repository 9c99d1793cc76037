"""Kernels that are restored from one checkpoint: what is their own, and what happens when a restore fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import docker
import pytest
from structlog.testing import capture_logs

from sessions.backends.base import Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.docker.checkpoint import images, restore, runtime
from sessions.backends.docker.checkpoint.images import Image
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.engine.cgroup import ControlGroup
from sessions.backends.docker.engine.stdio_channel import StdioChannel
from sessions.backends.docker.golden import workshop
from sessions.backends.docker.golden.workshop import Shape
from sessions.backends.docker.profile import INSTANCE_LABEL, GoldenSettings
from sessions.kernels.kernel import Kernel
from sessions.model.errors import SessionClosed
from sessions.model.values import MEMORY_MIN, Limits
from tests.attacks.bench import forget_network
from tests.fakes import KERNELSPECS, background, until
from tests.host import shims
from tests.sessions.backends.bed import workshop_for
from tests.sessions.backends.docker.kernels import weight_file
from tests.sessions.backends.test_contract import execute

pytestmark = pytest.mark.engine

INSTANCE = f"restored-{os.getpid()}"
NETWORK = f"kernel-gateway-{INSTANCE}"
MIB = 1024**2
PYTHON = replace(KERNELSPECS.find("python"), preload=("numpy", "no_such_module"))
LAUNCH = Launch(PYTHON)
LEAST = Limits(memory=MEMORY_MIN)
#: seconds to make an image
MADE = 60.0


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """The checkpoints of all these tests; at the end they, the network and the workspaces are removed."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path) / "checkpoints"
    with closing(docker.from_env()) as client:
        for volume in client.volumes.list(filters={"label": f"{INSTANCE_LABEL}={INSTANCE}"}):
            volume.remove()
    forget_network(NETWORK)


def make(directory: Path, **changes: Any) -> DockerBackend:
    mine = replace(GoldenSettings(directory, 1024 * MIB, Limits(), (PYTHON,)), **changes)
    return DockerBackend(DockerSettings("runsc", "kernel-gateway/python:latest", NETWORK, INSTANCE, golden=mine))


async def made(backend: DockerBackend) -> None:
    """Wait until no image is being made."""
    async with asyncio.timeout(MADE):
        await backend.settled()


async def ready(backend: DockerBackend, *, on: bool = True) -> list[bool]:
    """Prepare a backend until it restores kernels, or cannot; return the list of all later outcomes."""
    outcomes: list[bool] = []
    backend.report_restores(outcomes.append)
    await backend.prepare()
    await backend.adopt({}, ())
    await made(backend)
    assert backend.golden_images.on is on, backend.golden_images.detail
    return outcomes


@pytest.fixture
async def backend(nothing_left: None, directory: Path) -> AsyncIterator[DockerBackend]:
    backend = make(directory)
    yield backend
    await backend.close()


async def said(kernel: Kernel, code: str) -> str:
    status, printed = await execute(kernel, code)
    assert status == "ok", printed
    return printed.strip()


async def end(*kernels: Kernel) -> None:
    for kernel in kernels:
        await kernel.kill(SessionClosed())


async def image_of(backend: DockerBackend) -> Image:
    """Return the image from which a kernel is restored."""
    async with workshop_for(backend.settings) as shop:
        (_, image) = await asyncio.to_thread(shop.golden, Shape.of(PYTHON))
        return image


# -- a kernel's own --------------------------------------------------------------------------------------------

CHANCE = """
import json, multiprocessing, os, random, secrets, ssl, tempfile, uuid
import numpy
print(json.dumps({
    "random": random.random(), "system": random.SystemRandom().random(), "numpy": numpy.random.random(),
    "generator": numpy.random.default_rng().random(), "urandom": os.urandom(16).hex(), "uuid4": str(uuid.uuid4()),
    "ssl": ssl.RAND_bytes(16).hex(), "secrets": secrets.token_hex(), "temporary": tempfile.mktemp(),
    "authkey": bytes(multiprocessing.current_process().authkey).hex(),
    "session": get_ipython().kernel.session.session, "ident": get_ipython().kernel.ident,
}))
"""
#: prints all texts and bytes of the interpreter that look as if they had been chosen at random, and the system's id
IDENTIFIERS = """
import gc, json, pathlib, re
def looks(one):
    text = one.hex() if isinstance(one, (bytes, bytearray)) else one
    return re.fullmatch("[0-9a-f-]{24,72}", text) is not None and len(set(text)) > 8
held = set()
gc.unfreeze()  # or what was there before the checkpoint would not be listed
for owner in gc.get_objects():
    if isinstance(owner, dict):
        held |= {one for one in list(owner.values()) if type(one) in (bytes, str) and looks(one)}
machine = pathlib.Path("/etc/machine-id")
if machine.is_file():
    held.add(machine.read_text().strip())
print(json.dumps(sorted(map(repr, held))))
"""
#: counts a secret in the memory of the kernel and of its launcher; this code has it in two halves, so that it is not
#: found because it is searched
SEARCH = """
import re
first, second = {first!r}, {second!r}
found = 0
for process in ("self", "1"):
    try:
        maps = open(f"/proc/{{process}}/maps").read()
        memory = open(f"/proc/{{process}}/mem", "rb", buffering=0)
    except OSError:
        continue
    for start, stop in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r", maps, re.M):
        try:
            memory.seek(int(start, 16))
            content = memory.read(int(stop, 16) - int(start, 16))
        except (OSError, ValueError, OverflowError, MemoryError):
            continue
        found += sum(content.startswith(second, one.end()) for one in re.finditer(first, content))
print(found)
"""


async def test_nothing_of_one_restored_kernel_is_in_another(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    one, two = [await Kernel.start(backend, replace(LAUNCH, env={"SECRET": name * 9})) for name in ("one", "two")]
    assert outcomes == [True, True]
    chances = [json.loads(await said(kernel, CHANCE)) for kernel in (one, two)]
    assert {name for name in chances[0] if chances[0][name] == chances[1][name]} == set()
    infos = [kernel.handle.connection_info for kernel in (one, two)]
    assert infos[0].key != infos[1].key
    assert infos[0].ip != infos[1].ip
    for secret in (
        *(info.key.decode() for info in infos),
        *(info.curve_secretkey.decode() for info in infos if info.curve_secretkey),
        *("oneoneone" * 3, "twotwotwo" * 3),
    ):
        owner = secret in (infos[0].key.decode(), (infos[0].curve_secretkey or b"").decode(), "oneoneone" * 3)
        half = len(secret) // 2
        # Escaped: keys may contain any printable sign.
        search = SEARCH.format(first=re.escape(secret[:half].encode()), second=secret[half:].encode())
        seen = [int(await said(kernel, search)) for kernel in (one, two)]
        # The positive control: each kernel finds its own.
        assert [count > 0 for count in seen] == [owner, not owner]
    await end(one, two)


async def test_no_identifier_is_the_same_in_two_restored_kernels_unless_it_is_in_a_plain_one(
    backend: DockerBackend,
) -> None:
    await ready(backend)
    kernels = [await Kernel.start(backend, LAUNCH) for _ in range(2)]
    plain = await Kernel.start(backend, replace(LAUNCH, image=backend.settings.image))
    await said(plain, "import numpy, multiprocessing; print()")
    one, two, fresh = [set(json.loads(await said(kernel, IDENTIFIERS))) for kernel in (*kernels, plain)]
    assert (one & two) - fresh == set()
    assert one - fresh  # the positive control: each has some of its own
    await end(*kernels, plain)


#: what a cell can see that should be the same in every kernel
LOOK = """
import json, os, sys, threading
print(json.dumps({
    "names": sorted(globals()), "threads": len(threading.enumerate()), "input": os.readlink("/proc/self/fd/0"),
    "files": [os.listdir("."), os.listdir("/tmp")], "private": sorted(os.listdir("/home/kernel")), "path": sys.path,
}))
"""


async def test_a_restored_kernel_shows_its_user_nothing_of_that(backend: DockerBackend) -> None:
    await ready(backend)
    restored = await Kernel.start(backend, LAUNCH)
    plain = await Kernel.start(backend, replace(LAUNCH, image=backend.settings.image))
    assert restored.preloading.tried == {"numpy", "no_such_module"}
    assert json.loads(await said(restored, LOOK)) == json.loads(await said(plain, LOOK))
    imported = "import sys; print('numpy' in sys.modules)"
    assert (await said(restored, imported), await said(plain, imported)) == ("True", "False")
    await end(restored, plain)


async def test_lower_limits_are_those_of_the_kernel_and_of_its_launcher(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    limits = Limits(memory=400 * MIB, processes=16, disk=8 * MIB)
    kernel = await Kernel.start(backend, replace(LAUNCH, limits=limits))
    assert outcomes == [True]
    look = """
import os, resource
own = [resource.getrlimit(kind) for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)]
total = int(open("/proc/meminfo").readline().split()[1]) // 1024
print(own, total, os.statvfs(".").f_blocks * os.statvfs(".").f_frsize)
"""
    *others, room = (await said(kernel, look)).rsplit(" ", 1)
    assert others == [f"[(16, 16), ({8 * MIB}, {8 * MIB})] 400"]
    # The disk is larger than its limit by what its file system may need for itself (`_make` in kernel_image/disks.py).
    assert 8 * MIB <= int(room) <= 8 * MIB + 8 * MIB // 16 + MIB
    fork = """
import subprocess
try:
    started = [subprocess.Popen(["sleep", "9"]) for _ in range(20)]
except OSError:
    print("no more")
"""
    assert await said(kernel, fork) == "no more"
    await end(kernel)


async def test_all_that_a_cells_children_print_is_in_the_cell(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    kernel = await Kernel.start(backend, LAUNCH)
    children = """
import multiprocessing, os
print("a"); os.system("seq 20000"); print("b")
with multiprocessing.Manager() as manager: print(manager.list([1]))
for kind in ("spawn", "forkserver"):
    one = multiprocessing.get_context(kind).Process(target=print, args=(kind,)); one.start(); one.join()
"""
    lines = "".join(f"{number}\n" for number in range(1, 20_001))
    assert await said(kernel, children) == f"a\n{lines}b\n[1]\nspawn\nforkserver"
    assert outcomes == [True]
    await end(kernel)


async def test_what_a_process_reads_only_at_its_start_is_started_plainly(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    kernel = await Kernel.start(backend, replace(LAUNCH, env={"LC_ALL": "C"}))
    small = await Kernel.start(backend, replace(LAUNCH, limits=Limits(memory=256 * MIB)))
    assert await said(kernel, "import os; print(os.environ['LC_ALL'])") == "C"
    assert await said(small, "print(1)") == "1"
    assert outcomes == []
    assert kernel.preloading.tried == small.preloading.tried == set()
    await end(kernel, small)


async def test_contexts_of_a_sandbox_are_restored_after_the_first_one(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    launch = replace(LAUNCH, workspace=f"ws-{INSTANCE}", shared=True)
    first = await Kernel.start(backend, launch)
    assert outcomes == []
    await made(backend)
    second = await Kernel.start(backend, launch)
    assert outcomes == [True]
    for folder in ("/home/user", "/tmp"):
        await said(first, f"open('{folder}/a', 'w').write('shared')")
        assert await said(second, f"print(open('{folder}/a').read())") == "shared"
    await end(first, second)


async def test_bash_is_restored_and_each_session_has_a_bash_of_its_own(nothing_left: None, tmp_path: Path) -> None:
    bash = KERNELSPECS.find("bash")
    backend = make(tmp_path / "checkpoints", kernelspecs=(bash,))
    outcomes = await ready(backend)
    launches = [Launch(bash, env={"NAME": name}, cwd=name) for name in ("one", "two")]
    one, two = [await Kernel.start(backend, launch) for launch in launches]
    assert outcomes == [True, True]
    look = "echo $NAME ${PWD##*/} $(readlink /proc/self/fd/0) ${kept:-none}; kept=1"
    assert [await said(kernel, look) for kernel in (one, two)] == [
        f"{name} {name} /dev/null none" for name in ("one", "two")
    ]
    assert await said(one, "echo $kept") == "1"
    chances = [await said(kernel, "echo $RANDOM$RANDOM$RANDOM") for kernel in (one, two)]
    assert chances[0] != chances[1]
    await end(one, two)
    await backend.close()


async def test_a_checkpoint_is_found_by_the_next_gateway_which_need_not_prove_it(
    backend: DockerBackend, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(backend)
    image = await image_of(backend)
    await backend.close()
    monkeypatch.setattr(workshop, "restore", Mock(side_effect=AssertionError))  # what a proof does
    after = make(directory)
    await ready(after)
    assert await image_of(after) == image
    await after.close()


async def test_the_making_of_a_checkpoint_leaves_the_processors_to_kernels(
    nothing_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[float] = []

    def take(_: runtime.Runtime, container: str, __: Path) -> None:
        path = weight_file(container)
        weights.append(int(path.read_text()) / {"cpu.weight": 100, "cpu.shares": 1024}[path.name])
        raise CheckpointFailed("seen")

    monkeypatch.setattr(runtime.Runtime, "take", take)
    backend = make(tmp_path / "checkpoints")
    await ready(backend, on=False)
    assert weights == [pytest.approx(0.1, abs=0.01)]
    await backend.close()


# -- failures --------------------------------------------------------------------------------------------------


async def falls_back(backend: DockerBackend, outcomes: list[bool]) -> None:
    """Check that the next kernel is started plainly, that this is logged once, and that nothing else is left."""
    with capture_logs() as logs:
        kernels = [await Kernel.start(backend, LAUNCH) for _ in range(2)]
    assert outcomes == [False, False]
    assert len([entry for entry in logs if "is started plainly" in entry["event"]]) == 1
    assert [await said(kernel, "print(1)") for kernel in kernels] == ["1", "1"]
    assert len(background("forget container")) == len(kernels)
    with closing(docker.from_env()) as client:
        label = f"{INSTANCE_LABEL}={INSTANCE}"
        left = client.containers.list(all=True, filters={"label": label})
    assert {container.id for container in left} == {kernel.handle.id for kernel in kernels}
    assert list(runtime.MARKS.glob("*")) == [] or not {kernel.handle.id for kernel in kernels} & {
        mark.name for mark in runtime.MARKS.glob("*")
    }
    await end(*kernels)


async def test_a_checkpoint_that_the_runtime_refuses_is_replaced_by_a_plain_start(
    backend: DockerBackend, directory: Path
) -> None:
    outcomes = await ready(backend)
    image = await image_of(backend)
    content = bytearray((image.path / "checkpoint.img").read_bytes())
    content[: len(content) // 2] = os.urandom(len(content) // 2)  # the same size: only the runtime can notice
    (image.path / "checkpoint.img").write_bytes(content)
    before = shims()
    await falls_back(backend, outcomes)
    with closing(docker.from_env()) as client:

        def abandoned() -> set[str]:
            """Return the processes of the engine that are new, and whose containers it does not know."""
            return shims() - before - {container.id for container in client.containers.list(all=True)}

        await until(lambda: not abandoned())
    shutil.rmtree(directory)


@pytest.mark.full  # each hanging restore takes the whole deadline
async def test_a_restore_that_hangs_is_ended_and_replaced_by_a_plain_start(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcomes = await ready(backend)
    hanging = tmp_path / "image"
    shutil.copytree((await image_of(backend)).path, hanging)
    (hanging / "checkpoint.img").unlink()
    os.mkfifo(hanging / "checkpoint.img")  # nobody writes to it: gVisor waits for ever when it opens it
    monkeypatch.setattr(restore, "marked", lambda name, _, **trial: runtime.marked(name, hanging, **trial))
    before = shims()
    await falls_back(backend, outcomes)
    with closing(docker.from_env()) as client:
        known = {container.id for container in client.containers.list(all=True)}
        await until(lambda: not shims() - before - known)


async def test_a_restored_sandbox_that_dies_is_replaced_by_a_plain_start(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = await ready(backend)

    send = StdioChannel.send

    def killed(channel: StdioChannel, line: bytes) -> None:
        if channel.failure is not CheckpointFailed:  # with the helper that makes disks
            send(channel, line)
            return
        label = f"{INSTANCE_LABEL}={INSTANCE}"
        with closing(docker.from_env()) as client, suppress(docker.errors.APIError):
            for container in client.containers.list(filters={"label": label})[:1]:  # the newest
                container.kill()

    monkeypatch.setattr(StdioChannel, "send", killed)
    await falls_back(backend, outcomes)


async def test_a_cut_checkpoint_is_not_used_and_made_anew(backend: DockerBackend) -> None:
    outcomes = await ready(backend)
    os.truncate((await image_of(backend)).path / "pages.img", MIB)
    plain = await Kernel.start(backend, LAUNCH)
    assert await said(plain, "print(1)") == "1"
    assert outcomes == []
    await made(backend)
    restored = await Kernel.start(backend, LAUNCH)
    assert outcomes == [True]
    await end(plain, restored)


@pytest.fixture
def small_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A full disk that nobody noticed before."""
    path = directory.parent / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(path)], check=True)
    monkeypatch.setattr(images, "_FREE_MIN", 0)
    monkeypatch.setattr(ControlGroup, "memory", lambda _: 1)
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.full
async def test_kernels_with_the_least_memory_are_restored_without_modules(nothing_left: None, directory: Path) -> None:
    backend = make(directory, limits=LEAST)
    outcomes = await ready(backend)
    kernel = await Kernel.start(backend, replace(LAUNCH, limits=LEAST))
    assert await said(kernel, "import sys; print('numpy' in sys.modules, bytearray(8 * 2**20)[-1])") == "False 0"
    assert outcomes == [True]
    await end(kernel)
    await backend.close()


async def test_a_disk_that_is_full_leaves_no_half_a_checkpoint(nothing_left: None, small_disk: Path) -> None:
    backend = make(small_disk / "checkpoints")
    await ready(backend, on=False)
    assert "status" in backend.golden_images.detail or "space" in backend.golden_images.detail
    assert list((small_disk / "checkpoints").iterdir()) == []
    kernel = await Kernel.start(backend, LAUNCH)
    assert await said(kernel, "print(1)") == "1"
    await end(kernel)
    await backend.close()


async def test_a_runtime_that_does_not_restore_is_noticed(
    backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await ready(backend)
    image = await image_of(backend)
    monkeypatch.setattr(runtime, "MARKS", tmp_path / "nowhere")  # where the wrapper does not look
    monkeypatch.setattr(workshop, "find_runtime", lambda *_: runtime.Runtime(("unused",), "other"))
    monkeypatch.setattr(images.Images, "find", lambda *_: image)
    await backend.adopt({}, ())
    await made(backend)
    assert not backend.golden_images.on
    assert "has started the container and not restored it" in backend.golden_images.detail
