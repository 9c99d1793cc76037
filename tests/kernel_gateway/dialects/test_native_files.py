"""A session's files over HTTP, on a real gateway: transferred unchanged, and never outside the workspace."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.figures import hold
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import SHARED, exists, failure, process_only, raw, until, write

FILES = f"/v1/sessions/{SHARED}/files/"
MIB = 1024**2


@pytest.fixture
def folder(gateway: Gateway) -> Iterator[str]:
    """A new directory in the shared session."""
    name = f"folder-{secrets.token_hex(4)}"
    gateway.execute(SHARED, f"import os; os.mkdir({name!r})")
    yield name
    gateway.execute(SHARED, f"import shutil; shutil.rmtree({name!r}, ignore_errors=True)")


def listed(gateway: Gateway, path: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a directory by name."""
    response = gateway.call("GET", f"{FILES}{path}?list")
    assert response.status_code == 200, response.text
    return {entry["name"]: entry for entry in response.json()["entries"]}


# -- transfers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", bytes(range(256)) * 64, b"x" * (5 * MIB)],
    ids=["empty", "every byte", "larger than a JSON body may be"],
)
def test_a_file_is_returned_as_it_was_written(gateway: Gateway, folder: str, content: bytes) -> None:
    write(gateway, SHARED, f"{folder}/deep/er/file.bin", content)
    response = gateway.call("GET", f"{FILES}{folder}/deep/er/file.bin")
    assert response.content == content
    assert response.headers["Content-Length"] == str(len(content))
    entry = listed(gateway, f"{folder}/deep/er")["file.bin"]
    assert (entry["type"], entry["size"]) == ("file", len(content))


def test_kernel_and_client_see_the_same_files(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"{folder}/in.txt", b"from outside")
    code = f"open('{folder}/out.txt', 'w').write('from inside'); print(open('{folder}/in.txt').read())"
    assert gateway.text(SHARED, code).startswith("from outside")
    assert gateway.call("GET", f"{FILES}{folder}/out.txt").content == b"from inside"


def test_files_and_directories_are_deleted(gateway: Gateway, folder: str) -> None:
    for name in ("gone", "deep/gone", "kept"):
        write(gateway, SHARED, f"{folder}/{name}", b"x")
    for name in ("gone", "deep"):
        assert gateway.call("DELETE", f"{FILES}{folder}/{name}").status_code == 204
    assert listed(gateway, folder).keys() == {"kept"}


@pytest.mark.parametrize("name", ["grüße.txt", "日本語", "🦊", "a b", "%41", "a+b&c=d?e#f", "-rf", "'\"`$(x);"])
@process_only
def test_a_name_may_be_anything_printable(gateway: Gateway, folder: str, name: str) -> None:
    write(gateway, SHARED, f"{folder}/{quote(name, safe='')}", name.encode())
    assert name in listed(gateway, folder)
    assert gateway.call("GET", f"{FILES}{folder}/{quote(name, safe='')}").text == name
    assert gateway.text(SHARED, f"import os; os.listdir({folder!r})") == repr([name])


@process_only
def test_a_path_may_be_that_which_code_in_a_sandbox_sees(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"/home/user/{folder}/out.csv", b"1")
    assert listed(gateway, folder).keys() == {"out.csv"}
    assert gateway.call("GET", f"{FILES}/home/user/{folder}/out.csv").content == b"1"
    refused = gateway.call("PUT", f"{FILES}/tmp/{folder}", data=b"1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "SB002")
    assert "path is not in /home/user" in refused.json()["error"]["message"]


@process_only
def test_the_first_upload_makes_the_session(gateway: Gateway, session: str) -> None:
    assert failure(gateway.call("GET", f"/v1/sessions/{session}/files/?list")) == (404, "SB011")
    write(gateway, session, "first.txt", b"1")
    assert gateway.text(session, "open('first.txt').read()") == "'1'"


@process_only
def test_writing_replaces_the_whole_file(gateway: Gateway, folder: str) -> None:
    for content in (b"a long first content", b"short"):
        write(gateway, SHARED, f"{folder}/file", content)
    assert gateway.call("GET", f"{FILES}{folder}/file").content == b"short"
    assert listed(gateway, folder).keys() == {"file"}


@process_only
def test_an_upload_that_breaks_off_changes_nothing(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"{folder}/file", b"old")
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname, where.port or 0)) as connection:
        head = f"PUT {FILES}{folder}/file HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: 1000\r\n"
        connection.sendall(f"{head}Authorization: Bearer {KEYS['alice']}\r\n\r\nonly the beginning".encode())
        until(lambda: len(listed(gateway, folder)) > 1)  # the upload has begun
    until(lambda: listed(gateway, folder).keys() == {"file"})
    assert gateway.call("GET", f"{FILES}{folder}/file").content == b"old"


