"""Open Terminal's API as Open WebUI calls it: commands, files, terminals, notebooks, ports, and whose sandbox it is."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from kernel_gateway.dialects.open_terminal.desks import NOTEBOOKS_MAX, Desk, Notebook
from kernel_gateway.dialects.open_terminal.terminals import CONNECT_SECONDS
from sessions.model.errors import QuotaExceeded
from sessions.sandbox.recorded import OUTPUT_KEPT
from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until

BASE = "/open-terminal"


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.engine)])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """A gateway."""
    with gateways.gateway(request.param) as serving:
        yield serving


def frontend_key(gateway: Gateway) -> str:
    """Make a key of alice that may name users."""
    command = [sys.executable, "-m", "kernel_gateway", "keys", "--state-dir", str(gateway.state_dir)]
    made = subprocess.run([*command, "add", "alice", "--role", "frontend"], check=True, capture_output=True, text=True)
    return made.stdout.strip()


@pytest.fixture(scope="module")
def frontend(gateway: Gateway) -> str:
    """A key that may name users."""
    return frontend_key(gateway)


@pytest.fixture(autouse=True)
def _without_sandboxes(gateway: Gateway) -> Iterator[None]:
    """End the sandboxes of a test, which count towards the limits of their tenants."""
    yield
    for tenant in KEYS:
        for sandbox in gateway.call("GET", "/sandboxes?status=READY&maxResults=100", tenant=tenant).json()["data"][
            "items"
        ]:
            gateway.call("DELETE", f"/sandboxes/{sandbox['sandboxId']}", tenant=tenant)


class User:
    """A user of Open WebUI, in one chat."""

    def __init__(self, gateway: Gateway, key: str, name: str, chat: str = "chat-1", **headers: str) -> None:
        self.gateway = gateway
        self.key = key
        self.headers = {"Authorization": f"Bearer {key}", "X-User-Id": name, "X-Session-Id": chat} | headers

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request as Open WebUI does."""
        return self.gateway.call(method, BASE + path, tenant=None, headers=self.headers, **options)

    def answer(self, method: str, path: str, **options: Any) -> Any:
        """Return the answer to a request that is not refused."""
        response = self.call(method, path, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def run(self, command: str) -> Any:
        """Run a command to its end."""
        return self.answer("POST", "/execute?wait=60", json={"command": command})

    def said(self, command: str) -> str:
        """Return what a command prints, with the line ends of Unix."""
        return "".join(each["data"] for each in self.run(command)["output"]).replace("\r\n", "\n")

    @contextmanager
    def terminal(self, name: str) -> Iterator[ClientConnection]:
        """Connect to a terminal as Open WebUI's proxy does."""
        url = f"{self.gateway.url.replace('http', 'ws', 1)}{BASE}/api/terminals/{name}"
        headers = {each: value for each, value in self.headers.items() if each != "Authorization"}
        with connect(url, additional_headers=headers) as socket:
            socket.send(json.dumps({"type": "auth", "token": self.key}))
            yield socket


@pytest.fixture
def user(gateway: Gateway, frontend: str) -> User:
    """A new user."""
    return User(gateway, frontend, f"user-{secrets.token_hex(4)}")


def detail(response: requests.Response) -> tuple[int, str]:
    """Return status and code of a refusal, whose text is in `detail`, too."""
    told = response.json()
    assert told["code"] in str(told["error"])
    assert told["detail"]
    return response.status_code, told["code"]


# -- whose sandbox ---------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_each_user_has_a_sandbox_and_a_forged_header_reaches_no_other(gateway: Gateway, user: User) -> None:
    """A replay of Open WebUI's calls, as all tests here: its client of terminals is a part of its whole server."""
    user.answer("POST", "/files/write", json={"path": "secret.txt", "content": "of the first"})
    other = User(gateway, user.key, "somebody-else")
    assert other.call("GET", "/files/read?path=secret.txt").status_code == 404
    for key in (KEYS["alice"], KEYS["bob"]):  # they may not name users; that of alice is of the same tenant
        forged = User(gateway, key, user.headers["X-User-Id"])
        assert detail(forged.call("GET", "/files/read?path=secret.txt")) == (403, "SB026")
    assert user.answer("GET", "/files/read?path=secret.txt")["content"] == "of the first"


def test_a_key_without_users_has_one_sandbox_of_its_own(gateway: Gateway, user: User) -> None:
    own = User(gateway, KEYS["bob"], "")
    own.answer("POST", "/files/write", json={"path": "own.txt", "content": "of the key"})
    assert own.answer("GET", "/files/read?path=own.txt")["content"] == "of the key"
    assert user.call("GET", "/files/read?path=own.txt").status_code == 404


def test_a_chat_has_a_sandbox_of_its_own_where_the_client_says_so(gateway: Gateway, user: User) -> None:
    chat = User(gateway, user.key, user.headers["X-User-Id"], **{"X-Terminal-Context-Id": "chat:1"})
    chat.answer("POST", "/files/write", json={"path": "a.txt", "content": "of the chat"})
    assert user.call("GET", "/files/read?path=a.txt").status_code == 404
    assert chat.call("GET", "/p/default/files/read?path=a.txt").status_code == 200


# -- what is asked before --------------------------------------------------------------------------------------


def test_open_webui_takes_it_for_a_terminal_and_reads_its_tools(gateway: Gateway, user: User) -> None:
    assert gateway.call("GET", f"{BASE}/api/v1/policies", tenant=None).status_code == 404
    features = gateway.call("GET", f"{BASE}/api/config", tenant=None).json()["features"]
    assert features == {"terminal": True, "notebooks": True, "system": True}
    tools = gateway.call("GET", f"{BASE}/openapi.json", tenant=None).json()["paths"]
    named = {operation["operationId"] for path in tools.values() for operation in path.values()}
    assert named == {
        "list_files", "read_file", "display_file", "write_file", "replace_file_content", "grep_search", "match_files",
        "search_files", "glob_search", "list_processes", "run_command", "get_process_status", "send_process_input",
        "kill_process", "read_user_terminal", "send_user_terminal_input",
    }  # fmt: skip
    assert "sandbox" in user.answer("GET", "/system")["prompt"]
    assert user.answer("GET", "/skills") == []


# -- commands --------------------------------------------------------------------------------------------------


def test_a_command_is_awaited_asked_for_and_ended(user: User) -> None:
    done = user.run("echo out; echo err >&2; exit 3")
    assert (done["status"], done["exit_code"]) == ("done", 3)
    assert "".join(each["data"] for each in done["output"]).split() == ["out", "err"]
    begun = user.answer("POST", "/execute", json={"command": "read x; echo got $x; sleep 600"})
    assert begun["status"] == "running"
    user.answer("POST", f"/execute/{begun['id']}/input", json={"input": "word\\n"})

    def status() -> Any:
        return user.answer("GET", f"/execute/{begun['id']}/status?offset=0&wait=0.1")

    assert until(lambda: "got word" in "".join(each["data"] for each in status()["output"]))
    offset = status()["next_offset"]
    assert user.answer("GET", f"/execute/{begun['id']}/status?offset={offset}")["output"] == []
    assert user.answer("DELETE", f"/execute/{begun['id']}") == {"status": "killed"}
    assert status()["status"] == "killed"
    assert detail(user.call("POST", f"/execute/{begun['id']}/input", json={"input": "x"})) == (400, "SB002")


def test_a_command_is_of_its_chat_only(gateway: Gateway, user: User) -> None:
    begun = user.run("true")["id"]
    other = User(gateway, user.key, user.headers["X-User-Id"], chat="chat-2")
    assert detail(other.call("GET", f"/execute/{begun}/status")) == (404, "SB018")
    assert other.answer("GET", "/execute") == []
    assert [each["id"] for each in user.answer("GET", "/execute")] == [begun]


def test_a_chat_keeps_its_working_directory(user: User) -> None:
    user.answer("POST", "/files/mkdir", json={"path": "below/here"})
    assert user.answer("POST", "/files/cwd", json={"path": "below/here"}) == {"cwd": "/home/user/below/here"}
    user.run("echo 1 > made.txt")
    assert [each["name"] for each in user.answer("GET", "/files/list")["entries"]] == ["made.txt"]
    assert user.answer("GET", "/files/read?path=../here/made.txt")["content"] == "1\n"
    assert detail(user.call("POST", "/files/cwd", json={"path": "nowhere"})) == (404, "SB014")


def test_the_last_output_of_a_command_is_kept_and_the_rest_is_told_to_be_cut(user: User) -> None:
    whole, cut = (
        user.run("head -c 100000 /dev/zero | tr '\\0' x"),
        user.run("head -c 900000 /dev/zero | tr '\\0' x; echo end"),
    )
    texts = ["".join(each["data"] for each in told["output"]) for told in (whole, cut)]
    assert (whole["truncated"], len(texts[0])) == (False, 100_000), "control"
    assert (cut["truncated"], texts[1].strip()[-4:]) == (True, "xend")
    assert 0 < len(texts[1]) <= OUTPUT_KEPT


# -- files -----------------------------------------------------------------------------------------------------


def test_files_are_written_changed_read_moved_and_deleted(user: User) -> None:
    text = "one\ntwo\nthree\ntwo\n"
    assert user.answer("POST", "/files/write", json={"path": "d/t.txt", "content": text})["size"] == len(text)
    read = user.answer("GET", "/files/read?path=d/t.txt&start_line=2&end_line=3")
    assert (read["content"], read["total_lines"], read["path"]) == ("two\nthree\n", 4, "/home/user/d/t.txt")
    several = {"path": "d/t.txt", "replacements": [{"target": "two", "replacement": "2"}]}
    assert detail(user.call("POST", "/files/replace", json=several)) == (400, "SB002")
    one = {"path": "d/t.txt", "replacements": [{"target": "two", "replacement": "2", "start_line": 3}]}
    user.answer("POST", "/files/replace", json=one)
    assert user.answer("GET", "/files/read?path=d/t.txt")["content"] == "one\ntwo\nthree\n2\n"
    moved = {"source": "d/t.txt", "destination": "d/u.txt"}
    assert user.answer("POST", "/files/move", json=moved)["destination"] == "/home/user/d/u.txt"
    assert detail(user.call("POST", "/files/move", json=moved)) == (404, "SB014")
    assert user.answer("DELETE", "/files/delete?path=d") == {"path": "/home/user/d", "type": "directory"}
    assert user.answer("GET", "/files/display?path=d/u.txt")["exists"] is False


def test_an_upload_is_seen_as_it_was_sent(user: User) -> None:
    image = b"\x89PNG\r\n" + bytes(range(256))
    sent = user.answer("POST", "/files/upload?directory=in", files={"file": ("../a.png", image)})
    assert sent == {"path": "/home/user/in/a.png", "size": len(image)}
    for path in ("view?path=in/a.png", "read?path=in/a.png", "serve/home/user/in/a.png"):
        shown = user.call("GET", f"/files/{path}")
        assert (shown.headers["Content-Type"], shown.content) == ("image/png", image)
    user.run("printf '\\377\\376' > x.bin")
    assert detail(user.call("GET", "/files/read?path=x.bin")) == (415, "SB046")
    assert detail(user.call("GET", "/files/read?path=/etc/passwd")) == (400, "SB002")


def test_files_and_directories_are_sent_as_one_archive(user: User) -> None:
    user.run(
        "mkdir -p d/e && echo one > d/1.txt && head -c 200000 /dev/zero > d/e/é.bin && ln -s 1.txt d/link && echo x > x"
    )
    sent = user.call("POST", "/files/archive", json={"paths": ["d", "x"]})
    assert (sent.headers["Content-Type"], "archive.zip" in sent.headers["Content-Disposition"]) == (
        "application/zip",
        True,
    )
    with ZipFile(BytesIO(sent.content)) as archive:
        assert archive.testzip() is None
        held = {name: archive.read(name) for name in archive.namelist()}
    assert held == {"d/1.txt": b"one\n", "d/e/é.bin": bytes(200_000), "x": b"x\n"}
    for paths, told in ((["nothing"], (404, "SB014")), (["/etc/passwd"], (400, "SB002")), ([], (400, "SB002"))):
        assert detail(user.call("POST", "/files/archive", json={"paths": paths})) == told
    assert detail(user.call("POST", "/files/archive", json={"paths": ["x", "./x"]})) == (400, "SB002")


def test_files_are_found_by_name_and_content(user: User) -> None:
    user.run("mkdir -p a .h && echo 'needle here' > a/one.py && echo Needle > a/two.txt && touch needle.md .h/needle")
    found = user.answer("GET", "/files/grep?query=needle&path=a")["matches"]
    assert found == [{"file": "/home/user/a/one.py", "line": 1, "content": "needle here"}]
    both = user.answer("GET", "/files/grep?query=need.e&case_insensitive=true&match_per_line=false&include=*.txt")
    assert both["matches"] == [{"file": "/home/user/a/two.txt"}]
    assert [each["path"] for each in user.answer("GET", "/files/glob?pattern=*.py")["matches"]] == ["a/one.py"]
    names = user.answer("GET", "/files/search?query=needle&type=null")["results"]
    assert [each["path"] for each in names] == ["/home/user/needle.md"]
    ranked = user.answer("GET", "/files/matches?query=needle")["results"]
    assert [each["relative_path"] for each in ranked] == ["needle.md", "a/one.py", "a/two.txt"]
    assert ranked[1]["content_matches"] == [{"line": 1, "column": 1, "text": "needle here"}]
    assert detail(user.call("GET", "/files/grep?query=(")) == (400, "SB002")
    fields = user.call("GET", "/files/grep?query=x&max_results=501")
    assert detail(fields) == (422, "SB002")
    assert fields.json()["detail"][0]["loc"] == ["max_results"]


@pytest.mark.full
def test_a_search_that_does_not_end_is_ended(user: User) -> None:
    user.answer("POST", "/files/write", json={"path": "a.txt", "content": "a" * 64 + "b"})
    assert user.answer("GET", "/files/grep?query=a%2B%24")["matches"] == [], "control"
    assert detail(user.call("GET", "/files/grep?query=(a%2B)%2B%24")) == (408, "SB005")
    assert user.said("echo alive") == "alive\n"


# -- terminals -------------------------------------------------------------------------------------------------


def test_a_terminal_takes_keys_shows_output_and_ends_with_its_socket(user: User) -> None:
    made = user.answer("POST", "/api/terminals")
    assert user.call("GET", "/api/terminals/user/output").status_code == 404  # nobody is connected
    seen = b""
    with user.terminal(made["id"]) as socket:
        socket.send(json.dumps({"type": "resize", "cols": 100, "rows": 30}))
        socket.send(json.dumps({"type": "ping"}))
        socket.send(b"echo $((40 + 2)); stty size\n")
        while b"30 100" not in seen:
            seen += bytes(socket.recv(timeout=30))  # type: ignore[arg-type]
        assert b"42" in seen
        user.answer("POST", "/api/terminals/user/input", json={"input": "echo by-the-model-$((1+1))\n"})
        while b"by-the-model-2" not in seen:
            seen += bytes(socket.recv(timeout=30))  # type: ignore[arg-type]
        assert "by-the-model-2" in user.answer("GET", "/api/terminals/user/output")["output"]
        with user.terminal(made["id"]) as second, pytest.raises(ConnectionClosed) as refused:
            second.recv(timeout=30)
        assert refused.value.rcvd is not None
        assert refused.value.rcvd.code == 4009
    assert until(lambda: user.answer("GET", "/api/terminals") == [])


def test_a_terminal_is_of_its_user_and_key_only(gateway: Gateway, user: User) -> None:
    made = user.answer("POST", "/api/terminals")["id"]
    strangers = {
        4004: [User(gateway, user.key, "another"), User(gateway, KEYS["alice"], user.headers["X-User-Id"])],
        4001: [User(gateway, "kg-no-such-key", user.headers["X-User-Id"])],
    }
    for code, callers in strangers.items():
        for stranger in callers:
            with stranger.terminal(made) as socket, pytest.raises(ConnectionClosed) as refused:
                socket.recv(timeout=30)
            assert refused.value.rcvd is not None
            assert refused.value.rcvd.code == code
    with user.terminal(made) as socket:
        socket.send(b"echo $((6*7))\n")
        seen = b""
        while b"42" not in seen:
            seen += bytes(socket.recv(timeout=30))  # type: ignore[arg-type]


@pytest.mark.full
def test_a_terminal_to_which_nobody_connects_is_ended(user: User) -> None:
    """It takes the minute that the page promises."""
    made = user.answer("POST", "/api/terminals")["id"]
    assert [each["id"] for each in user.answer("GET", "/api/terminals")] == [made]
    until(lambda: user.answer("GET", "/api/terminals") == [], seconds=3 * CONNECT_SECONDS)
    assert detail(user.call("GET", f"/api/terminals/{made}")) == (404, "SB018")


# -- notebooks and ports ---------------------------------------------------------------------------------------


def test_a_notebooks_cells_run_and_their_outputs_are_saved(user: User) -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "source": ["x = 40\n", "x"], "metadata": {}, "outputs": [], "execution_count": None}
    ]
    cells += [dict(cells[0], source="x + 2"), {"cell_type": "markdown", "source": "", "metadata": {}}]
    content = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
    user.answer("POST", "/files/write", json={"path": "n.ipynb", "content": content})
    opened = user.answer("POST", "/notebooks", json={"path": "n.ipynb"})
    assert (opened["kernel"], opened["status"]) == ("python3", "ready")
    path = f"/notebooks/{opened['id']}"
    user.answer("POST", f"{path}/execute", json={"cell_index": 0})
    second = user.answer("POST", f"{path}/execute", json={"cell_index": 1})
    assert (second["status"], second["outputs"][0]["data"]["text/plain"]) == ("ok", "42")
    assert user.answer("POST", f"{path}/execute", json={"cell_index": 1, "source": "1/0"})["status"] == "error"
    saved = json.loads(user.answer("GET", "/files/read?path=n.ipynb")["content"])
    assert saved["cells"][0]["outputs"][0]["data"]["text/plain"] == "40"
    assert saved["cells"][1]["source"] == "1/0"
    assert detail(user.call("POST", f"{path}/execute", json={"cell_index": 2})) == (400, "SB002")
    large = user.answer("POST", f"{path}/execute", json={"cell_index": 1, "source": "'a' * 5_000_000"})
    assert len(large["outputs"][0]["data"]["text/plain"]) > 5_000_000
    saved = json.loads(user.answer("GET", "/files/read?path=n.ipynb")["content"])
    assert "would have more than 4 MiB" in saved["cells"][1]["outputs"][0]["text"]
    assert user.answer("DELETE", path) == {"status": "stopped"}
    assert detail(user.call("GET", path)) == (404, "SB011")


