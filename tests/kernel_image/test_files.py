"""The files tool, run as the gateway runs it, on a workspace that user code has changed."""

from __future__ import annotations

import errno
import grp
import io
import json
import os
import pwd
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image import files
from kernel_image.copying import PIECE
from sessions.backends.base import KERNEL_IMAGE
from sessions.guest.tools import ANSWER_MAX

Json = dict[str, Any]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "beside").write_text("not yours")
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def run(workspace: Path, op: str, path: str, stdin: bytes = b"", **more: Any) -> tuple[Json, bytes]:
    """Run the tool and return its answer, and the content after it."""
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
    """Create all kinds of entries that user code may create."""
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


def test_entries_are_listed_by_name_with_their_type(workspace: Path) -> None:
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
    assert sorted(names) == sorted(["new\nline", "\U0010dcff\U0010dcfe", "ü", " ", '"', "\x1b[31m", "-rf"])


def test_an_entry_that_vanishes_during_a_listing_is_left_out(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace / "stays").touch()
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(os, "listdir", lambda _directory: ["gone", "stays"])
    assert [entry["name"] for entry in _in_process({"op": "list", "path": ""})["entries"]] == ["stays"]


def test_a_huge_directory_is_cut(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (workspace / f"{number:02}").touch()
    monkeypatch.chdir(workspace)
    for most, truncated in (10, True), (19, True), (20, False):
        monkeypatch.setattr(files, "LIST_MAX", most)
        answer = _in_process({"op": "list", "path": ""})
        assert [entry["name"] for entry in answer["entries"]] == [f"{number:02}" for number in range(most)]
        assert answer["truncated"] is truncated


def _in_process(request: Json, stdin: bytes = b"") -> Json:
    output = io.BytesIO()
    files.main(json.dumps(request), io.BytesIO(stdin), output)
    answer: Json = json.loads(output.getvalue())
    return answer


def paths(workspace: Path, depth: int, path: str = "") -> list[str]:
    return [entry["path"] for entry in run(workspace, "list", path, depth=depth)[0]["entries"]]


def test_a_directory_is_listed_to_a_depth_and_no_link_is_followed(workspace: Path) -> None:
    set_traps(workspace)
    (workspace / "dir" / "deep").mkdir()
    (workspace / "dir" / "deep" / "er").touch()
    (workspace / "dir" / "up").symlink_to("..")
    top = sorted(entry.name for entry in workspace.iterdir())
    assert paths(workspace, 1) == top
    assert paths(workspace, 2) == [*top, "dir/deep", "dir/inner", "dir/up"]
    assert paths(workspace, 99) == [*top, "dir/deep", "dir/inner", "dir/up", "dir/deep/er"]
    assert paths(workspace, 99, "dir/deep/") == ["dir/deep/er"]


def test_a_tree_is_cut_too(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (workspace / name).mkdir()
        for number in range(5):
            (workspace / name / str(number)).touch()
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(files, "LIST_MAX", 5)
    answer = _in_process({"op": "list", "path": "", "depth": 9})
    assert [entry["path"] for entry in answer["entries"]] == ["a", "b", "c", "a/0", "a/1"]
    assert answer["truncated"]


def test_a_listing_of_long_names_stays_below_the_gateways_limit(workspace: Path) -> None:
    for number in range(6000):
        (workspace / (f"{number:04}" + "文" * 83)).touch()
    answer, _ = run(workspace, "list", "")
    assert 1000 < len(answer["entries"]) < 6000
    assert answer["truncated"]
    assert 0.9 * files.LIST_BYTES < len(json.dumps(answer)) < 1.1 * files.LIST_BYTES < ANSWER_MAX


# -- stat ------------------------------------------------------------------------------------------------------


def test_an_entry_is_described_after_links_are_followed(workspace: Path) -> None:
    set_traps(workspace)
    (workspace / "file").chmod(0o640)
    seen = (workspace / "file").stat()
    for path in ("file", "link", "dir/../file"):
        entry = run(workspace, "stat", path)[0]["entry"]
        assert entry == {
            "name": Path(path).name,
            "path": path,
            "type": "file",
            "size": 7,
            "modified": seen.st_mtime,
            "mode": 0o640,
            "permissions": "-rw-r-----",
            "owner": pwd.getpwuid(seen.st_uid).pw_name,
            "group": grp.getgrgid(seen.st_gid).gr_name,
        }
    kinds = {path: run(workspace, "stat", path)[0]["entry"]["type"] for path in ("", "dir", "dirlink", "fifo", "loop")}
    assert kinds == {"": "directory", "dir": "directory", "dirlink": "directory", "fifo": "special", "loop": "link"}


def test_the_room_of_the_workspace_is_that_of_its_file_system(workspace: Path) -> None:
    told, _ = run(workspace, "space", "")
    whole = shutil.disk_usage(workspace)
    assert told["size"] == whole.total
    assert 0 < told["used"] < told["size"]


def test_owners_without_a_name_have_a_number(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> object:
        raise KeyError(number)

    (workspace / "a").touch()
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    entry = _in_process({"op": "stat", "path": "a"})["entry"]
    assert entry["owner"] == str((workspace / "a").stat().st_uid)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        *(("none", "absent"), ("dangling", "absent"), ("file/below", "absent"), ("x" * 300, "name")),
        *((path, "outside") for path in ("out", "outdir", "etc/passwd", "zero", "/etc/passwd", "..", "/tmp/../etc")),
    ],
)
def test_an_absent_path_or_one_outside_is_not_described(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    assert error(workspace, "stat", path) == word


# -- mkdir -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "parents"), [("a", False), ("a/b/c", True), ("dir/b", False), ("dirlink/b", False)])
def test_a_directory_is_made_with_its_mode(workspace: Path, path: str, parents: bool) -> None:  # noqa: FBT001
    set_traps(workspace)
    entry = run(workspace, "mkdir", path, mode=0o751, parents=parents)[0]["entry"]
    assert (entry["path"], entry["type"], entry["mode"]) == (path, "directory", 0o751)
    assert (workspace / path).stat().st_mode & 0o777 == 0o751


@pytest.mark.parametrize("path", ["dir", "dirlink", ""])
def test_an_existing_directory_stays_unchanged(workspace: Path, path: str) -> None:
    set_traps(workspace)
    (workspace / path).chmod(0o705)
    entry = run(workspace, "mkdir", path, mode=0o777, parents=True)[0]["entry"]
    assert (entry["type"], entry["mode"]) == ("directory", 0o705)
    assert (workspace / "dir" / "inner").exists()


@pytest.mark.parametrize(
    ("path", "word"),
    [
        *(("file", "exists"), ("link", "exists"), ("fifo", "exists"), ("file/below", "absent"), ("none/b", "absent")),
        *((path, "outside") for path in ("out", "outdir/new", "etc/new", "../new", "/etc/new", "/new", "/tmp/../new")),
    ],
)
def test_no_directory_is_made_outside_or_over_another_entry(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    before = sorted(workspace.parent.rglob("*"))
    assert error(workspace, "mkdir", path, mode=0o700, parents=False) == word
    assert sorted(workspace.parent.rglob("*")) == before


# -- move ------------------------------------------------------------------------------------------------------


def move(workspace: Path, source: str, target: str) -> Json:
    answer, rest = run(workspace, "move", source, to=target)
    assert rest == b""
    return answer


@pytest.mark.parametrize(
    "source", ["file", "dir", "fifo", "link", "dirlink", "out", "outdir", "loop", "dangling", "zero"]
)
def test_an_entry_itself_is_moved_and_no_target_of_a_link(workspace: Path, source: str) -> None:
    set_traps(workspace)
    before = (workspace / source).lstat()
    for _ in range(2):  # a second move changes nothing
        entry = move(workspace, source, "dir/../moved")["entry"]
        assert entry["path"] == "dir/../moved"
        assert (workspace / "moved").lstat().st_ino == before.st_ino
        assert source not in {path.name for path in workspace.iterdir()}
    assert (workspace.parent / "beside").read_text() == "not yours"


@pytest.mark.parametrize("target", ["other", "link", "fifo", "dangling", "loop", "out"])
def test_a_file_is_moved_over_an_entry_that_is_no_directory(workspace: Path, target: str) -> None:
    set_traps(workspace)
    (workspace / "other").write_text("old")
    assert move(workspace, "dir/inner", target)["entry"]["type"] == "file"
    assert not (workspace / target).is_symlink()
    assert (workspace / target).read_text() == "inner"
    assert (workspace / "file").read_text() == "content"
    assert (workspace.parent / "beside").read_text() == "not yours"


@pytest.mark.parametrize(
    ("source", "target", "word"),
    [
        *(("none", "new", "absent"), ("file", "none/new", "absent"), ("file", "file/below", "absent")),
        *(
            ("file", "dir", "exists"),
            ("file", "dirlink", "exists"),
            ("dir", "file", "exists"),
            ("dir", "fifo", "exists"),
        ),
        *(("dir", "dir/below", "failed"), ("file", "x" * 300, "name")),
        *((path, "new", "outside") for path in ("../beside", "outdir/beside", "etc/passwd", "/etc/passwd", "", "/tmp")),
        *(("file", path, "outside") for path in ("../new", "outdir/new", "etc/new", "/etc/new", "", ".", "..", "/tmp")),
    ],
)
def test_a_refused_move_changes_nothing(workspace: Path, source: str, target: str, word: str) -> None:
    set_traps(workspace)
    before = sorted(workspace.parent.rglob("*"))
    assert move(workspace, source, target)["error"] == word
    assert sorted(workspace.parent.rglob("*")) == before


@pytest.mark.parametrize("target", ["other", "link", "fifo", "dangling", "loop", "out", "dir", "dirlink", "empty"])
@pytest.mark.parametrize("source", ["file", "dir", "link"])
def test_a_move_replaces_nothing_unless_told(workspace: Path, source: str, target: str) -> None:
    set_traps(workspace)
    (workspace / "other").write_text("old")
    (workspace / "empty").mkdir()
    before = {path: path.lstat().st_ino for path in workspace.rglob("*")}
    assert run(workspace, "move", source, to=target, replace=False)[0]["error"] == "exists"
    assert {path: path.lstat().st_ino for path in workspace.rglob("*")} == before


@pytest.mark.parametrize("source", ["file", "dir", "link"])
def test_an_entry_is_moved_to_a_free_name_once(workspace: Path, source: str) -> None:
    set_traps(workspace)
    before = (workspace / source).lstat().st_ino
    assert run(workspace, "move", source, to="free", replace=False)[0]["entry"]["path"] == "free"
    assert (workspace / "free").lstat().st_ino == before
    assert run(workspace, "move", source, to="free", replace=False)[0]["error"] == "absent", "it is no repetition"


def test_directories_on_the_way_are_made_for_an_entry_that_exists(workspace: Path) -> None:
    set_traps(workspace)
    assert run(workspace, "move", "none", to="new/way/a", replace=False, parents=True)[0]["error"] == "absent"
    assert not (workspace / "new").exists()
    assert run(workspace, "move", "file", to="new/way/a", replace=False)[0]["error"] == "absent"
    assert run(workspace, "move", "file", to="new/way/a", replace=False, parents=True)[0]["entry"]["size"] == 7
    assert (workspace / "new" / "way" / "a").read_text() == "content"


# -- between workspace and /tmp --------------------------------------------------------------------------------


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory in `/tmp`, which is another file system than the workspace in a sandbox."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def elsewhere(workspace: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same directory, but renaming into it or out of it fails."""
    rename = os.rename

    def within(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        directories = (Path(f"/proc/self/fd/{fd}").readlink() for fd in (src_dir_fd, dst_dir_fd))
        if len({directory.is_relative_to(temporary) for directory in directories}) > 1:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", within)
    monkeypatch.chdir(workspace)
    return temporary


def test_every_operation_works_in_tmp_too(workspace: Path, temporary: Path) -> None:
    place = str(temporary)
    assert run(workspace, "mkdir", f"{place}/dir", mode=0o700, parents=False)[0]["entry"]["path"] == f"{place}/dir"
    assert write(workspace, f"{place}/dir/a", b"abc") == {"size": 3}
    answer, content = run(workspace, "read", f"{place}/dir/a")
    assert (answer["size"], content) == (3, b"abc")
    assert paths(workspace, 2, place) == [f"{place}/dir", f"{place}/dir/a"]
    assert run(workspace, "stat", f"{place}/dir/a")[0]["entry"]["name"] == "a"
    assert run(workspace, "delete", f"{place}/dir")[0] == {}
    assert list(temporary.iterdir()) == []


def test_a_link_that_leaves_the_workspace_or_tmp_is_refused(workspace: Path, temporary: Path) -> None:
    (temporary / "file").write_text("content")
    (temporary / "etc").symlink_to("/etc")
    (workspace / "there").symlink_to(temporary)
    for path in (f"{temporary}/etc/passwd", "there/file", "/tmp/../etc/passwd", "//etc/passwd"):
        assert error(workspace, "read", path) == "outside"
    assert write(workspace, f"{temporary}/etc/new", b"x")["error"] == "outside"
    assert run(workspace, "read", f"{temporary}/file")[1] == b"content"


def _move(source: str, target: str) -> Json:
    return _in_process({"op": "move", "path": source, "to": target})


@pytest.mark.parametrize("source", ["file", "dir", "link", "dirlink", "out", "loop", "dangling"])
def test_an_entry_is_moved_to_tmp_and_back(workspace: Path, elsewhere: Path, source: str) -> None:
    set_traps(workspace)
    (workspace / "file").chmod(0o640)
    before = _shape(workspace / source)
    assert _move(source, f"{elsewhere}/new")["entry"]["name"] == "new"
    assert _shape(elsewhere / "new") == before
    assert [path.name for path in elsewhere.iterdir()] == ["new"]
    assert not os.path.lexists(workspace / source)
    _move(f"{elsewhere}/new", source)
    assert _shape(workspace / source) == before
    assert list(elsewhere.iterdir()) == []
    assert (workspace.parent / "beside").read_text() == "not yours"


def _shape(path: Path) -> object:
    """Describe an entry without its name."""
    if path.is_symlink():
        return path.readlink()
    if path.is_dir():
        children = {child.name: _shape(child) for child in path.iterdir()}
        return children, path.stat().st_mode, path.stat().st_mtime
    return path.read_bytes(), path.stat().st_mode, path.stat().st_mtime


def test_a_directory_that_refuses_new_entries_is_moved_with_its_mode(workspace: Path, elsewhere: Path) -> None:
    set_traps(workspace)
    (workspace / "dir" / "inner").chmod(0o400)
    (workspace / "dir").chmod(0o500)
    before = _shape(workspace / "dir")
    _move("dir", f"{elsewhere}/new")
    assert _shape(elsewhere / "new") == before


@pytest.mark.parametrize("source", ["file", "dir"])
def test_a_move_whose_source_cannot_be_deleted_says_so(
    workspace: Path, elsewhere: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denies(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    set_traps(workspace)
    before = _shape(workspace / source)
    monkeypatch.setattr(shutil, "rmtree", denies)
    monkeypatch.setattr(os, "unlink", denies)
    assert _move(source, f"{elsewhere}/new") == {"error": "left"}
    assert _shape(elsewhere / "new") == _shape(workspace / source) == before
    assert [path.name for path in elsewhere.iterdir()] == ["new"]


@pytest.mark.parametrize("target", ["file", "link", "fifo"])
def test_a_move_replaces_its_target_and_does_not_write_through(workspace: Path, elsewhere: Path, target: str) -> None:
    (workspace / "new").write_text("new")
    (elsewhere / "file").write_text("old")
    (elsewhere / "behind").write_text("behind")
    (elsewhere / "link").symlink_to("behind")
    os.mkfifo(elsewhere / "fifo")
    assert _move("new", f"{elsewhere}/{target}")["entry"]["type"] == "file"
    assert (elsewhere / target).read_text() == "new"
    assert (elsewhere / "behind").read_text() == "behind"


@pytest.mark.parametrize("source", ["file", "dir", "link"])
def test_a_move_elsewhere_replaces_nothing_unless_told(workspace: Path, elsewhere: Path, source: str) -> None:
    set_traps(workspace)
    (elsewhere / "new").write_text("old")
    before = sorted(workspace.rglob("*"))
    refused = _in_process({"op": "move", "path": source, "to": f"{elsewhere}/new", "replace": False})
    assert refused["error"] == "exists"
    assert sorted(workspace.rglob("*")) == before
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("new", "old")]
    assert "entry" in _in_process({"op": "move", "path": source, "to": f"{elsewhere}/free", "replace": False})


@pytest.mark.parametrize("source", ["fifo", "dir"])
def test_an_entry_that_cannot_be_copied_stays_whole(workspace: Path, elsewhere: Path, source: str) -> None:
    set_traps(workspace)
    os.mkfifo(workspace / "dir" / "fifo")
    before = sorted(workspace.parent.rglob("*"))
    assert _move(source, f"{elsewhere}/new") == {"error": "special"}
    assert sorted(workspace.parent.rglob("*")) == before
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("source", ["file", "dir"])
def test_a_move_without_room_leaves_source_and_target_unchanged(
    workspace: Path, elsewhere: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    set_traps(workspace)
    (elsewhere / "new").write_text("old")
    monkeypatch.setattr(shutil, "copyfileobj", is_full)
    assert _move(source, f"{elsewhere}/{source}")["error"] == "full"
    assert _move("file", f"{elsewhere}/new")["error"] == "full"
    assert (workspace / "file").read_text() == "content"
    assert (workspace / "dir" / "inner").read_text() == "inner"
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("new", "old")]


# -- read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 7])
def test_a_file_is_read_whole(workspace: Path, size: int) -> None:
    content = os.urandom(size)
    (workspace / "a").write_bytes(content)
    answer, read = run(workspace, "read", "a")
    assert read == content
    assert (answer["size"], answer["start"], answer["count"], answer["partial"]) == (size, 0, size, False)
    assert answer["modified"] == (workspace / "a").stat().st_mtime


@pytest.mark.parametrize(
    ("part", "start", "count"),
    [
        *(((2, 3), 2, 3), ((2, None), 2, 8), ((0, 10), 0, 10), ((9, 1), 9, 1), ((0, 0), 0, 0)),
        *(((10, 1), 10, 0), ((11, None), 10, 0), ((10**18, None), 10, 0), ((8, 10**18), 8, 2)),
        *(((-3, None), 7, 3), ((-10, None), 0, 10), ((-(10**18), None), 0, 10)),
    ],
)
def test_a_part_of_a_file_is_read(workspace: Path, part: tuple[int, int | None], start: int, count: int) -> None:
    (workspace / "a").write_bytes(b"0123456789")
    answer, read = run(workspace, "read", "a", part=part, tag=None)
    assert (answer["size"], answer["start"], answer["count"], answer["partial"]) == (10, start, count, True)
    assert read == b"0123456789"[start : start + count]


def _rewritten(file: Path) -> None:
    before = file.stat()
    file.write_bytes(b"9876543210")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change", [_rewritten, lambda file: file.write_bytes(b"x"), lambda file: write(file.parent, "a", b"9876543210")]
)
def test_a_part_of_another_content_is_not_read(workspace: Path, change: Any) -> None:
    (workspace / "a").write_bytes(b"0123456789")
    tag = run(workspace, "read", "a", part=(0, 0), tag=None)[0]["tag"]
    answer, read = run(workspace, "read", "a", part=(8, None), tag=tag)
    assert (answer["partial"], answer["tag"], read) == (True, tag, b"89"), "control: it is the same content"
    change(workspace / "a")
    answer, read = run(workspace, "read", "a", part=(8, None), tag=tag)
    assert answer["tag"] != tag
    assert (answer["partial"], read) == (False, (workspace / "a").read_bytes())


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
def test_only_a_regular_file_inside_is_read(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    assert error(workspace, "read", path) == word


def test_a_socket_is_not_read(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert error(workspace, "read", "socket") == "special"


def test_a_denied_operation_is_reported_as_denied(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denies(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(workspace)
    monkeypatch.setattr(os, "open", denies)
    assert _in_process({"op": "read", "path": "a"}) == {"error": "denied", "errno": "EACCES"}


# -- write -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a", "new/dir/a", "./a", "dir/../a"])
def test_a_file_is_written_with_the_directories_on_its_way(workspace: Path, path: str) -> None:
    (workspace / "dir").mkdir()
    content = os.urandom(2 * PIECE + 7)
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


def test_no_more_content_is_read_than_announced(workspace: Path) -> None:
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


def framed(*pieces: bytes) -> bytes:
    return b"".join(files.FRAME.pack(len(piece)) + piece for piece in pieces)


@pytest.mark.parametrize("pieces", [[], [b"a"], [b"abc", b"d"], [b"x" * 300_000, b"y" * 70_000]])
def test_content_of_unknown_size_is_written_to_its_end(workspace: Path, pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    answer = run(workspace, "write", "a", framed(*pieces, b"") + b"and more")
    assert answer == ({"size": len(content)}, b"")
    assert (workspace / "a").read_bytes() == content


@pytest.mark.parametrize("end", [0, 1, 4, 5, 8, 11, 14, 15])
def test_content_of_unknown_size_that_is_cut_short_changes_nothing(workspace: Path, end: int) -> None:
    (workspace / "a").write_text("old")
    whole = framed(b"abcd", b"ef", b"")
    assert len(whole) == 18
    assert run(workspace, "write", "a", whole[:end])[0] == {"error": "incomplete"}
    assert (workspace / "a").read_text() == "old"
    assert [path.name for path in workspace.iterdir()] == ["a"]


def test_a_false_length_is_reported_as_incomplete_content(workspace: Path) -> None:
    assert run(workspace, "write", "a", files.FRAME.pack(2**20) + b"x")[0] == {"error": "incomplete"}
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "new", "replaced"),
    [({}, 0o600, 0o755), ({"new_mode": 0o644}, 0o644, 0o755), ({"new_mode": 0o644, "mode": 0o640}, 0o640, 0o640)],
)
def test_a_file_has_the_mode_that_was_asked_for_or_that_of_the_file_it_replaces(
    workspace: Path, asked: Json, new: int, replaced: int
) -> None:
    (workspace / "old").touch()
    (workspace / "old").chmod(0o4755)
    for name, mode in (("new", new), ("old", replaced)):
        run(workspace, "write", name, b"x", size=1, **asked)
        assert (workspace / name).stat().st_mode & 0o7777 == mode


def test_what_is_compiled_of_a_module_goes_with_it(workspace: Path, tmp_path: Path) -> None:
    cache = workspace / "__pycache__"
    for way in ("write", "move"):
        cache.mkdir(exist_ok=True)
        for name in ("m.cpython-312.pyc", "m.cpython-312.opt-1.pyc", "m.txt", "mm.cpython-312.pyc"):
            (cache / name).touch()
        if way == "write":
            run(workspace, "write", "m.py", b"x", size=1)
        else:
            run(workspace, "move", "m.py", to="n.py")
            assert len(list(cache.iterdir())) == 4
            run(workspace, "move", "n.py", to="m.py")
        assert {file.name for file in cache.iterdir()} == {"m.txt", "mm.cpython-312.pyc"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.cpython-312.pyc").touch()
    shutil.rmtree(cache)
    cache.symlink_to(elsewhere)
    run(workspace, "write", "m.py", b"x", size=1)
    assert (elsewhere / "m.cpython-312.pyc").exists(), "a link was followed"


def test_parent_directories_are_made_only_on_request(workspace: Path) -> None:
    assert run(workspace, "write", "dir/a", b"x", size=1, parents=False)[0]["error"] == "absent"
    assert list(workspace.iterdir()) == []
    assert run(workspace, "write", "dir/a", b"x", size=1, parents=True)[0] == {"size": 1}
    assert run(workspace, "write", "dir/b", b"x", size=1, parents=False)[0] == {"size": 1}


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
def test_an_entry_itself_is_deleted_and_no_target_of_a_link(workspace: Path, path: str) -> None:
    set_traps(workspace)
    assert run(workspace, "delete", path) == ({}, b"")
    assert not (workspace / path).is_symlink()
    assert not (workspace / path).exists()
    left = {entry.name for entry in workspace.iterdir()}
    assert len(left) == 10
    assert (workspace.parent / "beside").read_text() == "not yours"
    if path != "dir":
        assert (workspace / "dir" / "inner").exists()


def test_directories_nested_too_deeply_are_an_error(workspace: Path) -> None:
    deepest = os.open(workspace, os.O_RDONLY)
    try:
        for _ in range(1500):  # relative to the last one: the whole path would be too long
            os.mkdir("d", dir_fd=deepest)
            inner = os.open("d", os.O_RDONLY, dir_fd=deepest)
            os.close(deepest)
            deepest = inner
        assert error(workspace, "delete", "d") == "failed"
    finally:
        os.close(deepest)
        subprocess.run(["rm", "-rf", workspace / "d"], check=True)


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
def test_an_absent_path_or_one_outside_is_not_deleted(workspace: Path, path: str, word: str) -> None:
    set_traps(workspace)
    before = sorted(workspace.parent.rglob("*"))
    assert error(workspace, "delete", path) == word
    assert sorted(workspace.parent.rglob("*")) == before
