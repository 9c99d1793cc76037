"""The command line: its help, its exit codes, and `run` against a real gateway."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kernel_gateway.cli import COMMANDS, main, module_of
from kernel_gateway.cli.run import EXIT
from kernel_gateway.config import Settings
from kernel_gateway.dialects.native.models import Result
from sessions.models import Status
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.wire import HANGS, exists, until
from tests.tiers import some

# -- help ------------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed when only help is asked for, in one line."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    modules = {path.stem.replace("_", "-") for path in Path(str(module_of("serve").__file__)).parent.glob("[a-z]*.py")}
    assert set(COMMANDS) == modules - {"settings"}
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


def test_help_of_serve_tells_each_setting_its_default_and_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    told = shown(capsys, "serve", "--help")
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} VALUE {field.description}" in told
        assert f"[KERNEL_GATEWAY_{name.upper()}]" in told
    for default in ("(default: 8888)", "(default: 512m)", "(default: runsc)", "(default: 300)", "(default: 10m)"):
        assert default in told


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"kernel-gateway \d+\.\d+\.\d+", shown(capsys, "--version"))


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["serve", "--colour", "red"], ["run", "--timeout", "soon"], ["run", "a", "b"]]
)
def test_arguments_that_are_none_end_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


# -- bad settings ----------------------------------------------------------------------------------------------


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kernel_gateway", *arguments],
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
            (["--memory", "plenty"], "memory: "),
            (["--host", "192.0.2.1"], "settings: "),
        ],
        gate=3,
    ),
    ids=str,
)
def test_settings_that_are_none_end_with_2_and_say_which(arguments: list[str], word: str, tmp_path: Path) -> None:
    ended = command("serve", "--state-dir", str(tmp_path / "state"), *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("kernel-gateway: ")
    assert word in ended.stderr
    assert "(SB002)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "short" not in ended.stderr
    assert not (tmp_path / "state").exists()


#: libraries that take a good part of a start's time, and what loads them when they are needed
HEAVY = {
    "docker": "sessions.backends.docker",
    "httpx": "sessions.providers.executor",
    "cryptography.x509": "kernel_gateway.tls",
}


def loaded(*modules: str) -> list[str]:
    """Those of them that a command has loaded with these modules."""
    code = f"import sys, {', '.join(modules)}; print(*sorted({set(HEAVY)} & sys.modules.keys()))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_start_loads_no_library_that_it_may_not_need() -> None:
    assert loaded("kernel_gateway.cli.serve") == []
    assert loaded("kernel_gateway.cli.serve", *HEAVY.values()) == sorted(HEAVY)


def test_a_variable_that_is_none_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_GATEWAY_PORT", "http")
    ended = command("serve")
    assert ended.returncode == 2
    assert "port: " in ended.stderr


# -- run -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(started: Callable[[str], Gateway]) -> Gateway:
    """Any gateway will do."""
    return started("process")


@pytest.fixture
def run(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command in this process, with address and key from the environment."""
    monkeypatch.setenv("KERNEL_GATEWAY_URL", gateway.url)
    monkeypatch.setenv("KERNEL_GATEWAY_KEY", KEYS["alice"])
    return lambda *arguments: main(["run", *arguments])


def test_run_prints_what_the_cell_shows(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys\nprint('out'); print('err', file=sys.stderr)\nx = 42\nx"
    assert run("-c", code) == 0
    printed = capsys.readouterr()
    assert printed.out == "out\n42\n"
    assert printed.err == "err\n"
    assert run("-c", "x + 1") == 0  # the session is the same again
    assert capsys.readouterr().out == "43\n"


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


def test_run_tells_of_what_cannot_be_printed(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-c", "display({'text/plain': 'a picture', 'image/png': 'aGk='}, raw=True)") == 0
    assert capsys.readouterr().out == "a picture [image/png]\n"


def test_run_prints_the_reply_as_json(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "-c", "print('hi')") == 0
    reply = json.loads(capsys.readouterr().out)
    Result.model_validate(reply)
    assert reply["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "hi\n"}]


def test_there_is_an_exit_code_for_every_end() -> None:
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
def test_run_ends_as_the_cell_did(
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
    run("-c", "")  # told that the state was lost
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
def test_what_the_gateway_refuses_ends_with_2_and_its_reason(
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


@pytest.fixture
def something_else() -> Iterator[str]:
    """A server that is no gateway."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["shown", "json"])
def test_where_no_gateway_is_run_says_so(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], something_else: str, form: tuple[str, ...]
) -> None:
    for url in ("http://127.0.0.1:1", something_else):
        assert run("-c", "1", "--url", url, *form) == 2
        assert capsys.readouterr().err.startswith(f"kernel-gateway: no gateway at {url}: ")


def test_a_file_that_is_not_there_is_named(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nowhere.py") == 2
    assert "nowhere.py" in capsys.readouterr().err


def test_as_a_process_it_does_the_same(run: Callable[..., int]) -> None:
    ended = command("run", "-s", "child", stdin="print('as a child')\n1/0")
    assert (ended.returncode, ended.stdout) == (1, "as a child\n")
    assert "ZeroDivisionError" in ended.stderr
