"""`kernel-gateway debug` and `kernel-gateway replay`, on a real gateway with process kernels."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_gateway.cli import main
from kernel_gateway.client.gateway import Gateway as Calls
from tests.gateways import Gateway
from tests.kernel_gateway.calls import HANGS, exists, until

CODE = "def f(n):\n    m = n + 1\n    return m\n\nprint('begins')\nx = f(41)\nprint('x is', x)\n"

Debug = Callable[..., tuple[int, str]]


@pytest.fixture
def debug(
    at_gateway: Gateway, debugged: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Debug:
    """Return a function that runs the command with these lines typed, and returns its exit code and what it prints."""

    def run(*arguments: str, typed: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main(["debug", "-s", debugged, *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_code_is_stepped_with_the_commands_of_pdb(
    debug: Debug, gateway: Gateway, debugged: str, tmp_path: Path
) -> None:
    gateway.execute(debugged, "globals().pop('x', None)")
    (tmp_path / "code.py").write_text(CODE)
    typed = "n\nb 2\nc\nw\np n * 10\nu\nx\nl\nd\ncl 2\nr\nvars\nc\n"
    code, printed = debug(str(tmp_path / "code.py"), typed=typed)
    assert code == 0, printed
    for text in (
        "> <module>, this cell, line 1\n-> def f(n):\n",
        "> <module>, this cell, line 5\n",
        "line 2\n",
        "> f, this cell, line 2\n-> m = n + 1\n",
        "begins\n",
        "410\n",
        "> <module>, this cell, line 6\n",
        "*** SB071: the debugger has refused evaluate: NameError: name 'x' is not defined",
        "   6  -> x = f(41)\n",
        "   2 B   ",
        "x is 42\n[ok]\n",
    ):
        assert text in printed, text
    assert gateway.text(debugged, "x") == "42"


def test_code_that_fails_is_stopped_there_and_looked_at_afterwards(debug: Debug) -> None:
    failing = "def mean(total, count):\n    return total / count\nmean(3, 0)"
    code, printed = debug("-e", "uncaught", "-c", failing, typed="total\nq\n")
    assert (code, "ZeroDivisionError: division by zero\n> mean" in printed, "3\n" in printed) == (4, True, True)
    assert "Traceback" not in printed, "the interrupt that has ended it is no news"
    assert debug("-b", "1,False", "-c", failing)[0] == 1
    code, printed = debug(typed="count\nu\nn\n")
    assert (code, "ZeroDivisionError: division by zero\n> mean" in printed) == (0, True)
    assert "0\n> <module>" in printed.replace("(debug) ", "")
    assert "*** SB071: no cell is stopped" in printed


def test_outputs_are_read_once_however_often_the_cell_stops(debug: Debug, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def recorded(self: Calls, method: str, path: str, *others: Any) -> Any:
        asked.append(f"{method} {path.rpartition('/')[2]}")
        return answer(self, method, path, *others)

    answer = Calls.answer
    monkeypatch.setattr(Calls, "answer", recorded)
    code = "import time\nfor n in range(3):\n    print('line', n)\n    time.sleep(0.2)\n    print('end', n)\n"
    exit_code, printed = debug("-b", "5", "-c", code, typed="c\nc\nc\n")
    assert (exit_code, printed.count("line "), printed.count("end ")) == (0, 3 + 3, 3)  # each stop names its line
    assert sorted(asked) == sorted(["POST execute", *["POST debug"] * 7]), "three stops, three commands, one end"


def test_code_that_is_debugged_asks_the_user(debug: Debug) -> None:
    code, printed = debug("-b", "2", "-c", "name = input('who? ')\nprint('hi', name)", typed="me\np name\nc\n")
    assert (code, "who? " in printed, "'me'\n" in printed, "hi me\n" in printed) == (0, True, True, True), printed


def test_what_cannot_be_debugged_is_named(debug: Debug, gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    assert debug("-s", session) == (
        2,
        "kernel-gateway: no exception has ended a cell of this session; to run code, name a file, or use -c\n",
    )
    assert debug("not-there.py")[1] == "kernel-gateway: not-there.py: No such file or directory\n"
    code, printed = debug("-s", session, "-b", "9", "-c", "1")
    assert (code, "the code has 1 lines, and a breakpoint is in line 9" in printed) == (2, True)


def test_ctrl_c_stops_the_code_where_it_is_and_ctrl_d_ends_it(at_gateway: Gateway, session: str) -> None:
    code = "import time\nopen('begun', 'w').close()\nn = 0\nwhile True:\n    n += 1\n    time.sleep(0.01)\n"
    command = [sys.executable, "-m", "kernel_gateway", "debug", "-s", session, "-b", "1,False", "-c", code]
    heeding = ["env", "--default-signal=INT", *command]
    with subprocess.Popen(heeding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as child:  # noqa: TID251 - a child gets them
        until(lambda: exists(at_gateway, session, "begun"))
        child.send_signal(signal.SIGINT)
        assert child.stdin is not None
        assert child.stdout is not None
        until(lambda: ">" in str(child.stdout.readline()) if child.stdout else False)
        child.stdin.close()
        assert child.wait(60) == 4
    assert at_gateway.text(session, "n > 0") == "True"


@pytest.mark.full
def test_ctrl_c_ends_code_whose_turn_has_not_come(at_gateway: Gateway, session: str) -> None:
    at_gateway.call("POST", f"/v1/sessions/{session}/execute", json={"code": HANGS, "wait": False})
    until(lambda: exists(at_gateway, session, "begun"))
    command = [sys.executable, "-m", "kernel_gateway", "debug", "-s", session, "-c", "n = 1"]
    with subprocess.Popen(["env", "--default-signal=INT", *command], stderr=subprocess.PIPE, text=True) as child:
        until(lambda: at_gateway.call("GET", f"/v1/sessions/{session}/debug").json()["state"] == "running")
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 2
        assert child.stderr is not None
        assert "SB051" in child.stderr.read()
    assert at_gateway.call("POST", f"/v1/sessions/{session}/interrupt").json() == {"interrupted": True}
    assert at_gateway.execute(session, "n")["status"] == "error"


# -- replay ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(gateway: Gateway, session: str) -> Iterator[str]:
    yield f"{session}-again"
    gateway.call("DELETE", f"/v1/sessions/{session}-again")


def test_a_replay_prints_cell_by_cell_what_is_the_same(
    at_gateway: Gateway, session: str, fresh: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for code in ("import time\nx = 20", "print(x + 1)"):
        at_gateway.execute(session, code)
    assert main(["replay", session, "--as", fresh, "--seed", "1"]) == 0
    assert capsys.readouterr().out == "   1  same\n   2  same\n2 same, 0 different, 0 skipped\n"
    book = at_gateway.call("GET", f"/v1/sessions/{session}/notebook").json()
    book["cells"][1]["outputs"][0]["text"] = "21 before\n"
    skipped = {"cell_type": "code", "metadata": {"tags": ["skip-execution"]}, "source": "1 / 0", "outputs": []}
    book["cells"] += [skipped, {"cell_type": "code", "metadata": {}, "source": "1 / 0", "outputs": []}]
    path = tmp_path / "book.ipynb"
    path.write_text(json.dumps(book))
    assert main(["replay", str(path), "--as", fresh]) == 2, "there is such a session"
    assert "SB012" in capsys.readouterr().err
    at_gateway.call("DELETE", f"/v1/sessions/{fresh}")
    assert main(["replay", str(path), "--as", fresh]) == 1
    assert capsys.readouterr().out == (
        "   1  same\n"
        "   2  different\n      stdout\n      - 21 before\n      + 21\n"
        "   3  skipped    the notebook has tagged it `skip-execution`\n"
        "   4  different  (error)\n      error\n      + ZeroDivisionError: division by zero\n"
        "1 same, 2 different, 1 skipped\n"
    )


def test_a_replay_as_json_has_a_line_for_each_event(
    at_gateway: Gateway, session: str, fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at_gateway.execute(session, "1")
    assert main(["replay", session, "--as", fresh, "--json"]) == 0
    assert [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()] == ["cell", "end"]


@pytest.mark.usefixtures("at_gateway")
def test_what_is_no_notebook_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ipynb").write_text("no JSON")
    assert main(["replay", str(tmp_path / "a.ipynb"), "--as", "b"]) == 2
    assert "a.ipynb is no notebook: " in capsys.readouterr().err
    assert main(["replay", "none", "--as", "b"]) == 2
    assert "SB011" in capsys.readouterr().err


@pytest.mark.usefixtures("at_gateway")
@pytest.mark.parametrize("command", [("debug", "-c", "1"), ("debug",), ("replay", "a", "--as", "b")], ids=" ".join)
@pytest.mark.parametrize(
    ("flag", "told"), [(("--key", "no-such-key"), "SB020"), (("--url", "http://127.0.0.1:1"), "no gateway at")]
)
def test_both_say_why_nothing_was_done(
    command: tuple[str, ...], flag: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *flag]) == 2
    assert capsys.readouterr().err.startswith(f"kernel-gateway: {told}")
