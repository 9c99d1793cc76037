"""The command line: its help, its exit codes, and `run` against a real gateway."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests

from kernel_gateway import client
from kernel_gateway.cli import COMMANDS, main, module_of, parser
from kernel_gateway.cli.doctor import _line
from kernel_gateway.cli.run import EXIT
from kernel_gateway.cli.serve import sleep_text
from kernel_gateway.client import Event, GatewayError, Session
from kernel_gateway.config import Settings
from kernel_gateway.dialects.native.models import Result
from sessions.backends.abilities import Ability, Finding
from sessions.model.errors import CellRunsOn
from sessions.model.values import Status
from tests import gateways
from tests.gateways import Gateway
from tests.kernel_gateway.calls import HANGS, exists, until
from tests.kernel_gateway.cli.test_client_commands import CLIENTS
from tests.kernel_gateway.client.cutting import cutter
from tests.tiers import some

# -- help ------------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return in one line what a call that only prints help prints."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem.replace("_", "-") for path in Path(str(module_of("serve").__file__)).parent.glob("[a-z]*.py")}
    assert set(COMMANDS) == modules - {"settings", "flags", "remote", "client-command", "pictures", "prompt"}
    told = shown(capsys, "--help")
    for name, text in COMMANDS.items():
        assert f"{name} {text}" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_each_of_its_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    told = shown(capsys, name, "--help")
    assert COMMANDS[name] in told
    alone = argparse.ArgumentParser()
    module_of(name).add_arguments(alone)
    for action in alone._actions:
        assert action.help
        assert action.help.partition("%")[0] in told


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_help_of_a_client_has_examples_that_the_command_accepts(capsys: pytest.CaptureFixture[str], name: str) -> None:
    told = shown(capsys, name, "--help")
    examples = re.findall(rf"^  .*?kernel-gateway ({name}\b[^|>\n]*)", epilog_of(name), re.MULTILINE)
    assert examples
    assert " ".join(examples[0].split()) in told
    for example in examples:
        assert parser(name).parse_args(shlex.split(example)).command == name


def epilog_of(name: str) -> str:
    """Return the text at the end of a command's help."""
    alone = argparse.ArgumentParser()
    module_of(name).add_arguments(alone)
    return alone.epilog or ""


def test_help_of_serve_lists_each_setting_with_its_default_and_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    told = shown(capsys, "serve", "--help")
    assert told.startswith("usage: kernel-gateway serve [-h] [--FLAG [VALUE] ...]")
    for name, field in Settings.model_fields.items():
        value = "[VALUE]" if field.annotation is bool else "VALUE"
        assert f"--{name.replace('_', '-')} {value} {field.description}" in told
        assert f"[KERNEL_GATEWAY_{name.upper()}]" in told
    for default in ("(default: 8888)", "(default: 512m)", "(default: runsc)", "(default: 300)", "(default: 10m)"):
        assert default in told


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"kernel-gateway \d+\.\d+\.\d+", shown(capsys, "--version"))


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["serve", "--colour", "red"], ["run", "--timeout", "soon"], ["run", "a", "b"]]
)
def test_invalid_arguments_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


# -- bad settings ----------------------------------------------------------------------------------------------


