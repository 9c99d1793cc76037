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
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image import processes
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
            if tag.encode() in (place / "environ").read_bytes() and _state(place) not in processes.GONE:
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


def test_a_command_is_ended_when_no_thread_can_watch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: Tag
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refused)
    answer = processes._run(request("sleep 1000", tag), io.BytesIO(), io.BytesIO())
    assert answer == {"error": "failed", "reason": os.strerror(errno.EAGAIN)}
    assert tagged(tag) == []


def test_the_environment_holds_only_given_and_standard_variables(begin: Begin) -> None:
    answer = outcome(begin(request("env", env={"A": "ü", "TERM": "mine"})))
    lines = text(answer).decode().splitlines()
    assert {"A=ü", "TERM=mine", "LANG=C.UTF-8"} <= set(lines)
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"A", "HOME", "LANG", "PATH", "TERM", processes.MARK}


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
    size = processes.OUTPUT_MAX + more
    answer = outcome(begin(request(f"echo out; head -c {size} /dev/zero >&2")))
    assert text(answer) == b"out\n"
    assert text(answer, "stderr") == bytes(processes.OUTPUT_MAX)
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


def test_a_client_that_leaves_ends_all_processes_of_a_command(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    tool = begin(request("trap '' TERM; sleep 1000 & touch began; sleep 1000", tag))
    assert becomes((tmp_path / "began").exists)
    assert len(tagged(tag)) > 1
    output, _ = tool.communicate(timeout=5)  # closes its input
    assert (output.strip(), tool.returncode) == (b"", 0)
    assert becomes(lambda: not tagged(tag))


def test_the_tool_prints_blanks_while_a_command_runs(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(KERNEL_IMAGE)!r}); import processes; processes.SIGN_OF_LIFE = 0.1;"
        f" processes.main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)"
    )
    tool = subprocess.Popen(
        [sys.executable, "-I", "-c", code, json.dumps(request("sleep 1; echo done"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert tool.stdin is not None
    assert tool.stdout is not None
    with tool, tool.stdin, tool.stdout:
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
    return {process["pid"]: process for process in outcome(begin({"op": "list"}))["processes"]}


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
    assert becomes(lambda: any(process["directory"].endswith("/\ufffd\n") for process in listed(begin).values()))
    assert pid in listed(begin)


# -- kill ------------------------------------------------------------------------------------------------------


def started(begin: Begin, tag: Tag, command: str) -> int:
    return int(text(outcome(begin(request(f"{command} & echo $!", tag)))))


def test_kill_first_sends_sigterm(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap 'echo asked > asked; exit' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    assert outcome(begin({"op": "kill", "pid": pid})) == {}
    assert becomes((tmp_path / "asked").exists)
    assert pid not in tagged(tag)


def test_kill_ends_a_process_that_ignores_sigterm(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap '' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    began = time.monotonic()
    assert outcome(begin({"op": "kill", "pid": pid})) == {}
    assert time.monotonic() - began >= processes.GRACE
    assert becomes(lambda: pid not in tagged(tag))


def test_only_a_listed_process_can_be_killed(begin: Begin) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        for pid in (bystander.pid, 1, 0, -1, 2**31 - 1, 10**12):
            assert outcome(begin({"op": "kill", "pid": pid})) == {"error": "absent"}
        assert bystander.poll() is None
        bystander.kill()
