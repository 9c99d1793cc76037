"""Checkpoints without an engine: what is kept on disk, who may be restored, and what follows from failures."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sessions.backends.abilities import Ability
from sessions.backends.base import Launch
from sessions.backends.docker import DockerSettings
from sessions.backends.docker.checkpoint import images, runtime
from sessions.backends.docker.checkpoint.images import Image, Images
from sessions.backends.docker.checkpoint.runtime import CheckpointFailed, Runtime
from sessions.backends.docker.checkpoint.sleep_images import SleepImages
from sessions.backends.docker.container import containers
from sessions.backends.docker.disks.disks import Disks
from sessions.backends.docker.engine.engine import Engine
from sessions.backends.docker.engine.stdio_channel import StdioChannel
from sessions.backends.docker.golden import rights, supply, workshop
from sessions.backends.docker.golden.supply import ATTEMPTS_MAX, FAILURES_MAX, GoldenImages
from sessions.backends.docker.golden.workshop import Shape, Workshop, fits
from sessions.backends.docker.profile import GoldenSettings
from sessions.model.errors import BackendUnavailable
from sessions.model.kernelspecs import PRELOAD_MEMORY
from sessions.model.values import Limits, SessionKey
from tests.fakes import KERNELSPECS, until

PYTHON = KERNELSPECS.find("python")
LIMITS = Limits()
MIB = 1024**2
WRAPPER = Path(runtime.__file__).parent / "runsc.sh"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories that are root's alone")


# -- the wrapper -----------------------------------------------------------------------------------------------


@pytest.fixture
def wrapped(tmp_path: Path) -> Callable[..., list[str]]:
    """Run the wrapper with marks in a directory of the test, and return how it calls gVisor."""
    script, tools = tmp_path / "runsc.sh", tmp_path / "bin"
    (tmp_path / "marks").mkdir()
    script.write_text(WRAPPER.read_text().replace(str(runtime.MARKS), str(tmp_path / "marks")))
    tools.mkdir()
    (tools / "unshare").write_text('#!/bin/sh\nshift 6\nprintf "%s\\n" "$@"\n')
    (tools / "unshare").chmod(0o755)

    def run(*arguments: str) -> list[str]:
        env = {"PATH": f"{tools}:/usr/bin:/bin"}
        return subprocess.run(
            ["sh", str(script), *arguments], check=True, capture_output=True, text=True, env=env
        ).stdout.splitlines()

    return run


FLAGS = ("--root", "/run/docker/it's here", "--log-format", "json")


def test_a_marked_start_becomes_a_restore_once(wrapped: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "marks" / "abc").symlink_to("/state/check points/1")
    restored = ["restore", "-detach", "-image-path", "/state/check points/1", "abc"]
    assert wrapped(*FLAGS, "start", "abc") == [*FLAGS, *restored]
    assert wrapped(*FLAGS, "start", "abc") == [*FLAGS, "start", "abc"]


@pytest.mark.parametrize("command", [("state", "abc"), ("kill", "abc", "9"), ()])
def test_nothing_else_about_a_marked_container_is_changed(
    wrapped: Callable[..., list[str]], tmp_path: Path, command: tuple[str, ...]
) -> None:
    mark = tmp_path / "marks" / "abc"
    mark.symlink_to("/state/1")
    assert wrapped(*FLAGS, *command) == [*FLAGS, *command]
    assert mark.is_symlink()


def test_a_sandbox_in_which_nothing_could_be_restored_is_ended(
    wrapped: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "marks" / "abc").symlink_to("/state/1")
    (tmp_path / "bin" / "unshare").write_text("#!/bin/sh\nexit 7\n")
    script, calls = tmp_path / "runsc.sh", tmp_path / "calls"
    (tmp_path / "bin" / "runsc").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {calls}\n')
    (tmp_path / "bin" / "runsc").chmod(0o755)
    script.write_text(re.sub(r"/usr(/local)?/bin/runsc", str(tmp_path / "bin" / "runsc"), script.read_text()))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        wrapped(*FLAGS, "start", "abc")
    assert failed.value.returncode == 7
    assert calls.read_text().splitlines() == ["--root", FLAGS[1], "delete", "--force", "abc"]


@pytest.mark.parametrize(
    ("flags", "added"),
    [("  -restore-spec-validation value\n", ["--restore-spec-validation=ignore"]), ("  -rootless\n", [])],
)
def test_only_what_is_restored_is_not_compared_by_a_gvisor_that_compares(
    wrapped: Callable[..., list[str]], tmp_path: Path, flags: str, added: list[str]
) -> None:
    script, gvisor = tmp_path / "runsc.sh", tmp_path / "bin" / "runsc"
    gvisor.write_text(f'#!/bin/sh\n[ "$*" = flags ] && printf "%s" "{flags}" >&2\n')
    gvisor.chmod(0o755)
    script.write_text(re.sub(r"/usr(/local)?/bin/runsc", str(gvisor), script.read_text()))
    (tmp_path / "marks" / "wakes").symlink_to("/state/1")
    for container, expected in (("wakes", added), ("other", [])):
        create = [*FLAGS, "create", "--bundle", "/b", container]
        assert wrapped(*create) == [*expected, *create]
        assert "--restore-spec-validation=ignore" not in wrapped(*FLAGS, "start", container)


@pytest.fixture
def hanging(wrapped: Callable[..., list[str]], tmp_path: Path) -> Callable[..., int]:
    """Run the wrapper over a gVisor that hangs until it is killed, and return the wrapper's exit status."""
    (tmp_path / "bin" / "unshare").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin" / "runsc").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin" / "runsc").chmod(0o755)
    script = tmp_path / "runsc.sh"
    text = re.sub(r"/usr(/local)?/bin/runsc", str(tmp_path / "bin" / "runsc"), script.read_text())
    script.write_text(text.replace("deadline=15 cleanup=3", "deadline=0.3 cleanup=0.2"))

    def run(*arguments: str) -> int:
        env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
        return subprocess.run(["sh", str(script), *arguments], check=False, env=env, timeout=20).returncode

    return run


