"""A real Jupyter Server whose files are those of the gateway's sessions, set up by two lines of its configuration."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
import requests
from jupyter_kernel_client import JupyterKernelClient
from tornado.web import HTTPError

from kernel_gateway.for_jupyter.uploads import UPLOADS_MAX, Uploads
from tests import gateways
from tests.clients.front import TOKEN, jupyter_server
from tests.gateways import Gateway

PAGE = Path(__file__).parents[2] / "docs/clients/jupyter.md"
#: bytes of a part of JupyterLab's uploads
PART = 1024**2


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """A gateway without containers, which have no part in what these tests show."""
    with gateways.gateway("process") as serving:
        yield serving


class Server:
    """A Jupyter Server, asked as JupyterLab asks it."""

    def __init__(self, url: str, gateway: Gateway) -> None:
        self.url = url
        self.gateway = gateway

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"token {TOKEN}"}
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=120, **options)

    def done(self, method: str, path: str, **options: Any) -> Any:
        answer = self.ask(method, path, **options)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def contents(self, method: str, path: str, **options: Any) -> Any:
        return self.done(method, f"/api/contents/{path}", **options)

    def names(self, path: str) -> list[str]:
        return sorted(entry["name"] for entry in self.contents("GET", path)["content"])

    def open(self, path: str) -> str:
        """Give a notebook a kernel, and return the kernel's id."""
        asked = {"path": path, "type": "notebook", "name": path, "kernel": {"name": "python3"}}
        return str(self.done("POST", "/api/sessions", json=asked)["kernel"]["id"])

    def run(self, kernel: str, code: str) -> str:
        with JupyterKernelClient(server_url=self.url, token=TOKEN, kernel_id=kernel) as client:
            return "".join(output.get("text", "") for output in client.execute(code)["outputs"])

    def upload(self, path: str, content: bytes) -> None:
        """Send a file in parts, as JupyterLab does."""
        for start in range(0, len(content), PART):
            number = start // PART + 1 if start + PART < len(content) else -1
            part = base64.b64encode(content[start : start + PART]).decode()
            body = {"type": "file", "format": "base64", "chunk": number, "content": part, "name": path}
            self.contents("PUT", path, json=body)


def configuration() -> str:
    """Return the two lines of the page."""
    return PAGE.read_text().split("```python\n")[1].split("```")[0]


@contextmanager
def serving(gateway: Gateway, home: Path) -> Iterator[Server]:
    settings = home / ".config/jupyter_server_config.py"
    settings.parent.mkdir()
    settings.write_text(configuration())
    with jupyter_server(gateway, home) as url:
        yield Server(url, gateway)


