"""AgentRun's files over HTTP: content stays whole, as JSON and as forms, and paths never leave the sandbox."""

from __future__ import annotations

import base64
import secrets
import socket
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from tests import gateways
from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.agentrun import Box, boxed, failed, template
from tests.kernel_gateway.calls import failure, process_only, raw, until
from tests.tiers import some

MIB = 1024**2
UPLOAD, DOWNLOAD = "/filesystem/upload", "/filesystem/download"


@pytest.fixture
def folder(box: Box) -> Iterator[str]:
    """A new directory in the shared sandbox."""
    path = f"/home/user/folder-{secrets.token_hex(4)}"
    box.post("/filesystem/mkdir", path=path)
    yield path
    box.post("/filesystem/remove", path=path)


def upload(box: Box, path: str, content: Any, **options: Any) -> requests.Response:
    """Send a file as the SDK does: the path, then the file."""
    return box.call("POST", UPLOAD, files=[("path", (None, path)), ("file", ("x.bin", content))], **options)


def download(box: Box, path: str, **options: Any) -> requests.Response:
    return box.call("GET", DOWNLOAD, params={"path": path}, **options)


# -- as JSON ---------------------------------------------------------------------------------------------------


def test_text_comes_back_as_it_was_written(box: Box, folder: str) -> None:
    for content in ("", "grüße\r\n日本語\0🦊", "x" * MIB):
        written = box.write(f"{folder}/deep/er/file.txt", content)
        assert written == {"path": f"{folder}/deep/er/file.txt", "size": len(content.encode())}
        read = box.get("/files", path=f"{folder}/deep/er/file.txt")
        assert (read["content"], read["encoding"], read["size"]) == (content, "utf-8", len(content.encode()))
        assert (read["name"], read["type"], read["path"]) == ("file.txt", "file", f"{folder}/deep/er/file.txt")


def test_binary_content_is_read_in_base64(box: Box, folder: str) -> None:
    content = bytes(range(256)) * 40
    box.write(f"{folder}/file", base64.b64encode(content).decode(), encoding="base64")
    read = box.get("/files", path=f"{folder}/file")
    assert (base64.b64decode(read["content"]), read["encoding"]) == (content, "base64")
    assert download(box, f"{folder}/file").content == content


@process_only
@pytest.mark.parametrize(
    ("content", "encoding", "written"), [("é", "Latin-1", b"\xe9"), ("00ff", "hex", b"\0\xff"), ("x", "ascii", b"x")]
)
def test_content_is_written_in_the_encoding_it_names(
    box: Box, folder: str, content: str, encoding: str, written: bytes
) -> None:
    box.write(f"{folder}/file", content, encoding=encoding)
    assert download(box, f"{folder}/file").content == written


@process_only
@pytest.mark.parametrize(
    ("content", "encoding"), [("é!", "base64"), ("x", "punycode"), ("日", "ascii"), ("x", "rot13"), ("0", "hex")]
)
def test_content_of_another_encoding_is_refused(box: Box, folder: str, content: str, encoding: str) -> None:
    body = {"path": f"{folder}/file", "content": content, "encoding": encoding}
    assert failed(box.call("POST", "/files", json=body)) == (400, "INVALID_REQUEST")
    assert box.names(folder) == []


@process_only
def test_a_file_too_large_for_json_is_to_be_downloaded(box: Box, folder: str) -> None:
    box.command(f"head -c {8 * MIB} /dev/zero > most; head -c {8 * MIB + 1} /dev/zero > more", cwd=folder)
    assert len(box.read(f"{folder}/most")) == 8 * MIB
    response = box.call("GET", "/files", params={"path": f"{folder}/more"})
    assert failed(response) == (413, "PAYLOAD_TOO_LARGE")
    assert "/filesystem/download" in response.json()["message"]
    body = {"path": f"{folder}/file", "content": "x" * 5 * MIB}
    assert failed(box.call("POST", "/files", json=body)) == (413, "PAYLOAD_TOO_LARGE")


