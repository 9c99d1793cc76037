"""Directories that are swapped for links while the files tool works: it reaches nothing outside the workspace."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image import copying, entries, files, walk

Json = dict[str, Any]
#: a program that swaps `dir` and `trap` all the time, until its input ends
SWAPPER = """
import os, select, sys
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(100):
        for source, target in ("dir", "aside"), ("trap", "dir"), ("dir", "trap"), ("aside", "dir"):
            os.rename(source, target)
"""
#: seconds for the old way to be caught
PATIENCE = 60.0


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the workspace, with the same names as `dir` in the workspace."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "file").write_text("secret")
    (outside / "sub" / "secret").write_text("secret")
    return outside


@pytest.fixture
def workspace(tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace, with a directory and a link that may take its place."""
    workspace = tmp_path / "workspace"
    (workspace / "dir" / "sub").mkdir(parents=True)
    (workspace / "dir" / "file").write_text("own")
    (workspace / "dir" / "sub" / "inner").write_text("own")
    (workspace / "trap").symlink_to(outside)
    monkeypatch.chdir(workspace)
    return workspace


def ask(op: str, path: str, **more: Any) -> tuple[Json, bytes]:
    """Run an operation in this process, and return its answer, and the content after it."""
    output = io.BytesIO()
    files.main(json.dumps({"op": op, "path": path, **more}), io.BytesIO(b"new"), output)
    line, _, content = output.getvalue().partition(b"\n")
    return json.loads(line), content


def in_the_old_way(path: str) -> bytes:
    """Check a path, and then open it, without following a link at its end."""
    try:
        real = os.path.realpath(path)
        if not real.startswith(f"{Path.cwd()}/"):
            return b""
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read()
    except OSError:
        return b""


OPERATIONS: list[tuple[str, str, Json]] = [
    ("read", "dir/file", {}),
    ("stat", "dir/file", {}),
    ("list", "dir", {"depth": 9}),
    ("write", "dir/file", {"size": 3}),
    ("write", "dir/new/deep/file", {"size": 3}),
    ("mkdir", "dir/made", {"mode": 0o700, "parents": False}),
    ("mkdir", "dir/made/deep", {"mode": 0o700, "parents": True}),
    ("move", "dir/file", {"to": "moved"}),
    ("move", "trap", {"to": "dir/moved"}),
    ("move", "dir/file", {"to": "moved", "replace": False}),
    ("move", "trap", {"to": "dir/moved", "replace": False}),
    ("move", "trap", {"to": "dir/new/moved", "replace": False, "parents": True}),
    ("delete", "dir/file", {}),
    ("delete", "dir", {}),
]


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else "" for path in directory.rglob("*")
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_directory_swapped_behind_the_walk_leads_nowhere_else(
    workspace: Path, outside: Path, operation: tuple[str, str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the directory was found, and nothing was done in it yet."""
    before, step = contents(outside), walk._step

    def swap_behind(directory: int | None, name: str) -> Any:
        found = step(directory, name)
        if name == "dir" and not (workspace / "aside").exists():
            (workspace / "dir").rename("aside")
            (workspace / "trap").rename("dir")
            assert (workspace / "dir" / "file").read_text() == "secret", "control: the link is in its place"
        return found

    monkeypatch.setattr(walk, "_step", swap_behind)
    op, path, more = operation
    answer, content = ask(op, path, **more)
    assert (workspace / "aside").exists()
    assert b"secret" not in content
    assert "secret" not in json.dumps(answer)
    assert contents(outside) == before


def test_a_subdirectory_swapped_during_a_listing_is_left_out(
    workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap_behind(info: os.stat_result, path: str) -> Json:
        described = entry(info, path)
        if path == "dir/sub":
            (workspace / "dir" / "sub").rename(workspace / "aside")
            (workspace / "dir" / "sub").symlink_to(outside / "sub")
        return described

    entry = entries._described
    monkeypatch.setattr(entries, "_described", swap_behind)
    answer, _ = ask("list", "dir", depth=2)
    assert [entry["path"] for entry in answer["entries"]] == ["dir/file", "dir/sub"]
    assert [path.name for path in (workspace / "dir" / "sub").iterdir()] == ["secret"], "control"


def test_a_subdirectory_swapped_during_a_copy_is_not_copied(
    workspace: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap_before(directory: int, name: str) -> int:
        if name == "sub" and (workspace / "dir" / "sub" / "inner").exists():
            (workspace / "dir" / "sub").rename(workspace / "aside")
            (workspace / "dir" / "sub").symlink_to(outside / "sub")
        return opened(directory, name)

    opened = walk.open_directory
    monkeypatch.setattr(copying, "open_directory", swap_before)
    with walk.find("dir") as source, walk.find("copy") as target, pytest.raises(OSError, match="Not a directory"):
        copying.carry(source, target)
    assert (workspace / "dir" / "sub" / "secret").exists(), "control"
    assert sorted(path.name for path in workspace.iterdir()) == ["aside", "dir", "trap"]


@pytest.fixture
def swapper(workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which swaps the directory and the link."""
    with subprocess.Popen([sys.executable, "-c", SWAPPER], stdin=subprocess.PIPE, cwd=workspace) as process:
        yield process
        process.communicate()


def test_a_directory_that_is_swapped_all_the_time_leads_nowhere_else(
    outside: Path, swapper: subprocess.Popen[bytes]
) -> None:
    before = contents(outside)
    caught, attempts, read = 0, 0, 0
    deadline = time.monotonic() + PATIENCE
    while (caught < 3 or read < 3 or attempts < 300) and time.monotonic() < deadline:
        attempts += 1
        caught += in_the_old_way("dir/file") == b"secret"
        answer, content = ask("read", "dir/file")
        assert content in {b"", b"own"}, answer
        read += content == b"own"
        listed, _ = ask("list", "dir", depth=2)
        assert "secret" not in json.dumps(listed)
        ask("write", "dir/new", size=3, parents=False)
        ask("delete", "dir/new")
        ask("mkdir", "dir/made", mode=0o700, parents=False)
        ask("move", "dir/made", to="dir/moved")
        ask("delete", "dir/moved")
    assert caught >= 3, f"control: the old way was never caught in {attempts} attempts"
    assert read >= 3, f"control: the file was never read in {attempts} attempts"
    assert contents(outside) == before
    assert swapper.poll() is None, "control: it swapped until the end"


@pytest.mark.parametrize(("op", "path", "more"), OPERATIONS)
def test_an_operation_leaves_no_descriptor_open(workspace: Path, op: str, path: str, more: Json) -> None:
    (workspace / "far").symlink_to(f"{workspace}/dir/../dir")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for given in (path, path.replace("dir", "far"), "none/of/these", "trap/file"):
        ask(op, given, **more)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_absolute_link_that_ends_in_the_workspace_is_followed(workspace: Path) -> None:
    (workspace / "far").symlink_to(f"{workspace}/dir/../dir/./sub")
    (workspace / "out").symlink_to(workspace.parent)
    assert ask("read", "far/inner")[1] == b"own"
    assert ask("read", "out/workspace/dir/file")[1] == b"own"
    assert ask("read", "out/outside/file")[0] == {"error": "outside"}