@process_only
def test_an_upload_ends_with_its_session_and_reaches_no_later_one(gateway: Gateway, session: str) -> None:
    where = urlsplit(gateway.url)
    gateway.execute(session, "1")
    head = f"PUT /v1/sessions/{session}/files/late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n"
    head += f"Authorization: Bearer {KEYS['alice']}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection((where.hostname, where.port or 0), timeout=60) as client:
        client.sendall(head.encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"half")
        gateway.call("DELETE", f"/v1/sessions/{session}").raise_for_status()
        gateway.execute(session, "1")
        client.sendall(b"more")
        assert client.recv(4096).startswith((b"HTTP/1.1 502 ", b"HTTP/1.1 503 "))
    assert not exists(gateway, session, "late")


def test_a_download_that_breaks_off_does_not_affect_later_requests(gateway: Gateway, folder: str) -> None:
    gateway.execute(SHARED, f"open('{folder}/large', 'wb').truncate(50 * 2**20)")
    for _ in range(3):
        with gateway.call("GET", f"{FILES}{folder}/large", stream=True) as response:
            assert next(response.iter_content(1000)) == bytes(1000)
    assert gateway.text(SHARED, "'goes on'") == "'goes on'"


@pytest.mark.full
@process_only
def test_downloads_that_break_off_take_little_memory(gateway: Gateway, folder: str) -> None:
    gateway.execute(SHARED, f"open('{folder}/large', 'wb').truncate({50 * MIB})")
    with gateway.growth() as whole:
        assert gateway.call("GET", f"{FILES}{folder}/large").content == bytes(50 * MIB)
    with gateway.growth() as broken_off:
        for _ in range(10):
            with gateway.call("GET", f"{FILES}{folder}/large", stream=True) as response:
                assert next(response.iter_content(1000)) == bytes(1000)
    hold("memory for ten downloads that break off", broken_off.bytes, max(whole.bytes, 4 * MIB), "MiB")


# -- parts of files --------------------------------------------------------------------------------------------


def test_a_download_that_broke_off_is_continued(gateway: Gateway, folder: str) -> None:
    path, content = f"{FILES}{folder}/file", secrets.token_bytes(MIB)
    write(gateway, SHARED, f"{folder}/file", content)
    first = gateway.call("GET", path, stream=True)
    begun = next(first.iter_content(100_000))
    first.close()
    headers = {"Range": f"bytes={len(begun)}-", "If-Range": first.headers["ETag"]}
    rest = gateway.call("GET", path, headers=headers)
    assert (rest.status_code, rest.headers["ETag"]) == (206, first.headers["ETag"])
    assert rest.headers["Content-Range"] == f"bytes {len(begun)}-{MIB - 1}/{MIB}"
    assert begun + rest.content == content
    gateway.execute(SHARED, f"open('{folder}/file', 'r+b').write(b'changed')")
    again = gateway.call("GET", path, headers=headers)
    assert again.status_code == 200, "the beginning that the client has is no longer the file's"
    assert (again.content, "Content-Range" in again.headers) == (b"changed" + content[7:], False)


def test_head_says_what_a_download_would_say(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"{folder}/file", b"0123456789")
    whole = gateway.call("GET", f"{FILES}{folder}/file")
    for headers in ({}, {"Range": "bytes=5-"}):
        told = gateway.call("HEAD", f"{FILES}{folder}/file", headers=headers)
        assert (told.status_code, told.content) == (200, b"")
        for name in ("Content-Length", "ETag", "Last-Modified", "Accept-Ranges", "Content-Disposition"):
            assert told.headers[name] == whole.headers[name]
    assert told.headers["Content-Length"] == "10"
    modified = parsedate_to_datetime(told.headers["Last-Modified"]).timestamp()
    assert modified == int(listed(gateway, folder)["file"]["modified"])
    assert gateway.call("HEAD", f"{FILES}{folder}/none").status_code == 404
    assert gateway.call("HEAD", f"{FILES}{folder}").status_code == 400


