"""What holds for files in every dialect: names, modes, modules that are uploaded again, and `~`."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import requests

from kernel_gateway.errors import STATUS
from kernel_gateway.http.multipart import FORM_MAX
from kernel_image.file_names import name_of, text_of
from sessions.model.errors import NoSpace
from tests.gateways import Gateway
from tests.gateways import gateway as gateway_of
from tests.kernel_gateway import agentrun, e2b
from tests.kernel_gateway.e2b import ENVD

#: as Python has them: a lone surrogate is a byte that is no UTF-8
NAMES = {
    "macOS screenshot": "Screenshot 2026-11-26 at 9.41.07\u202fAM.png",
    "spaces at both ends": " \u00a0\u3000報告\u3000 ",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467.png",
    "characters without a glyph": "\u202ea\ufeff\u2028\u2029\u0378",
    "signs": "~%ff%2F\"b'c;d\\e",
    "Latin-1": "caf\udce9.txt",
    "no UTF-8 at all": "\udcff\udcfe\udc80",
    "half a character": "\udcf0\udc9f\udc91",
    "like the spelling of a byte": "a\U0010dcffb",
}


class Native:
    """The files of a session of the native API."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway, self._name = gateway, name
        self.run("0")

    def run(self, code: str) -> str:
        return self._gateway.text(self._name, code)

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        return _good(self._gateway.call(method, f"/v1/sessions/{self._name}/{path}", **options))

    def list(self, folder: str) -> list[str]:
        return [entry["name"] for entry in self._call("GET", f"files/{folder}?list").json()["entries"]]

    def write(self, path: str, content: bytes, **options: Any) -> None:
        self._call("PUT", f"files/{quote(path)}", data=content, **options)

    def read(self, path: str) -> bytes:
        answer = self._call("GET", f"files/{quote(path)}")
        attachment = "attachment; filename*=UTF-8''" + quote(path.rpartition("/")[2], safe="")
        assert answer.headers["Content-Disposition"] == attachment
        return answer.content

    def move(self, path: str, to: str) -> None:
        self._call("POST", "move", json={"from": path, "to": to})

    def delete(self, path: str) -> None:
        self._call("DELETE", f"files/{quote(path)}")


class Jupyter(Native):
    """The same, by Jupyter's contents API."""

    def _contents(self, method: str, path: str, **options: Any) -> Any:
        return _good(self._gateway.call(method, f"/api/contents/{self._name}/{quote(path)}", **options))

    def list(self, folder: str) -> list[str]:
        return [entry["name"] for entry in self._contents("GET", folder).json()["content"]]

    def write(self, path: str, content: bytes, **options: Any) -> None:
        body = {"type": "file", "format": "text", "content": content.decode()}
        self._contents("PUT", path, json=body, **options)

    def read(self, path: str) -> bytes:
        text: str = self._contents("GET", path, params={"type": "file", "format": "text"}).json()["content"]
        return text.encode()

    def move(self, path: str, to: str) -> None:
        self._contents("PATCH", path, json={"path": f"{self._name}/{to}"})

    def delete(self, path: str) -> None:
        self._contents("DELETE", path)


class AgentRun:
    """The files of an AgentRun sandbox."""

    def __init__(self, box: agentrun.Box) -> None:
        self._box = box
        self.run = box.text
        self.list = box.names

    def write(self, path: str, content: bytes, **options: Any) -> None:
        files: Any = [("path", (None, path)), ("file", ("x", content))]
        _good(self._box.call("POST", "/filesystem/upload", files=files, **options))

    def read(self, path: str) -> bytes:
        content = _good(self._box.call("GET", "/filesystem/download", params={"path": path})).content
        assert self._box.get("/filesystem/stat", path=path)["name"] == path.rpartition("/")[2]
        return content

    def move(self, path: str, to: str) -> None:
        self._box.post("/filesystem/move", source=path, destination=to)

    def delete(self, path: str) -> None:
        self._box.post("/filesystem/remove", path=path)


