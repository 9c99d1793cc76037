"""The commands that are clients, against a real gateway; where that cannot be, against a server of fixed answers."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest

from kernel_gateway.cli import COMMANDS, main, module_of
from kernel_gateway.cli.client_command import NOBODY_READS
from kernel_gateway.cli.files import _pieces
from kernel_gateway.cli.remote import HINTS, Failed
from kernel_gateway.cli.tenants import LIMITS
from kernel_gateway.dialects.native.checkpoints import CheckpointInfo
from kernel_gateway.errors import STATUS
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, until, write

COMMAND = (sys.executable, "-m", "kernel_gateway")
#: all bytes, and so many that they come in several pieces
BYTES = bytes(range(256)) * 1000
#: one call of each command
CALLS = [
    ("sessions",),
    ("sessions", "--all"),
    ("executions", "list"),
    ("executions", "show", "a"),
    ("executions", "end", "a"),
    ("create",),
    ("end",),
    ("interrupt",),
    ("restart",),
    ("files", "ls"),
    ("files", "get", "a"),
    ("files", "put", "/dev/null"),
    ("files", "rm", "a"),
    ("variables",),
    ("variables", "a"),
    ("notebook",),
    ("checkpoint",),
    ("checkpoint", "--list"),
    ("checkpoint", "--delete", "a"),
    ("rollback",),
    ("branch", "b"),
    ("languages",),
    ("tenants", "list"),
    ("tenants", "limits", "carol", "--sessions", "1"),
]
CLIENTS = {"run", "console", "debug", "replay", *(call[0] for call in CALLS)}


@pytest.fixture
def out(at_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, which must succeed, and returns what it prints."""

    def run(*arguments: str) -> str:
        ended, printed = main([*arguments]), capsys.readouterr()
        assert (ended, printed.err) == (0, "")
        return printed.out

    return run