def test_a_sandbox_has_a_bounded_number_of_notebooks_also_of_those_that_are_being_opened() -> None:
    desk = Desk()
    opened = [Notebook("n.ipynb", f"s{number}", "python3") for number in range(NOTEBOOKS_MAX - 1)]
    for notebook in opened:
        desk.add_notebook(notebook)
    with desk.opening(), pytest.raises(QuotaExceeded), desk.opening():
        pass
    desk.add_notebook(Notebook("n.ipynb", "last", "python3"))
    with pytest.raises(QuotaExceeded), desk.opening():
        pass
    desk.close_notebook(opened[0])
    with desk.opening():
        pass


@pytest.mark.full
def test_a_user_opens_no_ninth_notebook(user: User) -> None:
    content = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []})
    user.answer("POST", "/files/write", json={"path": "n.ipynb", "content": content})
    for _ in range(NOTEBOOKS_MAX):
        last = user.answer("POST", "/notebooks", json={"path": "n.ipynb"})
    assert detail(user.call("POST", "/notebooks", json={"path": "n.ipynb"})) == (429, "SB008")
    user.answer("DELETE", f"/notebooks/{last['id']}")
    assert user.answer("POST", "/notebooks", json={"path": "n.ipynb"})["status"] == "ready"


def test_a_terminal_that_nobody_opened_is_not_found(user: User) -> None:
    assert detail(user.call("DELETE", "/api/terminals/nobody")) == (404, "SB018")