@pytest.mark.parametrize(
    "command",
    [
        ("create", "--bundle", "/b", "abc"),
        ("start", "abc"),
        ("start", "marked"),
        ("exec", "--process", "/p", "--detach", "abc"),
        ("kill", "abc", "9"),
        ("delete", "abc"),
        ("state", "abc"),
    ],
)
def test_a_command_that_hangs_ends_at_the_deadline(
    hanging: Callable[..., int], tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "marks" / "marked").symlink_to("/state/1")
    assert hanging(*FLAGS, *command) in {137, -9}


@pytest.mark.parametrize("command", [("run", "abc"), ("wait", "abc"), ("exec", "abc", "sleep", "1")])
def test_a_command_that_lasts_as_long_as_a_process_has_no_deadline(
    hanging: Callable[..., int], tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "bin" / "unshare").write_text("#!/bin/sh\nsleep 1\n")  # longer than the deadline
    assert hanging(*FLAGS, *command) == 0


def test_a_deletion_is_forced(wrapped: Callable[..., list[str]]) -> None:
    assert wrapped(*FLAGS, "delete", "abc") == [*FLAGS, "delete", "--force", "abc"]


def test_only_a_link_named_by_the_container_is_a_mark(wrapped: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "marks" / "file").write_text("/state/1")
    (tmp_path / "marks" / "start").symlink_to("/state/1")
    for container in ("file", "other", "../marks/file"):
        assert wrapped(*FLAGS, "start", container) == [*FLAGS, "start", container]


# -- the runtime -----------------------------------------------------------------------------------------------


