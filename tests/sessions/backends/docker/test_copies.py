"""Copies of kernels with their files, with real gVisor: what continues from one, again and again, beside the kernel."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from pathlib import Path

import pytest

from sessions.backends.base import Launch
from sessions.backends.docker.checkpoint.encryption import MEMORY
from sessions.backends.docker.container.handle import DockerHandle
from sessions.kernels.kernel import Kernel
from sessions.model.checkpoint import CannotWake, InUse, NoRoom, SleepFailed, SleepImage
from sessions.model.errors import SessionClosed, StartFailed
from sessions.model.tasks import spawn
from tests.sessions.backends.bed import AFTER, BEFORE, JAVASCRIPT, MIB, PYTHON, SURVIVED, Bed, said

pytestmark = pytest.mark.engine


async def restored(bed: Bed, kernel: Kernel, image: SleepImage) -> Kernel:
    return await bed.kernel_memory.restore(image, kernel.launch, kernel.handle.connection_info)


async def ended(bed: Bed, *kernels: Kernel) -> None:
    for kernel in kernels:
        await kernel.kill(SessionClosed())
        await bed.backend.delete_workspace(str(kernel.launch.workspace))


async def test_two_kernels_continue_from_one_copy_beside_the_kernel(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    assert await said(kernel, BEFORE) == "made"
    image = await bed.kernel_memory.copy(kernel)
    # The kernel itself goes on, and what it does is not in the copy.
    await said(kernel, "notes.write('later\\n'); notes.flush(); del frame; open('new', 'w').close(); print()")
    first, second = await asyncio.gather(restored(bed, kernel, image), restored(bed, kernel, image))
    for other in (first, second):
        assert await said(other, AFTER) == SURVIVED
        assert await said(other, "import os; print(os.path.exists('new'))") == "False"
    await said(first, "x = 1; print(open('mine', 'w').write('1'))")
    assert await said(second, "print('x' in globals(), os.path.exists('mine'))") == "False False"
    assert await said(kernel, "import os; print('frame' in globals(), os.path.exists('new'))") == "False True"
    await bed.kernel_memory.discard(image)
    assert bed.files() == []
    await ended(bed, kernel, first, second)


async def test_a_javascript_kernel_is_copied(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, JAVASCRIPT)
    await said(kernel, "let kept = [1, 2]; Deno.writeTextFileSync('file', 'old'); console.log(kept.length)")
    image = await bed.kernel_memory.copy(kernel)
    await said(kernel, "kept.push(3); Deno.writeTextFileSync('file', 'new'); console.log(kept.length)")
    other = await restored(bed, kernel, image)
    assert await said(other, "console.log(kept.length, Deno.readTextFileSync('file'))") == "2 old"
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel, other)


async def test_files_of_any_kind_are_copied(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    digest = """
import hashlib, os
def digest():
    whole = hashlib.sha256()
    for directory, _, names in sorted(os.walk('.')):
        for name in sorted(names):
            path = os.path.join(directory, name)
            whole.update(repr((path, os.lstat(path).st_mode, os.path.islink(path))).encode())
            whole.update(open(path, 'rb').read())
    return whole.hexdigest()
"""
    made = """
