"""The tool for attached programs, run as the gateway runs it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
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

from sessions.backends.base import KERNEL_IMAGE

Json = dict[str, Any]


class Tool:
    """The tool with a program."""

    def __init__(self, directory: Path, program: Json, more: str = "") -> None:
        start = ["-c", f"{more}\nimport runpy\nrunpy.run_path({str(KERNEL_IMAGE / 'attached.py')!r}, None, '__main__')"]
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                *(start if more else [str(KERNEL_IMAGE / "attached.py")]),
                json.dumps(program),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={},
        )

    def tell(self, **line: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()

    def give(self, data: bytes) -> None:
        self.tell(data=base64.b64encode(data).decode())

    def lines(self) -> Iterator[Json]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def outcome(self) -> tuple[dict[str, bytes], Json]:
        """Return the outputs, and the last line."""
        outputs: dict[str, bytes] = {}
        last: Json = {}
        for last in self.lines():
            for name in {"stdout", "stderr", "pty"} & last.keys():
                outputs[name] = outputs.get(name, b"") + base64.b64decode(last[name])
        assert self.process.wait(60) == 0
        assert self.process.stderr is not None
        assert self.process.stderr.read() == b""
        return outputs, last


@pytest.fixture
def tag() -> Iterator[str]:
    """A word in the command line of a test's processes, which are killed afterwards."""
    tag = f"1000.{uuid.uuid4().int}"
    yield tag
    for pid in tagged(tag):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def tagged(tag: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"sleep\0{tag}\0".encode() == (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Tool]]:
    begun: list[Tool] = []

    def begin(command: str, more: str = "", **fields: Any) -> Tool:
        program = {"argv": ["/bin/sh", "-c", command], "cwd": "", "env": {}, "stdin": False, "timeout": 60.0, **fields}
        begun.append(Tool(tmp_path, program, more))
        return begun[-1]

    yield begin
    for tool in begun:
        tool.process.kill()
        tool.process.communicate()


Begin = Callable[..., Tool]


def becomes(condition: Callable[[], object]) -> bool:
    for _ in range(6000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_output_passes_through_as_it_happens(begin: Begin) -> None:
    tool = begin('echo one; read line; echo "$line" >&2; read more || exit 3', stdin=True)
    lines = tool.lines()
    assert next(lines)["pid"] > 0
    assert next(lines) == {"stdout": base64.b64encode(b"one\n").decode()}
    tool.give(b"two\n")
    assert next(lines) == {"stderr": base64.b64encode(b"two\n").decode()}
    tool.tell(close=True)
    assert next(lines) == {"code": 3, "timed_out": False}


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", -9), ("nothing", 127)])
def test_its_end_says_the_exit_code_or_the_signal(begin: Begin, command: str, code: int) -> None:
    assert begin(command).outcome()[1] == {"code": code, "timed_out": False}


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"cwd": "absent"}, "directory"), ({"argv": ["/absent"]}, "failed"), ({"argv": ["/etc"]}, "failed")],
    ids=str,
)
def test_what_cannot_be_started_is_said(begin: Begin, fields: Json, word: str) -> None:
    assert begin("true", **fields).outcome()[1]["error"] == word


@pytest.mark.parametrize("why", ["time", "client"])
def test_all_its_processes_end_with_its_time_and_with_its_client(begin: Begin, tag: str, why: str) -> None:
    tool = begin(f"setsid sleep {tag} & sleep {tag}", timeout=1.5 if why == "time" else 60.0)
    assert becomes(lambda: len(tagged(tag)) == 2)
    if why == "time":
        assert tool.outcome()[1] == {"code": -9, "timed_out": True}
    else:
        assert tool.process.stdin is not None
        tool.process.stdin.close()
        tool.process.stdin = None
    assert becomes(lambda: not tagged(tag))


def test_its_end_does_not_wait_for_processes_in_the_background(begin: Begin, tag: str) -> None:
    outputs, last = begin(f"sleep {tag} & echo out").outcome()
    assert (outputs, last["code"]) == ({"stdout": b"out\n"}, 0)
    assert tagged(tag)


@pytest.mark.parametrize("writes", ["while echo x; do sleep 0.05; done", "yes"], ids=["slowly", "fast"])
def test_its_end_does_not_wait_for_a_process_in_the_background_that_writes_for_ever(begin: Begin, writes: str) -> None:
    tool = begin(f'trap "" HUP; {writes} & echo out', size=[50, 20])  # it ends when the tool closes the terminal
    assert tool.outcome()[1] == {"code": 0, "timed_out": False}