@ROOT
def test_marks_are_in_a_directory_of_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = tmp_path / "gateway" / "restore"
    monkeypatch.setattr(runtime, "MARKS", marks)
    with runtime.marked("abc", Path("/state/1")) as mark:
        assert marks.stat().st_mode & 0o777 == 0o700
        assert (marks / "abc").readlink() == Path("/state/1")
        for mode, owner in ((0o770, 0), (0o707, 0), (0o700, 65532)):
            marks.chmod(mode)
            os.chown(marks, owner, 0)
            with (
                pytest.raises(CheckpointFailed, match="a directory of root"),
                runtime.marked("other", Path("/state/1")),
            ):
                pass
        assert mark.used_at is None
    assert list(marks.iterdir()) == []


@ROOT
def test_a_mark_tells_when_it_was_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MARKS", tmp_path / "restore")
    with runtime.marked("abc", Path("/state/1")) as mark:
        before = time.time()
        (tmp_path / "restore" / "abc").unlink()  # as the runtime's wrapper does
        assert mark.used_at == pytest.approx(before, abs=1.0)


@ROOT
def test_marks_of_containers_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MARKS", tmp_path / "restore")
    for container in ("there", "gone"):
        (tmp_path / "restore").mkdir(mode=0o700, exist_ok=True)
        (tmp_path / "restore" / container).symlink_to("/state/1")
    api: Any = SimpleNamespace(containers=lambda **_: [{"Id": "there"}])
    runtime.clear_marks(api)
    assert [file.name for file in (tmp_path / "restore").iterdir()] == ["there"]


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return an engine's client whose runtime is a shell script."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "abc_sandbox:abc.state").touch()
    monkeypatch.setattr(runtime, "_STATES", (f"{tmp_path}/stat*",))
    monkeypatch.setattr(runtime, "MARKS", tmp_path / "restore")
    monkeypatch.setattr(runtime, "_PARTS", (b"MARKS", b"delete --force", b"timeout", b"flags"))

    def make(script: str) -> Any:
        path = tmp_path / "runsc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return SimpleNamespace(info=lambda: {"Runtimes": {"runsc": {"path": str(path), "runtimeArgs": ["--flag"]}}})

    return make


def settings_of(directory: Path, **changes: Any) -> DockerSettings:
    mine = replace(GoldenSettings(directory, 1024 * MIB, LIMITS, (PYTHON,)), **changes)
    return DockerSettings("runsc", "image", "network", "test", golden=mine)


@ROOT
def test_the_runtime_must_be_the_wrapper(registered: Callable[[str], Any], tmp_path: Path) -> None:
    found = runtime.find_runtime(
        registered("# MARKS delete --force timeout flags\necho runsc 1"), settings_of(tmp_path)
    )
    assert found == Runtime((str(tmp_path / "runsc"), "--flag"), "runsc 1")
    for other in ("echo runsc 1", "# MARKS\necho runsc 1", "# MARKS delete --force timeout\necho runsc 1"):
        with pytest.raises(CheckpointFailed, match=r"is not the gateway's wrapper.*: install .*runsc\.sh"):
            runtime.find_runtime(registered(other), settings_of(tmp_path))


