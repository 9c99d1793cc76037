"""The processes tool, run as the gateway runs it: its standard input stays open while a client waits."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image import commands, processes, procfs, protocol
from sessions.backends.base import KERNEL_IMAGE

Json = dict[str, Any]
#: marks the processes of one test among all others of the machine
Tag = str


@pytest.fixture
def tag() -> Iterator[Tag]:
    tag = f"tag-{uuid.uuid4().hex}"
    yield tag
    for pid in tagged(tag):
        with contextlib.suppress(ProcessLookupError):  # the process has just ended
            os.kill(pid, signal.SIGKILL)


def tagged(tag: Tag) -> list[int]:
    """Return all processes that have the tag in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if tag.encode() in (place / "environ").read_bytes() and _state(place) not in procfs.GONE:
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _state(place: Path) -> str:
    return (place / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[Json], subprocess.Popen[bytes]]]:
    """Start the tool."""
    begun = []

    def begin(request: Json) -> subprocess.Popen[bytes]:
        begun.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "processes.py"), json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tmp_path,
                env={},
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


Begin = Callable[[Json], subprocess.Popen[bytes]]


def request(command: str, tag: Tag = "", timeout: float = 20.0, **more: Any) -> Json:
    return {"op": "run", "command": command, "cwd": "", "env": {"TAG": tag}, "timeout": timeout, **more}


def outcome(process: subprocess.Popen[bytes]) -> Json:
    """Return the tool's answer, while its input stays open."""
    assert process.stdout is not None
    assert process.stderr is not None
    answer: Json = json.loads(process.stdout.read())
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    return answer


def text(answer: Json, name: str = "stdout") -> bytes:
    return base64.b64decode(answer[name])


def becomes(condition: Callable[[], object]) -> bool:
    """Return whether a condition becomes true within a minute."""
    for _ in range(6000):
        if condition():
            return True
        time.sleep(0.01)
    return False


# -- run -------------------------------------------------------------------------------------------------------


def test_a_command_is_run_to_its_end(begin: Begin, tmp_path: Path) -> None:
    answer = outcome(begin(request("pwd; echo err >&2; echo $((6 * 7)) | tr 4 5")))
    assert (text(answer), text(answer, "stderr")) == (f"{tmp_path}\n52\n".encode(), b"err\n")
    assert 0 < answer["seconds"] < 20
    assert (answer["code"], answer["timed_out"], answer["truncated"]) == (0, False, False)


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 255", 255), ("no-such-program", 127), ("kill -9 $$", 137), ("(", 2)],
)
def test_the_exit_code_is_the_one_that_shells_report(begin: Begin, command: str, code: int) -> None:
    assert outcome(begin(request(command)))["code"] == code


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_a_command_is_ended_when_no_thread_can_watch_it(tmp_path: Path, tag: Tag, threads: int) -> None:
    refusing = (
        "import threading\n"
        "start, started = threading.Thread.start, []\n"
        "def refuse(thread):\n"
        f"    if len(started) == {threads}: raise RuntimeError('no more threads')\n"
        "    started.append(start(thread))\n"
        "threading.Thread.start = refuse"
    )
    with changed_tool(refusing, request("setsid sleep 1000 & sleep 1000", tag), tmp_path) as tool:
        assert outcome(tool) == {"error": "failed", "reason": os.strerror(errno.EAGAIN)}
    assert tagged(tag) == []


