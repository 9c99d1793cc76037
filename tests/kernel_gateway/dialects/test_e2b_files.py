"""Files of E2B's sandboxes over HTTP: forms, compressed bodies, signatures and calls that their SDK does not make."""

from __future__ import annotations

import base64
import gzip
import hashlib
import time
from typing import Any

import pytest
import requests

from kernel_gateway.dialects.e2b.uploads import PIECE, Inflated
from sessions.model.errors import InvalidRequest
from tests.gateways import Gateway
from tests.kernel_gateway.calls import raw
from tests.kernel_gateway.e2b import *  # noqa: F403 - the fixtures
from tests.kernel_gateway.e2b import ENVD, NOWHERE, Box

FORM = {"Content-Type": "multipart/form-data; boundary=B"}
OCTETS = {"Content-Type": "application/octet-stream"}


def upload(box: Box, body: bytes, headers: dict[str, str], **query: str) -> requests.Response:
    return box.call("POST", "/files", ENVD, params=query, data=body, headers=headers)


def rpc(box: Box, method: str, **body: Any) -> requests.Response:
    return box.call("POST", f"/filesystem.Filesystem/{method}", ENVD, json=body)


def code(response: requests.Response) -> tuple[int, str]:
    """Return status and code of a failure in Connect's form."""
    body = response.json()
    assert body["message"]
    return response.status_code, body["code"]


def names(box: Box) -> list[str]:
    return [entry["name"] for entry in rpc(box, "ListDir", path="").json()["entries"]]


def form(*files: tuple[str, str]) -> bytes:
    """Return a form with files, by their names in it."""
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content}\r\n'
        for name, content in files
    ]
    return ("".join(parts) + "--B--\r\n").encode()


# -- uploads ---------------------------------------------------------------------------------------------------


def test_a_form_of_several_files_has_their_whole_paths(box: Box) -> None:
    answer = upload(box, form(("/home/user/a/b", "1"), ("c", ""), ("/tmp/e2b-d", "3")), FORM)
    assert [each["path"] for each in answer.json()] == ["/home/user/a/b", "/home/user/c", "/tmp/e2b-d"]
    assert box.call("GET", "/files?path=a/b", ENVD).content == b"1"
    assert box.call("GET", "/files?path=c", ENVD).content == b""
    assert upload(box, form(("ignored", "4")), FORM, path="c").json()[0]["path"] == "/home/user/c"
    assert box.call("GET", "/files?path=c", ENVD).content == b"4"


@pytest.mark.parametrize("named", [{"path": "x", "username": "root"}, {"path": "x", "username": "user"}, {"path": "x"}])
def test_root_is_the_only_users_other_name(box: Box, named: dict[str, str]) -> None:
    assert upload(box, b"1", OCTETS, **named).status_code == 200
    as_root = {"Authorization": "Basic cm9vdDo="}
    stat = box.call("POST", "/filesystem.Filesystem/Stat", ENVD, headers=as_root, json={"path": "/root/x"}).json()
    assert stat["entry"]["path"] == "/root/x"


@pytest.mark.parametrize(
    ("path", "seen"), [("/workspace/a", "/workspace/a"), ("/root/a", "/root/a"), ("a", "/home/user/a")]
)
def test_paths_are_told_below_the_home_that_the_client_has_named(box: Box, path: str, seen: str) -> None:
    def told(method: str, **body: str) -> Any:
        return box.call("POST", f"/filesystem.Filesystem/{method}", ENVD, json=body).json()

    assert told("MakeDir", path=path)["entry"]["path"] == seen
    assert upload(box, b"1", OCTETS, path=f"{path}/b").json()[0]["path"] == f"{seen}/b"
    assert [entry["path"] for entry in told("ListDir", path=path)["entries"]] == [f"{seen}/b"]
    moved = told("Move", source=f"{path}/b", destination=f"{path}/c")
    assert moved["entry"]["path"] == told("Stat", path=f"{path}/c")["entry"]["path"] == f"{seen}/c"