def test_a_file_has_the_mode_that_was_asked_for(box: Box, folder: str) -> None:
    for mode, number, shown in (
        (None, 0o644, "-rw-r--r--"),
        ("600", 0o600, "-rw-------"),
        ("0755", 0o755, "-rwxr-xr-x"),
    ):
        box.write(f"{folder}/file", "#!/bin/sh\necho ran", mode=mode)
        entry = box.get("/filesystem/stat", path=f"{folder}/file")["entry"]
        assert (entry["mode"], entry["permissions"]) == (number, shown)
    assert box.command("./file", cwd=folder)["stdout"] == "ran\n"


@process_only
@pytest.mark.parametrize("mode", ["4755", "2755", "1777", "0o4755", "888", "x", "-644", "64", "00000644", "\uff1644"])
def test_an_invalid_mode_or_one_with_special_bits_is_refused(box: Box, folder: str, mode: str) -> None:
    for path, body in (("/files", {"content": ""}), ("/filesystem/mkdir", {})):
        asked = {"path": f"{folder}/new", "mode": mode, **body}
        assert failed(box.call("POST", path, json=asked)) == (400, "INVALID_REQUEST")
    assert box.names(folder) == []


@process_only
def test_missing_parent_directories_are_made_unless_the_client_forbids_it(box: Box, folder: str) -> None:
    body = {"path": f"{folder}/a/b/file", "content": "x", "createDir": False}
    assert failed(box.call("POST", "/files", json=body)) == (404, "NOT_FOUND")
    assert failed(box.call("POST", "/filesystem/mkdir", json={"path": f"{folder}/a/b", "parents": False}))[0] == 404
    assert box.names(folder) == []
    box.post("/filesystem/mkdir", path=f"{folder}/a/b")
    assert box.post("/files", **body)["size"] == 1


# -- directories -----------------------------------------------------------------------------------------------


def test_a_directory_is_listed_to_a_depth(box: Box, folder: str) -> None:
    box.write(f"{folder}/a/b/c/file", "x")
    box.write(f"{folder}/top", "")
    assert box.names(folder) == ["a", "top"]
    assert sorted(box.names(folder, 3)) == ["a", "b", "c", "top"]
    listed = box.get("/filesystem", path=folder, depth=16)
    assert listed["path"] == folder
    assert f"{folder}/a/b/c/file" in [entry["path"] for entry in listed["entries"]]
    assert all(isinstance(entry["mode"], int) and entry["modifiedTime"].endswith("Z") for entry in listed["entries"])
    assert folder.rpartition("/")[2] in box.names()
    for depth in ("0", "-1", "x"):
        assert failed(box.call("GET", "/filesystem", params={"path": folder, "depth": depth}))[0] == 400


@process_only
def test_directories_are_made_once(box: Box, folder: str) -> None:
    for _ in range(2):
        entry = box.post("/filesystem/mkdir", path=f"{folder}/a/b", mode="0700")["entry"]
        assert (entry["type"], entry["path"], entry["mode"]) == ("directory", f"{folder}/a/b", 0o700)
    box.write(f"{folder}/file", "x")
    assert failed(box.call("POST", "/filesystem/mkdir", json={"path": f"{folder}/file"}))[0] == 409
    assert box.read(f"{folder}/file") == "x"


def test_an_entry_is_moved_and_a_repeated_move_changes_nothing(box: Box, folder: str) -> None:
    box.write(f"{folder}/a", "content")
    for _ in range(2):
        moved = box.post("/filesystem/move", source=f"{folder}/a", destination=f"{folder}/b")["entry"]
        assert (moved["path"], moved["type"]) == (f"{folder}/b", "file")
    assert (box.names(folder), box.read(f"{folder}/b")) == (["b"], "content")
    box.post("/filesystem/move", source=f"{folder}/b", destination="/tmp/moved")
    assert box.command("cat /tmp/moved; rm /tmp/moved")["stdout"] == "content"
    body = {"source": f"{folder}/none", "destination": f"{folder}/nowhere"}
    assert failed(box.call("POST", "/filesystem/move", json=body)) == (404, "NOT_FOUND")