class E2B:
    """The files of an E2B sandbox."""

    def __init__(self, box: e2b.Box) -> None:
        self._box = box

    def run(self, code: str) -> str:
        return "".join(event["text"] for event in self._box.run(code) if event["type"] == "stdout")

    def _rpc(self, method: str, **body: Any) -> Any:
        return _good(self._box.call("POST", f"/filesystem.Filesystem/{method}", ENVD, json=body)).json()

    def list(self, folder: str) -> list[str]:
        return [entry["name"] for entry in self._rpc("ListDir", path=folder)["entries"]]

    def write(self, path: str, content: bytes, **options: Any) -> None:
        form: Any = [("file", (path, content))]
        sent = _good(self._box.call("POST", "/files", ENVD, params={"path": path}, files=form, **options)).json()
        assert sent[0]["name"] == path.rpartition("/")[2]

    def read(self, path: str) -> bytes:
        return _good(self._box.call("GET", "/files", ENVD, params={"path": path})).content

    def move(self, path: str, to: str) -> None:
        assert self._rpc("Move", source=path, destination=to)["entry"]["path"] == f"/home/user/{to}"

    def delete(self, path: str) -> None:
        self._rpc("Remove", path=path)


def _good(response: requests.Response) -> requests.Response:
    assert response.ok, response.text
    return response


@pytest.fixture
def dialects(gateway: Gateway, session: str, own_box: agentrun.Box) -> Iterator[list[Native | AgentRun | E2B]]:
    with e2b.boxed(gateway) as box:
        yield [Native(gateway, session), Jupyter(gateway, session), AgentRun(own_box), E2B(box)]


def test_every_name_without_control_characters_goes_through_every_dialect(
    dialects: list[Native | AgentRun | E2B],
) -> None:
    spellings = sorted(map(text_of, NAMES.values()))
    for files in dialects:
        folder = f"folder-{secrets.token_hex(4)}"
        seen = f"print(ascii(sorted(os.listdir({folder!r}))))"
        files.run(f"import os; os.mkdir({folder!r})")
        for spelling in spellings:
            files.write(f"{folder}/{spelling}", b"of a client")
        assert files.run(seen).strip() == ascii(sorted(NAMES.values()))
        files.run(f"for name in os.listdir({folder!r}): open(f'{folder}/{{name}}', 'w').write(ascii(name))")
        assert sorted(files.list(folder)) == spellings
        for name in NAMES.values():
            path = f"{folder}/{text_of(name)}"
            assert files.read(path) == ascii(name).encode()
            files.move(path, f"{path}2")
            files.delete(f"{path}2")
        assert files.list(folder) == []


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_spelling_is_text_and_stands_for_one_name(name: str) -> None:
    assert os.fsencode(name_of(text_of(name))) == os.fsencode(name)
    assert text_of(name).encode().decode() == text_of(name)


def test_an_upload_over_a_program_leaves_it_a_program(dialects: list[Native | AgentRun | E2B]) -> None:
    for files in dialects:
        files.write("program", b"#!/bin/sh\necho first")
        files.run("import os, subprocess; os.chmod('program', 0o755)")
        files.write("program", b"#!/bin/sh\necho second")
        assert files.run("print(subprocess.run('./program', capture_output=True).stdout)") == "b'second\\n'\n", files


def test_a_module_that_is_uploaded_again_is_reloaded_as_it_is(dialects: list[Native | AgentRun | E2B]) -> None:
    for files in dialects:
        name = f"module_{secrets.token_hex(4)}"
        files.write(f"{name}.py", b"answer = 41")
        files.run(f"import importlib, os, {name} as module; written = os.stat('{name}.py').st_mtime")
        files.write(f"{name}.py", b"answer = 42")
        files.run(f"os.utime('{name}.py', (written, written))  # as if both were written within a second")
        assert files.run("importlib.reload(module); print(module.answer)") == "42\n", files


