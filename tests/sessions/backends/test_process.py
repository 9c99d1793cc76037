"""The process backend beyond the contract: child processes end with their kernel, and keys are not visible."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessions.backends import process
from sessions.backends.base import Launch
from sessions.backends.process import ProcessBackend
from sessions.guest.processes import run_process
from sessions.kernels.kernel import Kernel
from sessions.model.errors import SessionClosed, StartFailed
from sessions.model.kernelspecs import NO_KERNEL, KernelSpec
from sessions.model.tasks import spawn
from sessions.model.values import ExitReason, KernelExit
from tests.fakes import KERNELSPECS, until
from tests.sessions.backends.test_contract import execute

#: the first of the ports that the system assigns to connections
LOWEST_GIVEN = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
LAUNCH = Launch(KERNELSPECS.find("python"))


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of temporary files; its path is short, as the paths of sockets must be."""
    tmp_path_factory.getbasetemp()  # pytest makes its own elsewhere
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.fixture
def root(temporary: Path, backend: ProcessBackend) -> Path:
    """The backend's directory."""
    (root,) = temporary.iterdir()
    return root


def inside(directory: Path) -> list[str]:
    """Return the names of everything in a directory."""
    return [path.name for path in directory.rglob("*")]


@pytest.fixture
async def backend(nothing_left: None, temporary: Path) -> AsyncIterator[ProcessBackend]:
    backend = ProcessBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def kernel(backend: ProcessBackend) -> AsyncIterator[Kernel]:
    kernel = await Kernel.start(backend, LAUNCH)
    yield kernel
    await kernel.kill(SessionClosed())