@pytest.fixture
def fails(at_gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, which must fail, and returns the reason."""

    def run(*arguments: str) -> str:
        ended, printed = main([*arguments]), capsys.readouterr()
        assert (ended, printed.out) == (1, "")
        assert printed.err.startswith("kernel-gateway: ")
        assert len(printed.err.splitlines()) == 1
        return printed.err.removeprefix("kernel-gateway: ").rstrip()

    return run


def test_the_page_lists_every_command() -> None:
    docs = Path(__file__).parents[3] / "docs"
    rows = re.findall(r"^\| `.*", (docs / "cli.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)", row)} >= CLIENTS
    pages = "".join(page.read_text() for page in docs.rglob("*.md"))
    assert not [name for name in COMMANDS.keys() - CLIENTS if f"kernel-gateway {name}" not in pages]


def test_the_tests_of_clients_call_every_client() -> None:
    def asks_a_gateway(name: str) -> bool:
        flags = argparse.ArgumentParser()
        module_of(name).add_arguments(flags)
        return "--url" in flags.format_help()

    # `exec-json` asks a gateway only if that is the active provider; `test_providers.py` has its tests.
    # `test_mcp_stdio.py` has the tests of `mcp`.
    assert {name for name in COMMANDS if asks_a_gateway(name)} == CLIENTS | {"exec-json", "mcp"}


# -- sessions --------------------------------------------------------------------------------------------------


def test_sessions_are_listed_with_language_and_state(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    lines = [line.split() for line in out("sessions").splitlines()]
    assert [line[:3] for line in lines if line[0] == session] == [[session, "python", "idle"]]


def test_a_detached_cell_is_shown_and_ended_by_its_id(
    out: Callable[..., str], fails: Callable[..., str], session: str
) -> None:
    code = "import time; print('begun', flush=True); time.sleep(60)"
    execution = out("run", "-s", session, "--detach", "-c", code).strip()
    assert [execution] == [line.split()[0] for line in out("executions", "list", "-s", session).splitlines()]
    until(lambda: out("executions", "show", "-s", session, execution) == "begun\n[running]\n")
    assert json.loads(out("executions", "show", "-s", session, execution, "--json"))["id"] == execution
    assert out("executions", "end", "-s", session, execution) == ""
    until(lambda: out("executions", "list", "-s", session).split()[-1] == "interrupted")
    assert fails("executions", "show", "-s", session, "none").startswith("SB050")


def test_sessions_are_listed_as_json(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    shown = {each["name"]: each["id"] for each in json.loads(out("sessions", "--json"))["sessions"]}
    assert shown[session] == gateway.call("GET", f"/v1/sessions/{session}").json()["id"]


def test_an_admin_lists_the_sessions_of_all_tenants(
    out: Callable[..., str], gateway: Gateway, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.execute(session, "1", tenant="bob")
    monkeypatch.setenv("KERNEL_GATEWAY_KEY", gateway.admin_key())
    [line] = [line.split() for line in out("sessions", "--all").splitlines() if session in line]
    assert line[:4] == ["bob", session, "python", "idle"]
    assert session in {each["name"] for each in json.loads(out("sessions", "--all", "--json"))["sessions"]}


def test_a_session_is_made_as_its_flags_say(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    limits = ("--memory", "256m", "--cpus", "0.5", "--processes", "64", "--disk", "64m")
    assert out("create", "-s", session, "--language", "bash", "--idle-timeout", "77", *limits) == ""
    shown = gateway.call("GET", f"/v1/sessions/{session}").json()
    assert (shown["language"], shown["idle_timeout"]) == ("bash", 77)
    assert (shown["limits"]["memory"], shown["limits"]["cpus"]) == (256 * 1024**2, 0.5)
    assert (shown["limits"]["processes"], shown["limits"]["disk"]) == (64, 64 * 1024**2)


def test_an_image_that_is_not_offered_is_refused(fails: Callable[..., str], session: str) -> None:
    assert "any/image" in fails("create", "-s", session, "--image", "any/image")


def test_a_local_file_that_is_not_there_is_named_without_the_systems_number(
    fails: Callable[..., str], session: str
) -> None:
    assert fails("files", "put", "-s", session, "no/such") == "no/such: No such file or directory"


def test_keys_are_listed_as_json_as_the_admin_api_does(out: Callable[..., str], gateway: Gateway) -> None:
    admin = {"Authorization": f"Bearer {gateway.admin_key()}"}
    told = gateway.call("GET", "/v1/admin/keys", tenant=None, headers=admin).json()
    listed = json.loads(out("keys", "list", "--json", "--state-dir", str(gateway.state_dir)))
    assert "admin" in {each["role"] for each in told["keys"]}
    for each in (*told["keys"], *listed["keys"]):
        each["last_used_at"] = None  # the gateway writes it later
    assert listed == told


def test_a_session_is_ended(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    gateway.execute(session, "1")
    assert out("end", "-s", session) == ""
    assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404


def test_a_running_cell_is_interrupted(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    with ThreadPoolExecutor(1) as other:
        cell = other.submit(gateway.execute, session, HANGS)
        until(lambda: exists(gateway, session, "begun"))
        assert out("interrupt", "-s", session) == "the cell was interrupted\n"
        assert cell.result()["status"] == "interrupted"
    assert out("interrupt", "-s", session) == "no cell was running\n"


def test_a_restart_keeps_the_files(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    gateway.execute(session, "x = 1; open('kept', 'w').close()")
    assert out("restart", "-s", session) == ""
    assert gateway.execute(session, "")["state"] == "restarted"
    assert exists(gateway, session, "kept")


def test_the_session_is_cli_without_a_name(out: Callable[..., str], gateway: Gateway) -> None:
    write(gateway, "cli", "of-cli")
    assert "of-cli" in out("files", "ls")


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain.bin", "directory/ä %41?x#y;&.bin", "-dash"])
def test_a_files_bytes_pass_unchanged(out: Callable[..., str], tmp_path: Path, session: str, name: str) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    local.write_bytes(BYTES)
    assert out("files", "put", "-s", session, "--", str(local), name) == ""
    assert out("files", "get", "-s", session, "--", name, str(back)) == ""
    assert back.read_bytes() == BYTES


@pytest.mark.parametrize("last", [(), ("-",)])
def test_a_file_is_fetched_to_standard_output(
    at_gateway: Gateway, capsysbinary: pytest.CaptureFixture[bytes], session: str, last: tuple[str, ...]
) -> None:
    write(at_gateway, session, "a.bin", BYTES)
    assert main(["files", "get", "-s", session, "a.bin", *last]) == 0
    assert capsysbinary.readouterr().out == BYTES


@pytest.mark.parametrize("content", [BYTES, b""], ids=["full", "empty"])
def test_a_file_is_sent_from_standard_input(at_gateway: Gateway, session: str, content: bytes) -> None:
    subprocess.run([*COMMAND, "files", "put", "-s", session, "-", "a.bin"], input=content, check=True, timeout=60)
    assert at_gateway.call("GET", f"/v1/sessions/{session}/files/a.bin").content == content


def test_standard_input_needs_a_name(fails: Callable[..., str], session: str) -> None:
    assert fails("files", "put", "-s", session, "-") == "standard input has no name: give the PATH, too"


def test_a_file_keeps_its_name(out: Callable[..., str], tmp_path: Path, session: str) -> None:
    for name in (b"same.txt", b"\xff.txt"):  # the second one is no UTF-8
        local = tmp_path / os.fsdecode(name)
        local.write_bytes(name)
        out("files", "put", "-s", session, str(local))
    names = [entry["name"] for entry in json.loads(out("files", "ls", "-s", session, "--json"))["entries"]]
    assert {"same.txt", "\U0010dcff.txt"} <= set(names)
    assert out("files", "get", "-s", session, "\U0010dcff.txt", str(tmp_path / "back")) == ""
    assert (tmp_path / "back").read_bytes() == b"\xff.txt"


def test_a_file_whose_content_the_system_makes_is_sent(out: Callable[..., str], tmp_path: Path, session: str) -> None:
    out("files", "put", "-s", session, "/proc/self/status")  # its size is 0
    out("files", "get", "-s", session, "status", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text().startswith("Name:")


def test_a_directory_is_listed(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    write(gateway, session, "d/long-name.txt", b"12345")
    gateway.execute(session, "import os; os.mkdir('d/sub'); os.utime('d/long-name.txt', (0, 0))")
    first, second = sorted(out("files", "ls", "-s", session, "d").splitlines(), reverse=True)
    assert first.split() == ["file", "5", "1970-01-01", "00:00", "long-name.txt"]
    assert (second.split()[0], second.split()[-1]) == ("directory", "sub")
    assert first.index("long-name.txt") == second.index("sub")


def test_a_file_and_a_directory_are_deleted(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    write(gateway, session, "d/a")
    write(gateway, session, "b")
    assert out("files", "rm", "-s", session, "d") + out("files", "rm", "-s", session, "b") == ""
    assert not exists(gateway, session, "d/a")
    assert not exists(gateway, session, "b")


def test_a_flag_may_stand_before_and_after_the_action(out: Callable[..., str], gateway: Gateway, session: str) -> None:
    write(gateway, session, "mine")
    assert "mine" in out("files", "-s", session, "ls")
    assert "mine" in out("files", "ls", "-s", session)


def test_a_refused_download_leaves_the_local_file_as_it_is(
    fails: Callable[..., str], gateway: Gateway, tmp_path: Path, session: str
) -> None:
    gateway.execute(session, "1")
    local = tmp_path / "local"
    local.write_text("earlier")
    told = fails("files", "get", "-s", session, "absent", str(local))
    assert told.startswith("SB014: ")
    assert told.endswith("(`kernel-gateway files ls` lists the workspace)")
    assert local.read_text() == "earlier"


def test_a_local_file_that_is_not_there_is_named(fails: Callable[..., str], tmp_path: Path) -> None:
    assert str(tmp_path / "absent") in fails("files", "put", str(tmp_path / "absent"))
    assert str(tmp_path / "absent/b") in fails("notebook", str(tmp_path / "absent/b"))


@pytest.mark.parametrize(("key", "word"), [("not-a-key-at-all", "SB020"), (None, "SB015")], ids=["key", "size"])
def test_an_upload_that_is_refused_midway_says_why(
    fails: Callable[..., str], tmp_path: Path, session: str, key: str | None, word: str
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(4 * 1024**3)
    told = fails("files", "put", "-s", session, str(large), *(() if key is None else ("--key", key)))
    assert told.startswith(f"{word}: ")


def test_an_upload_from_a_pipe_that_no_workspace_could_hold_says_so() -> None:
    with gateways.gateway("process", disk="16m", tls="true") as small:
        place = {
            "KERNEL_GATEWAY_URL": small.url,
            "KERNEL_GATEWAY_KEY": KEYS["alice"],
            "SSL_CERT_FILE": f"{small.trusted}",
        }
        ended = subprocess.run(
            [*COMMAND, "files", "put", "-", "a"],
            env=os.environ | place,  # noqa: TID251 - a child gets this environment, and settings on top
            input=bytes(40 * 1024**2),
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"kernel-gateway: SB015: the file is larger than any workspace (16777216 bytes)")


def test_a_closed_standard_input_or_output_is_no_crash(at_gateway: Gateway) -> None:
    for arguments, closes in ((("sessions",), ">&-"), (("files", "put", "-", "a"), "<&-")):
        closed = ["sh", "-c", f'"$@" {closes}', "sh"]
        ended = subprocess.run([*closed, *COMMAND, *arguments], capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in ended.stderr
        assert (ended.returncode == 0) is (closes == ">&-")


def test_a_file_that_changes_while_it_is_sent_is_never_taken_for_another_size(tmp_path: Path) -> None:
    file = tmp_path / "changes"
    file.write_bytes(b"12345")
    with file.open("rb") as longer:
        assert b"".join(_pieces(longer, 3)) == b"123"
    with file.open("rb") as shorter, pytest.raises(Failed, match="became shorter"):
        list(_pieces(shorter, 6))


@pytest.mark.parametrize("action", [("get", "large"), ("ls",)], ids=["content", "text"])
def test_a_command_ends_quietly_when_nobody_reads_its_output(
    at_gateway: Gateway, monkeypatch: pytest.MonkeyPatch, session: str, action: tuple[str, ...]
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it nothing is left to print at the end
    write(at_gateway, session, "large", BYTES * 10)
    with subprocess.Popen(
        [*COMMAND, "files", "-s", session, *action], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.wait(60) == NOBODY_READS
        assert child.stderr.read() == b""


@pytest.mark.parametrize("arguments", [("keys", "list"), ("audit",), ("usage", "--json")], ids=" ".join)
def test_an_operators_command_ends_quietly_when_nobody_reads_its_output(
    gateway: Gateway, arguments: tuple[str, ...]
) -> None:
    gateway.admin_key()
    gateway.execute("counted", "1")
    with subprocess.Popen(
        [*COMMAND, *arguments, "--state-dir", str(gateway.state_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.wait(60) == NOBODY_READS
        assert b"Traceback" not in child.stderr.read()


# -- notebooks and languages -----------------------------------------------------------------------------------


def test_a_notebook_is_exported(
    at_gateway: Gateway, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, session: str
) -> None:
    at_gateway.execute(session, "40 + 2")
    assert main(["notebook", "-s", session]) == 0
    assert main(["notebook", "-s", session, str(tmp_path / "a.ipynb")]) == 0
    book = (tmp_path / "a.ipynb").read_bytes()
    assert capsysbinary.readouterr().out == book
    read = nbformat.reads(book.decode(), as_version=4)
    nbformat.validate(read)
    assert [cell.source for cell in read.cells] == ["40 + 2"]


def test_variables_are_listed_and_one_is_shown(
    out: Callable[..., str], fails: Callable[..., str], gateway: Gateway, session: str
) -> None:
    gateway.execute(
        session, "import pandas as pd; df = pd.DataFrame({'city': ['Oslo'], 'sales': [120]}); n = [1, 'a\\x9b']"
    )
    listed = [line.split(maxsplit=2) for line in out("variables", "-s", session).splitlines()]
    assert [line[:2] for line in listed] == [["df", "pandas.DataFrame"], ["n", "list"], ["pd", "module"]]
    table = [line.split() for line in out("variables", "-s", session, "df").splitlines()]
    assert table[1:] == [["city", "sales"], ["Oslo", "120"]]
    assert [line.split()[-1] for line in out("variables", "-s", session, "n").splitlines()[1:]] == ["1", "'a\\x9b'"]
    assert json.loads(out("variables", "-s", session, "n", "--json"))["length"] == 2
    assert "SB066" in fails("variables", "-s", session, "missing")


def test_languages_are_listed_with_version_and_packages(out: Callable[..., str], gateway: Gateway) -> None:
    reply = json.loads(out("languages", "--json"))
    assert reply == gateway.call("GET", "/v1/languages").json()
    [python] = [each for each in reply["languages"] if each["name"] == "python"]
    [line] = [line for line in out("languages").splitlines() if line.startswith("python ")]
    assert line.split()[1:4] == [python["version"], str(len(python["packages"])), "packages"]


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("checkpoint", "-s", "plain", "one"), "SB041: "),
        (("branch", "-s", "plain", "other"), "SB041: "),
        (("rollback", "-s", "plain"), "SB040: "),
        (("end", "-s", "a b/c?d"), "SB002: "),
        (("create", "-s", "plain"), "SB012: "),
        (("interrupt", "-s", "no-such"), "SB011: "),
        (("branch", "-s", "plain", "\udcff"), "an argument is no text: "),
    ],
    ids=str,
)
def test_a_refusal_says_what_happened_and_what_to_do(
    fails: Callable[..., str], gateway: Gateway, arguments: tuple[str, ...], word: str
) -> None:
    gateway.execute("plain", "1")
    told = fails(*arguments)
    assert told.startswith(word)
    assert " - " in told or not word.startswith("SB")


@pytest.mark.parametrize("arguments", CALLS, ids=" ".join)
def test_every_command_tells_of_a_wrong_key(fails: Callable[..., str], arguments: tuple[str, ...]) -> None:
    told = fails(*arguments, "--key", "not-a-key-at-all")
    assert told == (
        "SB020: The key is not known. - Send `Authorization: Bearer KEY`; the gateway's operator hands out keys. "
        "(--key KEY or the variable KERNEL_GATEWAY_KEY)"
    )


# -- tenants ---------------------------------------------------------------------------------------------------


@pytest.fixture
def as_admin(gateway: Gateway, at_gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The gateway's commands have an admin's key, and the tenant carol has no limits of her own afterwards."""
    key = gateway.admin_key()
    monkeypatch.setenv("KERNEL_GATEWAY_KEY", key)
    yield
    ended = gateway.call(
        "PATCH",
        "/v1/admin/tenants/carol/limits",
        tenant=None,
        headers={"Authorization": f"Bearer {key}"},
        json=dict.fromkeys(LIMITS),
    )
    assert ended.status_code == 200


@pytest.mark.usefixtures("as_admin")
def test_the_limits_of_a_tenant_are_changed_printed_and_taken_back(out: Callable[..., str]) -> None:
    def limits(*flags: str) -> dict[str, list[str]]:
        lines = out("tenants", "limits", "carol", *flags).splitlines()
        return {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}

    assert limits() == {
        "sessions": ["50", "gateway"],
        "memory": ["512m", "gateway"],
        "cpus": ["1", "gateway"],
        "disk": ["256m", "gateway"],
        "timeout": ["600", "gateway"],
        "images": ["-", "gateway"],
        "egress": ["no", "gateway"],
    }
    changed = limits("--sessions", "5", "--memory", "256m", "--cpus", "0.5", "--disk", "64m", "--timeout", "60")
    assert changed["sessions"] == ["5", "admin (most: 50)"]
    assert changed["memory"] == ["256m", "admin (most: 512m)"]
    assert [changed[name][0] for name in ("cpus", "disk", "timeout")] == ["0.5", "64m", "60"]
    assert limits("--images", "", "--egress", "no")["egress"] == ["no", "admin (most: no)"]
    assert limits("--memory", "default")["memory"] == ["512m", "gateway"]
    assert limits()["sessions"] == ["5", "admin (most: 50)"]
    shown = json.loads(out("tenants", "limits", "carol", "--json"))
    assert (shown["sessions"]["value"], shown["memory"]["source"]) == (5, "gateway")


@pytest.mark.usefixtures("as_admin")
def test_tenants_are_listed_with_the_limits_of_their_own(out: Callable[..., str]) -> None:
    out("tenants", "limits", "carol", "--sessions", "5", "--memory", "256m")
    lines = dict(line.split(maxsplit=1) for line in out("tenants", "list").splitlines())
    assert (lines["carol"], lines["alice"]) == ("sessions=5 memory=256m", "-")
    listed = json.loads(out("tenants", "list", "--json"))["tenants"]
    assert {each["tenant"] for each in listed} == set(lines)


@pytest.mark.usefixtures("as_admin")
def test_a_tenant_is_removed(out: Callable[..., str], fails: Callable[..., str]) -> None:
    out("tenants", "limits", "carol", "--sessions", "5")
    lines = out("tenants", "remove", "carol").splitlines()
    had = ("keys", "sessions", "sandboxes", "templates", "files")
    assert dict(line.split() for line in lines) == dict.fromkeys(had, "0")
    assert "carol" not in out("tenants", "list")
    assert fails("tenants", "remove", "alice").startswith("SB002: the gateway's settings name tenant 'alice'")


@pytest.mark.usefixtures("as_admin")
def test_a_limit_above_the_gateways_is_refused_with_the_reason(fails: Callable[..., str]) -> None:
    told = fails("tenants", "limits", "carol", "--memory", "2g")
    assert told.startswith("SB002: memory must be at most 512 MiB: the gateway's setting `memory` is the most for any")
    assert fails("tenants", "limits", "a/b", "--sessions", "5").startswith("SB002: tenant must be 1 to 64")


def test_tenants_are_listed_only_for_an_admin(fails: Callable[..., str]) -> None:
    assert fails("tenants", "list").startswith("SB026: This key's role does not permit the request.")


@pytest.mark.parametrize("flag", [["--sessions", "many"], ["--egress", "perhaps"], ["--timeout", "long"]])
def test_a_limit_that_is_no_value_is_refused_before_it_is_sent(
    capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tenants", "limits", "carol", *flag])
    assert ended.value.code == 2
    assert f"argument {flag[0]}: '{flag[1]}' is no value of this limit, nor `default`" in capsys.readouterr().err


def test_every_hint_is_for_an_error_that_exists() -> None:
    assert HINTS.keys() <= {error.code for error in STATUS}


# -- no gateway, and what only a gateway with checkpoints does -------------------------------------------------


class Fixed(ThreadingHTTPServer):
    """A server that answers each request alike, and keeps what it was asked."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Fixed

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, body))
        self.wfile.write(self.server.answer)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - the names of the base class

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def json_answer(value: object) -> bytes:
    """Return an answer as the gateway gives it."""
    content = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Fixed]]:
    """Return a function that starts a server with this answer, whose address is in the environment."""
    servers: list[tuple[Fixed, threading.Thread]] = []

    def start(answer: bytes) -> Fixed:
        server = Fixed(answer)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        monkeypatch.setenv("KERNEL_GATEWAY_URL", server.url)
        monkeypatch.setenv("KERNEL_GATEWAY_KEY", "any")
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("arguments", CALLS, ids=" ".join)
def test_every_command_says_that_no_gateway_answers(fails: Callable[..., str], arguments: tuple[str, ...]) -> None:
    assert fails(*arguments, "--url", "http://127.0.0.1:1") == (
        "no gateway at http://127.0.0.1:1: [Errno 111] Connection refused"
    )


@pytest.mark.parametrize("url", ["127.0.0.1:8888", "ftp://127.0.0.1", "http://", "http://a:b", ""])
def test_an_address_that_is_none_is_named(fails: Callable[..., str], url: str) -> None:
    assert fails("sessions", "--url", url).startswith(f"no gateway at {url}: ")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 1\r\n\r\n<",
        b"SSH-2.0\r\n",
        b"",
    ],
)
def test_a_server_that_is_no_gateway_is_named(
    fixed: Callable[[bytes], Fixed], capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    server = fixed(answer)
    assert main(["sessions"]) == 1
    assert capsys.readouterr().err.startswith(f"kernel-gateway: no gateway at {server.url}: ")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
    ids=["length", "chunks"],
)
def test_a_download_that_breaks_off_is_no_success(
    fixed: Callable[[bytes], Fixed], capsys: pytest.CaptureFixture[str], tmp_path: Path, answer: bytes
) -> None:
    fixed(answer)
    assert main(["files", "get", "a", str(tmp_path / "a")]) == 1
    assert "broke off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        (
            ("create", "--on-idle", "sleep", "--checkpoints", "auto"),
            ("POST", "", {"name": "demo", "on_idle": "sleep", "checkpoints": "auto"}),
        ),
        (("checkpoint",), ("POST", "demo/checkpoints", {})),
        (("checkpoint", "loaded"), ("POST", "demo/checkpoints", {"name": "loaded"})),
        (("checkpoint", "--delete", "lo/ad ed"), ("DELETE", "demo/checkpoints/lo%2Fad%20ed", None)),
        (("rollback",), ("POST", "demo/rollback", {})),
        (("rollback", "loaded"), ("POST", "demo/rollback", {"to": "loaded"})),
        (("branch", "b"), ("POST", "demo/branch", {"as": "b"})),
        (("branch", "b", "--from", "loaded"), ("POST", "demo/branch", {"as": "b", "from": "loaded"})),
    ],
    ids=str,
)
def test_checkpoints_are_taken_and_used(
    fixed: Callable[[bytes], Fixed], arguments: tuple[str, ...], call: tuple[str, str, object]
) -> None:
    server = fixed(json_answer({"name": "loaded"}))
    assert main([*arguments, "-s", "demo"]) == 0
    [(method, path, body)] = server.asked
    assert (method, path, json.loads(body or b"null")) == (call[0], f"/v1/sessions/{call[1]}".rstrip("/"), call[2])


@pytest.mark.parametrize("arguments", [("a", "--list"), ("a", "--delete", "b"), ("--list", "--delete", "b")], ids=str)
def test_checkpoints_are_either_taken_or_listed_or_deleted(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *arguments])
    assert ended.value.code == 2


def test_checkpoints_are_listed(fixed: Callable[[bytes], Fixed], capsys: pytest.CaptureFixture[str]) -> None:
    given = {"name": "loaded", "created_at": "2026-11-27T17:40:00Z", "bytes": 1234, "automatic": False}
    listed = {"checkpoints": [CheckpointInfo.model_validate(given).model_dump(mode="json")]}
    fixed(json_answer(listed))
    assert main(["checkpoint", "--list"]) == 0
    assert capsys.readouterr().out == "loaded  2026-11-27 17:40  1234\n"
    assert main(["checkpoint", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed
    fixed(json_answer({"checkpoints": []}))
    assert main(["checkpoint", "--list"]) == 0
    assert capsys.readouterr().out == ""


def test_a_listing_that_is_cut_says_so(fixed: Callable[[bytes], Fixed], capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"name": "a", "type": "file", "size": 1, "modified": 1e300}  # user code may set any time
    fixed(json_answer({"entries": [entry], "truncated": True}))
    assert main(["files", "ls"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == ["file", "1", "-", "a"]
    assert printed.err == "kernel-gateway: the directory has more entries than a listing holds\n"


LARGE = 300 * 1024**2
#: runs a command and prints its peak of resident KiB; a child of the tests would begin with the peak of theirs
MEASURES = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("direction", ["put", "get"])
def test_a_large_file_passes_without_being_held_in_memory(
    fixed: Callable[[bytes], Fixed], tmp_path: Path, direction: str
) -> None:
    local, held = tmp_path / "local", bytes(LARGE)
    local.write_bytes(held)
    server = fixed(b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n%b" % (LARGE, held))
    if direction == "put":
        server.answer = b"HTTP/1.1 204 No Content\r\nX-Request-Id: 1\r\n\r\n"
    arguments = ("put", str(local), "a") if direction == "put" else ("get", "a", str(tmp_path / "back"))
    used = subprocess.run(
        [sys.executable, "-c", MEASURES, *COMMAND, "files", *arguments], check=True, capture_output=True, timeout=120
    )
    assert int(used.stdout) * 1024 < LARGE / 2
    passed = server.asked[0][2] if direction == "put" else (tmp_path / "back").read_bytes()
    assert len(passed) == LARGE


def test_ctrl_c_ends_a_command_without_a_traceback(fixed: Callable[[bytes], Fixed], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow")
    fixed(json_answer({}))
    heeding = ("env", "--default-signal=INT")  # the tests themselves may have been started to ignore it
    with subprocess.Popen(
        [*heeding, *COMMAND, "files", "put", str(tmp_path / "slow"), "a"], stderr=subprocess.PIPE
    ) as child:
        with (tmp_path / "slow").open("wb"):  # the command has begun to read it
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
        assert child.stderr is not None
        assert child.stderr.read() == b""


#: libraries of the service, each of which takes long to load
SERVICE = {"pydantic", "pydantic_settings", "tornado", "docker", "zmq", "jupyter_client", "structlog", "prompt_toolkit"}
#: rooms of ours that such a command may load
CLIENT_ROOMS = {"kernel_gateway.cli", "kernel_gateway.client", "kernel_gateway.client_config", "kernel_gateway.http"}


@pytest.mark.parametrize("command", sorted({*CLIENTS, "completion"}))
def test_a_command_that_is_a_client_loads_nothing_of_the_service_before_it_works(command: str) -> None:
    code = (
        "import contextlib, sys; from kernel_gateway.cli import main\n"
        f"with contextlib.suppress(SystemExit): main([{command!r}, '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert f"kernel_gateway.cli.{command}" in loaded, "control"
    libraries = {name.partition(".")[0] for name in loaded} & SERVICE
    assert not libraries
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("kernel_gateway.")}
    assert rooms <= CLIENT_ROOMS
