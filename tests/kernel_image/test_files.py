"""The files tool, run as the gateway runs it, on a workspace where user code has been."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_image import files
from sessions.backends.base import KERNEL_IMAGE

Json = dict[str, Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "beside").write_text("not yours")
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def run(workspace: Path, op: str, path: str, stdin: bytes = b"", **more: Any) -> tuple[Json, bytes]:
    """What the tool answers, and the content after it."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "files.py"), json.dumps({"op": op, "path": path, **more})],
        input=stdin,
        stdout=subprocess.PIPE,
        cwd=workspace,
        env={},
        timeout=10,
        check=True,
        preexec_fn=_at_most_a_megabyte,
    )
    line, _, content = done.stdout.partition(b"\n")
    answer: Json = json.loads(line)
    return answer, content


def _at_most_a_megabyte() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def write(workspace: Path, path: str, content: bytes, size: int | None = None) -> Json:
    answer, rest = run(workspace, "write", path, content, size=len(content) if size is None else size)
    assert rest == b""
    return answer


def error(workspace: Path, op: str, path: str, **more: Any) -> str:
    answer, rest = run(workspace, op, path, **more)
    assert rest == b""
    return str(answer["error"])


def set_traps(workspace: Path) -> None:
    """All that user code may have put there."""
    (workspace / "file").write_text("content")
    (workspace / "dir").mkdir()
    (workspace / "dir" / "inner").write_text("inner")
    os.mkfifo(workspace / "fifo")
    (workspace / "link").symlink_to("file")
    (workspace / "dirlink").symlink_to("dir")
    (workspace / "out").symlink_to("../beside")
    (workspace / "outdir").symlink_to("..")
    (workspace / "etc").symlink_to("/etc")
    (workspace / "loop").symlink_to("loop")
    (workspace / "dangling").symlink_to("nowhere")
    (workspace / "zero").symlink_to("/dev/zero")


# -- list ------------------------------------------------------------------------------------------------------


def test_entries_are_listed_by_name_and_for_what_they_are(workspace: Path) -> None:
    set_traps(workspace)
    entries = run(workspace, "list", "")[0]["entries"]
    assert {entry["name"]: entry["type"] for entry in entries} == {
        "file": "file",
        "dir": "directory",
        "fifo": "special",
        **dict.fromkeys(["link", "dirlink", "out", "outdir", "etc", "loop", "dangling", "zero"], "link"),
    }
    assert [entry["name"] for entry in entries] == sorted(entry["name"] for entry in entries)
    (file,) = (entry for entry in entries if entry["name"] == "file")
    assert (file["size"], file["modified"]) == (7, (workspace / "file").stat().st_mtime)


def test_a_directory_is_listed_through_a_link_that_stays_inside(workspace: Path) -> None:
    set_traps(workspace)
    for path in ("dir", "dirlink", "dir/../dir", "./dir/"):
        assert [entry["name"] for entry in run(workspace, "list", path)[0]["entries"]] == ["inner"]


def test_names_may_be_anything(workspace: Path) -> None:
    for name in (b"new\nline", b"\xff\xfe", "ü".encode(), b" ", b'"', b"\x1b[31m", b"-rf"):
        Path(os.fsdecode(bytes(workspace) + b"/" + name)).touch()
    names = [entry["name"] for entry in run(workspace, "list", "")[0]["entries"]]
    assert sorted(names) == sorted(["new\nline", "\ufffd\ufffd", "ü", " ", '"', "\x1b[31m", "-rf"])


def test_what_vanishes_while_it_is_listed_is_left_out(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "stays").touch()
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(os, "listdir", lambda _directory: ["gone", "stays"])
    assert [entry["name"] for entry in _in_process({"op": "list", "path": ""})["entries"]] == ["stays"]