def test_runc_has_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFailed, match="runc has none"):
        runtime.find_runtime(SimpleNamespace(), replace(settings_of(tmp_path), runtime="runc"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "told"),
    [("exit 139", "status 139"), ("echo no >&2; exit 1", "no"), ("exec sleep 60", "took too long")],
)
def test_a_checkpoint_that_fails_is_told_in_bounded_time(
    registered: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    registered(script)
    monkeypatch.setattr(runtime, "_TAKE_TIMEOUT", 0.5)
    with pytest.raises(CheckpointFailed, match=told):
        Runtime((str(tmp_path / "runsc"),), "1").take("abc", tmp_path)
    with pytest.raises(CheckpointFailed, match="state"):
        Runtime((str(tmp_path / "runsc"),), "1").take("unknown", tmp_path)


@pytest.mark.parametrize("option", ["--root=/run/other/runtime-runc/moby", "--root\0/run/other/runtime-runc/moby"])
def test_the_state_of_an_engine_with_another_exec_root_is_found_from_its_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(runtime, "_STATES", (f"{tmp_path}/none*",))
    monkeypatch.setattr(runtime, "_PROCESSES", tmp_path)
    for pid, words in enumerate([f"runsc-sandbox\0{option}\0boot\0abc\0", "runsc-sandbox\0--root=/other\0boot\0x\0"]):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(words)
    script = tmp_path / "runsc"
    script.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/told\n')
    script.chmod(0o755)
    Runtime((str(script),), "1").hold("abc")
    assert (tmp_path / "told").read_text() == "--root /run/other/runtime-runc/moby pause abc\n"
    with pytest.raises(CheckpointFailed, match="the state of the runtime's containers was not found"):
        Runtime((str(script),), "1").hold("unknown")


# -- images on disk --------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Images:
    return Images(tmp_path / "checkpoints", 100 * MIB)


def put(shelf: Images, key: str, content: bytes = b"memory" * 1000) -> Image:
    begun = shelf.begin(len(content))
    (begun / "checkpoint.img").write_bytes(b"state")
    (begun / "pages.img").write_bytes(content)
    shelf.finish(begun, key, "sha256:1", ["numpy"])
    image = shelf.find(key)
    assert image is not None
    return image


def test_an_image_is_found_as_it_was_left_and_by_nobody_else(shelf: Images) -> None:
    assert shelf.find("a") is None
    image = put(shelf, "a")
    assert image.intact()
    assert (image.source, image.modules) == ("sha256:1", frozenset({"numpy"}))
    assert image.path.stat().st_mode & 0o077 == 0
    assert image.path.parent.stat().st_mode & 0o077 == 0
    shelf.remove_others({"a"})
    assert shelf.find("a") == image
    shelf.remove_others(())
    assert shelf.find("a") is None


def test_an_image_that_is_cut_is_not_whole_and_is_removed(shelf: Images) -> None:
    image = put(shelf, "a")
    os.truncate(image.path / "pages.img", 100)
    assert not image.intact()
    assert shelf.find("a") is None
    assert not image.path.exists()


@pytest.mark.parametrize("name", ["pages.img", "checkpoint.img", "manifest.json"])
def test_an_image_that_was_changed_is_refused(shelf: Images, name: str) -> None:
    image = put(shelf, "a")
    content = bytearray((image.path / name).read_bytes())
    content[0] ^= 1
    (image.path / name).write_bytes(content)
    assert shelf.find("a") is None


def test_an_image_without_its_files_is_not_finished(shelf: Images) -> None:
    for files in ({}, {"pages.img": b"x"}, {"checkpoint.img": b"x", "pages.img": b""}):
        begun = shelf.begin(1)
        for name, content in files.items():
            (begun / name).write_bytes(content)
        with pytest.raises(CheckpointFailed, match="has not written"):
            shelf.finish(begun, "a", "sha256:1", [])
        assert shelf.find("a") is None


def test_images_stay_within_their_bound(shelf: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    put(shelf, "a", b"x" * 60 * MIB)
    with pytest.raises(CheckpointFailed, match="golden_disk"):
        shelf.begin(50 * MIB)
    shelf.begin(30 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40, 10 * MIB))
    with pytest.raises(CheckpointFailed, match="are free on the disk"):
        shelf.begin(1)


def rewrite(file: Path) -> None:
    """Write the same content at the same time."""
    before = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_copy(file: Path) -> None:
    shutil.copy2(file, file.with_name("copy"))
    file.with_name("copy").rename(file)


def restart_machine(_: Path) -> None:
    images._BOOT.write_text("second\n")


def test_a_proof_is_remembered_by_the_next_gateway(shelf: Images) -> None:
    image = put(shelf, "a")
    assert shelf.proven("a") is None
    shelf.remember_proof(image)
    assert Images(image.path.parent, 0).proven("a") == image
    assert shelf.proven("b") is None


@pytest.mark.parametrize("change", [Path.touch, rewrite, replace_by_copy, Path.unlink, restart_machine])
@pytest.mark.parametrize("name", ["pages.img", "manifest.json"])
def test_a_proof_is_void_when_a_file_was_touched_or_the_machine_started_again(
    shelf: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(images, "_BOOT", tmp_path / "boot_id")
    images._BOOT.write_text("first\n")
    image = put(shelf, "a")
    shelf.remember_proof(image)
    assert shelf.proven("a") == image
    change(image.path / name)
    assert shelf.proven("a") is None


def test_a_file_that_is_changed_while_it_is_proven_makes_no_proof(shelf: Images) -> None:
    image = put(shelf, "a")
    (image.path / "pages.img").touch()
    shelf.remember_proof(image)
    assert shelf.proven("a") is None


class Proofs:
    """A workshop whose golden images are files of the test, and what it does about them."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.image, self.runtime = "sha256:1", Runtime(("runsc",), "1")
        self.settings = replace(settings_of(directory), files="memory")
        monkeypatch.setattr(workshop, "find_runtime", lambda *_: self.runtime)
        monkeypatch.setattr(workshop, "clear_marks", lambda _: None)
        monkeypatch.setattr(workshop, "host_config", lambda *_, **__: {})
        monkeypatch.setattr(containers, "create", lambda *_, **__: "container")
        sandbox = Mock(receive=lambda _: {})
        monkeypatch.setattr(workshop, "attached", lambda *_: nullcontext(sandbox))
        monkeypatch.setattr(Runtime, "take", self._take)
        monkeypatch.setattr(workshop, "restore", lambda *_: self.done.append("proven"))

    def _take(self, _container: str, directory: Path) -> None:
        self.done.append("taken")
        (directory / "checkpoint.img").write_bytes(b"state")

    def golden(self, *, prove_again: bool = False) -> list[str]:
        """Let a new gateway want an image; return what it has done for that."""
        engine = Mock()
        engine.api.inspect_image.return_value = {"Id": self.image}
        assert self.settings.golden is not None
        workshop = Workshop(
            engine,
            disks := Disks(engine, self.settings),
            self.settings,
            self.settings.golden,
            SleepImages(engine, disks, self.settings),
        )
        self.done.clear()
        _, image = workshop.golden(Shape.of(PYTHON), prove_again=prove_again)
        assert image.intact()
        return list(self.done)


def test_a_gateway_proves_what_no_earlier_one_has_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = Proofs(tmp_path, monkeypatch)
    assert proofs.golden() == ["taken", "proven"]
    assert proofs.golden() == []
    assert proofs.golden(prove_again=True) == ["proven"]
    assert proofs.golden() == []
    proofs.image = "sha256:2"
    assert proofs.golden() == ["taken", "proven"]
    proofs.runtime = replace(proofs.runtime, version="2")
    assert proofs.golden() == ["taken", "proven"]
    assert proofs.golden() == []


# -- who can be restored ---------------------------------------------------------------------------------------

PLAIN = Launch(PYTHON)


@pytest.mark.parametrize(
    "launch",
    [
        PLAIN,
        replace(PLAIN, env={"TZ": "UTC"}, cwd="data", workspace="w", shared=True, tenant="alice"),
        replace(PLAIN, limits=replace(LIMITS, memory=PRELOAD_MEMORY, cpus=0.6, processes=16, disk=MIB, output=1)),
    ],
)
def test_a_kernel_whose_differences_can_be_set_later_is_restored(launch: Launch) -> None:
    assert fits(launch, LIMITS)


@pytest.mark.parametrize(
    "launch",
    [
        replace(PLAIN, env={"LC_ALL": "C"}),
        replace(PLAIN, image="other:1"),
        replace(PLAIN, egress=SessionKey("alice", "s")),
        replace(PLAIN, kernelspec=KERNELSPECS.find("javascript")),
        replace(PLAIN, limits=replace(LIMITS, memory=PRELOAD_MEMORY - 1)),
        replace(PLAIN, limits=replace(LIMITS, cpus=1.5)),
        replace(PLAIN, limits=replace(LIMITS, processes=LIMITS.processes + 1)),
        replace(PLAIN, limits=replace(LIMITS, disk=LIMITS.disk + 1)),
    ],
)
def test_a_kernel_that_differs_in_what_is_fixed_at_its_start_is_started_plainly(launch: Launch) -> None:
    assert not fits(launch, LIMITS)


# -- a sandbox's words -----------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[StdioChannel, socket.socket]]:
    own, other = socket.socketpair()
    with own, other:
        yield StdioChannel(own, b"", CheckpointFailed), other


def framed(content: bytes) -> bytes:
    return b"\x01\0\0\0" + len(content).to_bytes(4, "big") + content


def test_a_line_is_read_from_pieces(ends: tuple[StdioChannel, socket.socket]) -> None:
    channel, sandbox = ends
    said = framed(b'{"num') + framed(b'py": "no"}\n{}') + framed(b"\n")
    for byte in said:
        sandbox.send(bytes([byte]))
    assert channel.receive(5) == {"numpy": "no"}
    assert channel.receive(5) == {}
    channel.send(b"hello\n")
    assert sandbox.recv(6) == b"hello\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", "ended"),
        (framed(b"{"), "ended"),
        (framed(b"no JSON\n"), "JSON"),
        (framed(b"[1]\n"), "JSON"),
        (framed(b"x" * 60_000) * 2, "too much"),
    ],
)
def test_a_sandbox_that_says_something_else_is_not_restored(
    ends: tuple[StdioChannel, socket.socket], said: bytes, told: str
) -> None:
    channel, sandbox = ends
    sandbox.sendall(said)
    sandbox.shutdown(socket.SHUT_WR)
    with pytest.raises(CheckpointFailed, match=told):
        channel.receive(5)


def test_a_sandbox_that_is_silent_is_given_up(ends: tuple[StdioChannel, socket.socket]) -> None:
    with pytest.raises(CheckpointFailed, match="did not answer"):
        ends[0].receive(0.05)
    ends[1].close()
    with pytest.raises(CheckpointFailed, match="ended"):
        ends[0].send(b"x" * 10_000_000)


# -- what follows ----------------------------------------------------------------------------------------------


BASH = KERNELSPECS.find("bash")
TWO_LANGUAGES = pytest.mark.parametrize(
    "golden_images", [(BASH, replace(PYTHON, preload=("numpy",)))], indirect=True, ids=["two languages"]
)


class Bench:
    """Stands for the workshop: makes images without an engine, or fails."""

    def __init__(self, shelf: Images) -> None:
        self.images = shelf
        self.error: Exception | None = None
        #: languages whose images are made in spite of it
        self.able: set[str] = set()
        #: shapes that were asked for, in order, and whether their images were prove_again
        self.asked: list[Shape] = []
        self.prove_again: list[bool] = []
        #: what the gateway's process may not do
        self.lacks = ""
        self.go, self.sleep_go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.sleep_go.set()
        self._loop = asyncio.get_running_loop()

    def golden(self, shape: Shape, used: Collection[str], *, prove_again: bool) -> tuple[str, Image]:
        self.asked.append(shape)
        self.prove_again.append(prove_again)
        asyncio.run_coroutine_threadsafe(self.go.wait(), self._loop).result(10)
        if self.error is not None and shape.language not in self.able:
            raise self.error
        key = f"{shape.language}-{shape.shared}-{len(self.asked)}"
        self.images.remove_others(used)
        return key, put(self.images, key)

    def sleeps(self, _shape: Shape, _image: Image) -> Ability:
        asyncio.run_coroutine_threadsafe(self.sleep_go.wait(), self._loop).result(10)
        return Ability(on=not self.lacks, detail=self.lacks)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self.go.set)


@pytest.fixture
async def bench(shelf: Images, nothing_left: None) -> Bench:
    return Bench(shelf)


def golden_images_of(engine: Engine, settings: DockerSettings) -> GoldenImages:
    return GoldenImages(engine, Disks(engine, settings), settings)


@pytest.fixture(params=[[PYTHON]], ids=[""])
async def golden_images(
    request: pytest.FixtureRequest, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GoldenImages]:
    """The golden images of some languages, made on the bench."""
    engine = Engine()
    monkeypatch.setattr(supply, "Workshop", lambda *_: bench)
    made = golden_images_of(engine, settings_of(tmp_path, kernelspecs=request.param))
    yield made
    await made.close()
    await engine.close()


async def test_an_image_is_made_at_the_start_and_another_for_sandboxes_when_one_is_wanted(
    golden_images: GoldenImages, bench: Bench
) -> None:
    assert golden_images.image_for(PLAIN) is None
    bench.go.clear()
    golden_images.begin()
    assert not golden_images.ability.on
    assert "being made" in golden_images.ability.detail
    bench.go.set()
    await golden_images.settled()
    assert golden_images.ability.on
    alone = golden_images.image_for(PLAIN)
    assert alone is not None
    shared = replace(PLAIN, workspace="w", shared=True)
    assert golden_images.image_for(shared) is None
    await golden_images.settled()
    assert [shape.shared for shape in bench.asked[-2:]] == [False, True]
    found = golden_images.image_for(shared)
    assert found is not None
    assert found != alone
    assert golden_images.image_for(PLAIN) == alone


@TWO_LANGUAGES
async def test_a_language_whose_image_cannot_be_made_takes_none_from_the_others(
    golden_images: GoldenImages, bench: Bench
) -> None:
    bench.error, bench.able = CheckpointFailed("the kernel ended before it waited"), {"python"}
    golden_images.begin()
    await golden_images.settled()
    assert golden_images.image_for(PLAIN) is not None
    assert golden_images.image_for(Launch(BASH)) is None
    await golden_images.settled()
    assert [shape.language for shape in bench.asked[:2]] == ["python", "bash"]
    assert golden_images.ability.on


@TWO_LANGUAGES
async def test_the_image_of_a_language_makes_no_room_for_the_next_one(golden_images: GoldenImages) -> None:
    for _ in range(50):  # the second one may begin in the moment in which the first one ends
        golden_images.begin()
        await golden_images.settled()
        found = [golden_images.image_for(launch) for launch in (PLAIN, Launch(BASH))]
        assert all(image is not None and image.intact() for image in found)


@pytest.mark.parametrize("error", [CheckpointFailed("it is full"), BackendUnavailable("it is full")])
async def test_what_cannot_be_made_is_told_and_not_tried_for_ever(
    golden_images: GoldenImages, bench: Bench, error: Exception
) -> None:
    bench.error = error
    with capture_logs() as logs:
        golden_images.begin()
        for _ in range(ATTEMPTS_MAX + 3):
            await golden_images.settled()
            assert golden_images.image_for(PLAIN) is None
    assert len(bench.asked) == len(logs) == ATTEMPTS_MAX
    assert not golden_images.ability.on
    assert "it is full" in golden_images.ability.detail
    bench.error = None
    golden_images.begin()  # another container image
    await golden_images.settled()
    assert golden_images.ability.on


async def test_restores_that_fail_again_and_again_give_up_the_image_and_are_logged_once(
    golden_images: GoldenImages, bench: Bench
) -> None:
    golden_images.begin()
    await golden_images.settled()
    image = golden_images.image_for(PLAIN)
    assert image is not None
    with capture_logs() as logs:
        for _ in range(FAILURES_MAX - 1):
            golden_images.failed(image, "status 139")
    assert [entry["reason"] for entry in logs] == ["status 139"]
    assert golden_images.image_for(PLAIN) == image
    golden_images.succeeded(image)
    for _ in range(FAILURES_MAX - 1):
        golden_images.failed(image, "status 139")
    assert golden_images.image_for(PLAIN) == image
    golden_images.failed(image, "status 139")
    assert golden_images.image_for(PLAIN) is None
    await golden_images.settled()
    renewed = golden_images.image_for(PLAIN)
    assert renewed is not None
    assert renewed != image
    assert not image.path.exists()
    assert bench.prove_again == [False, True], "a proof from before the failures counts no more"


async def test_an_image_whose_file_was_cut_is_not_used_and_made_anew(golden_images: GoldenImages, bench: Bench) -> None:
    golden_images.begin()
    await golden_images.settled()
    image = golden_images.image_for(PLAIN)
    assert image is not None
    os.truncate(image.path / "pages.img", 100)
    assert golden_images.image_for(PLAIN) is None
    await golden_images.settled()
    assert len(bench.asked) == 2
    assert golden_images.image_for(PLAIN) not in (None, image)


async def test_an_image_of_a_container_image_that_has_changed_meanwhile_is_not_used(
    golden_images: GoldenImages, bench: Bench
) -> None:
    bench.go.clear()
    golden_images.begin()
    await until(lambda: bench.asked)
    golden_images.begin()
    bench.go.set()
    await until(lambda: golden_images.ability.on)
    assert len(bench.asked) == 2
    image = golden_images.image_for(PLAIN)
    assert image is not None
    assert image.path.name.endswith("-2")


@ROOT
@pytest.mark.parametrize(
    ("taken", "told"),
    [("-sys_admin", ""), ("-chown,-kill", "the gateway's process lacks CAP_CHOWN, CAP_KILL")],
)
def test_what_the_gateways_process_may_not_do_is_told(tmp_path: Path, taken: str, told: str) -> None:
    (tmp_path / "volumes").mkdir()
    look = f"import runpy; print(runpy.run_path({rights.__file__!r})['missing_rights']({str(tmp_path)!r}))"
    command = ["setpriv", "--bounding-set", taken, sys.executable, "-c", look]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"{told}\n"


@ROOT
def test_a_gateway_that_cannot_write_to_the_engines_volumes_says_so(tmp_path: Path) -> None:
    assert "cannot write" in rights.missing_rights(str(tmp_path))


async def test_without_its_rights_kernels_are_restored_and_none_sleeps(
    golden_images: GoldenImages, bench: Bench
) -> None:
    bench.lacks = "the gateway's process lacks CAP_KILL"
    golden_images.begin()
    await golden_images.settled()
    assert golden_images.ability.on
    assert (golden_images.proven.on, golden_images.proven.detail) == (False, bench.lacks)


async def test_kernels_are_restored_while_their_sleep_is_proven(golden_images: GoldenImages, bench: Bench) -> None:
    bench.sleep_go.clear()
    golden_images.begin()
    await until(lambda: golden_images.ability.on)
    assert golden_images.image_for(PLAIN) is not None
    assert (golden_images.proven.on, golden_images.proven.detail) == (
        False,
        "the proof that kernels can sleep is under way",
    )
    bench.sleep_go.set()
    await golden_images.settled()
    assert golden_images.proven.on


def test_where_kernels_have_little_memory_they_are_restored_without_modules() -> None:
    small = replace(LIMITS, memory=PRELOAD_MEMORY - 1)
    shape = Shape.of(replace(PYTHON, preload=("numpy",)))
    assert shape.launch(LIMITS).kernelspec.preload == ("numpy",)
    assert shape.launch(small).kernelspec.preload == ()
    assert fits(replace(PLAIN, limits=small), small)
    assert not fits(replace(PLAIN, limits=replace(small, memory=small.memory - 1)), small)


async def test_the_setting_keeps_kernels_from_being_restored(tmp_path: Path) -> None:
    off = golden_images_of(Engine(), replace(settings_of(tmp_path), golden=None))
    off.begin()
    assert off.image_for(PLAIN) is None
    assert not off.ability.on
    assert off.ability.detail == "`golden_images` is off"
