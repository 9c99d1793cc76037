"""Kernels that sleep on disk, with real gVisor: what survives, what is refused, and that a failure loses nothing."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from sessions.backends.docker.checkpoint import runtime, trials
from sessions.backends.docker.checkpoint.encryption import decrypt_file
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.golden.workshop import Shape, Workshop
from sessions.backends.docker.profile import WORKSPACE
from sessions.checkpoints import writing
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, SleepFailed, Unproven
from sessions.model.errors import SessionClosed
from sessions.model.values import ExitReason, Limits
from tests.fakes import until
from tests.host import processes
from tests.sessions.backends.bed import (
    AFTER,
    BEFORE,
    INSTANCE,
    JAVASCRIPT,
    KEY,
    MIB,
    PYTHON,
    SURVIVED,
    Bed,
    said,
    workshop_for,
)
from tests.sessions.backends.test_contract import execute

pytestmark = pytest.mark.engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The engine of the kernels, for what no gateway does."""
    engine = Engine()
    yield engine
    await engine.close()


def trials_left() -> list[Path]:
    return list(Path("/dev/shm").glob(f"kernel-gateway-{INSTANCE}-*"))


#: a thread that appends ever larger numbers to a file
TICKS = """
import threading, time
stop, n = threading.Event(), 0
def tick():
    global n
    with open("ticks", "a", buffering=1) as ticks:
        while not stop.is_set():
            ticks.write(f"{n}\\n")
            n += 1
            time.sleep(0.001)
thread = threading.Thread(target=tick); thread.start()
print()
"""


async def test_everything_in_a_kernel_survives_sleep_again_and_again(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    assert await said(kernel, BEFORE) == "made"
    secret = kernel.handle.connection_info
    assert processes(kernel.handle.id) != []
    image = await bed.asleep(kernel)
    assert not kernel.alive
    await until(lambda: processes(kernel.handle.id) == [])  # neither gVisor's nor the engine's
    awake = await bed.woken(kernel, image)
    assert await said(awake, AFTER) == SURVIVED
    assert awake.handle.connection_info.key == secret.key
    again = await bed.woken(awake, await bed.asleep(awake))
    assert await said(again, "print(len(frame), next(flight))") == "3300000 3"
    assert bed.files() == []
    await again.kill(SessionClosed())


async def test_a_javascript_kernel_survives_sleep(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, JAVASCRIPT)
    await execute(
        kernel, "let kept = [1, 2, 3]; function* many() { yield 1; yield 2 }; const flight = many(); flight.next()"
    )
    awake = await bed.woken(kernel, await bed.asleep(kernel))
    assert await said(awake, "console.log(kept.length, flight.next().value)") == "3 2"
    await awake.kill(SessionClosed())


async def test_no_key_and_no_variable_is_readable_in_an_image(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    marker = secrets.token_hex(16)
    await said(kernel, f"kept = {marker!r}; print(kept)")
    info = kernel.handle.connection_info
    image = await bed.asleep(kernel)
    on_disk = b"".join(file.read_bytes() for file in bed.files())
    assert image.size == len(on_disk) > 10 * MIB
    wanted = [marker.encode(), info.key, info.curve_secretkey or b"none", b"ipykernel"]
    assert [word for word in wanted if word in on_disk] == []
    assert {oct(path.stat().st_mode & 0o077) for path in [bed.images, *bed.images.rglob("*")]} == {"0o0"}
    # The positive control: what is encrypted contains all of it.
    plain = bed.images.parent / "control"
    plain.mkdir()
    decrypt_file(KEY, f"{image.id}/pages.img", bed.images / image.id / "pages.img.sealed", plain / "pages")
    assert [word for word in wanted if word not in (plain / "pages").read_bytes()] == []
    await bed.kernel_memory.discard(image)


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "of another kernel"])
async def test_a_damaged_image_is_refused_and_not_run(bed: Bed, harm: str) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    image = await bed.asleep(kernel)
    file = bed.images / image.id / "pages.img.sealed"
    if harm == "cut":
        os.truncate(file, file.stat().st_size - 256 * 1024 - 16)
    elif harm == "changed":
        with file.open("r+b") as content:
            content.seek(file.stat().st_size // 2)
            content.write(b"\0\1")
    elif harm == "gone":
        file.unlink()
    else:
        other = await Kernel.start(bed.backend, PYTHON)
        of_other = await bed.asleep(other)
        shutil.copy(bed.images / of_other.id / file.name, file)
        await bed.kernel_memory.discard(of_other)
    with pytest.raises(CannotWake, match="damaged or gone"):
        await bed.kernel_memory.wake(image, kernel.launch, kernel.handle.connection_info)
    await bed.kernel_memory.discard(image)


#: what gVisor of 2024 does not write to disk, and what later releases make of it: the file has its content, and the
#: connection is cut
UNWRITABLE = {
    "an open file without a name": (
        "import os; gone = open('gone', 'w+'); os.unlink('gone'); gone.write('kept'); gone.flush()",
        "gone.seek(0); print(gone.read())",
        "kept",
    ),
    "a connection to another host": (
        "import socket; peer = socket.socket(); peer.setblocking(False); peer.connect_ex(('172.31.255.1', 9))",
        "import select; print(select.select([], [peer], [], 5)[1] == [peer])",
        "True",
    ),
}


@pytest.mark.parametrize("kind", UNWRITABLE)
async def test_a_kernel_that_cannot_be_written_goes_on_as_it_was_and_else_it_wakes(bed: Bed, kind: str) -> None:
    begin, look, found = UNWRITABLE[kind]
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, f"x = 41\n{begin}\nprint(x)")
    try:
        image = await bed.asleep(kernel)
    except SleepFailed as refused:
        assert re.search(r"can.*t? be (saved|restored)", str(refused))  # noqa: PT017 - not every gVisor refuses
        await kernel.first_answer()
        assert await said(kernel, "print(x + 1)") == "42"
        assert bed.files() == []
        await said(kernel, "globals().pop('gone', None); globals().pop('peer', None); print()")
        image = await bed.asleep(kernel)
        look, found = "print('x' in globals())", "True"
    awake = await bed.woken(kernel, image)
    assert await said(awake, "print(x + 1)") == "42"
    assert await said(awake, look) == found
    await awake.kill(SessionClosed())