def test_an_entry_is_removed_with_all_below_it(box: Box, folder: str) -> None:
    box.write(f"{folder}/a/b/c", "x")
    box.write(f"{folder}/kept", "x")
    for _ in range(2):
        assert box.post("/filesystem/remove", path=f"{folder}/a")["entry"]["path"] == f"{folder}/a"
    assert box.names(folder) == ["kept"]


@process_only
@pytest.mark.parametrize("path", ["", "/home/user", "/home/user/", "/tmp", "/tmp/", ".", "/workspace", "/home/user/."])
def test_the_workspace_and_tmp_cannot_be_removed_moved_or_overwritten(box: Box, folder: str, path: str) -> None:
    for call, body in (("remove", {"path": path}), ("move", {"source": path, "destination": "x"})):
        assert failed(box.call("POST", f"/filesystem/{call}", json=body)) == (400, "INVALID_REQUEST")
    assert failed(box.call("POST", "/files", json={"path": path, "content": ""})) == (400, "INVALID_REQUEST")
    assert folder.rpartition("/")[2] in box.names()


NAMES = ["日本語 🦊", " a ", "%41", "-rf", "'\"`$(x);"]


@process_only
@pytest.mark.parametrize("name", some(NAMES, gate=2))
def test_a_name_may_be_anything_printable(box: Box, folder: str, name: str) -> None:
    path = f"{folder}/{name}"
    box.write(path, name)
    assert (box.read(path), box.names(folder)) == (name, [name])
    assert upload(box, f"{path}2", name.encode()).status_code == 200
    answer = download(box, f"{path}2")
    assert answer.text == name
    assert answer.headers["Content-Disposition"] == f"attachment; filename*=UTF-8''{quote(name, safe='')}2"
    assert box.get("/filesystem/stat", path=path)["entry"]["name"] == name
    box.post("/filesystem/move", source=path, destination=f"{path}3")
    box.post("/filesystem/remove", path=f"{path}3")
    assert box.names(folder) == [f"{name}2"]


# -- out of the sandbox ----------------------------------------------------------------------------------------

#: one path of each kind; sessions/guest/test_workspace.py tries all spellings on the function that all calls use
OUTSIDE = [
    "/home/user/../../etc/passwd",
    "/tmpx/file",
    "a\0b",
    "/etc/passwd",
    "x/../../y",
    "\x9ba",
    "x" * 5000,
]


def everywhere(box: Box, path: str) -> Iterator[requests.Response]:
    """Call every endpoint that accepts a path, with this one."""
    for call in ("/files", "/filesystem", "/filesystem/stat", DOWNLOAD):
        yield box.call("GET", call, params={"path": path})
    for call, body in (
        ("/files", {"path": path, "content": "written"}),
        ("/filesystem/mkdir", {"path": path}),
        ("/filesystem/remove", {"path": path}),
        ("/filesystem/move", {"source": path, "destination": "moved"}),
        ("/filesystem/move", {"source": "shared-file", "destination": path}),
    ):
        yield box.call("POST", call, json=body)
    yield upload(box, path, b"written")


@process_only
@pytest.mark.parametrize("path", some(OUTSIDE, gate=3), ids=lambda path: ascii(path)[:30])
def test_no_spelling_of_a_path_leads_out_of_the_sandbox(box: Box, path: str) -> None:
    box.write("shared-file", "x")
    # Files exist under the names to which a wrong reading of the path could lead.
    for other in ("a b", "a  b", "ab", "a"):
        box.write(other, "another")
    for response in everywhere(box, path):
        assert failed(response) == (400, "INVALID_REQUEST"), response.request.url
    assert (box.read("shared-file"), box.read("a b")) == ("x", "another")
    assert "moved" not in box.names()