def _chunked(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send a body in pieces of an unknown number."""
    body = request.body.encode() if isinstance(request.body, str) else request.body
    assert isinstance(body, bytes)
    request.prepare_body(iter([body[:7], body[7:]]), None)
    del request.headers["Content-Length"]
    return request


def test_an_upload_may_be_chunked(dialects: list[Native | AgentRun | E2B]) -> None:
    for files in dialects:
        files.write("chunked", b"of several pieces", auth=_chunked)
        assert files.read("chunked") == b"of several pieces", files


@pytest.mark.parametrize("times", [1, 4], ids=["which is read to its end", "which is cut off"])
def test_a_chunked_upload_that_no_workspace_can_hold_says_so(times: int) -> None:
    size = times * 16 * 1024**2 + 2 * FORM_MAX

    def pieces() -> Iterator[bytes]:
        yield from (bytes(64 * 1024) for _ in range(size // 65536))

    with gateway_of("process", disk="16m") as small, agentrun.boxed(small) as box, e2b.boxed(small) as other:
        form = {"Content-Type": "multipart/form-data; boundary=b"}

        def whole() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="path"\r\n\r\nlarge\r\n'
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="large"\r\n\r\n'
            yield from pieces()
            yield b"\r\n--b--\r\n"

        answers = [
            small.call("PUT", "/v1/sessions/s/files/large", data=pieces()),
            box.call("POST", "/filesystem/upload", data=whole(), headers=form),
            other.call("POST", "/files", ENVD, params={"path": "large"}, data=whole(), headers=form),
        ]
        for answer in answers:
            assert answer.status_code == STATUS[NoSpace], answer.text
            assert re.search(r"the file is larger than (any|the) workspace \(16777216 bytes\)", answer.text)
        assert small.text("s", "import os; os.listdir()") == "[]"


def _clutter(files: Native | AgentRun | E2B) -> str:
    return files.run("print(sorted(set(os.listdir(home)) - {'of a client', 'of the code', 'of a command'}))")


def test_the_home_directory_is_the_files_for_code_commands_and_clients(
    dialects: list[Native | AgentRun | E2B],
) -> None:
    for files in dialects:
        files.run("import os; home = os.path.expanduser('~')")
        if not isinstance(files, Jupyter):  # there a path begins with the name of a session
            files.write("~/of a client", b"1")
            files.run("open(f'{home}/of the code', 'w').write(open(f'{home}/of a client').read() + '2')")
            assert files.read("~/of the code") == files.read("of the code") == b"12"
            assert "~" not in files.list("")
        files.run("import matplotlib.pyplot as plt; plt.plot([1]); plt.savefig('/dev/null', format='png')")
        assert _clutter(files) == "[]\n", files


def test_commands_have_the_same_home_directory(own_box: agentrun.Box, gateway: Gateway) -> None:
    own_box.write("~/of a client", "1")
    assert own_box.command("cat ~/of*; cd /; cat ~/of*; echo > ~/'of a command'")["stdout"] == "11"
    assert own_box.command("cat of*", cwd="~")["stdout"] == "1\n"
    assert sorted(own_box.names("~")) == ["of a client", "of a command"]
    with e2b.boxed(gateway) as box:
        files = E2B(box)
        files.write("~/of a client", b"1")
        for terminal in ({}, {"pty": {"size": {"cols": 80, "rows": 20}}}):
            program = {"cmd": "/bin/bash", "args": ["-l", "-c", "cp ~/'of a client' ~/'of a command'"]}
            body = e2b.envelope({"process": program, **terminal})
            _good(box.call("POST", "/process.Process/Start", ENVD, data=body, headers=e2b.STREAM))
            assert files.read("~/of a command") == b"1"
            files.delete("~/of a command")
        assert files.list("~") == ["of a client"]


#: code that writes a file to the home directory and lists the files
IN_HOME = {
    "python": "import os; open(os.path.expanduser('~/of the code'), 'w').write('1\\n'); print(*os.listdir())",
    "bash": "echo 1 > ~/'of the code'; ls -A",
    "javascript": """
        await Deno.writeTextFile(`${Deno.env.get("HOME")}/of the code`, "1\\n");
        console.log(...(await Array.fromAsync(Deno.readDir("."))).map(entry => entry.name))
    """,
}
#: files from which programs read settings when they start
SETTINGS = (
    *(".bashrc", ".bash_profile", ".profile", ".bash_history", ".inputrc", ".npmrc", ".pythonrc.py"),
    *(".ipython/profile_default/startup/a.py", ".ipython/profile_default/ipython_config.py", ".cache/deno"),
    *(".jupyter/jupyter_config.json", ".config/matplotlib/matplotlibrc", ".local/etc/jupyter/jupyter_config.json"),
)


@pytest.mark.parametrize("language", IN_HOME)
def test_every_languages_home_directory_is_the_files_and_has_no_part_in_a_start(
    gateway: Gateway, session: str, language: str
) -> None:
    _good(gateway.call("POST", "/v1/sessions", json={"name": session, "language": language}))
    files = f"/v1/sessions/{session}/files/~"
    assert gateway.text(session, IN_HOME[language]) == "of the code\n"
    assert gateway.call("GET", f"{files}/of%20the%20code").text == "1\n"
    for name in SETTINGS:
        _good(gateway.call("PUT", f"{files}/{name}", data=b"exit 1; raise SystemExit({['"))
    _good(gateway.call("POST", f"/v1/sessions/{session}/restart"))
    assert "of the code" in gateway.text(session, IN_HOME[language])