def test_a_client_that_is_slow_gets_the_end_of_a_terminals_output(begin: Begin) -> None:
    tool = begin("printf %16000s", size=[50, 20])  # the terminal holds all of it when the program ends
    assert tool.process.stdout is not None
    fcntl.fcntl(tool.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    shown = b""
    for line in tool.lines():
        shown += base64.b64decode(line.get("pty", ""))
        time.sleep(0.3)
    assert shown == b" " * 16_000


#: the tool says twice a second that it is alive
LIVELY = f"import sys\nsys.path.append({str(KERNEL_IMAGE.parent)!r})\nfrom kernel_image import protocol\n"
LIVELY += "protocol.KEEPALIVE = 0.5"


def test_a_program_that_gets_input_and_prints_nothing_is_known_to_be_alive(begin: Begin) -> None:
    tool = begin("cat > /dev/null", LIVELY, stdin=True)
    lines = tool.lines()
    assert "pid" in next(lines)
    for _ in range(30):  # for longer than the tool may say nothing, and without a pause that long
        tool.give(b"x")
        time.sleep(0.05)
    tool.tell(close=True)
    *said, end = lines
    assert end == {"code": 0, "timed_out": False}
    assert {} in said


def test_input_that_is_not_read_stops_no_output(begin: Begin, tmp_path: Path) -> None:
    tool = begin("until test -e go; do sleep 0.05; done; echo out; wc -c", stdin=True)
    for _ in range(8):
        tool.give(b"x" * 16_000)
    (tmp_path / "go").touch()
    lines = tool.lines()
    assert "pid" in next(lines)
    assert next(lines) == {"stdout": base64.b64encode(b"out\n").decode()}
    tool.tell(close=True)
    assert tool.outcome()[0]["stdout"].split() == [b"128000"]


def test_input_for_a_program_that_has_closed_it_is_dropped(begin: Begin, tmp_path: Path) -> None:
    tool = begin("exec <&-; echo closed; until test -e go; do sleep 0.05; done", stdin=True)
    lines = tool.lines()
    assert [*next(lines), *next(lines)] == ["pid", "stdout"]
    tool.give(b"x" * 100_000)
    (tmp_path / "go").touch()
    assert next(lines) == {"code": 0, "timed_out": False}


def test_a_large_output_is_all_there(begin: Begin) -> None:
    outputs, _ = begin("head -c 3000000 /dev/zero").outcome()
    assert outputs["stdout"] == bytes(3_000_000)


def test_a_terminal_is_the_programs_own_and_has_a_size(begin: Begin) -> None:
    tool = begin("test -t 0 && echo terminal; stty size; read line; stty size; cat", size=[50, 20], stdin=True)
    shown, given = b"", False
    for line in tool.lines():
        shown += base64.b64decode(line.get("pty", ""))
        if b"20 50\r\n" in shown and b"21 51" not in shown:
            tool.tell(size=[51, 21])
            tool.give(b"\n")
        if b"21 51\r\n" in shown and not given:
            given = True
            tool.give(b"ready\n")
        if shown.count(b"ready\r\n") == 2:  # the terminal's echo, and `cat`: a shell between two programs ignores ^C
            break
    assert shown.startswith(b"terminal\r\n")
    tool.give(b"\x03")  # the terminal interrupts `cat`
    last = [*tool.lines()][-1]
    assert last["code"] in {-2, 130}


#: what the tool inherits from a gateway in a shell's background. Source: POSIX.1-2017, Shell Command Language, 2.11
BACKGROUND = "import signal\nfor each in signal.SIGINT, signal.SIGQUIT: signal.signal(each, signal.SIG_IGN)"


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)], ids=["^C", "quit"])
def test_a_terminal_interrupts_its_program_also_when_the_gateway_ignores_interrupts(
    begin: Begin, key: bytes, number: int
) -> None:
    tool = begin("exec cat", BACKGROUND, size=[50, 20], stdin=True, timeout=10.0)
    tool.give(b"ready\n")
    shown = b""
    for line in tool.lines():
        shown += base64.b64decode(line.get("pty", ""))
        if shown.count(b"ready\r\n") == 2:  # the terminal's echo, and `cat`
            break
    tool.give(key)
    assert [*tool.lines()][-1] == {"code": -number, "timed_out": False}


def test_the_tool_goes_on_at_an_interrupt_that_its_gateway_ignores(begin: Begin, tmp_path: Path) -> None:
    tool = begin("until test -e go; do sleep 0.05; done", BACKGROUND)
    lines = tool.lines()
    assert "pid" in next(lines)
    tool.process.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    assert next(lines) == {"code": 0, "timed_out": False}


def test_a_program_is_ended_when_no_thread_can_watch_it(begin: Begin, tag: str) -> None:
    more = "import threading\ndef refuse(thread): raise RuntimeError\nthreading.Thread.start = refuse"
    assert begin(f"sleep {tag}", more).outcome()[1]["error"] == "failed"
    assert not tagged(tag)