os.makedirs('deep/down'); random = os.urandom(30 * 2**20)
open('large', 'wb').write(random)
with open('sparse', 'wb') as sparse: sparse.seek(40 * 2**20); sparse.write(b'end')
for number in range(500): open(f'deep/down/{number}', 'w').write(str(number))
os.symlink('large', 'link'); os.link('large', 'hard'); os.chmod('deep/down/1', 0o500)
del random; print(digest())
"""
    before = await said(kernel, digest + made)
    image = await bed.kernel_memory.copy(kernel)
    assert image.size < 150 * MIB  # neither holes nor the disk's empty rest
    await said(kernel, "open('large', 'wb').close(); print()")
    other = await restored(bed, kernel, image)
    assert await said(other, "print(digest())") == before
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel, other)


async def test_no_file_and_no_variable_is_readable_in_a_copy(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    variable, file = secrets.token_hex(16), secrets.token_hex(16)
    await said(kernel, f"kept = {variable!r}; print(open('file', 'w').write({file!r}))")
    image = await bed.kernel_memory.copy(kernel)
    assert len(bed.files()) == len(MEMORY) + 1
    on_disk = b"".join(path.read_bytes() for path in bed.files())
    assert image.size == len(on_disk)
    assert [word for word in (variable, file) if word.encode() in on_disk] == []
    assert {oct(path.stat().st_mode & 0o077) for path in [bed.images, *bed.images.rglob("*")]} == {"0o0"}
    other = await restored(bed, kernel, image)  # the positive control: both are in it
    assert await said(other, "print(kept, open('file').read())") == f"{variable} {file}"
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel, other)


@pytest.mark.parametrize("name", ["pages.img.sealed", "files.img.sealed"])
async def test_a_changed_copy_is_refused_and_leaves_nothing(bed: Bed, name: str) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    image = await bed.kernel_memory.copy(kernel)
    with (bed.images / image.id / name).open("r+b") as content:
        content.seek(1000)
        content.write(b"\0\1")
    disks = bed.disks()
    with pytest.raises(CannotWake, match="damaged or gone"):
        await restored(bed, kernel, image)
    assert bed.disks() == disks
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel)


@pytest.mark.parametrize("fault", ["in use", "no room", "full disk", "shared files"])
async def test_a_refused_copy_leaves_the_kernel_as_it_was(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print()")
    expected: type[SleepFailed] = SleepFailed
    if fault == "in use":
        expected = InUse
        monkeypatch.setattr(DockerHandle, "tools_run", True)
    elif fault == "no room":
        expected = NoRoom
        monkeypatch.setattr("sessions.backends.docker.checkpoint.images._FREE_MIN", 2**62)
    elif fault == "full disk":

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("sessions.backends.docker.checkpoint.packing.pack", full)  # while the kernel is held
    else:
        kernel.launch = Launch(PYTHON.kernelspec, workspace=kernel.launch.workspace, shared=True)
    with pytest.raises(expected):
        await bed.kernel_memory.copy(kernel)
    monkeypatch.undo()
    await kernel.first_answer()
    assert await said(kernel, "print(x + 1)") == "42"
    assert bed.files() == []
    await ended(bed, kernel)


async def test_a_failed_return_is_repeated_on_new_files(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print(open('file', 'w').write('kept'))")
    image = await bed.kernel_memory.copy(kernel)
    answer = Kernel.first_answer
    failed: list[Kernel] = []

    async def first_fails(self: Kernel) -> None:
        if not failed:
            failed.append(self)
            raise StartFailed
        await answer(self)

    monkeypatch.setattr(Kernel, "first_answer", first_fails)
    other = await restored(bed, kernel, image)
    assert await said(other, "print(x, open('file').read())") == "41 kept"
    assert other.launch.workspace != failed[0].launch.workspace
    assert len(bed.disks()) == 2
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel, other)


async def test_a_gateway_that_was_killed_while_it_copied_leaves_no_kernel_held(bed: Bed, place: Path) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    await said(kernel, "x = 41; print()")
    kept, other = await bed.kernel_memory.copy(kernel), await bed.kernel_memory.copy(kernel)
    shutil.copytree(bed.images / other.id, bed.images / f"{kernel.handle.id}.partial")
    kernel.connection.suspend()
    later = Bed(place)
    assert await later.readiness.check()
    info, workspace = kernel.handle.connection_info, kernel.launch.workspace or ""
    handles = await later.backend.adopt({kernel.handle.id: info}, [workspace], [kept])
    taken = await Kernel.take_over(kernel.launch, handles[kernel.handle.id])
    await taken.first_answer()
    assert {path.parent.name for path in bed.files()} == {kept.id}
    again = await later.kernel_memory.restore(kept, kernel.launch, info)
    assert await said(again, "print(x + 1)") == "42"
    await later.backend.close()


async def test_code_that_computes_is_copied_in_mid_flight(bed: Bed) -> None:
    kernel = await Kernel.start(bed.backend, PYTHON)
    code = "import threading, time\nn = 0\ndef count():\n    global n\n    while True: n += 1; time.sleep(0.001)\n"
    await said(kernel, f"{code}threading.Thread(target=count, daemon=True).start(); print()")
    image = await spawn(bed.kernel_memory.copy(kernel), "copy")
    other = await restored(bed, kernel, image)
    for each in (kernel, other):
        assert await said(each, "before = n; time.sleep(0.1); print(n > before)") == "True"
    await bed.kernel_memory.discard(image)
    await ended(bed, kernel, other)
