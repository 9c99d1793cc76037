"""The Bash of the Bash kernel, without the kernel around it."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image.procfs import descendants, status, words
from sessions.backends.base import KERNEL_IMAGE

Printed = list[tuple[str, str]]


@pytest.fixture
def bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("bash", KERNEL_IMAGE / "kernelspecs/bash/bash.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # A process in a shell's background ignores interrupts, and its children inherit that. They inherit no handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    bash = module.Bash(lambda _status: None)
    signal.signal(signal.SIGINT, before)
    yield bash
    bash._process.kill()
    bash._process.wait()


def run(bash: Any, code: str, printed: Printed) -> int:
    code_of_end: int = bash.run(code, lambda name, text: printed.append((name, text)))
    return code_of_end


def becomes(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, for up to a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def commands_of(bash: Any) -> list[int]:
    """Return the processes of its programs that have begun."""
    return [pid for pid in descendants(bash._process.pid) if words(pid, "cmdline")[0] == "sleep"]


def test_what_bash_prints_about_an_interrupt_comes_before_the_cells_end(bash: Any) -> None:
    """The command has ended, and Bash is at its prompt again, before Bash itself gets the signal."""
    printed: Printed = []

    def send() -> None:
        os.kill(commands_of(bash)[0], signal.SIGINT)
        becomes(lambda: printed and not commands_of(bash) and status(bash._process.pid)[0] == "S")
        os.kill(bash._process.pid, signal.SIGINT)

    def interrupt() -> None:
        becomes(lambda: commands_of(bash))
        bash.interrupt(send)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    assert run(bash, "sleep 300", printed) == 130
    interrupting.join()
    after: Printed = []
    assert (run(bash, "echo on", after), after) == (0, [("stdout", "on\n")])


def test_an_interrupt_between_cells_does_not_reach_bash(bash: Any) -> None:
    run(bash, ":", [])
    sent: list[int] = []
    bash.interrupt(lambda: sent.append(1))
    assert sent == []


def shown(bash: Any, code: str) -> dict[str, str]:
    """Run a cell and return the text of each stream."""
    printed: Printed = []
    run(bash, code, printed)
    return {name: "".join(text for of, text in printed if of == name) for name in dict(printed)}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param("set -x", "echo one; set +x", {"stdout": "one\n", "stderr": "++ echo one\n++ set +x\n"}, id="x"),
        pytest.param("false; set -v", "echo one", {"stdout": "one\n", "stderr": "echo one\n\n"}, id="v"),
        pytest.param("set -v; (exit 7)", "echo $?", {"stdout": "7\n", "stderr": "echo $?\n\n"}, id="v after a failure"),
        pytest.param("set -euo pipefail", "echo one", {"stdout": "one\n"}, id="e"),
        pytest.param("trap 'echo D:$BASH_COMMAND' DEBUG", "echo one", {"stdout": "D:echo one\none\n"}, id="DEBUG"),
        pytest.param("trap 'n=$((n + 1))' ERR; n=0; false && true", "false || echo $n", {"stdout": "0\n"}, id="ERR"),
        pytest.param("n=0; PROMPT_COMMAND='n=$((n + 1)); echo P'", "echo $n", {"stdout": "1\n"}, id="PROMPT_COMMAND"),
        pytest.param(
            "PS1='(venv) $ ' PS2='> '",
            "echo 'one",
            {"stderr": "bash: unexpected EOF while looking for matching `''\n"},
            id="prompts",
        ),
        pytest.param(
            "printf() { exit 9; }; read() { exit 9; }; set() { exit 9; }; export() { exit 9; }; trap() { exit 9; }",
            "echo one",
            {"stdout": "one\n"},
            id="functions",
        ),
        pytest.param(
            "alias eval='exit 9' :='exit 9' echo='echo aliased'", "echo one", {"stdout": "aliased one\n"}, id="aliases"
        ),
        pytest.param("IFS=/; set -f; readonly x", "echo one", {"stdout": "one\n"}, id="words"),
        pytest.param("exec 1>out 2>&1 0<out", "echo one", {"stdout": "one\n"}, id="exec"),
        pytest.param("(exit 7)", "echo $?", {"stdout": "7\n"}, id="$?"),
        pytest.param("if true; then", "echo $?", {"stdout": "2\n"}, id="$? of no command"),
        pytest.param("echo a $'b\n\x01\\'c'", 'printf %q "$_"', {"stdout": "$'b\\n\\001\\'c'"}, id="$_"),
        pytest.param(": before", "# nothing", {}, id="comment"),
        pytest.param("cat <<END\nin", "echo one", {"stdout": "one\n"}, id="unfinished"),
        pytest.param(
            ":",
            "cat <<END\nin",
            {
                "stdout": "in\n",
                "stderr": "bash: warning: here-document at line 2 delimited by end-of-file (wanted `END')\n",
            },
            id="unfinished text",
        ),
        pytest.param("echo 'one", "echo $?", {"stdout": "2\n"}, id="open quotes"),
        pytest.param(":", 'eval "echo \'one" 2>&-', {}, id="open quotes inside"),
        pytest.param(":", "echo one \\", {"stdout": "one\n"}, id="backslash"),
        pytest.param(
            ":",
            "alias x='echo one'; shopt -s extglob\nx !(.)",
            {"stdout": "one !(.)\n"},
            id="a cell that changes its own syntax",
        ),
    ],
)
def test_nothing_of_the_kernel_is_seen_by_a_cell_or_depends_on_it(
    bash: Any, first: str, second: str, expected: dict[str, str]
) -> None:
    run(bash, first, [])
    assert shown(bash, second) == expected
    assert run(bash, "kept=1", []) == 0