@pytest.fixture(scope="module")
def server(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(gateway, tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture
def session(gateway: Gateway) -> Iterator[str]:
    """A session that is not named like a kernel."""
    name = f"s.{secrets.token_hex(4)}"
    gateway.execute(name, "x = 40")
    yield name
    gateway.call("DELETE", f"/v1/sessions/{name}")


def test_the_page_shows_two_lines() -> None:
    assert len(configuration().splitlines()) == 2


def test_browser_and_cells_share_the_files_of_a_session(server: Server, session: str) -> None:
    server.gateway.execute(session, "open('cell.txt', 'w').write('from a cell'); import os; os.mkdir('sub')")
    assert session in server.names("")
    assert server.names(session) == ["cell.txt", "sub"]
    shown = server.contents("GET", f"{session}/cell.txt")
    assert (shown["content"], shown["format"], shown["type"]) == ("from a cell", "text", "file")
    saved = {"type": "file", "format": "text", "content": "from the browser: ü"}
    server.contents("PUT", f"{session}/sub/a ü.txt", json=saved)
    assert server.gateway.text(session, "print(open('sub/a ü.txt').read(), end='')") == saved["content"]
    shown = server.ask("GET", f"/files/{session}/sub/a ü.txt?download=1")
    assert (shown.text, shown.headers["Content-Type"]) == (saved["content"], "text/plain; charset=UTF-8")
    assert "attachment" in shown.headers["Content-Disposition"]
    assert "sandbox allow-scripts" in shown.headers["Content-Security-Policy"]


def test_a_new_notebook_gets_a_session_whose_kernel_runs_it(server: Server) -> None:
    notebook = server.contents("POST", "", json={"type": "notebook"})
    name, _, file = notebook["path"].partition("/")
    assert file == "Untitled.ipynb"
    assert server.open(notebook["path"]) == name
    assert server.gateway.kernels() == [name]
    told = "import os; print(os.listdir(), os.environ['KERNEL_GATEWAY_SESSION'])"
    assert server.run(name, told) == f"['Untitled.ipynb'] {name}\n"
    server.gateway.call("DELETE", f"/api/kernels/{name}")


def test_a_notebook_in_a_sessions_directory_shares_its_variables_and_outlives_its_kernel(
    server: Server, session: str
) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x"), nbformat.v4.new_raw_cell("x" * 9 * PART)])
    server.contents("PUT", f"{session}/book.ipynb", json={"type": "notebook", "content": book})
    kernel = server.open(f"{session}/book.ipynb")
    assert server.run(kernel, "print(x + 2)") == "42\n"
    assert len(server.gateway.kernels()) == 1
    server.done("DELETE", f"/api/kernels/{kernel}")  # "Shut Down Kernel"
    assert "x" not in server.gateway.text(session, "print(dir())").split("'")
    read = server.contents("GET", f"{session}/book.ipynb")
    assert (read["type"], read["format"]) == ("notebook", "json")
    cells = [(cell["cell_type"], cell["source"]) for cell in read["content"]["cells"]]
    assert cells == [(cell.cell_type, cell.source) for cell in book.cells]


def test_a_jupyter_server_that_ends_leaves_sessions_and_notebooks(
    gateway: Gateway, session: str, tmp_path: Path
) -> None:
    with serving(gateway, tmp_path) as server:
        path = server.contents("POST", session, json={"type": "notebook"})["path"]
        server.run(server.open(path), "y = x")
    assert gateway.text(session, "import os; print(y, os.listdir())") == "40 ['Untitled.ipynb']\n"


def test_files_are_copied_renamed_and_deleted_and_have_an_earlier_version(server: Server, session: str) -> None:
    path = f"{session}/a.txt"
    for text in ("one", "two"):
        server.contents("PUT", path, json={"type": "file", "format": "text", "content": text})
        if text == "one":
            version = server.contents("POST", f"{path}/checkpoints")
            assert [one["id"] for one in server.contents("GET", f"{path}/checkpoints")] == [version["id"]]
    assert server.contents("POST", session, json={"copy_from": path})["name"] == "a-Copy1.txt"
    server.contents("POST", f"{path}/checkpoints/{version['id']}")
    assert server.contents("GET", path)["content"] == "one"
    assert server.contents("GET", f"{session}/a-Copy1.txt")["content"] == "two"
    server.contents("DELETE", f"{path}/checkpoints/{version['id']}")
    assert server.contents("GET", f"{path}/checkpoints") == []
    assert server.contents("PATCH", path, json={"path": f"{session}/b.txt"})["name"] == "b.txt"
    server.contents("DELETE", f"{session}/a-Copy1.txt")
    assert server.contents("POST", session, json={"type": "directory"})["name"] == "Untitled Folder"
    assert server.names(session) == ["Untitled Folder", "b.txt"]


@pytest.mark.parametrize("size", [3 * PART + 1, pytest.param(200 * PART, marks=pytest.mark.full)])
def test_a_large_file_is_uploaded_in_parts(server: Server, session: str, size: int) -> None:
    content = secrets.token_bytes(size)
    server.upload(f"{session}/large", content)
    told = "import hashlib; print(hashlib.sha256(open('large', 'rb').read()).hexdigest(), end='')"
    assert server.gateway.text(session, told) == hashlib.sha256(content).hexdigest()
    assert server.ask("GET", f"/files/{session}/large").content == content
    if size < 100 * PART:
        read = server.contents("GET", f"{session}/large?hash=1")
        assert (base64.b64decode(read["content"]), read["hash"]) == (content, hashlib.sha256(content).hexdigest())


def test_a_new_folder_gets_the_name_that_is_typed_and_goes_when_it_is_deleted(server: Server) -> None:
    folder = server.contents("POST", "", json={"type": "directory"})["path"]
    assert server.contents("PATCH", folder, json={"path": "wines"})["path"] == "wines"
    assert (folder in server.names(""), server.names("wines")) == (False, [])
    server.contents("POST", "wines", json={"type": "notebook"})
    assert server.ask("PATCH", "/api/contents/wines", json={"path": "beers"}).status_code == 400, "it has a file"
    assert server.contents("PUT", "beers", json={"type": "directory"})["path"] == "beers"
    for name in ("wines", "beers"):
        server.contents("DELETE", name)
        assert name not in server.names("")
        assert name not in server.gateway.kernels()


def test_a_file_without_room_is_refused_in_the_gateways_words(tmp_path: Path) -> None:
    part = base64.b64encode(secrets.token_bytes(24 * PART)).decode()
    body = {"type": "file", "format": "base64", "content": part}
    with gateways.gateway("process", disk="8m") as gateway, serving(gateway, tmp_path) as server:
        server.contents("PUT", "small", json={"type": "directory"})
        answer = server.ask("PUT", "/api/contents/small/large.bin", json=body)
        assert (answer.status_code, "the file is larger than any workspace" in answer.text) == (507, True), answer.text


def test_mistakes_are_told_in_the_gateways_words(server: Server, session: str) -> None:
    part = {"type": "file", "format": "base64", "content": ""}
    server.gateway.execute(session, "open('bad.ipynb', 'w').write('{'); open('bytes', 'wb').write(b'\\xff')")
    for method, path, body, code, told in [
        ("GET", f"{session}/missing", None, 404, "does not exist"),
        ("GET", f"{session}/.hidden", None, 404, "does not exist"),
        ("GET", f"{session}/bad.ipynb", None, 400, "Unreadable Notebook"),
        ("GET", f"{session}/bytes?format=text", None, 400, "is not UTF-8 encoded"),
        ("PUT", "file.txt", part, 400, "files are in the directories of sessions"),
        ("PUT", f"{session}/late", part | {"chunk": 2}, 400, "the upload must begin again"),
        ("PUT", f"{session}/bad", part | {"content": "&&&="}, 400, "the content is not of this format"),
        ("PATCH", f"{session}/bytes", {"path": "elsewhere/bytes"}, 404, "No such file or directory"),
        ("PATCH", session, {"path": "renamed"}, 400, "keeps its name: make a new folder instead"),
    ]:
        answer = server.ask(method, f"/api/contents/{path}", json=body)
        assert (answer.status_code, told in answer.text) == (code, True), (path, answer.text)
    for path in ("missing", ".hidden", ""):
        assert server.ask("GET", f"/files/{session}/{path}").status_code == 404
    asked = {"path": "gone/book.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
    assert "Kernel does not exist: gone" in server.ask("POST", "/api/sessions", json=asked).text


def test_a_limited_number_of_uploads_is_under_way() -> None:
    uploads = Uploads()
    for number in range(UPLOADS_MAX + 1):
        assert uploads.add(f"{number}", 1, b"one ") is None
        assert uploads.add(f"{number}", 1, b"one ") is None  # a browser begins anew
    with pytest.raises(HTTPError, match="must begin again"):
        uploads.add("0", -1, b"two")
    for number in range(1, UPLOADS_MAX + 1):
        file = uploads.add(f"{number}", -1, b"two")
        assert file is not None
        with file:
            file.seek(0)
            assert file.read() == b"one two"
        assert f"{number}" not in uploads