@pytest.mark.parametrize(
    ("body", "headers", "query", "status"),
    [
        (form(("a", "1"), ("b", "2")), FORM, {"path": "c"}, 400),
        (form(("", "1")), FORM, {}, 400),
        (form(("../../etc/passwd", "1")), FORM, {}, 400),
        (form(("/etc/passwd", "1")), FORM, {}, 400),
        (form(("a", "1")), FORM, {"path": "/opt/x"}, 400),
        (form(("a", "1"))[:-8], FORM, {}, 400),
        (b"--B--\r\n", FORM, {}, 400),
        (b"no form at all", FORM, {}, 400),
        (form(("a", "1")).replace(b"form-data", b"x" * 70_000), FORM, {}, 400),
        (form(("a", "1")), {"Content-Type": "multipart/form-data; boundary=" + "B" * 300}, {}, 400),
        (form(("a", "1")), FORM | {"Content-Encoding": "gzip"}, {}, 400),
        (b"1", OCTETS, {}, 400),
        (b"1", OCTETS, {"path": "\x00"}, 400),
        (b"1", OCTETS, {"path": "x" * 2000}, 400),
        (b"1", OCTETS, {"path": "/home/user"}, 400),
        (b"1", OCTETS, {"path": "x", "username": "postgres"}, 400),
        (b"1", OCTETS | {"Authorization": "Basic cG9zdGdyZXM6"}, {"path": "x"}, 400),
        (b"1", OCTETS | {"Authorization": "Basic !"}, {"path": "x"}, 400),
        (b"1", OCTETS | {"Content-Encoding": "br"}, {"path": "x"}, 400),
        (b"no gzip", OCTETS | {"Content-Encoding": "gzip"}, {"path": "x"}, 400),
        (gzip.compress(b"1" * 1000, mtime=0)[:-4], OCTETS | {"Content-Encoding": "gzip"}, {"path": "x"}, 400),
        (gzip.compress(b"1", mtime=0) + b"more", OCTETS | {"Content-Encoding": "gzip"}, {"path": "x"}, 400),
        (b"1", OCTETS | {"X-Metadata-A": "b"}, {"path": "x"}, 501),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_hostile_upload_is_refused_and_leaves_nothing(
    box: Box, body: bytes, headers: dict[str, str], query: dict[str, str], status: int
) -> None:
    answer = upload(box, body, headers, **query)
    assert (answer.status_code, answer.json()["code"]) == (status, status)
    assert names(box) == []
    assert upload(box, b"1", OCTETS, path="fine").status_code == 200


def test_an_upload_that_is_announced_as_too_large_is_refused_before_its_body(gateway: Gateway, box: Box) -> None:
    headers = (
        ("E2b-Sandbox-Id", box.id),
        ("E2b-Sandbox-Port", "49983"),
        ("X-Access-Token", box.token),
        ("Content-Length", str(10**15)),
    )
    assert raw(gateway, "POST", "/files?path=x", headers=headers).status_code == 507


def test_a_compressed_body_is_read_in_pieces_whatever_it_inflates_to() -> None:
    bomb = gzip.compress(bytes(20 * 1024**2))
    inflated = Inflated()
    sizes = [len(piece) for piece in inflated.read(bomb)]
    assert (max(sizes), sum(sizes)) == (PIECE, 20 * 1024**2)
    assert inflated.complete
    with pytest.raises(InvalidRequest):
        list(inflated.read(b"more"))


def test_a_compressed_body_may_arrive_byte_by_byte() -> None:
    inflated = Inflated()
    found = b"".join(piece for byte in gzip.compress(b"content") for piece in inflated.read(bytes([byte])))
    assert (found, inflated.complete) == (b"content", True)


# -- signed URLs -----------------------------------------------------------------------------------------------


def signed(box: Box, path: str, operation: str = "read", user: str = "", end: str | None = None) -> dict[str, str]:
    """Return the query of a signed URL. Source: `e2b/sandbox/signature.py`."""
    parts = [path, operation, user, box.token, *([] if end is None else [end])]
    digest = base64.b64encode(hashlib.sha256(":".join(parts).encode()).digest()).decode().rstrip("=")
    query = {"path": path, "signature": f"v1_{digest}"}
    return query | ({"username": user} if user else {}) | ({} if end is None else {"signature_expiration": end})


def test_a_signature_is_good_for_one_path_operation_user_and_time(gateway: Gateway, box: Box) -> None:
    assert upload(box, b"content", OCTETS, path="a").status_code == 200
    soon = str(int(time.time()) + 600)

    def status(query: dict[str, str], method: str = "GET", headers: dict[str, str] | None = None) -> int:
        return gateway.call(method, "/files", tenant=None, params=query, headers=headers or {}).status_code

    assert status(signed(box, "a")) == 200
    assert status(signed(box, "a", user="user", end=soon)) == 200
    assert status(signed(box, "a", "write"), "POST") == 200
    at = {"E2b-Sandbox-Id": box.id, "E2b-Sandbox-Port": "49983"}
    assert status(signed(box, "a"), headers=at) == 200
    for wrong in (
        signed(box, "a", "write"),
        signed(box, "a") | {"path": "b"},
        signed(box, "a") | {"username": "user"},
        signed(box, "a") | {"signature_expiration": soon},
        signed(box, "a", end=soon) | {"signature_expiration": f"{soon}0"},
        signed(box, "a") | {"signature": "v1_"},
        signed(box, "a") | {"signature": ""},
        signed(box, "a") | {"signature": "v1_ä\u2028"},
        {"path": "a"},
        signed(box, "a" * 3000),
    ):
        assert status(wrong) == 502, wrong
    assert status(signed(box, "a"), headers=at | {"E2b-Sandbox-Id": NOWHERE}) == 502
    for over in ("0", str(int(time.time()) - 1), "x", "-1", "9" * 30, "1e99", ""):
        assert status(signed(box, "a", end=over)) == 401, over


# -- calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "body", "told"),
    [
        ("Stat", {"path": "absent"}, (404, "not_found")),
        ("Stat", {"path": "/etc"}, (400, "invalid_argument")),
        ("Stat", {"path": 7}, (400, "invalid_argument")),
        ("ListDir", {"path": "absent"}, (404, "not_found")),
        ("ListDir", {"path": "", "depth": 17}, (400, "invalid_argument")),
        ("ListDir", {"path": "", "depth": -1}, (400, "invalid_argument")),
        ("MakeDir", {"path": "there"}, (409, "already_exists")),
        ("MakeDir", {"path": "file"}, (400, "invalid_argument")),
        ("MakeDir", {"path": "/etc/x"}, (400, "invalid_argument")),
        ("Move", {"source": "absent", "destination": "x"}, (404, "not_found")),
        ("Move", {"source": "file", "destination": "there"}, (409, "already_exists")),
        ("Move", {"source": "file", "destination": "/etc/x"}, (400, "invalid_argument")),
        ("Remove", {"path": "/etc/passwd"}, (400, "invalid_argument")),
        ("Remove", {"path": ""}, (400, "invalid_argument")),
        ("GetWatcherEvents", {"watcherId": "x"}, (404, "not_found")),
        ("MakeSnapshot", {"path": ""}, (501, "unimplemented")),
    ],
    ids=str,
)
def test_a_call_that_fails_says_so_in_connects_form(
    box: Box, method: str, body: dict[str, Any], told: tuple[int, str]
) -> None:
    rpc(box, "MakeDir", path="there")
    upload(box, b"1", OCTETS, path="file")
    assert code(rpc(box, method, **body)) == told
    assert names(box) == ["file", "there"]


def test_an_entry_is_described_in_protobufs_json(box: Box) -> None:
    upload(box, b"12345", OCTETS, path="file")
    box.run("import os; os.symlink('file', 'link'); os.mkfifo('pipe')")
    entries = {entry["name"]: entry for entry in rpc(box, "ListDir", path="").json()["entries"]}
    assert (entries["file"]["size"], entries["file"]["type"]) == ("5", "FILE_TYPE_FILE")
    assert entries["link"]["type"] == "FILE_TYPE_SYMLINK"
    assert entries["pipe"]["type"] == "FILE_TYPE_UNSPECIFIED"
    assert entries["file"]["path"] == "/home/user/file"
    assert entries["file"]["modifiedTime"].endswith("Z")


def test_a_removed_entry_may_be_removed_again(box: Box) -> None:
    assert rpc(box, "Remove", path="absent").json() == {}
