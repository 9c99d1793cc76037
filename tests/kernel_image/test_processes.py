"""The processes tool, run as the gateway runs it: its standard input stays open as long as a client waits."""

from __future__ import annotations

import base64
import contextlib
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

from kernel_image import processes
from sessions.backends.base import KERNEL_IMAGE

Json = dict[str, Any]
#: with which a test tells its own processes from all others of the machine
Tag = str


@pytest.fixture
def tag() -> Iterator[Tag]:
    tag = f"tag-{uuid.uuid4().hex}"
    yield tag
    for pid in tagged(tag):
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            os.kill(pid, signal.SIGKILL)


def tagged(tag: Tag) -> list[int]:
    """All processes that have it in their environment."""
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
    """The tool's answer, while its input stays open."""
    assert process.stdout is not None
    assert process.stderr is not None
    answer: Json = json.loads(process.stdout.read())
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    return answer


def text(answer: Json, name: str = "stdout") -> bytes:
    return base64.b64decode(answer[name])


def becomes(condition: Callable[[], object]) -> bool:
    """Whether something comes to hold within a minute."""
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
def test_its_exit_code_is_told_as_shells_do(begin: Begin, command: str, code: int) -> None:
    assert outcome(begin(request(command)))["code"] == code


def test_its_environment_is_the_one_it_was_given(begin: Begin) -> None:
    answer = outcome(begin(request("env", env={"A": "ü", "TERM": "mine"})))
    lines = text(answer).decode().splitlines()
    assert {"A=ü", "TERM=mine", "LANG=C.UTF-8"} <= set(lines)
    names = {line.partition("=")[0] for line in lines}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"A", "HOME", "LANG", "PATH", "TERM", processes.MARK}


def test_its_input_is_at_its_end(begin: Begin) -> None:
    assert outcome(begin(request("cat; echo done")))["stdout"] == base64.b64encode(b"done\n").decode()


@pytest.mark.parametrize("absolute", [True, False])
def test_it_starts_where_it_is_told(begin: Begin, tmp_path: Path, absolute: bool) -> None:  # noqa: FBT001
    (tmp_path / "dir").mkdir()
    answer = outcome(begin(request("pwd", cwd=str(tmp_path / "dir") if absolute else "dir")))
    assert text(answer).decode().strip() == str(tmp_path / "dir")


@pytest.mark.parametrize("cwd", ["none", "file", "file/below", "/no/such"])
def test_in_a_directory_that_is_none_nothing_is_run(begin: Begin, tmp_path: Path, cwd: str) -> None:
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


# -- the end that comes from outside ---------------------------------------------------------------------------


def test_when_its_time_is_over_all_it_has_started_ends(begin: Begin, tag: Tag) -> None:
    command = "trap '' TERM; echo before; sleep 1000 & (sleep 1000; true) & sleep 1000; echo after"
    answer = outcome(begin(request(command, tag, timeout=1.0)))
    assert (answer["timed_out"], text(answer)) == (True, b"before\n")
    assert 1.0 <= answer["seconds"] < 10
    assert becomes(lambda: not tagged(tag))


def test_when_the_client_leaves_all_it_has_started_ends(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    tool = begin(request("trap '' TERM; sleep 1000 & touch began; sleep 1000", tag))
    assert becomes((tmp_path / "began").exists)
    assert len(tagged(tag)) > 1
    output, _ = tool.communicate(timeout=5)  # closes its input
    assert (output.strip(), tool.returncode) == (b"", 0)
    assert becomes(lambda: not tagged(tag))


def test_while_it_runs_it_gives_signs_of_life(tmp_path: Path) -> None:
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


# -- what stays in the background ------------------------------------------------------------------------------


def test_what_stays_in_the_background_does_not_hold_the_answer_up(begin: Begin, tag: Tag) -> None:
    answer = outcome(begin(request("sleep 1000 & echo $!", tag)))
    assert answer["seconds"] < 5
    pid = int(text(answer))
    time.sleep(0.1)
    assert pid in tagged(tag)


def test_what_stays_in_the_background_may_go_on_talking(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    talk = "while sleep 0.05; do echo out; echo err >&2; echo x >> said; done"
    answer = outcome(begin(request(f"({talk}) & echo begun", tag)))
    assert text(answer).startswith(b"begun\n")
    assert becomes((tmp_path / "said").exists)
    said = (tmp_path / "said").stat().st_size
    assert becomes(lambda: (tmp_path / "said").stat().st_size > said + 10), "it was ended by its next word"


def test_who_takes_what_the_background_says_ends_with_it_and_is_not_listed(begin: Begin, tag: Tag) -> None:
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


def test_what_was_started_is_listed_and_nothing_else_of_this_machine(begin: Begin, tag: Tag, tmp_path: Path) -> None:
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


def test_when_it_was_started_does_not_change_from_look_to_look(begin: Begin, tag: Tag) -> None:
    pid = int(text(outcome(begin(request("sleep 1000 & echo $!", tag)))))
    assert len({listed(begin)[pid]["started"] for _ in range(5)}) == 1


def test_a_directory_of_any_name_is_no_hindrance(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    strange = bytes(tmp_path) + b"/\xff\n"
    Path(os.fsdecode(strange)).mkdir()
    command = "cd \"$(printf '\\377\\n.')\"/.. 2>/dev/null; cd \"$(printf '\\377')\"* && sleep 1000 & echo $!"
    pid = int(text(outcome(begin(request(command, tag)))))
    assert becomes(lambda: any(process["directory"].endswith("/\ufffd\n") for process in listed(begin).values()))
    assert pid in listed(begin)


# -- kill ------------------------------------------------------------------------------------------------------


def started(begin: Begin, tag: Tag, command: str) -> int:
    return int(text(outcome(begin(request(f"{command} & echo $!", tag)))))


def test_a_process_is_asked_to_end(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap 'echo asked > asked; exit' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    assert outcome(begin({"op": "kill", "pid": pid})) == {}
    assert becomes((tmp_path / "asked").exists)
    assert pid not in tagged(tag)


def test_one_that_does_not_listen_is_made_to_end(begin: Begin, tag: Tag, tmp_path: Path) -> None:
    pid = started(begin, tag, "(trap '' TERM; touch ready; while sleep 0.01; do :; done)")
    assert becomes((tmp_path / "ready").exists)
    began = time.monotonic()
    assert outcome(begin({"op": "kill", "pid": pid})) == {}
    assert time.monotonic() - began >= processes.GRACE
    assert becomes(lambda: pid not in tagged(tag))


def test_only_what_is_listed_can_be_ended(begin: Begin) -> None:
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        for pid in (bystander.pid, 1, 0, -1, 2**31 - 1, 10**12):
            assert outcome(begin({"op": "kill", "pid": pid})) == {"error": "absent"}
        assert bystander.poll() is None
        bystander.kill()