@contextlib.contextmanager
def changed_tool(change: str, request: Json, workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the tool after a change of its module `processes`."""
    code = (
        f"import sys; sys.path.append({str(KERNEL_IMAGE.parent)!r}); from kernel_image import processes\n{change}\n"
        "processes.main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-c", code, json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=workspace,
    ) as tool:
        yield tool


def test_the_environment_holds_only_given_and_standard_variables(begin: Begin) -> None:
    answer = outcome(begin(request("env", env={"A": "ü", "TERM": "mine"})))
    lines = text(answer).decode().splitlines()
    assert {"A=ü", "TERM=mine", "LANG=C.UTF-8"} <= set(lines)
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"A", "HOME", "LANG", "PATH", "TERM", protocol.MARK}


def test_a_command_gets_the_variables_of_its_sandbox(tmp_path: Path, tag: Tag) -> None:
    given = {protocol.NETWORK: protocol.NO_NETWORK, "OTHER": "of the image"}
    with changed_tool(f"import os; os.environ.update({given})", request("env", tag), tmp_path) as tool:
        lines = text(outcome(tool)).decode().splitlines()
    assert f"{protocol.NETWORK}={protocol.NO_NETWORK}" in lines
    assert not [line for line in lines if line.startswith("OTHER=")]


def test_the_input_of_a_command_is_empty(begin: Begin) -> None:
    assert outcome(begin(request("cat; echo done")))["stdout"] == base64.b64encode(b"done\n").decode()


@pytest.mark.parametrize("absolute", [True, False])
def test_a_command_starts_in_the_given_directory(begin: Begin, tmp_path: Path, absolute: bool) -> None:  # noqa: FBT001
    (tmp_path / "dir").mkdir()
    answer = outcome(begin(request("pwd", cwd=str(tmp_path / "dir") if absolute else "dir")))
    assert text(answer).decode().strip() == str(tmp_path / "dir")


@pytest.mark.parametrize("cwd", ["none", "file", "file/below", "/no/such"])
def test_no_command_runs_in_an_invalid_directory(begin: Begin, tmp_path: Path, cwd: str) -> None:
    (tmp_path / "file").touch()
    answer = outcome(begin(request(f"touch {tmp_path}/ran", cwd=cwd)))
    assert answer["error"] == "directory"
    assert not (tmp_path / "ran").exists()


def test_as_many_variables_as_an_argument_holds_are_passed_on(begin: Begin) -> None:
    env = {f"V{number}": "x" * 10_000 for number in range(12)}
    assert text(outcome(begin(request("env | grep -c xxx", env=env)))) == b"12\n"


# -- output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "truncated"), [(0, False), (1, True), (3_000_000, True)])
def test_the_beginning_of_each_output_is_kept(begin: Begin, more: int, truncated: bool) -> None:  # noqa: FBT001
    size = commands.OUTPUT_MAX + more
    answer = outcome(begin(request(f"echo out; head -c {size} /dev/zero >&2")))
    assert text(answer) == b"out\n"
    assert text(answer, "stderr") == bytes(commands.OUTPUT_MAX)
    assert (answer["truncated"], answer["code"]) == (truncated, 0)


def test_output_may_be_anything(begin: Begin) -> None:
    answer = outcome(begin(request(r"printf '\000\377\n\033['")))
    assert text(answer) == b"\0\xff\n\x1b["


# -- an end from outside ---------------------------------------------------------------------------------------


def test_a_timeout_ends_all_processes_of_a_command(begin: Begin, tag: Tag) -> None:
    command = "trap '' TERM; echo before; sleep 1000 & (sleep 1000; true) & sleep 1000; echo after"
    answer = outcome(begin(request(command, tag, timeout=1.0)))
    assert (answer["timed_out"], text(answer)) == (True, b"before\n")
    assert 1.0 <= answer["seconds"] < 10
    assert becomes(lambda: not tagged(tag))


#: processes that have left the command's process group, its session, and its tree
ESCAPES = {
    "a background process": "sleep 1000 &",
    "a session of its own": "setsid sleep 1000 &",
    "an orphan": "(sleep 1000 &);",
    "a daemon": "(setsid sh -c 'sleep 1000 & sleep 1000 & wait' &);",
    "another environment": "(env -i setsid sleep 1000 &);",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_a_timeout_ends_processes_that_have_left_the_command(begin: Begin, tmp_path: Path, escape: str) -> None:
    command = f"cd {tmp_path}; {escape} sleep 0.3; touch began; sleep 1000"
    answer = outcome(begin(request(command, timeout=1.0)))
    assert (tmp_path / "began").exists()
    assert answer["timed_out"]
    assert in_directory(tmp_path) == []


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_a_client_that_leaves_ends_all_processes_of_a_command(begin: Begin, tmp_path: Path, escape: str) -> None:
    tool = begin(request(f"cd {tmp_path}; trap '' TERM; {escape} sleep 0.3; touch began; sleep 1000"))
    assert becomes((tmp_path / "began").exists)
    assert len(in_directory(tmp_path)) > 2
    output, _ = tool.communicate(timeout=60)  # closes its input
    assert (output.strip(), tool.returncode) == (b"", 0)
    assert in_directory(tmp_path) == []


def in_directory(directory: Path) -> list[int]:
    """Return the processes that run in a directory, except for tools."""
    return [pid for pid in procfs.pids() if procfs.link(pid, "cwd") == str(directory) and procfs.is_running(pid)]


#: bounded, or it would outlive a test that fails
HYDRA = """
import os, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.02)
"""


def test_a_process_that_forks_all_the_time_ends_with_its_command(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "hydra.py").write_text(HYDRA)
    answer = outcome(begin(request(f"{sys.executable} -S hydra.py; touch began; sleep 1000", timeout=2.0)))
    assert (tmp_path / "began").exists()
    assert answer["timed_out"]
    assert in_directory(tmp_path) == []


def test_processes_that_have_ended_are_cleared_away_while_a_command_runs(begin: Begin) -> None:
    named = r"printf '\377' > /proc/self/comm"  # a name of a process need not be text
    command = f"{named}; for i in 1 2 3; do (setsid true &); done; sleep 0.5; echo $PPID; cat /proc/*/stat 2>/dev/null"
    tool, *lines = text(outcome(begin(request(command)))).splitlines()
    children = [line for line in lines if line.rpartition(b")")[2].split()[1:2] == [tool]]
    assert [line.partition(b")")[0].partition(b"(")[2] for line in children] == [b"\xff"]


def test_the_tool_prints_blanks_while_a_command_runs(tmp_path: Path) -> None:
    with changed_tool("processes.KEEPALIVE = 0.1", request("sleep 1; echo done"), tmp_path) as tool:
        assert tool.stdout is not None
        assert tool.stdout.read(3) == b"   "
        assert tool.poll() is None
        rest = tool.stdout.read()
        assert text(json.loads(rest)) == b"done\n"


# -- background processes --------------------------------------------------------------------------------------


def test_a_background_process_does_not_delay_the_answer(begin: Begin, tag: Tag) -> None:
    answer = outcome(begin(request("sleep 1000 & echo $!", tag)))
    assert answer["seconds"] < 5
    pid = int(text(answer))
    time.sleep(0.1)
    assert pid in tagged(tag)


def test_a_background_process_may_continue_to_print(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    talk = "while sleep 0.05; do echo out; echo err >&2; echo x >> said; done"
    answer = outcome(begin(request(f"({talk}) & echo begun", tag)))
    assert text(answer).startswith(b"begun\n")
    assert becomes((tmp_path / "said").exists)
    said = (tmp_path / "said").stat().st_size
    assert becomes(lambda: (tmp_path / "said").stat().st_size > said + 10), "it was ended by its next output"


def test_the_reader_of_a_background_process_ends_with_it_and_is_not_listed(begin: Begin, tag: Tag) -> None:
    pid = int(text(outcome(begin(request("sleep 1000 & echo $!", tag)))))
    held = os.readlink(f"/proc/{pid}/fd/1")  # noqa: PTH115
    takers = _readers_of(held) - {pid}
    assert len(takers) == 1
    assert not takers & set(listed(begin))
    os.kill(pid, signal.SIGKILL)
    assert becomes(lambda: not _readers_of(held))


def _readers_of(pipe: str) -> set[int]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == pipe:  # noqa: PTH115
                found.add(int(link.parts[2]))
        except OSError:
            continue
    return found


# -- list ------------------------------------------------------------------------------------------------------


def listed(begin: Begin) -> dict[int, Json]:
    answer = outcome(begin({"op": "list"}))
    assert not answer["truncated"]
    return {process["pid"]: process for process in answer["processes"]}


@pytest.mark.parametrize("change", ["processes.LIST_MAX = 2", "processes.LIST_BYTES = 500"])
def test_a_long_listing_is_cut_and_says_so(begin: Begin, tag: Tag, tmp_path: Path, change: str) -> None:
    pids = [int(text(outcome(begin(request("sleep 1000 & echo $!", tag))))) for _ in range(3)]
    with changed_tool(change, {"op": "list"}, tmp_path) as tool:
        answer = outcome(tool)
    assert answer["truncated"]
    assert [process["pid"] for process in answer["processes"]] == sorted(pids)[:2]


def test_a_process_cannot_hide_itself(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    """In a sandbox, where all processes are listed but those that only read the output of others."""
    command = f"{protocol.MARK}={commands.DRAIN} sleep 1000 & echo $!"
    pid = int(text(outcome(begin(request(command, tag)))))
    with changed_tool("processes._in_sandbox = lambda: True", {"op": "list"}, tmp_path) as tool:
        listing = {process["pid"]: process["command"] for process in outcome(tool)["processes"]}
    assert listing[pid] == "sleep 1000"
    readers = _readers_of(os.readlink(f"/proc/{pid}/fd/1")) - {pid}  # noqa: PTH115
    assert readers, "control: a process that only reads its output"
    assert not readers & set(listing)


def test_only_processes_that_the_tool_has_started_are_listed(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    before = time.time()
    pid = int(text(outcome(begin(request("exec 3< /dev/null; sleep 1000 & echo $!", tag)))))
    found = listed(begin)
    assert {1, os.getpid()} & set(found) == set()
    assert list(found) == sorted(found)
    process = found[pid]
    assert (process["command"], process["directory"], process["state"]) == ("sleep 1000", str(tmp_path), "S")
    assert before - 2 < process["started"] < time.time() + 2
    assert process["memory"] > 0
    assert 0 <= process["cpu_seconds"] < 5
    os.kill(pid, signal.SIGKILL)
    assert becomes(lambda: pid not in listed(begin))


def test_the_start_time_is_the_same_in_every_listing(begin: Begin, tag: Tag) -> None:
    pid = int(text(outcome(begin(request("sleep 1000 & echo $!", tag)))))
    assert len({listed(begin)[pid]["started"] for _ in range(5)}) == 1


def test_a_process_in_a_directory_of_any_name_is_listed(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    strange = bytes(tmp_path) + b"/\xff\n"
    Path(os.fsdecode(strange)).mkdir()
    command = "cd \"$(printf '\\377\\n.')\"/.. 2>/dev/null; cd \"$(printf '\\377')\"* && sleep 1000 & echo $!"
    pid = int(text(outcome(begin(request(command, tag)))))
    assert becomes(lambda: any(process["directory"].endswith("/\U0010dcff\n") for process in listed(begin).values()))
    assert pid in listed(begin)


# -- kill ------------------------------------------------------------------------------------------------------


def started(begin: Begin, tag: Tag, command: str) -> int:
    return int(text(outcome(begin(request(f"{command} & echo $!", tag)))))


def test_kill_first_sends_sigterm(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap 'echo asked > asked; exit' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    assert outcome(begin({"op": "kill", "pid": pid})) == {"ended": True}
    assert becomes((tmp_path / "asked").exists)
    assert pid not in tagged(tag)


def test_kill_ends_a_process_that_ignores_sigterm(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap '' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    began = time.monotonic()
    assert outcome(begin({"op": "kill", "pid": pid})) == {"ended": True}
    assert time.monotonic() - began >= processes.GRACE
    assert becomes(lambda: pid not in tagged(tag))


def test_a_process_that_does_not_end_is_reported_as_still_there(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "sleep 1000")
    stubborn = "processes.GRACE = processes.LAST_GRACE = 0.1; processes.os.kill = lambda *_: None"
    with changed_tool(stubborn, {"op": "kill", "pid": pid}, tmp_path) as tool:
        assert outcome(tool) == {"ended": False}
    assert pid in tagged(tag)


def test_only_a_listed_process_can_be_killed(begin: Begin) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        for pid in (bystander.pid, 1, 0, -1, 2**31 - 1, 10**12):
            assert outcome(begin({"op": "kill", "pid": pid})) == {"error": "absent"}
        assert bystander.poll() is None
        bystander.kill()


def test_a_child_that_gvisor_lists_as_0_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    # `kill` with 0 ends the caller's whole process group: the tool itself, which then gives no answer.
    listing = f"/proc/self/task/{os.getpid()}/children"
    own_open = open

    def read(path: str, **how: Any) -> Any:
        return io.StringIO("0 17 ") if path == listing else own_open(path, **how)

    monkeypatch.setattr(procfs, "open", read, raising=False)
    assert 17 in procfs.children()  # control: the listing is read
    assert 0 not in procfs.children()