@process_only
@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        *(("bytes=0-", 206, "0123456789"), ("bytes=2-4", 206, "234"), ("bytes=9-", 206, "9")),
        *(("bytes=-3", 206, "789"), ("bytes=-99", 206, "0123456789"), ("bytes=8-99", 206, "89")),
        *(("bytes=10-", 416, None), ("bytes=10-12", 416, None), ("bytes=-0", 416, None), ("bytes=9" * 2, 200, None)),
        *((wrong, 200, None) for wrong in ("bytes=4-2", "bytes=-", "bytes=0-1,3-4", "lines=1-2", "bytes=a-", "é", "")),
        ("bytes=" + "9" * 400 + "-", 200, None),
    ],
)
def test_one_range_of_bytes_is_answered_with_that_part(
    gateway: Gateway, folder: str, wanted: str, status: int, content: str | None
) -> None:
    write(gateway, SHARED, f"{folder}/file", b"0123456789")
    answer = gateway.call("GET", f"{FILES}{folder}/file", headers={"Range": wanted.encode()})
    assert answer.status_code == status
    if status == 416:
        assert failure(answer) == (416, "SB038")
        assert answer.headers["Content-Range"] == "bytes */10"
        return
    assert answer.text == (content or "0123456789")
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert ("Content-Range" in answer.headers) == (status == 206)


@process_only
@pytest.mark.parametrize("condition", ['"a-b"', "W/{}", "Wed, 25 Nov 2026 00:00:00 GMT", '"', "", '"é"', "a" * 400])
def test_a_part_is_not_sent_for_another_condition(gateway: Gateway, folder: str, condition: str) -> None:
    write(gateway, SHARED, f"{folder}/file", b"0123456789")
    tag = gateway.call("HEAD", f"{FILES}{folder}/file").headers["ETag"]
    for told, status in ((tag, 206), (condition.format(tag), 200)):
        headers = {"Range": "bytes=5-", "If-Range": told.encode()}
        assert gateway.call("GET", f"{FILES}{folder}/file", headers=headers).status_code == status


@process_only
def test_an_empty_file_has_no_parts(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"{folder}/file", b"")
    assert failure(gateway.call("GET", f"{FILES}{folder}/file", headers={"Range": "bytes=0-"})) == (416, "SB038")
    answer = gateway.call("GET", f"{FILES}{folder}/file")
    assert (answer.status_code, answer.content, answer.headers["Content-Length"]) == (200, b"", "0")
    assert answer.headers["ETag"] == gateway.call("HEAD", f"{FILES}{folder}/file").headers["ETag"]


# -- new places ------------------------------------------------------------------------------------------------


def call(gateway: Gateway, what: str, **body: object) -> tuple[int, Any]:
    response = gateway.call("POST", f"/v1/sessions/{SHARED}/{what}", json=body)
    return response.status_code, response.json() if response.ok else failure(response)[1]


def test_a_file_is_moved_and_replaces_nothing_unless_told(gateway: Gateway, folder: str) -> None:
    for name in ("a", "b"):
        write(gateway, SHARED, f"{folder}/{name}", name.encode())
    names = {"from": f"{folder}/a", "to": f"{folder}/b"}
    assert call(gateway, "move", **names) == (409, "SB037")
    assert gateway.call("GET", f"{FILES}{folder}/b").content == b"b"
    status, entry = call(gateway, "move", **names, overwrite=True)
    assert (status, entry["name"], entry["type"], entry["size"]) == (200, "b", "file", 1)
    assert gateway.call("GET", f"{FILES}{folder}/b").content == b"a"
    assert call(gateway, "move", **names) == (404, "SB014")
    assert call(gateway, "move", **{"from": f"{folder}/b", "to": f"{folder}/new/way/c"})[0] == 200
    assert listed(gateway, folder).keys() == {"new"}
    assert gateway.text(SHARED, f"open('{folder}/new/way/c').read()") == "'a'"


