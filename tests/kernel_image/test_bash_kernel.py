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
    bash = module.Bash()
    signal.signal(signal.SIGINT, before)
    yield bash
    bash._process.kill()
    bash._process.wait()
    bash.close()


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