def test_links_do_not_lead_out_of_the_sandbox(box: Box, folder: str) -> None:
    outside = f"/var/tmp/{secrets.token_hex(8)}"
    box.command(
        f"echo untouched > {outside} || true; ln -s {outside} file; ln -s /etc dir; ln -s /dev/zero endless; "
        "ln -s /proc/self/mem memory; ln -s loop loop; ln -s own inner; echo own > own",
        cwd=folder,
    )
    for name in ("file", "dir/passwd", "endless", "memory", "loop"):
        for call in ("/files", DOWNLOAD):
            response = box.call("GET", call, params={"path": f"{folder}/{name}"}, timeout=20)
            assert failed(response)[0] in {400, 404}
        if name == "loop":
            continue  # the link has no target, so the file replaces it
        body = {"path": f"{folder}/{name}", "content": "changed"}
        assert failed(box.call("POST", "/files", json=body))[0] in {400, 404}
        assert failed(upload(box, f"{folder}/{name}", b"changed"))[0] in {400, 404}
    assert failed(box.call("GET", "/filesystem", params={"path": f"{folder}/dir"})) == (400, "INVALID_REQUEST")
    assert box.read(f"{folder}/inner") == "own\n"
    kinds = {entry["name"]: entry["type"] for entry in box.get("/filesystem", path=folder, depth=3)["entries"]}
    assert (kinds["dir"], kinds["own"]) == ("symlink", "file")
    assert "passwd" not in kinds
    assert "changed" not in box.command(f"cat {outside}; rm -f {outside}")["stdout"]
    # Removing a link removes the link.
    box.post("/filesystem/remove", path=f"{folder}/dir")
    assert "dir" not in box.names(folder)
    assert box.command("test -e /etc/passwd")["exitCode"] == 0


def test_a_pipe_is_refused_without_blocking(box: Box, folder: str) -> None:
    box.command("mkfifo pipe", cwd=folder)
    for call in ("/files", DOWNLOAD):
        response = box.call("GET", call, params={"path": f"{folder}/pipe"}, timeout=20)
        assert failed(response) == (400, "INVALID_REQUEST")
    assert box.get("/filesystem/stat", path=f"{folder}/pipe")["entry"]["type"] == "special"


def test_a_missing_entry_is_not_found(box: Box, folder: str) -> None:
    for call in ("/files", "/filesystem", "/filesystem/stat", DOWNLOAD):
        for path in ("absent", "absent/deep"):
            response = box.call("GET", call, params={"path": f"{folder}/{path}"})
            assert failed(response) == (404, "NOT_FOUND")
    for call in ("/files", DOWNLOAD):
        assert failed(box.call("GET", call, params={"path": folder})) == (400, "INVALID_REQUEST")


@process_only
@pytest.mark.parametrize("query", ["", "?path", "?path=", "?path=%ff", "?paths=x"])
def test_a_missing_or_invalid_path_is_refused(gateway: Gateway, box: Box, query: str) -> None:
    for call in ("/files", DOWNLOAD):
        answer = raw(gateway, "GET", f"/sandboxes/{box.id}{call}{query}")
        assert (failure(answer)[0], answer.json["code"]) == (400, "INVALID_REQUEST")


# -- as forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 300_000, 5 * MIB])
def test_an_upload_comes_back_whole(box: Box, folder: str, size: int) -> None:
    content = (secrets.token_bytes(997) + b"\r\n--") * (size // 1000 + 1)
    content = content[:size]
    done = upload(box, f"{folder}/deep/file", content)
    assert done.json() == {"path": f"{folder}/deep/file", "size": size}
    back = download(box, f"{folder}/deep/file")
    assert back.content == content
    assert back.headers["Content-Length"] == str(size)
    assert back.headers["Content-Type"] == "application/octet-stream"


def form(*parts: tuple[str, bytes], boundary: str = "B", last: str = "--B--\r\n") -> bytes:
    """Build a form from each part's disposition and content."""
    text = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"
        for disposition, content in parts
    )
    return text + last.encode()