def test_a_directory_is_made_and_moved_with_its_content(gateway: Gateway, folder: str) -> None:
    status, entry = call(gateway, "mkdir", path=f"{folder}/deep/er")
    assert (status, entry["name"], entry["type"]) == (200, "er", "directory")
    write(gateway, SHARED, f"{folder}/deep/er/file", b"kept")
    assert call(gateway, "mkdir", path=f"{folder}/deep/er")[0] == 200, "an existing one does not change"
    assert call(gateway, "mkdir", path=f"{folder}/deep/er/file") == (409, "SB037")
    assert call(gateway, "move", **{"from": f"{folder}/deep", "to": f"{folder}/moved"})[0] == 200
    assert gateway.call("GET", f"{FILES}{folder}/moved/er/file").content == b"kept"
    call(gateway, "mkdir", path=f"{folder}/empty")
    for overwrite in (False, True):
        names = {"from": f"{folder}/moved", "to": f"{folder}/empty"}
        assert call(gateway, "move", **names, overwrite=overwrite) == (409, "SB037")


@process_only
@pytest.mark.parametrize("path", ["../x", "a/../../x", "", ".", "a\0b", "a\nb", "x" * 5000, 5, None])
def test_no_new_place_is_outside_the_workspace(gateway: Gateway, folder: str, path: object) -> None:
    write(gateway, SHARED, f"{folder}/file", b"x")
    for body in ({"from": f"{folder}/file", "to": path}, {"from": path, "to": f"{folder}/new"}):
        assert call(gateway, "move", **body, overwrite=True) == (400, "SB002")
    if path not in {"", "."}:
        assert call(gateway, "mkdir", path=path) == (400, "SB002")
    assert listed(gateway, folder).keys() == {"file"}


@process_only
def test_a_link_is_moved_itself_and_leads_nowhere(gateway: Gateway, folder: str) -> None:
    gateway.execute(SHARED, f"import os; os.symlink('/etc', '{folder}/out'); open('{folder}/file', 'w').close()")
    assert call(gateway, "move", **{"from": f"{folder}/file", "to": f"{folder}/out/new"}) == (400, "SB002")
    assert call(gateway, "move", **{"from": f"{folder}/out/passwd", "to": f"{folder}/new"}) == (400, "SB002")
    assert call(gateway, "mkdir", path=f"{folder}/out/new") == (400, "SB002")
    assert call(gateway, "move", **{"from": f"{folder}/out", "to": f"{folder}/link"})[1]["type"] == "link"
    assert listed(gateway, folder).keys() == {"file", "link"}


@process_only
def test_only_mkdir_makes_a_session(gateway: Gateway, session: str) -> None:
    paths = {"from": "a", "to": "b"}
    assert failure(gateway.call("POST", f"/v1/sessions/{session}/move", json=paths)) == (404, "SB011")
    assert failure(gateway.call("GET", f"/v1/sessions/{session}")) == (404, "SB011")
    assert gateway.call("POST", f"/v1/sessions/{session}/mkdir", json={"path": "new"}).status_code == 200
    assert gateway.text(session, "import os; os.listdir('.')") == "['new']"


# -- missing files and directories -----------------------------------------------------------------------------


def test_a_missing_file_is_not_found(gateway: Gateway, folder: str) -> None:
    for method, path in (("GET", "absent"), ("GET", "absent/?list"), ("DELETE", "absent"), ("DELETE", "absent/deep")):
        assert failure(gateway.call(method, f"{FILES}{folder}/{path}")) == (404, "SB014")


@process_only
def test_a_directory_is_no_file_and_a_file_no_directory(gateway: Gateway, folder: str) -> None:
    write(gateway, SHARED, f"{folder}/file")
    assert failure(gateway.call("GET", f"{FILES}{folder}")) == (400, "SB002")
    assert failure(gateway.call("PUT", f"{FILES}{folder}", data=b"x")) == (400, "SB002")
    assert gateway.call("GET", f"{FILES}{folder}/file?list").status_code in {400, 404}
    assert failure(gateway.call("PUT", f"{FILES}{folder}/file/below", data=b"x")) == (409, "SB037")
    assert exists(gateway, SHARED, f"{folder}/file")