def runs(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def starts_a_child(kernel: Kernel) -> int:
    """Start a process in a cell, and return its id."""
    _, printed = await execute(kernel, "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)")
    assert runs(int(printed))
    return int(printed)


# -- the end ---------------------------------------------------------------------------------------------------


async def test_processes_of_a_cell_are_killed_with_its_kernel(kernel: Kernel) -> None:
    child = await starts_a_child(kernel)
    await kernel.kill(SessionClosed())
    await until(lambda: not runs(child))


async def test_processes_of_a_cell_are_killed_when_its_kernel_ends(kernel: Kernel) -> None:
    child = await starts_a_child(kernel)
    kernel.connection.send("shell", "execute_request", {"code": "import os; os._exit(0)", "silent": False})
    assert await kernel.handle.wait() == KernelExit(ExitReason.EXITED, 0)
    await until(lambda: not runs(child))


async def test_the_exit_code_of_a_kernel_includes_the_signal_that_ended_it(kernel: Kernel) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    kernel.connection.send("shell", "execute_request", {"code": code, "silent": False})
    assert await kernel.handle.wait() == KernelExit(ExitReason.EXITED, 128 + signal.SIGSEGV)


async def test_an_interrupt_reaches_the_process_that_a_cell_waits_for(kernel: Kernel, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import subprocess; print(subprocess.run(['sh', '-c', 'touch {begun}; sleep 1000']).returncode)"
    cell = spawn(execute(kernel, code), "cell")
    await until(begun.exists)
    await kernel.handle.interrupt()
    async with asyncio.timeout(60):
        assert (await cell)[0] == "KeyboardInterrupt"


async def test_an_interrupt_does_not_hit_a_later_cell(kernel: Kernel) -> None:
    """Also when the launcher, which passes signals on to the kernel, is stopped meanwhile."""
    launcher = os.getsid(int((await execute(kernel, "import os, time; print(os.getpid())"))[1]))
    os.kill(launcher, signal.SIGSTOP)
    try:
        await kernel.handle.interrupt()  # no effect on an idle kernel
        cell = spawn(execute(kernel, "time.sleep(0.3)"), "cell")
        await asyncio.sleep(0.1)
    finally:
        os.kill(launcher, signal.SIGCONT)
    assert await cell == ("ok", "")


async def test_a_kernel_whose_process_name_is_not_utf8_can_be_interrupted_and_killed(kernel: Kernel) -> None:
    name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe')"
    assert await execute(kernel, name) == ("ok", "")
    begun = asyncio.Event()
    cell = spawn(execute(kernel, "time.sleep(60)", begun), "cell")
    await begun.wait()
    await kernel.handle.interrupt()
    assert (await cell)[0] == "KeyboardInterrupt"
    async with asyncio.timeout(60):
        await kernel.kill(SessionClosed())


async def test_nothing_is_left_on_disk(backend: ProcessBackend, temporary: Path, root: Path, kernel: Kernel) -> None:
    assert (root / kernel.handle.id).is_dir()
    await kernel.kill(SessionClosed())
    assert not (root / kernel.handle.id).exists()
    await backend.close()
    assert inside(temporary) == []


@pytest.fixture
def scratch() -> Iterator[str]:
    """A directory for temporary files, with a short path."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory


def test_no_kernel_outlives_its_gateway(scratch: str) -> None:
    env = {"TMPDIR": scratch}
    gateway = subprocess.Popen([sys.executable, "-c", _GATEWAY], stdout=subprocess.PIPE, cwd=Path.cwd(), env=env)
    with gateway:
        assert gateway.stdout is not None
        kernel = int(gateway.stdout.readline())
        assert runs(kernel)
        gateway.kill()
    for _ in range(3000):
        if not runs(kernel):
            return
        signal.sigtimedwait([], 0.01)
    pytest.fail("the kernel lives on")


_GATEWAY = """
import asyncio
from sessions.backends import process
from sessions.backends.base import Launch
from sessions.backends.process import ProcessBackend
from sessions.kernels.kernel import Kernel
from tests.fakes import KERNELSPECS
from tests.sessions.backends.test_contract import execute

async def main():
    kernel = await Kernel.start(ProcessBackend(), Launch(KERNELSPECS.find("python")))
    print((await execute(kernel, "import os; print(os.getpid())"))[1], end="", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


# -- secrets ---------------------------------------------------------------------------------------------------


async def test_keys_are_in_one_file_that_only_this_user_may_read(root: Path, kernel: Kernel) -> None:
    home = root / kernel.handle.id
    key = kernel.handle.connection_info.key.decode()
    assert [path.name for path in home.iterdir() if path.is_file() and key in path.read_text()] == [".connection.json"]
    assert (home / ".connection.json").stat().st_mode & 0o777 == 0o600
    for place in (root, home):
        assert place.stat().st_mode & 0o777 == 0o700


async def test_keys_are_in_no_arguments_or_environment_of_a_process(kernel: Kernel) -> None:
    info = kernel.handle.connection_info
    _, pid = await execute(kernel, "import os; print(os.getpid())")
    processes = [Path(f"/proc/{pid.strip()}"), Path(f"/proc/{_parent(int(pid))}"), Path(f"/proc/{os.getpid()}")]
    shown = b"".join((process / name).read_bytes() for process in processes for name in ("cmdline", "environ"))
    assert b"launcher.py" in shown
    assert info.curve_secretkey is not None
    assert info.key not in shown
    assert info.curve_secretkey not in shown


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# -- trouble ---------------------------------------------------------------------------------------------------


async def test_a_process_that_cannot_be_created_is_a_failed_start(
    backend: ProcessBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuses)
    with pytest.raises(StartFailed, match="Resource temporarily unavailable"):
        await Kernel.start(backend, LAUNCH)
    assert inside(root) == ["workspaces"]


# -- kernels that support only TCP -----------------------------------------------------------------------------


async def test_a_kernel_may_be_reached_by_tcp(backend: ProcessBackend) -> None:
    spec = replace(LAUNCH.kernelspec, ipc=False)
    kernel = await Kernel.start(backend, Launch(spec))
    info = kernel.handle.connection_info
    assert info.url("shell").startswith("tcp://127.0.0.1:")
    # So no connection of this machine can use one of the ports before the kernel binds it.
    assert max(info.shell_port, info.hb_port) < LOWEST_GIVEN
    assert (await execute(kernel, "print(1)"))[1] == "1\n"
    await kernel.kill(SessionClosed())


async def test_without_free_ports_nothing_is_started(
    backend: ProcessBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PORT_ATTEMPTS", 0)
    with pytest.raises(StartFailed, match="no free ports"):
        await Kernel.start(backend, Launch(replace(LAUNCH.kernelspec, ipc=False)))
    assert inside(root) == []


# -- programs beside kernels -----------------------------------------------------------------------------------


async def test_programs_left_in_a_workspace_end_with_it_and_others_do_not(backend: ProcessBackend) -> None:
    container = KernelSpec("none", "no kernel", argv=())
    places = [await backend.start(Launch(container, workspace=name)) for name in ("ends", "stays")]
    command = "sleep 1000 >/dev/null 2>&1 & echo $!"
    pids = [int((await run_process(place, command, "", {}, 10)).stdout) for place in places]
    await asyncio.gather(*(place.kill() for place in places))
    assert all(map(runs, pids))
    await backend.delete_workspace("ends")
    await until(lambda: not runs(pids[0]))
    assert runs(pids[1])
    await backend.delete_workspace("stays")
    await until(lambda: not runs(pids[1]))


async def test_a_process_has_no_image(backend: ProcessBackend) -> None:
    with pytest.raises(StartFailed, match="have no image"):
        await backend.start(Launch(KERNELSPECS.find("python"), image="other:1"))


async def test_files_are_left_to_the_next_gateway_which_deletes_those_of_no_session(
    tmp_path: Path, nothing_left: None
) -> None:
    first = ProcessBackend(tmp_path)
    for workspace in ("kept", "forgotten"):
        handle = await first.start(Launch(NO_KERNEL, workspace=workspace))
        (tmp_path / workspace / "a").write_text("content")
        await handle.kill()
    await first.release()
    second = ProcessBackend(tmp_path)
    assert await second.adopt({}, ["kept"]) == {}
    assert os.listdir(tmp_path) == ["kept"]  # noqa: PTH208 - fast
    assert (tmp_path / "kept" / "a").read_text() == "content"
    await second.close()
    assert not os.path.exists(tmp_path), "the end of all sessions"  # noqa: ASYNC240, PTH110 - fast


async def test_a_language_is_listed_only_if_its_kernels_find_its_interpreter(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = temporary / "own"
    own.mkdir()
    (own / "ruby").write_text("#!/bin/sh\necho of the gateway alone\n")
    (own / "ruby").chmod(0o755)
    monkeypatch.setenv("PATH", str(own), prepend=os.pathsep)
    backend = ProcessBackend()
    assert backend.inventory.packages.get("ruby") != "of the gateway alone"
    assert "bash" in backend.inventory.packages
    await backend.close()