async def test_a_full_disk_loses_nothing(bed: Bed, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print()")
    monkeypatch.setattr("sessions.backends.docker.checkpoint.images._FREE_MIN", 2**62)
    with pytest.raises(SleepFailed, match="are free on the disk"):
        await bed.kernel_memory.take(kernel)
    monkeypatch.undo()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sessions.backends.docker.checkpoint.encryption.encrypt_file", full)  # in the middle of it
    with pytest.raises(SleepFailed, match="No space left"):
        await bed.kernel_memory.take(kernel)
    await kernel.first_answer()
    assert await said(kernel, "print(x + 1)") == "42"
    assert bed.files() == []
    await kernel.kill(SessionClosed())


async def test_a_kernel_whose_image_is_not_wanted_goes_on(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print()")
    await bed.kernel_memory.resume(kernel, await bed.kernel_memory.take(kernel))
    await kernel.first_answer()
    assert await said(kernel, "print(x + 1)") == "42"
    assert bed.files() == []
    await kernel.kill(SessionClosed())


async def test_a_trial_that_cannot_be_removed_now_is_removed_later(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    clear, failures = trials.clear, 0

    def fail_once(engine: Engine, trial: trials.Trial) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise APIError("the engine is busy")
        clear(engine, trial)

    monkeypatch.setattr(trials, "clear", fail_once)
    kernel = await Kernel.start(bed.backend, PYTHON)
    image = await bed.asleep(kernel)
    await until(lambda: trials_left() == [])
    await bed.kernel_memory.discard(image)
    assert failures > 1


@pytest.mark.parametrize(("file", "folder"), [("ticks", "upper-home-user"), ("/tmp/ticks", "upper-tmp")])
async def test_what_code_writes_during_a_trial_is_thrown_away(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, file: str, folder: str
) -> None:
    written: list[str] = []
    clear = trials.clear

    def look_and_clear(engine: Engine, trial: trials.Trial) -> None:
        written.append((trial.changes / folder / "ticks").read_text())
        clear(engine, trial)

    monkeypatch.setattr(trials, "clear", look_and_clear)
    shared = folder == "upper-tmp"  # as in a sandbox of several sessions
    kernel = await Kernel.start(bed.backend, replace(PYTHON, shared=shared))
    await said(kernel, TICKS.replace('"ticks"', repr(file)))
    image = await bed.asleep(kernel)
    assert len(written[-1].split()) > 10  # the positive control: the thread went on, and wrote
    awake = await bed.woken(kernel, image)
    same = f"open({file!r}).read().split() == list(map(str, range(n)))"
    assert await said(awake, f"stop.set(); thread.join(); print({same})") == "True"
    assert trials_left() == []
    await awake.kill(SessionClosed())


async def test_what_a_trial_leaves_is_removed_as_soon_as_the_engine_can(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, clear = iter([APIError("the volume is in use")]), trials.clear

    def refused_once(*arguments: Any) -> None:
        if refusal := next(refusals, None):
            raise refusal
        clear(*arguments)

    monkeypatch.setattr(trials, "clear", refused_once)
    kernel = await Kernel.start(bed.backend, PYTHON)
    image = await bed.asleep(kernel)
    await until(lambda: next(refusals, None) is None and trials_left() == [])
    await bed.kernel_memory.discard(image)
    await bed.backend.delete_workspace(str(kernel.launch.workspace))


async def test_what_code_writes_during_a_trial_counts_as_memory(bed: Bed, engine: Engine) -> None:
    """More than the kernel's memory fits on the disk of a session, and ends a trial."""
    api = engine.api
    kernel = await Kernel.start(bed.backend, replace(PYTHON, limits=Limits(memory=208 * MIB)))
    write = ["sh", "-c", f"head -c {240 * MIB} /dev/zero >{WORKSPACE}/big"]

    def written(container: str) -> int:
        made = api.exec_create(container, write)["Id"]
        api.exec_start(made)
        return int(api.exec_inspect(made)["ExitCode"])

    assert await asyncio.to_thread(written, kernel.handle.id) == 0
    image = await bed.kernel_memory.take(kernel)
    async with bed.backend.sleep.trial(image, kernel.launch, kernel.handle.connection_info) as trial:
        api.exec_start(api.exec_create(trial.id, write)["Id"], detach=True)
        async with asyncio.timeout(60):
            ended = await trial.wait()
    assert ended.reason is ExitReason.OOM
    await bed.kernel_memory.resume(kernel, image)
    await kernel.kill(SessionClosed())


async def test_a_kernel_whose_image_does_not_answer_is_not_ended(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print()")
    monkeypatch.setattr(writing, "TRIAL_TIMEOUT", 0.0)
    with pytest.raises(Unproven, match="could not be woken"):
        await bed.kernel_memory.take(kernel)
    monkeypatch.undo()
    await kernel.first_answer()
    assert await said(kernel, "print(x + 1)") == "42"
    assert bed.files() == []
    awake = await bed.woken(kernel, await bed.asleep(kernel))
    assert await said(awake, "print(x + 1)") == "42"
    await awake.kill(SessionClosed())


async def test_several_kernels_sleep_and_wake_at_once(bed: Bed) -> None:
    kernels = await asyncio.gather(*(Kernel.start(bed.backend, PYTHON) for _ in range(4)))
    for number, kernel in enumerate(kernels):
        await said(kernel, f"x = {number}; print()")
    images = await asyncio.gather(*(bed.asleep(kernel) for kernel in kernels))
    awake = await asyncio.gather(*(bed.woken(kernel, image) for kernel, image in zip(kernels, images, strict=True)))
    assert [await said(kernel, "print(x)") for kernel in awake] == ["0", "1", "2", "3"]
    for kernel in awake:
        await kernel.kill(SessionClosed())


async def test_a_gateway_that_was_killed_leaves_no_kernel_held(bed: Bed, engine: Engine, place: Path) -> None:
    """As if it was killed between the image and its record, and while another kernel was written."""
    kernels = [await Kernel.start(bed.backend, PYTHON) for _ in range(2)]
    for kernel in kernels:
        await said(kernel, "x = 41; print()")
    await bed.kernel_memory.take(kernels[0])
    kernels[1].connection.suspend()
    (bed.images / f"{kernels[1].handle.id}{'.partial'}").mkdir()
    runtime.find_runtime(engine.api, bed.backend.settings).hold(kernels[1].handle.id)
    trial = trials.prepare(engine, bed.backend.settings, kernels[1].launch.workspace or "")
    later = Bed(place)
    await later.backend.prepare()
    infos = {kernel.handle.id: kernel.handle.connection_info for kernel in kernels}
    handles = await later.backend.adopt(infos, [kernel.launch.workspace or "" for kernel in kernels])
    for kernel in kernels:
        taken = await Kernel.take_over(kernel.launch, handles[kernel.handle.id])
        await taken.first_answer()
        assert await said(taken, "print(x + 1)") == "42"
    assert bed.files() == []
    assert not trial.changes.exists()
    await later.backend.close()


#: the ways in which a sleeping kernel is continued, in the order of the proof
WAYS = ["in a trial", "when it wakes", "from a checkpoint"]


@pytest.fixture
async def workshop(bed: Bed) -> AsyncIterator[Workshop]:
    async with workshop_for(bed.backend.settings) as workshop:
        yield workshop


@pytest.mark.parametrize("fails", [*WAYS, ""])
async def test_sleep_is_on_only_if_a_kernel_is_continued_in_each_way(
    bed: Bed, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    shape = Shape.of(PYTHON.kernelspec)
    (_, image) = await asyncio.to_thread(workshop.golden, shape)
    (image.path / "proof-of-sleep").unlink()
    continue_in, tried = SleepImages.continue_in, []

    def refuse_one_way(sleep_images: SleepImages, container: str, of: str) -> None:
        way = WAYS[0] if trials_left() else WAYS[1 + ((bed.images / of / "files.img.sealed").exists())]
        tried.append(way)
        if way == fails:
            raise CheckpointFailed("the runtime refused")
        continue_in(sleep_images, container, of)

    monkeypatch.setattr(SleepImages, "continue_in", refuse_one_way)
    begun = time.monotonic()
    ability = await asyncio.to_thread(workshop.sleeps, shape, image)
    print(f"proof {fails!r}: {time.monotonic() - begun:.2f} s")
    assert (ability.on, fails in ability.detail) == (not fails, True), ability
    assert dict.fromkeys(tried) == dict.fromkeys(WAYS[: WAYS.index(fails) + 1] if fails else WAYS)
    assert workshop.images.sleep_is_proven(image) is not bool(fails)
    assert (bed.files(), trials_left()) == ([], [])