def sent(box: Box, body: bytes, content_type: str = "multipart/form-data; boundary=B") -> requests.Response:
    return box.call("POST", UPLOAD, data=body, headers={"Content-Type": content_type}, timeout=30)


def refused_forms(path: str) -> dict[str, tuple[bytes, str]]:
    target, file = ('name="path"', path.encode()), ('name="file"; filename="x"', b"content")
    good, kind = form(target, file), "multipart/form-data; boundary=B"
    return {
        "no file": (form(target), kind),
        "no path": (form(file), kind),
        "two files": (form(target, file, file), kind),
        "nothing": (b"", kind),
        "garbage": (b"garbage" * 1000, kind),
        "no boundary": (good, "multipart/form-data"),
        "cut off": (good[:-20], kind),
        "a path without end": (form(('name="path"', b"x" * 200_000), file), kind),
        "headers without end": (b"--B\r\n" + b"X: y\r\n" * 100_000, kind),
        "NUL": (form(('name="path"', path.encode() + b"\0"), file), kind),
        "an empty path": (form(('name="path"', b""), file), kind),
        "the path after the file": (form(file, target), kind),
        "no parts": (form(), kind),
        "another boundary": (good, "multipart/form-data; boundary=C"),
        "an empty boundary": (good, "multipart/form-data; boundary="),
        "a long boundary": (good, f"multipart/form-data; boundary={'B' * 5000}"),
        "another type": (good, "application/json"),
        "no type": (good, ""),
        "no end": (form(target, file, last=""), kind),
        "one header without end": (b"--B\r\nX: " + b"y" * 500_000, kind),
        "fields without end": (form(*[('name="a"', b"x" * 100)] * 5000, target, file), kind),
        "no UTF-8": (form(('name="path"', path.encode() + b"\n\xff"), file), kind),
    }


@process_only
@pytest.mark.parametrize("name", some(refused_forms(""), gate=10))
def test_an_invalid_form_is_refused_and_leaves_no_file(box: Box, folder: str, name: str) -> None:
    assert failed(sent(box, *refused_forms(f"{folder}/file")[name])) == (400, "INVALID_REQUEST")
    until(lambda: box.names(folder) == [])


@process_only
def test_a_form_may_have_more_fields_and_another_name_for_the_path(box: Box, folder: str) -> None:
    for name in ("path", "current_path"):
        parts = (('name="more"', b"x"), (f'name="{name}"', f"{folder}/{name}".encode()))
        file = ('name="file"; filename="../../etc/passwd"', b"content")
        assert sent(box, form(*parts, file)).json()["path"] == f"{folder}/{name}"
        assert box.read(f"{folder}/{name}") == "content"


@process_only
def test_a_form_that_is_not_the_signed_one_is_refused_and_leaves_no_file(box: Box, folder: str) -> None:
    body = form(('name="path"', f"{folder}/signed".encode()), ('name="file"; filename="x"', b"content"))
    kind = {"Content-Type": "multipart/form-data; boundary=B"}
    for digest, status in ((sha256(b"other").hexdigest(), 401), (sha256(body).hexdigest().upper(), 200)):
        answer = box.call("POST", UPLOAD, data=body, headers=kind | {"X-Acs-Content-Sha256": digest})
        assert answer.status_code == status, answer.text
        expected = ["signed"] if status == 200 else []
        until(lambda expected=expected: box.names(folder) == expected)  # type: ignore[misc]


@process_only
def test_a_body_of_another_method_is_not_read_as_a_form(box: Box) -> None:
    assert box.call("GET", UPLOAD, data=b"x").status_code == 405