@process_only
@pytest.mark.parametrize("path", ["", "/", ".", "./", "%2e"])
def test_the_workspace_itself_is_neither_written_nor_deleted(gateway: Gateway, folder: str, path: str) -> None:
    for method, body in (("PUT", b"x"), ("DELETE", None)):
        assert failure(raw(gateway, method, FILES + path, body=body)) == (400, "SB002")
    assert folder in listed(gateway, "")


# -- out of the workspace --------------------------------------------------------------------------------------

OUTSIDE = [
    "../outside.txt",
    "%2e%2e/outside.txt",
    "..%2foutside.txt",
    "%2E%2E%2Foutside.txt",
    "%252e%252e/outside.txt",
    "x/../../outside.txt",
    "./../outside.txt",
    ".../../outside.txt",
    "..%5coutside.txt",
    "..\\outside.txt",
    "..;/outside.txt",
    "..%00/outside.txt",
    "%00../outside.txt",
    "%c0%ae%c0%ae/outside.txt",
    "%ff",
    "~/outside.txt",
    "/etc/passwd",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "C:%5coutside.txt",
    "x%0d%0aSet-Cookie:%20a=b",
    "file%E2%80%AEtxt",
    "a" * 5000,
    "x/" * 600,
]


@process_only
@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path[:30])
def test_no_spelling_leads_out_of_the_workspace(gateway: Gateway, path: str) -> None:
    gateway.execute(SHARED, "import os; open('../outside.txt', 'w').write('of the host')")
    for method in ("GET", "DELETE"):
        answer = raw(gateway, method, FILES + path)
        assert failure(answer) in {(400, "SB002"), (404, "SB014")}
        assert "Set-Cookie" not in answer.headers
    assert gateway.text(SHARED, "open('../outside.txt').read()") == "'of the host'"


@process_only
def test_a_sibling_whose_name_begins_like_the_workspace_is_outside(gateway: Gateway) -> None:
    gateway.execute(SHARED, "import os; beside = os.getcwd() + '2'; os.mkdir(beside); os.symlink(beside, 'beside')")
    gateway.execute(SHARED, "open(beside + '/secret', 'w').close()")
    name = gateway.text(SHARED, "print(os.path.basename(beside), end='')")
    assert failure(raw(gateway, "GET", f"{FILES}../{name}/secret")) == (400, "SB002")
    assert failure(raw(gateway, "GET", f"{FILES}beside/secret")) == (400, "SB002")


@process_only
@pytest.mark.parametrize("path", ["../written", "%2e%2e/written", "x/../../written", "..%2fwritten", "w%00", "w%0a"])
def test_nothing_is_written_outside(gateway: Gateway, path: str) -> None:
    assert failure(raw(gateway, "PUT", FILES + path, body=b"x")) == (400, "SB002")
    assert "written" not in gateway.text(SHARED, "import os; os.listdir('..')")


def test_links_do_not_lead_out_of_the_workspace(gateway: Gateway, folder: str) -> None:
    gateway.execute(
        SHARED,
        f"""
import os, pathlib
outside = pathlib.Path('/tmp/outside-of-the-workspace'); outside.write_text('untouched')
os.chdir({folder!r})
os.symlink(outside, 'file'); os.symlink('/etc', 'directory'); os.symlink('/dev/zero', 'endless')
os.symlink('/proc/self/mem', 'memory'); os.symlink('loop', 'loop'); os.symlink('/nowhere', 'dangling')
pathlib.Path('own.txt').write_text('own'); os.symlink('own.txt', 'inner')
os.chdir('..')
""",
    )
    for path in ("file", "directory/passwd", "endless", "memory", "dangling"):
        assert failure(gateway.call("GET", f"{FILES}{folder}/{path}")) == (400, "SB002")
    for path in ("file", "directory/passwd", "dangling"):
        assert failure(gateway.call("PUT", f"{FILES}{folder}/{path}", data=b"changed")) == (400, "SB002")
    assert gateway.call("GET", f"{FILES}{folder}/loop").status_code in {400, 404}
    assert failure(gateway.call("GET", f"{FILES}{folder}/directory?list")) == (400, "SB002")
    assert gateway.call("GET", f"{FILES}{folder}/inner").content == b"own"
    assert listed(gateway, folder)["file"]["type"] == "link"
    # Deleting a link deletes the link.
    assert gateway.call("DELETE", f"{FILES}{folder}/file").status_code == 204
    assert gateway.text(SHARED, "outside.read_text()") == "'untouched'"