def test_a_server_in_the_sandbox_is_listed_and_reached(user: User) -> None:
    code = (
        "from http.server import *; s = HTTPServer(('127.0.0.1', 0), SimpleHTTPRequestHandler); "
        "print(s.server_port, flush=True); s.serve_forever()"
    )
    begun = user.answer("POST", "/execute?wait=1", json={"command": f'echo served > seen; exec python3 -c "{code}"'})

    def output() -> str:
        told = user.answer("GET", f"/execute/{begun['id']}/status")["output"]
        return "".join(each["data"] for each in told).strip()

    port = int(until(lambda: output().partition("\n")[0]))
    [found] = [each for each in user.answer("GET", "/ports")["ports"] if each["port"] == port]
    assert found["process"].startswith("python")
    answer = user.call("GET", f"/proxy/{port}/seen")
    if user.gateway.isolation == "docker":
        assert answer.text == "served\n"
    else:  # plain processes have the machine's own loopback address
        assert detail(answer) == (501, "SB061")
    user.answer("DELETE", f"/execute/{begun['id']}?force=true")
    assert until(lambda: all(each["port"] != port for each in user.answer("GET", "/ports")["ports"]))


def test_the_lines_of_the_page_are_right(user: User) -> None:
    page = Path("docs/clients/open_terminal.md").read_text()
    assert "kernel-gateway keys add open-webui --role frontend" in page
    [line] = re.findall(r"TERMINAL_SERVER_CONNECTIONS='(.*?)'", page, re.DOTALL)
    [connection] = json.loads(line)
    assert connection["url"].endswith(BASE)
    assert user.answer("GET", connection["path"])["openapi"] == "3.1.0"
