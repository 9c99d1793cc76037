"""The first process beside user code, started as a container or the process backend would start it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.base import KERNEL_IMAGE

LAUNCHER = [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "launcher.py")]
#: the same command, adopting orphans as PID 1 of a container does (PR_SET_CHILD_SUBREAPER)
AS_FIRST = [
    *(sys.executable, "-c"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])",
    *LAUNCHER,
]

Launch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a launcher whose kernel is a shell script."""
    started = []

    def start(script: str, *, program: list[str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        handshake = {
            "argv": ["/bin/sh", "-c", script],
            "connection": {"key": "secret"},
            "connection_file": str(tmp_path / "connection.json"),
            "workspace": str(tmp_path),
            "home": str(tmp_path),
            "cwd": "",
            "env": {"GREETING": "hello"},
            **changes,
        }
        environment = {"PATH": os.defpath, "CANARY": "of the gateway"}
        process = subprocess.Popen(
            program or LAUNCHER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(handshake).encode() + b"\n")
        process.stdin.flush()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def report(tmp_path: Path, name: str = "report") -> str:
    """Wait until the script has written a line to a file, and return it."""
    path = tmp_path / name
    for _ in range(3000):
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.01)
    pytest.fail(f"{name} was not written")


def runs(pid: str) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(condition: Callable[[], bool]) -> bool:
    """Return whether a condition becomes false within 30 seconds."""
    for _ in range(3000):
        if not condition():
            return True
        time.sleep(0.01)
    return False


# -- exit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_a_kernel_s_exit_code_is_the_launcher_s(launch: Launch, code: int) -> None:
    assert launch(f"exit {code}").wait(60) == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_that_ends_the_kernel_gives_an_exit_code_as_in_shells(launch: Launch, number: signal.Signals) -> None:
    assert launch(f"kill -{number.value} $$").wait(60) == 128 + number


def test_a_missing_kernel_program_ends_the_launcher_with_127(launch: Launch) -> None:
    assert launch("", argv=["/no/such/program"]).wait(60) == 127


@pytest.mark.parametrize(("cwd", "where"), [("", "."), ("a/b", "a/b"), ("file", "."), ("file/under", ".")])
def test_the_kernel_starts_in_the_given_directory_or_in_the_workspace(
    launch: Launch, tmp_path: Path, cwd: str, where: str
) -> None:
    (tmp_path / "file").touch()
    assert launch(f"pwd > {tmp_path}/seen", cwd=cwd).wait(60) == 0
    assert (tmp_path / "seen").read_text().strip() == str((tmp_path / where).resolve())


def test_an_invalid_handshake_starts_nothing(launch: Launch, tmp_path: Path) -> None:
    process = subprocess.Popen(LAUNCHER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.communicate(b"not json\n", timeout=5)
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []


# -- without a kernel ------------------------------------------------------------------------------------------


@pytest.fixture
def hold(launch: Launch, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launcher without a kernel that has finished its start."""
    process = launch("", argv=[])
    assert ends(lambda: not _handles(process.pid, signal.SIGCHLD) or _state(process.pid) != "S")
    return process


def _handles(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_without_a_kernel_the_launcher_stays_and_does_nothing(hold: subprocess.Popen[bytes], tmp_path: Path) -> None:
    time.sleep(0.2)
    assert hold.poll() is None
    assert [path.name for path in tmp_path.iterdir()] == ["connection.json"]
    assert Path(f"/proc/{hold.pid}/task/{hold.pid}/children").read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_kernel_a_signal_ends_the_launcher(hold: subprocess.Popen[bytes], number: signal.Signals) -> None:
    hold.send_signal(number)
    assert hold.wait(60) == 0


def test_without_a_kernel_orphans_are_reaped_too(launch: Launch, tmp_path: Path) -> None:
    orphan = "(sh -c 'echo $$ > {0}/orphan{1}; exec sleep 0.3' &)"
    script = "; ".join(f"{orphan.format(tmp_path, number)}; sleep 0.5" for number in range(3))
    begin = (
        "import ctypes, os, subprocess as s, sys; ctypes.CDLL(None).prctl(36, 1);"
        " s.Popen(['/bin/sh', '-c', sys.argv[1]], stdin=s.DEVNULL, stdout=s.DEVNULL);"
        " os.execv(sys.argv[2], sys.argv[2:])"
    )
    process = launch("", argv=[], program=[sys.executable, "-c", begin, script, *LAUNCHER])
    for number in range(3):  # the launcher continues after the first orphan
        pid = report(tmp_path, f"orphan{number}")
        assert ends(lambda pid=pid: Path(f"/proc/{pid}").exists()), "its remains were left"  # type: ignore[misc]
    assert process.poll() is None


# -- signals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [[], ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]], ids=["", "in the background"])
def test_an_interrupt_is_passed_on(launch: Launch, tmp_path: Path, program: list[str]) -> None:
    process = launch(
        "trap 'exit 7' INT; echo ready > report; while :; do sleep 0.01; done", program=[*program, *LAUNCHER]
    )
    report(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7


#: runs a launcher that is interrupted at the very moment in which it has a kernel
INTERRUPTED_AT_ONCE = """
import os, runpy, signal, sys
fork = os.fork
def interrupted():
    kernel = fork()
    if kernel:
        os.kill(os.getpid(), signal.SIGINT)
    return kernel
os.fork = interrupted
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("shell", [[], ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]], ids=["", "in the background"])
def test_an_interrupt_right_after_the_kernels_start_is_passed_on(launch: Launch, shell: list[str]) -> None:
    program = [*shell, sys.executable, "-c", INTERRUPTED_AT_ONCE, LAUNCHER[-1]]
    # No shell as the kernel: Debian's loses interrupts that arrive just before it executes its command. Of 4,000 in the
    # first 2 ms, each sent to the whole process group, `sh -c 'sleep 1000'` lost 487, and `sleep 1000` none.
    process = launch("", argv=["sleep", "1000"], program=program)
    assert process.wait(60) == 128 + signal.SIGINT


#: no shell: Debian's loses an interrupt that arrives just before it executes its command
REPORTS_AND_SLEEPS = "import os, time; print(os.getpid(), file=open('report', 'w'), flush=True); time.sleep(1000)"


def test_an_interrupt_also_reaches_a_child_that_the_kernel_waits_for(launch: Launch, tmp_path: Path) -> None:
    process = launch(f"trap : INT; {shlex.quote(sys.executable)} -ISc {shlex.quote(REPORTS_AND_SLEEPS)}; exit 3")
    child = report(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 3
    assert not runs(child)


def test_the_launcher_outlives_the_signals_it_passes_on(launch: Launch, tmp_path: Path) -> None:
    process = launch(
        "trap 'echo caught > caught' INT; echo ready > report; for _ in 1 2 3 4 5; do sleep 0.1; done; exit 4"
    )
    report(tmp_path)
    process.send_signal(signal.SIGINT)
    report(tmp_path, "caught")
    assert process.wait(60) == 4


def test_sigterm_ends_a_kernel_that_ignores_signals(launch: Launch, tmp_path: Path) -> None:
    process = launch("trap '' INT TERM; echo ready > report; while :; do sleep 0.1; done")
    report(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGKILL


# -- processes -------------------------------------------------------------------------------------------------


def test_orphans_are_reaped(launch: Launch, tmp_path: Path) -> None:
    orphan = "(sh -c 'echo $$ > orphan; exec sleep 0.05' &)"
    process = launch(f"{orphan}; sleep 0.5; echo done > report; sleep 60", program=AS_FIRST)
    pid = report(tmp_path, "orphan")
    assert ends(lambda: Path(f"/proc/{pid}").exists()), "its remains were left"
    assert process.poll() is None
    report(tmp_path)


def test_processes_started_by_the_kernel_end_with_it(launch: Launch, tmp_path: Path) -> None:
    process = launch("sleep 1000 & echo $! > report; exit 0")
    assert process.wait(60) == 0
    assert ends(lambda: runs(report(tmp_path)))


def test_a_launcher_whose_gateway_has_ended_already_starts_nothing(launch: Launch, tmp_path: Path) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    began = "echo began >> begun; sleep 60"
    process = launch(began, program=[*LAUNCHER, str(gone.pid)])
    assert process.wait(60) == 128 + signal.SIGKILL
    assert not (tmp_path / "connection.json").exists()
    launch(began, program=[*LAUNCHER, str(os.getpid())])  # the control: its gateway lives
    assert report(tmp_path, "begun") == "began"


def test_the_kernel_does_not_outlive_the_launcher(launch: Launch, tmp_path: Path) -> None:
    process = launch("echo $$ > report; exec sleep 1000")
    kernel = report(tmp_path)
    assert runs(kernel)
    process.kill()
    assert ends(lambda: runs(kernel))


# -- the kernel's surroundings ---------------------------------------------------------------------------------


def test_the_kernel_s_environment_is_the_one_of_the_handshake(launch: Launch, tmp_path: Path) -> None:
    launch("tr '\\0' '\\n' < /proc/self/environ > report.part; mv report.part report")
    names = {line.partition("=")[0] for line in report(tmp_path).splitlines()}
    assert {"GREETING", "PATH"} <= names <= {"GREETING", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}


def test_the_connection_file_is_private_and_not_overwritten(launch: Launch, tmp_path: Path) -> None:
    assert launch("cat connection.json > report; echo >> report").wait(60) == 0
    assert json.loads(report(tmp_path)) == {"key": "secret"}
    assert (tmp_path / "connection.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "report").unlink()
    assert launch("echo again > report").wait(60) != 0
    assert not (tmp_path / "report").exists()


def test_output_outside_the_channels_is_discarded(launch: Launch) -> None:
    process = launch("echo loud; echo loud >&2; cat; exit 0")
    output, _ = process.communicate(b"more input\n", timeout=5)
    assert (process.returncode, output) == (0, b"")


def test_the_kernel_inherits_no_descriptor_of_the_launcher(launch: Launch, tmp_path: Path) -> None:
    launch("for f in /proc/self/fd/*; do readlink $f; done > report.part; echo >> report.part; mv report.part report")
    links = {line for line in report(tmp_path).splitlines() if line and not line.startswith("/proc")}
    assert links <= {"/dev/null", str(tmp_path / "report.part")}


def test_the_kernels_soft_limit_of_descriptors_is_1024(launch: Launch, tmp_path: Path) -> None:
    many = ["/bin/sh", "-c", f"ulimit -n 4096; exec {shlex.join(LAUNCHER)}"]
    launch('echo "$(ulimit -Sn) $(ulimit -Hn)" > report', program=many)
    assert report(tmp_path) == "1024 4096"


def test_files_of_the_kernel_are_private(launch: Launch, tmp_path: Path) -> None:
    launch("echo x > report; mkdir d").wait(60)
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_the_kernel_leads_its_own_process_group(launch: Launch, tmp_path: Path) -> None:
    process = launch(
        "cut -d' ' -f1,5 /proc/self/stat > /dev/null; echo $$ $(cut -d' ' -f5 /proc/$$/stat) > report; sleep 9"
    )
    pid, group = report(tmp_path).split()
    assert pid == group
    assert int(group) != process.pid


# -- home ------------------------------------------------------------------------------------------------------


def test_the_images_files_for_a_home_are_linked_into_it(launch: Launch, tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "home/.cache/library").mkdir(parents=True)
    (image / "home/.cache/library/list").write_text("made once")
    (image / "launcher.py").write_bytes((KERNEL_IMAGE / "launcher.py").read_bytes())
    home = tmp_path / "made"
    home.mkdir()
    program = [sys.executable, "-I", "-S", str(image / "launcher.py")]
    assert launch("exit 0", program=program, home=str(home)).wait(60) == 0
    assert (home / ".cache/library/list").read_text() == "made once"
    (home / ".cache/library/list").unlink()  # the kernel may replace it by its own
    assert (image / "home/.cache/library/list").exists()