@process_only
def test_a_client_that_leaves_during_an_upload_leaves_no_partial_file(gateway: Gateway, box: Box, folder: str) -> None:
    box.write(f"{folder}/file", "old")
    where = urlsplit(gateway.url)
    body = form(('name="path"', f"{folder}/file".encode()), ('name="file"; filename="x"', b"new" * 1000), last="")
    head = (
        f"POST /sandboxes/{box.id}{UPLOAD} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(body) * 10}\r\n"
        f"Authorization: Bearer {KEYS['alice']}\r\nContent-Type: multipart/form-data; boundary=B\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port or 0)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: len(box.names(folder)) > 1)  # the upload has begun
    until(lambda: box.names(folder) == ["file"])
    assert box.read(f"{folder}/file") == "old"


def test_an_upload_larger_than_the_workspace_is_refused(gateway: Gateway) -> None:
    with template(gateway, diskSize=1) as name, boxed(gateway, templateName=name) as box:
        assert failed(upload(box, "file", b"x" * 2 * MIB)) == (507, "INSUFFICIENT_STORAGE")
        until(lambda: box.names() == [])
        assert failed(box.call("POST", "/files", json={"path": "file", "content": "x" * 2 * MIB}))[0] == 507
        assert upload(box, "file", b"x" * 700_000).status_code == 200


@process_only
@pytest.mark.parametrize("size", [str(300 * MIB), str(10**15)])
def test_an_upload_larger_than_any_workspace_is_refused_before_it_is_sent(
    gateway: Gateway, box: Box, size: str
) -> None:
    headers = (
        ("Authorization", f"Bearer {KEYS['alice']}"),
        ("Content-Type", "multipart/form-data; boundary=B"),
        ("Content-Length", size),
    )
    assert failure(raw(gateway, "POST", f"/sandboxes/{box.id}{UPLOAD}", headers=headers))[0] in {413, 507}


def upload_and_download(serving: Gateway, box: Box, mebibytes: int) -> None:
    """Upload a file of `mebibytes` MiB, and download it."""
    target, file = ('name="path"', b"large"), ('name="file"; filename="x"', b"")
    first, last = form(target, file, last="")[:-2], b"\r\n--B--\r\n"

    def body() -> Iterator[bytes]:
        yield first
        yield from (b"x" * MIB for _ in range(mebibytes))
        yield last

    headers = {"Content-Type": "multipart/form-data; boundary=B", "Authorization": f"Bearer {KEYS['alice']}"}
    prepared = requests.Request("POST", f"{serving.url}/sandboxes/{box.id}{UPLOAD}", data=body()).prepare()
    prepared.headers.pop("Transfer-Encoding")
    prepared.headers.update(headers | {"Content-Length": str(len(first) + mebibytes * MIB + len(last))})
    assert serving.http.send(prepared, timeout=120).json() == {"path": "large", "size": mebibytes * MIB}
    with download(box, "large", stream=True) as response:
        assert response.headers["Content-Length"] == str(mebibytes * MIB)
        assert sum(map(len, response.iter_content(MIB))) == mebibytes * MIB


@pytest.mark.full
def test_memory_stays_flat_whatever_a_files_size() -> None:
    with gateways.gateway("process", disk="300m") as serving, boxed(serving) as box:
        upload(box, "small", b"x")
        with serving.growth() as small:
            upload_and_download(serving, box, mebibytes=20)
        with serving.growth() as large:
            upload_and_download(serving, box, mebibytes=200)
        # Both use the same buffers, which exist already when the second transfer starts.
        hold("memory for a file ten times as large", large.bytes, max(small.bytes, 4 * MIB), "MiB")


@process_only
def test_an_aborted_download_does_not_disturb_the_sandbox(box: Box, folder: str) -> None:
    box.command("head -c 50000000 /dev/zero > large", cwd=folder)
    for _ in range(3):
        with download(box, f"{folder}/large", stream=True) as response:
            assert next(response.iter_content(1000)) == bytes(1000)
    assert box.command("echo on")["stdout"] == "on\n"