def test_a_pipe_is_refused_without_blocking(gateway: Gateway, folder: str) -> None:
    gateway.execute(SHARED, f"import os; os.mkfifo('{folder}/pipe')")
    assert failure(gateway.call("GET", f"{FILES}{folder}/pipe", timeout=10)) == (400, "SB002")
    assert listed(gateway, folder)["pipe"]["type"] == "special"


# -- headers ---------------------------------------------------------------------------------------------------


@process_only
@pytest.mark.parametrize("name", ['a"; filename=b.html', "x.svg", "é.html", "';filename*=UTF-8''evil.exe", "a;b,c"])
def test_a_download_is_never_rendered_and_its_name_breaks_no_header(gateway: Gateway, folder: str, name: str) -> None:
    write(gateway, SHARED, f"{folder}/{quote(name, safe='')}", b"<script>alert(1)</script>")
    headers = gateway.call("GET", f"{FILES}{folder}/{quote(name, safe='')}").headers
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"] == f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]


@process_only
def test_a_name_with_line_breaks_that_a_kernel_has_made_is_listed_and_not_served(gateway: Gateway, folder: str) -> None:
    name = "a\r\nSet-Cookie: x=1"
    gateway.execute(SHARED, f"open({f'{folder}/{name}'!r}, 'w').close()")
    assert name in listed(gateway, folder)
    answer = raw(gateway, "GET", f"{FILES}{folder}/{quote(name)}")
    assert failure(answer) == (400, "SB002")
    assert "Set-Cookie" not in answer.headers


# -- sizes -----------------------------------------------------------------------------------------------------


@process_only
def test_a_file_larger_than_the_sessions_workspace_is_refused(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"disk": "1m"}})
    path = f"/v1/sessions/{session}/files/file"
    for content in (b"x" * 2 * MIB, iter([b"x" * MIB, b"x" * MIB])):
        assert failure(gateway.call("PUT", path, data=content)) == (507, "SB015")
        assert not exists(gateway, session, "file")
    write(gateway, session, "file", b"x" * MIB)


@process_only
@pytest.mark.parametrize("size", [str(257 * MIB), str(10**15)])
def test_a_file_larger_than_any_workspace_is_refused_before_it_is_sent(gateway: Gateway, size: str) -> None:
    headers = (("Authorization", f"Bearer {KEYS['alice']}"), ("Content-Length", size))
    assert failure(raw(gateway, "PUT", f"{FILES}file", headers=headers)) == (507, "SB015")


@pytest.mark.parametrize("gateway", [pytest.param("docker", marks=pytest.mark.engine)], indirect=True)
def test_a_full_workspace_refuses_files_until_space_is_freed(gateway: Gateway, session: str) -> None:
    gateway.call("POST", "/v1/sessions", json={"name": session, "limits": {"disk": "1m"}})
    path = f"/v1/sessions/{session}/files/"
    write(gateway, session, "first", b"x" * 700_000)
    assert failure(gateway.call("PUT", f"{path}second", data=b"x" * 700_000)) == (507, "SB015")
    assert [entry["name"] for entry in gateway.call("GET", f"{path}?list").json()["entries"]] == ["first"]
    gateway.call("DELETE", f"{path}first")
    write(gateway, session, "second", b"x" * 700_000)


@process_only
def test_an_upload_without_a_valid_length_is_refused(gateway: Gateway, folder: str) -> None:
    bearer = ("Authorization", f"Bearer {KEYS['alice']}")
    for length in ((), (("Content-Length", "9" * 5000),), (("Content-Length", "-1"),), (("Content-Length", "+4"),)):
        answer = raw(gateway, "PUT", f"{FILES}{folder}/file", headers=(bearer, *length))
        assert failure(answer) == (400, "SB002")
    assert listed(gateway, folder) == {}