def test_a_huge_directory_is_cut(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (workspace / f"{number:02}").touch()
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(files, "LIST_MAX", 10)
    assert [entry["name"] for entry in _in_process({"op": "list", "path": ""})["entries"]] == [
        f"{number:02}" for number in range(10)
    ]


def _in_process(request: Json, stdin: bytes = b"") -> Json:
    output = io.BytesIO()
    files.main(json.dumps(request), io.BytesIO(stdin), output)
    answer: Json = json.loads(output.getvalue())
    return answer


# -- read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, files.PIECE, 3 * files.PIECE + 7])
def test_a_file_is_read_whole(workspace: Path, size: int) -> None:
    content = os.urandom(size)
    (workspace / "a").write_bytes(content)
    assert run(workspace, "read", "a") == ({"size": size}, content)


def test_a_link_that_stays_inside_is_followed(workspace: Path) -> None:
    set_traps(workspace)
    assert run(workspace, "read", "link")[1] == b"content"
    assert run(workspace, "read", "dirlink/inner")[1] == b"inner"


REFUSED = {
    "dir": "directory",
    "fifo": "special",
    "out": "outside",
    "outdir/beside": "outside",
    "etc/passwd": "outside",
    "zero": "outside",
    "/etc/passwd": "outside",
    "../beside": "outside",
    "dir/../../beside": "outside",
    "dangling": "absent",
    "none": "absent",
    "file/below": "absent",
    "x" * 300: "name",
    "": "directory",
}


@pytest.mark.parametrize(("path", "word"), [*REFUSED.items(), ("loop", "link")])
def test_what_is_no_file_inside_is_not_read(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    assert error(workspace, "read", path) == word


def test_a_socket_is_not_read(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert error(workspace, "read", "socket") == "special"


def test_a_link_put_there_at_the_last_moment_is_not_followed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the opening, user code has put a link in the file's place."""
    (workspace / "a").symlink_to("/etc/passwd")
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(files, "_inside", lambda path: str(workspace / path))
    assert _in_process({"op": "read", "path": "a"})["error"] == "link"


def test_what_may_not_be_done_is_said_so(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denies(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(workspace)
    monkeypatch.setattr(os, "open", denies)
    assert _in_process({"op": "read", "path": "a"}) == {"error": "denied", "errno": "EACCES"}


# -- write -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a", "new/dir/a", "./a", "dir/../a"])
def test_a_file_is_written_with_the_directories_on_its_way(workspace: Path, path: str) -> None:
    (workspace / "dir").mkdir()
    content = os.urandom(2 * files.PIECE + 7)
    assert write(workspace, path, content) == {"size": len(content)}
    assert (workspace / path).read_bytes() == content


def test_a_file_is_replaced_as_a_whole(workspace: Path) -> None:
    (workspace / "a").write_text("old and longer")
    reader = (workspace / "a").open()
    write(workspace, "a", b"new")
    with reader:
        assert reader.read() == "old and longer"
    assert (workspace / "a").read_text() == "new"
    assert [path.name for path in workspace.iterdir()] == ["a"]


def test_not_more_is_taken_than_was_announced(workspace: Path) -> None:
    assert write(workspace, "a", b"abcdef", size=3) == {"size": 3}
    assert (workspace / "a").read_bytes() == b"abc"


@pytest.mark.parametrize("sent", [b"", b"new"])
def test_content_that_breaks_off_changes_nothing(workspace: Path, sent: bytes) -> None:
    (workspace / "a").write_text("old")
    assert write(workspace, "a", sent, size=1000) == {"error": "incomplete"}
    assert (workspace / "a").read_text() == "old"
    assert [path.name for path in workspace.iterdir()] == ["a"]


def test_content_that_does_not_fit_changes_nothing(workspace: Path) -> None:
    (workspace / "a").write_text("old")
    assert write(workspace, "a", b"x" * 1_000_001)["error"] == "full"
    assert (workspace / "a").read_text() == "old"
    assert [path.name for path in workspace.iterdir()] == ["a"]
    assert write(workspace, "a", b"x" * 1_000_000) == {"size": 1_000_000}


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("dir", "directory"),
        ("dirlink", "directory"),
        ("out", "outside"),
        ("outdir/new", "outside"),
        ("etc/new", "outside"),
        ("../new", "outside"),
        ("file/below", "exists"),
        ("loop/new", "exists"),
    ],
)
def test_nothing_is_written_elsewhere(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    before = sorted(workspace.parent.rglob("*"))
    assert write(workspace, path, b"x")["error"] == word
    assert sorted(workspace.parent.rglob("*")) == before
    assert (workspace.parent / "beside").read_text() == "not yours"


def test_writing_to_a_link_writes_to_where_it_points(workspace: Path) -> None:
    set_traps(workspace)
    write(workspace, "link", b"new")
    assert (workspace / "file").read_text() == "new"
    assert (workspace / "link").is_symlink()


def test_writing_over_a_fifo_replaces_it(workspace: Path) -> None:
    set_traps(workspace)
    assert write(workspace, "fifo", b"now a file") == {"size": 10}
    assert (workspace / "fifo").read_bytes() == b"now a file"


# -- delete ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["file", "dir", "fifo", "link", "dirlink", "out", "outdir", "loop", "dangling"])
def test_an_entry_is_deleted_and_nothing_it_points_to(workspace: Path, path: str) -> None:
    set_traps(workspace)
    assert run(workspace, "delete", path) == ({}, b"")
    assert not (workspace / path).is_symlink()
    assert not (workspace / path).exists()
    left = {entry.name for entry in workspace.iterdir()}
    assert len(left) == 10
    assert (workspace.parent / "beside").read_text() == "not yours"
    if path != "dir":
        assert (workspace / "dir" / "inner").exists()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("none", "absent"),
        ("", "outside"),
        (".", "outside"),
        ("..", "outside"),
        ("dir/..", "outside"),
        ("../beside", "outside"),
        ("outdir/beside", "outside"),
        ("outdir/workspace", "outside"),
        ("/etc/passwd", "outside"),
    ],
)
def test_what_is_not_inside_is_not_deleted(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    before = sorted(workspace.parent.rglob("*"))
    assert error(workspace, "delete", path) == word
    assert sorted(workspace.parent.rglob("*")) == before
