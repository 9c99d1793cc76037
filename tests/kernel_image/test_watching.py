"""The tool that watches a directory, run as the gateway runs it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_image import watching
from kernel_image.copying import unused_name
from kernel_image.walk import Refused
from kernel_image.watching import Seen, changes, look
from sessions.backends.base import KERNEL_IMAGE

Json = dict[str, Any]
Watch = Callable[..., "Tool"]


class Tool:
    """The tool at work."""

    def __init__(self, directory: Path, request: Json) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "watching.py"), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env={},
        )

    def line(self) -> Json:
        assert self.process.stdout is not None
        told: Json = json.loads(self.process.stdout.readline())
        return told

    def look(self) -> list[tuple[str, str]]:
        """Ask for a look, and return what has changed."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return [(kind, path) for kind, path in self.line()["changes"]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def watch(workspace: Path) -> Iterator[Watch]:
    begun: list[Tool] = []

    def watch(path: str = "", *, recursive: bool = False, every: float | None = None) -> Tool:
        begun.append(Tool(workspace, {"path": path, "recursive": recursive, "every": every}))
        return begun[-1]

    yield watch
    for tool in begun:
        tool.process.kill()
        tool.process.communicate()


def test_what_happens_to_entries_is_told_when_it_is_asked_for(workspace: Path, watch: Watch) -> None:
    (workspace / "old").write_text("1")
    (workspace / "gone").write_text("2")
    tool = watch()
    assert tool.line() == {"changes": []}
    assert tool.look() == []
    (workspace / "new").write_text("3")
    (workspace / "empty").touch()
    (workspace / "directory").mkdir()
    assert tool.look() == [("create", "directory"), ("create", "empty"), ("create", "new"), ("write", "new")]
    (workspace / "new").write_text("33")
    (workspace / "empty").chmod(0o600)
    (workspace / "gone").unlink()
    (workspace / "old").rename(workspace / "renamed")
    (workspace / "directory" / "inner").write_text("not watched")
    assert tool.look() == [
        ("rename", "old"),
        ("remove", "gone"),
        ("chmod", "empty"),
        ("write", "new"),
        ("create", "renamed"),
    ]


def test_directories_below_are_watched_too_when_asked(workspace: Path, watch: Watch) -> None:
    (workspace / "a").mkdir()
    tool = watch(recursive=True)
    tool.line()
    (workspace / "a" / "b").mkdir()
    (workspace / "a" / "b" / "c").write_text("1")
    assert tool.look() == [("create", "a/b"), ("create", "a/b/c"), ("write", "a/b/c")]
    (workspace / "a" / "b" / "c").unlink()
    (workspace / "a" / "b").rmdir()
    assert tool.look() == [("remove", "a/b/c"), ("remove", "a/b")]


def test_a_file_that_is_replaced_is_written_and_an_unfinished_one_is_not_told(workspace: Path, watch: Watch) -> None:
    (workspace / "file").write_text("1")
    tool = watch()
    tool.line()
    unfinished = workspace / unused_name("upload")
    unfinished.write_text("2")
    assert tool.look() == []
    unfinished.rename(workspace / "file")
    assert tool.look() == [("write", "file")]
    (workspace / "file").unlink()
    (workspace / "file").mkdir()
    assert tool.look() == [("remove", "file"), ("create", "file")]


def test_changes_are_told_without_being_asked_for(workspace: Path, watch: Watch) -> None:
    tool = watch(every=0.02)
    tool.line()
    (workspace / "one").touch()
    assert tool.line() == {"changes": [["create", "one"]]}
    (workspace / "two").touch()
    assert tool.line() == {"changes": [["create", "two"]]}


def test_a_directory_may_go_and_come_back(workspace: Path, watch: Watch) -> None:
    (workspace / "place").mkdir()
    (workspace / "place" / "file").touch()
    tool = watch("place")
    tool.line()
    (workspace / "place").rename(workspace / "elsewhere")
    assert tool.look() == [("remove", "file")]
    (workspace / "place").mkdir()
    (workspace / "place" / "another").touch()
    assert tool.look() == [("create", "another")]


def test_it_ends_with_its_input(watch: Watch) -> None:
    for every in (None, 0.02):
        tool = watch(every=every)
        tool.line()
        assert tool.process.stdin is not None
        tool.process.stdin.close()
        assert tool.process.wait(60) == 0
        tool.process.stdin = None


@pytest.mark.parametrize(
    ("path", "word"), [("absent", "absent"), ("file", "file"), ("../beside", "outside"), ("link", "outside")]
)
def test_what_is_no_directory_of_the_workspace_is_not_watched(
    workspace: Path, watch: Watch, path: str, word: str
) -> None:
    (workspace / "file").touch()
    (workspace.parent / "beside").mkdir()
    (workspace / "link").symlink_to("../beside")
    assert watch(path).line()["error"] == word


def test_a_link_to_a_directory_is_followed_and_links_below_are_not(workspace: Path, watch: Watch) -> None:
    (workspace / "real").mkdir()
    (workspace / "real" / "up").symlink_to("..")
    (workspace / "link").symlink_to("real")
    tool = watch("link", recursive=True)
    tool.line()
    (workspace / "real" / "file").touch()
    assert tool.look() == [("create", "file")]


def test_a_directory_that_becomes_a_file_ends_the_watch(workspace: Path, watch: Watch) -> None:
    (workspace / "place").mkdir()
    tool = watch("place", every=0.02)
    tool.line()
    (workspace / "place").rmdir()
    (workspace / "place").touch()
    assert tool.line()["error"] == "file"
    assert tool.process.wait(60) == 0


def test_a_directory_with_too_many_entries_is_not_watched(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "TREE_MAX", 2)
    monkeypatch.chdir(workspace)
    for name in ("a", "b"):
        (workspace / name).touch()
    assert len(look("", recursive=False)) == 2
    (workspace / "c").touch()
    with pytest.raises(Refused, match="many"):
        look("", recursive=False)


def seen(number: int, modified: int = 1, kind: int = stat.S_IFREG) -> Seen:
    return Seen(number, kind, 1, modified, 0o644)


def test_a_new_file_with_the_number_of_a_removed_one_is_no_renamed_one() -> None:
    assert list(changes({"a": seen(1)}, {"b": seen(1)})) == [("rename", "a"), ("create", "b")]
    assert list(changes({"a": seen(1)}, {"b": seen(1, modified=2)})) == [
        ("remove", "a"),
        ("create", "b"),
        ("write", "b"),
    ]


def test_names_that_are_no_text_are_told(workspace: Path, watch: Watch) -> None:
    tool = watch()
    tool.line()
    descriptor = os.open(os.fsencode(workspace) + b"/\xff\n\xe4", os.O_CREAT | os.O_WRONLY)
    os.close(descriptor)
    assert tool.look() == [("create", "\U0010dcff\n\U0010dce4")]