COMMAND = (sys.executable, "-m", "kernel_gateway")


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as a separate process."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    some(
        [
            (["--port", "http"], "port: "),
            (["--keys", "team:short"], "keys: "),
            (["--host", "192.0.2.1", "--isolation", "process", "--keys", "team:a-long-key"], "no sandbox"),
            (
                ["--memory", "plenty"],
                "memory: write a number of bytes, or one with a unit: 65536, 512k, 256m, 2g (SB002)",
            ),
            (["--memory", "1k"], "memory: must be at least 128m: a kernel with less does not start (SB002)"),
            (["--cpus", "0.01"], "cpus: Input should be greater than or equal to 0.1 (SB002)"),
            (["--host", "192.0.2.1"], "settings: host 192.0.2.1 is not loopback: set keys"),
        ],
        gate=3,
    ),
    ids=str,
)
def test_invalid_settings_exit_with_2_and_are_named(arguments: list[str], word: str, tmp_path: Path) -> None:
    ended = command("serve", "--state-dir", str(tmp_path / "state"), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kernel-gateway: ")
    assert word in ended.stderr
    assert "(SB002)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "short" not in ended.stderr
    assert not (tmp_path / "state").exists()


#: libraries that slow down a start, and the modules that load them when they are needed
HEAVY = {
    "docker": "sessions.backends.docker",
    "httpx": "sessions.providers.executor",
    "cryptography.x509": "kernel_gateway.wire.tls",
}


def loaded(*modules: str) -> list[str]:
    """Return the heavy libraries that are loaded after importing these modules."""
    code = f"import sys, {', '.join(modules)}; print(*sorted({set(HEAVY)} & sys.modules.keys()))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_start_loads_no_library_that_it_may_not_need() -> None:
    assert loaded("kernel_gateway.cli.serve") == []
    assert loaded("kernel_gateway.cli.serve", *HEAVY.values()) == sorted(HEAVY)


def test_an_invalid_environment_variable_exits_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_GATEWAY_PORT", "http")
    ended = command("serve")
    assert ended.returncode == 2
    assert "port: " in ended.stderr


# -- run -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(at_gateway: Gateway) -> Callable[..., int]:
    """Return a function that runs the command in this process, with address and key from the environment."""
    return lambda *arguments: main(["run", *arguments])


def test_run_prints_what_the_cell_shows(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys\nprint('out'); print('err', file=sys.stderr)\nx = 42\nx"
    assert run("-c", code) == 0
    printed = capsys.readouterr()
    assert printed.out == "out\n42\n"
    assert printed.err == "err\n"
    assert run("-c", "x + 1") == 0  # the session is the same again
    assert capsys.readouterr().out == "43\n"


def test_run_prints_outputs_that_only_the_last_event_has(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def printed(text: str) -> dict[str, str]:
        return {"output_type": "stream", "name": "stdout", "text": text}

    table = {"output_type": "display_data", "data": {"text/plain": "table", "text/html": "<table>"}, "metadata": {}}
    outputs = [printed("early\n"), printed("late\n"), table]
    ended = dict.fromkeys(client.Result.__dataclass_fields__) | {
        "status": "ok",
        "state": "preserved",
        "outputs": outputs,
    }
    events = [
        Event("output", {"type": "output", "output": outputs[0]}),
        Event("result", ended, client.Result.of(ended, [])),
    ]
    monkeypatch.setattr(Session, "stream", lambda *_arguments, **_options: (each for each in events))
    assert run("--save", str(tmp_path), "-c", "any") == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[:4] == ["early", "early", "late", "table [text/html]"]
    assert told.err == "kernel-gateway: some outputs were not shown in time; these are all of them:\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["<table>"]


def test_run_takes_code_from_standard_input_or_a_file(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for arguments in ((), ("-",)):
        monkeypatch.setattr(sys, "stdin", io.StringIO("print('from\\nstdin')"))
        assert run(*arguments) == 0
        assert capsys.readouterr().out == "from\nstdin\n"
    file = tmp_path / "cell.py"
    file.write_text("print('from a file')")
    assert run(str(file)) == 0
    assert capsys.readouterr().out == "from a file\n"


def test_run_names_the_type_of_unprintable_output(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-c", "display({'text/plain': 'a picture', 'image/png': 'aGk='}, raw=True)") == 0
    assert capsys.readouterr().out == "a picture [image/png]\n"


def test_run_prints_the_text_of_markdown_and_formulas(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-c", "from IPython.display import *; display(Math('x^2'), Markdown('**b**'))") == 0
    assert capsys.readouterr().out == "$\\displaystyle x^2$ [text/latex]\n**b** [text/markdown]\n"
    assert run("-c", "display({'text/html': '<b>'}, raw=True)") == 0
    assert capsys.readouterr().out == "[text/html]\n"


def test_run_says_how_much_output_was_left_out(
    gateway: Gateway, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": "small", "limits": {"output": "64k"}})
    assert run("-s", "small", "-c", "for _ in range(3): print('x' * 99_999, flush=True)") == 0
    assert re.search(r"some output was left out \(2\d\d,\d{3} bytes\)", capsys.readouterr().err)
    gateway.call("DELETE", "/v1/sessions/small")


def book(*cells: dict[str, object]) -> str:
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def code_cell(source: object, *tags: str) -> dict[str, object]:
    return {"cell_type": "code", "source": source, "metadata": {"tags": tags}, "outputs": [], "execution_count": None}


def test_run_runs_the_cells_of_a_notebook_until_one_fails(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "book.ipynb"
    text: dict[str, object] = {"cell_type": "markdown", "source": "1 / 0", "metadata": {}}
    skipped = code_cell("print('skipped')", "skip-execution")
    cells = code_cell(["a = 1\n", "print(a)"]), text, skipped, code_cell(""), code_cell("a + 1")
    file.write_text(book(*cells))
    assert run(str(file)) == 0
    assert capsys.readouterr().out == "1\n2\n"
    file.write_text(book(code_cell("a / 0"), code_cell("print('never')")))
    assert run(str(file)) == EXIT["error"]
    told = capsys.readouterr()
    assert (told.out, "ZeroDivisionError" in told.err) == ("", True)
    for damaged in ("{", "[]", "{}", book(code_cell(1))):
        file.write_text(damaged)
        assert run(str(file)) == 2
        assert "book.ipynb is no notebook of nbformat 4" in capsys.readouterr().err


def test_run_prints_the_reply_as_json(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-c", "print('hi')") == 0
    reply = json.loads(capsys.readouterr().out)
    Result.model_validate(reply)
    assert reply["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "hi\n"}]


def test_every_status_of_a_cell_has_an_exit_code() -> None:
    assert set(EXIT) == {status.value for status in Status}
    assert len(set(EXIT.values())) == len(EXIT)
    assert 2 not in EXIT.values()


@pytest.mark.parametrize(
    ("code", "exit_code", "word"),
    [
        ("1/0", 1, "ZeroDivisionError"),
        ("while True: pass", 3, "SB005"),
        ("import os; os._exit(1)", 5, "SB010"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
def test_run_exits_with_the_code_of_the_cells_status(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    *,
    code: str,
    exit_code: int,
    word: str,
    form: tuple[str, ...],
) -> None:
    assert run("-t", "0.5", *form, "-c", code) == exit_code
    printed = capsys.readouterr()
    assert word in (printed.out if form else printed.err)
    run("-c", "")  # this reply reports that the state was lost
    capsys.readouterr()


def test_run_says_when_the_state_is_lost(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    run("-s", "dies", "-c", "import os; os._exit(1)")
    capsys.readouterr()
    assert run("-s", "dies", "-c", "print('fresh')") == 0
    printed = capsys.readouterr()
    assert printed.out == "fresh\n"
    assert printed.err.startswith("kernel-gateway: state lost: ")


def test_run_ends_with_4_when_the_cell_was_interrupted(run: Callable[..., int], gateway: Gateway) -> None:
    with ThreadPoolExecutor(1) as other:
        ended = other.submit(run, "-s", "interrupted", "-c", HANGS)
        until(lambda: exists(gateway, "interrupted", "begun"))
        gateway.call("POST", "/v1/sessions/interrupted/interrupt")
        assert ended.result() == 4


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--key", "not-a-key-at-all"), "SB020"),
        (("-s", "a:b"), "SB002"),
        (("-s", "a b/c?d#e%"), "SB002"),
        (("-t", "100000"), "SB002"),
        (("-t", "0"), "SB002"),
    ],
    ids=str,
)
def test_a_refused_request_exits_with_2_and_prints_the_reason(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    word: str,
    form: tuple[str, ...],
) -> None:
    assert run("-c", "1", *arguments, *form) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"kernel-gateway: {word}: ")


@pytest.fixture(params=[None, "<html>\n</html>\n", "[]\n", '{"type": "output"}\n'], ids=["404", "html", "list", "half"])
def something_else(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is no gateway, or one that stops in the middle of its answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if request.param is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
def test_run_reports_that_no_gateway_answers(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], something_else: str, form: tuple[str, ...]
) -> None:
    for url in ("http://127.0.0.1:1", something_else):
        assert run("-c", "1", "--url", url, *form) == 2
        assert capsys.readouterr().err.startswith(f"kernel-gateway: no gateway at {url}: ")


def test_run_ends_when_the_gateway_does_not_take_it_back(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], gateway: Gateway
) -> None:
    keys = f"{gateway.url}/v1/admin/keys"
    admin = {"Authorization": f"Bearer {gateway.admin_key()}"}
    made = requests.post(keys, headers=admin, json={"tenant": "alice"}, timeout=30).json()
    code = "import time\nopen('begun', 'w').close()\nwhile True: print('x', flush=True); time.sleep(0.1)"
    with cutter(gateway) as way, ThreadPoolExecutor(1) as other:
        ended = other.submit(run, "-s", "revoked", "--url", way.url, "--key", made["key"], "-c", code)
        until(lambda: exists(gateway, "revoked", "begun"))
        requests.delete(f"{keys}/{made['id']}", headers=admin, timeout=30).raise_for_status()
        way.cuts.append(b"event: output")
        assert ended.result(60) == 2
    assert capsys.readouterr().err.startswith("kernel-gateway: SB020: ")
    gateway.call("DELETE", "/v1/sessions/revoked")


def test_a_cell_that_runs_on_without_the_gateway_has_an_exit_code_of_its_own(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(*_arguments: object, **_options: object) -> Iterator[Event]:
        yield Event("started", {})
        raise GatewayError(CellRunsOn().as_dict())

    monkeypatch.setattr(Session, "stream", stream)
    assert run("-c", "1") == 6
    assert capsys.readouterr().err.startswith("kernel-gateway: SB048: ")


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
def test_run_says_how_to_reach_a_gateway_that_speaks_https(
    run: Callable[..., int], capfd: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    with gateways.gateway("process", tls="true") as gateway:
        plain = gateway.url.replace("https", "http")
        assert run("-c", "1", "--url", gateway.url, *form) == 2
        assert run("-c", "1", "--url", plain, *form) == 2
    untrusted, not_https = capfd.readouterr().err.splitlines()
    assert untrusted.startswith(f"kernel-gateway: no gateway at {gateway.url}: ")
    assert "SSL_CERT_FILE" in untrusted
    assert "tls.pem" in untrusted
    assert not_https.startswith(f"kernel-gateway: no gateway at {plain}: ")
    assert not_https.endswith("begins with https://")


def test_a_missing_file_is_named(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nowhere.py") == 2
    assert "nowhere.py" in capsys.readouterr().err


def test_run_asks_its_user_for_what_the_cell_wants_to_know(run: Callable[..., int]) -> None:
    code = "print('hello', input('who? '))\ntry: input()\nexcept EOFError: print('end')"
    ended = command("run", "-s", "asks", "-c", code, stdin="me\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "who? hello me\nend\n", "")


@pytest.mark.parametrize(
    "standard_input",
    [
        ("env", "PYTHONIOENCODING=utf-8:strict"),
        ("env", "PYTHONIOENCODING=utf-8:surrogateescape"),
        ("sh", "-c", '"$@" <&-', "sh"),
    ],
    ids=["strict", "with surrogates", "closed"],
)
def test_run_ends_when_an_answer_cannot_be_read(
    run: Callable[..., int], gateway: Gateway, session: str, standard_input: tuple[str, ...]
) -> None:
    arguments = [*standard_input, *COMMAND, "run", "-s", session, "-c", "input('who? ')"]
    ended = subprocess.run(arguments, input=b"\xff\xfe\n", capture_output=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.decode().startswith("kernel-gateway: the answer to input() cannot be read: ")
    # Nobody answers the cell any more, so it is interrupted.
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")


def test_run_ends_quietly_when_nobody_reads_its_output_any_more(run: Callable[..., int], gateway: Gateway) -> None:
    code = "import time\nfor number in range(600): print(number, flush=True); time.sleep(0.1)"
    with subprocess.Popen(
        [*COMMAND, "run", "-s", "headed", "-t", "60", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"0\n"
        child.stdout.close()
        assert child.wait(60) == EXIT["interrupted"]
        assert child.stderr is not None
        assert child.stderr.read() == b""
    until(lambda: gateway.call("GET", "/v1/sessions/headed").json()["state"] == "idle")  # the cell was interrupted


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
def test_ctrl_c_interrupts_the_cell_and_ends_run(
    run: Callable[..., int], gateway: Gateway, session: str, form: tuple[str, ...]
) -> None:
    heeding = ("env", "--default-signal=INT")  # the tests themselves may have been started to ignore it
    with subprocess.Popen(
        [*heeding, *COMMAND, "run", "-s", session, "-t", "60", *form, "-c", HANGS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        until(lambda: exists(gateway, session, "begun"))
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stderr is not None
        assert child.stderr.read() == b""
    until(lambda: gateway.call("GET", f"/v1/sessions/{session}").json()["state"] == "idle")


def test_run_says_how_to_give_a_cell_more_time(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-s", "slow", "-t", "0.5", "-c", "import time; time.sleep(60)") == EXIT["timeout"]
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"kernel-gateway: SB005: .+ - Raise `timeout` .+ \(-t SECONDS sets the timeout\)", told)


def test_code_that_is_no_text_is_refused(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-c", "print('\udcff')") == 2
    assert capsys.readouterr().err.startswith("kernel-gateway: the code: ")


# -- rich outputs as files -------------------------------------------------------------------------------------

PLOT = "display({'text/plain': 'a plot', 'image/png': 'iVBO\\nRw==\\n', 'text/html': '<b>ä</b>'}, raw=True)"


def test_run_saves_rich_outputs_as_files_and_prints_their_names(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plots = tmp_path / "new" / "plots"
    assert (
        run("--save", str(plots), "-c", f"{PLOT}\nprint('between')\ndisplay({{'image/svg+xml': '<svg/>'}}, raw=True)")
        == 0
    )
    told = capsys.readouterr().out.splitlines()
    assert told[1:3] == [f"{plots}/output-1.png", f"{plots}/output-1.html"]
    assert (told[3], told[-1]) == ("between", f"{plots}/output-2.svg")
    assert {path.name: path.read_bytes() for path in plots.iterdir()} == {
        "output-1.png": b"\x89PNG",
        "output-1.html": "<b>ä</b>".encode(),
        "output-2.svg": b"<svg/>",
    }


def test_run_keeps_the_files_of_earlier_runs(run: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "output-1.pdf").write_bytes(b"earlier")
    assert run("--save", str(tmp_path), "-c", PLOT) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"output-1.pdf", "output-2.png", "output-2.html"}


def test_a_display_that_changes_replaces_its_file(run: Callable[..., int], tmp_path: Path) -> None:
    code = "shown = display({'text/html': 'first'}, raw=True, display_id='d')"
    code += "\nshown.update({'text/html': 'last'}, raw=True)"
    assert run("--save", str(tmp_path), "-c", code) == 0
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("output-1.html", b"last")]


def test_run_saves_nothing_that_has_no_suffix_or_is_not_what_its_type_says(
    run: Callable[..., int], tmp_path: Path
) -> None:
    code = "display({'text/plain': 'x', 'a/../b': 'x', 'image/png': '!iVBORw=='}, raw=True)"
    assert run("--save", str(tmp_path), "-c", code) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cell_goes_on_when_its_output_cannot_be_saved(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plots = tmp_path / "plots"
    code = f"import shutil; shutil.rmtree({str(plots)!r})\n{PLOT}\nprint('after')"
    assert run("--save", str(plots), "-c", code) == 0
    printed = capsys.readouterr()
    assert "after" in printed.out
    assert printed.err.startswith(f"kernel-gateway: {tmp_path}")


def test_a_directory_that_cannot_be_made_is_named_before_the_cell_runs(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert run("--save", str(tmp_path / "file"), "-c", "print('ran')") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path}/file" in printed.err


@pytest.mark.parametrize("terminal", [True, False])
def test_run_prints_colours_only_on_a_terminal(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    run("-s", "coloured", "-c", "1/0")
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert ("\x1b[" in told) is terminal


def test_run_works_as_a_separate_process(run: Callable[..., int]) -> None:
    ended = command("run", "-s", "child", stdin="print('as a child')\n1/0")
    assert (ended.returncode, ended.stdout) == (1, "as a child\n")
    assert "ZeroDivisionError" in ended.stderr


#: what a command without a service or a kernel does not import, because that takes up to a second
SERVICE = {"tornado.web", "kernel_gateway.app", "kernel_gateway.http.handlers", "prometheus_client", "nbformat"}
KERNELS = {"jupyter_client", "docker"}


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        (("--help",), {"kernel_gateway.config", "structlog", "asyncio", *SERVICE, *KERNELS}),
        (("keys", "--help"), {"tornado", *SERVICE, *KERNELS}),
        (("audit", "--help"), {"tornado", *SERVICE, *KERNELS}),
        (("usage", "--help"), {"tornado", *SERVICE, *KERNELS}),
        (("doctor", "--help"), {"tornado", *SERVICE, *KERNELS}),
        (("exec-json", "--help"), {*SERVICE, *KERNELS}),
        (("files", "--help"), {"tornado", "structlog", *SERVICE, *KERNELS}),
        (("run", "--help"), {"tornado", "structlog", *SERVICE, *KERNELS}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_imports_only_what_it_uses(arguments: tuple[str, ...], without: set[str]) -> None:
    code = "import sys; from kernel_gateway.cli import main"
    code += "\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    imported = set(done.stderr.split())
    assert "kernel_gateway.cli" in imported, "control"
    assert imported & without == set()


@pytest.mark.parametrize(
    ("on_idle", "on", "says"),
    [
        ("auto", True, "on, asleep; 4096 MiB for all (`sleep_disk`)"),
        ("auto", False, "off, asleep; until it is on, idle sessions are ended"),
        ("sleep", False, "off, asleep; until it is on, idle sessions stay awake"),
        ("end", True, None),
    ],
)
def test_banner_and_log_say_what_becomes_of_idle_sessions(on_idle: str, on: bool, says: str | None) -> None:  # noqa: FBT001
    settings = Settings.model_validate({"on_idle": on_idle})
    assert sleep_text(settings, Ability(on=on, detail="asleep")) == says


def test_the_doctor_does_not_call_a_warning_ok() -> None:
    assert _line(Finding("age", None, detail="WARNING: old")) == "WARNING  age: old"
    assert _line(Finding("age", None, detail="new")) == "ok       age: new"
