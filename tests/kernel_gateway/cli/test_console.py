"""`kernel-gateway console`: a prompt with history and completion, at a real terminal; and pictures on terminals."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from kernel_gateway.cli import main
from kernel_gateway.cli.pictures import TerminalPictures, shown_inline
from kernel_gateway.cli.prompt import KernelCompleter, incomplete
from kernel_gateway.client import Session
from kernel_gateway.client_config import picture_protocol
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, until

#: a picture of one point
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Typist:
    """A person at the console."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.seen = ""

    def types(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def sees(self, text: str, *, within: float = 30) -> None:
        """Read until the terminal has shown a text, and forget what came before."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            assert select.select([self._descriptor], [], [], within)[0], self.seen
            self.seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self._descriptor, 65536).decode())
        self.seen = self.seen.partition(text)[2]


@contextmanager
def typist(session: str, state_dir: Path) -> Iterator[Typist]:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 120))  # else there is no room for a prompt
    command = [sys.executable, "-m", "kernel_gateway", "console", "-s", session, "--state-dir", str(state_dir)]
    variables = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}  # noqa: TID251 - a child gets them
    process = subprocess.Popen(
        ["env", "--default-signal=INT", "setsid", "--ctty", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables,
    )
    os.close(theirs)
    try:
        yield Typist(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_cells_are_typed_completed_interrupted_and_ended(at_gateway: Gateway, session: str, tmp_path: Path) -> None:
    with typist(session, tmp_path) as person:
        person.sees(">>>")
        person.types("x = 40 + 2\r")
        person.sees(">>>")
        person.types("for i in range(2):\r    print('line', i)\r\r")
        person.sees("line 0")
        person.sees("line 1")
        person.sees(">>>")
        person.types("1 / 0\r")
        person.sees("ZeroDivisionError")
        person.sees(">>>")
        person.types(f"exec({HANGS!r})\r")
        until(lambda: exists(at_gateway, session, "begun"))
        person.types("\x03")
        person.sees("the variables stay")
        person.sees(">>>")
        person.types("'x is', x\r")
        person.sees("('x is', 42)")
        person.sees(">>>")
        person.types("a_name_to_complete = 'completed'\r")
        person.types("print('now')\r")
        person.sees("\r\nnow")
        person.sees(">>>")  # a key that comes before the prompt is not completed
        person.types("a_name_to_c\t")
        person.sees("omplete")
        person.types("\r")
        person.sees("'completed'")
        person.sees(">>>")
        person.types("\x04")
        assert person.process.wait(60) == 0
    assert "+x = 40 + 2" in (tmp_path / "console-history").read_text().splitlines()


def test_the_kernel_completes_names_and_attributes(at_gateway: Gateway, session: str) -> None:
    with Session(at_gateway.url, KEYS["alice"], session) as client:
        client.run("import os; answer = 42; _")
        completer = KernelCompleter(client)

        def found(line: str) -> dict[str, int]:
            matches = completer.get_completions(Document(line), CompleteEvent())
            return {each.text: each.start_position for each in matches}

        assert found("print(answ") == {"answer": -4}
        assert found("os.pathc") == {"pathconf": -5, "pathconf_names": -5}
        assert found("for i in range(3):\n    print(answ") == {"answer": -4}
        assert found("no_such_name_at_al") == {}
        cells = json.loads(client.notebook())["cells"]
        assert [cell["cell_type"] for cell in cells].count("code") == 1, "a completion is no cell of the notebook"


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("1 + 1", False),
        ("f(", True),
        ("for i in x:", True),
        ("for i in x:\n    print(i)", True),
        ("for i in x:\n    print(i)\n", False),
        ("%time x", False),
        ("1 +", False),
        ("'''", True),
    ],
)
def test_a_cell_needs_further_lines(code: str, more: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    assert incomplete(code) is more


def test_a_terminal_shows_pictures_in_its_own_way(capsys: pytest.CaptureFixture[str]) -> None:
    png = b64decode(PNG)
    assert shown_inline(png, "iterm") == f"\x1b]1337;File=inline=1;size={len(png)}:{PNG}\x07"
    assert shown_inline(png, "kitty") == f"\x1b_Ga=T,f=100,m=0;{PNG}\x1b\\"
    long = bytes(5000)
    pieces = re.findall(r"\x1b_G(?:a=T,f=100,)?m=([01]);(.*?)\x1b\\", shown_inline(long, "kitty"))
    assert ([more for more, _ in pieces], "".join(text for _, text in pieces)) == (["1", "0"], b64encode(long).decode())
    assert TerminalPictures("iterm").save({"image/png": PNG}, None) == []
    assert capsys.readouterr().out == shown_inline(png, "iterm") + "\n"
    assert TerminalPictures("iterm").save({"image/png": "\x07\x1b[2J"}, None) == [], "no picture: nothing is written"
    assert capsys.readouterr().out == ""


def test_another_terminal_gets_the_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pictures = TerminalPictures(None)
    assert pictures.save({"text/html": "<b>", "text/plain": "b"}, None) == []
    [path] = pictures.save({"image/png": PNG, "text/html": "<b>"}, None)
    assert (path.name, path.read_bytes()) == ("output-1.png", b64decode(PNG))
    assert path.parent.parent == tmp_path


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm"}, None),
    ],
    ids=str,
)
def test_the_terminal_is_known_by_its_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], protocol: str | None
) -> None:
    for name in ("TERM", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert picture_protocol() == protocol


COMPLETES = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
_kernel_gateway
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("che", "checkpoint"),
        ("files r", "rm"),
        ("run --de", "--detach"),
        ("serve --sleep-d", "--sleep-disk"),
    ],
)
def test_bash_completes_commands_actions_and_flags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, found: str
) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    last = len(words.split())
    program = COMPLETES.format(script=tmp_path / "script", words=f"kernel-gateway {words}", last=last)
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_by_a_signal_interrupts_its_cell(
    at_gateway: Gateway, session: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "kernel_gateway", "run", "-s", session, "-t", "60", "-c", HANGS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        until(lambda: exists(at_gateway, session, "begun"))
        child.send_signal(number)
        assert child.wait(60) == 128 + number
    until(lambda: at_gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")


def test_plots_are_shown_by_a_run_on_a_terminal(
    at_gateway: Gateway, session: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show: Callable[[], bool] = lambda: True  # noqa: E731 - in place of a method
    monkeypatch.setattr(sys.stdout, "isatty", show)
    monkeypatch.setenv("TERM_PROGRAM", "iTerm.app")
    code = f"from IPython.display import Image, display; import base64; display(Image(base64.b64decode({PNG!r})))"
    assert main(["run", "-s", session, "-c", code]) == 0
    assert "\x1b]1337;File=inline=1" in capsys.readouterr().out
