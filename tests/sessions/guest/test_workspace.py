"""Files of a session: which paths are accepted, and that a sandbox gains nothing by false answers."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_image.file_names import text_of
from sessions.guest.paths import PATH_MAX, sandbox_path, seen_path, session_path, valid_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import (
    FileList,
    delete_file,
    list_files,
    make_directory,
    move_file,
    stat_file,
    write_file,
)
from sessions.model.errors import (
    ConnectionFailed,
    FileExists,
    FileNotFound,
    InvalidRequest,
    NoSpace,
    SessionClosed,
    SessionError,
)
from sessions.model.tasks import spawn
from sessions.model.values import Limits, SessionKey, SessionSpec
from sessions.session.session import Session
from tests.fakes import World


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def content(session: Session, path: str = "a") -> bytes:
    async with read_file(session, path) as file:
        return b"".join([piece async for piece in file.content])


# -- paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "means"),
    [
        ("a", "a"),
        ("a/b.txt", "a/b.txt"),
        ("/a", "a"),
        ("//a///b/", "a/b"),
        ("./a/./b", "a/b"),
        ("", ""),
        ("/", ""),
        (".", ""),
        ("...", "..."),
        ("a..b", "a..b"),
        (".hidden", ".hidden"),
        ("with space", "with space"),
        ("ü/文", "ü/文"),
        ("%2e%2e/a", "%2e%2e/a"),
        ("a\\..\\b", "a\\..\\b"),
        ("\u202fa\u00a0\u3000", "\u202fa\u00a0\u3000"),
        ("a\u202eb\ufeff\u2028", "a\u202eb\ufeff\u2028"),
        ("x" * PATH_MAX, "x" * PATH_MAX),
        (text_of("\udcff") * PATH_MAX, text_of("\udcff") * PATH_MAX),
    ],
)
def test_a_path_is_taken_relative_to_the_workspace(path: str, means: str) -> None:
    assert valid_path(path) == means


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../a", "a/..", "a/../b", "/..", "a/../../etc/passwd", "./..", "..//", "a/b/../.."),
        *("a\0", "a\nb", "a\r", "\x1b[2J", "a\x7f", "a\u0085", "\ud800", "\udcff"),
        *("x" * (PATH_MAX + 1), "ü" * (PATH_MAX // 2 + 1), "a/" * PATH_MAX),
    ],
)
def test_a_path_that_leads_out_or_hides_something_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        valid_path(path)
    assert refused.value.details == {"field": "path"}


@given(st.text(st.sampled_from("./\\a~\0\n%") | st.characters()))
def test_an_accepted_path_stays_in_the_workspace(path: str) -> None:
    try:
        inside = valid_path(path)
    except InvalidRequest:
        return
    assert not inside.startswith("/")
    assert not {"", ".", ".."} & set(inside.removeprefix("./").split("/")) - ({""} if not inside else set())
    assert "Cc" not in {unicodedata.category(character) for character in inside}
    assert valid_path(inside) == inside


@pytest.mark.parametrize(
    ("path", "means", "seen"),
    [
        ("a", "a", "/home/user/a"),
        ("tmp/a", "tmp/a", "/home/user/tmp/a"),
        ("home/user/a", "home/user/a", "/home/user/home/user/a"),
        ("", "", "/home/user"),
        (".", "", "/home/user"),
        ("/home/user", "", "/home/user"),
        ("/home/user/", "", "/home/user"),
        ("//home//./user//a/", "a", "/home/user/a"),
        ("/home/user/home/user/a", "home/user/a", "/home/user/home/user/a"),
        ("/workspace", "", "/home/user"),
        ("/workspace/a/b", "a/b", "/home/user/a/b"),
        ("/root/a", "a", "/home/user/a"),
        ("/tmp", "/tmp", "/tmp"),
        ("/tmp/", "/tmp", "/tmp"),
        ("//tmp/./a/", "/tmp/a", "/tmp/a"),
        ("/tmp/tmp", "/tmp/tmp", "/tmp/tmp"),
        ("a..b/~", "a..b/~", "/home/user/a..b/~"),
        ("~", "", "/home/user"),
        ("~/", "", "/home/user"),
        ("~//a/~", "a/~", "/home/user/a/~"),
        ("~user/a", "a", "/home/user/a"),
        ("~other/a", "~other/a", "/home/user/~other/a"),
        ("./~/a", "./~/a", "/home/user/~/a"),
        ("/home/user/~/a", "./~/a", "/home/user/~/a"),
        ("/tmp/~", "/tmp/~", "/tmp/~"),
    ],
)
def test_a_path_may_be_written_as_processes_in_the_sandbox_do(path: str, means: str, seen: str) -> None:
    assert sandbox_path(path) == means
    assert seen_path(means) == seen
    assert sandbox_path(seen) == means


@pytest.mark.parametrize("path", ["a/b", "/home/user/a/b", "/workspace/a/b", "~/a/b", "./a//b"])
def test_a_path_of_a_session_is_relative_or_below_its_home(path: str) -> None:
    assert session_path(path) == "a/b"


@pytest.mark.parametrize("path", ["/a", "/tmp/a", "/home/user2/a", "/home/user/../a", "../a"])
def test_a_path_outside_a_sessions_home_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        session_path(path)
    assert refused.value.details == {"field": "path"}


@pytest.mark.parametrize(
    ("path", "asked", "seen"),
    [
        ("a", "/workspace", "/workspace/a"),
        ("a", "/workspace/", "/workspace/a"),
        ("", "/root", "/root"),
        ("a", "/workspaces", "/home/user/a"),
        ("a", "a", "/home/user/a"),
        ("/tmp/a", "/workspace", "/tmp/a"),
    ],
)
def test_a_path_is_told_below_the_home_that_was_asked_for(path: str, asked: str, seen: str) -> None:
    assert seen_path(path, asked) == seen


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/.", "/a", "/etc/passwd", "/home", "/home/kernel", "/home/user2", "/home/users/a", "/workspaces"),
        *("/roots", "/tmpx", "/var/tmp", "/proc/1/environ", "/opt/kernel/files.py", "/TMP/a"),
        *("/tmp/..", "/tmp/../etc/passwd", "/home/user/..", "/home/user/../kernel/.connection.json", "/workspace/../a"),
        *("..", "../a", "a/../..", "/tmp/a\0", "/tmp/\ud800", "/tmp/\x9b", "/tmp/" + "x" * PATH_MAX),
    ],
)
def test_a_path_outside_the_workspace_and_tmp_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        sandbox_path(path)
    assert refused.value.details == {"field": "path"}


@given(st.text(st.sampled_from("./tmp~\0\n") | st.characters()), st.sampled_from(["", "/tmp", "/home/user", "/"]))
def test_an_accepted_path_stays_in_the_workspace_or_tmp(path: str, place: str) -> None:
    try:
        inside = sandbox_path(f"{place}/{path}" if place else path)
    except InvalidRequest:
        return
    assert not inside.startswith("/") or f"{inside}/".startswith("/tmp/")
    assert not {".", ".."} & set(inside.removeprefix("./").split("/"))
    assert sandbox_path(seen_path(inside)) == inside


# -- files, with the real tool ---------------------------------------------------------------------------------


async def test_a_written_file_can_be_read(session: Session) -> None:
    everything = bytes(range(256)) * 4000
    await write_file(session, "deep/er/a.bin", len(everything), pieces(everything[:7], everything[7:]))
    assert await content(session, "./deep//er/a.bin") == everything


async def test_files_are_listed(session: Session) -> None:
    await write_file(session, "b/c", 3, pieces(b"abc"))
    await write_file(session, "a", 0, pieces())
    entries = (await list_files(session, "")).entries
    assert [(entry["name"], entry["type"], entry["size"]) for entry in entries if entry["type"] == "file"] == [
        ("a", "file", 0)
    ]
    assert [entry["name"] for entry in (await list_files(session, "b")).entries] == ["c"]


async def test_files_are_listed_to_a_depth(session: Session) -> None:
    for path in ("a/b/c/d", "a/e", "f"):
        await write_file(session, path, 0, pieces())
    everything = ["a", "f", "a/b", "a/e", "a/b/c", "a/b/c/d"]
    for depth, paths in ((1, everything[:2]), (2, everything[:4]), (9, everything)):
        entries = (await list_files(session, "/home/user", depth)).entries
        assert [entry["path"] for entry in entries] == paths
        assert [entry["name"] for entry in entries] == [path.rpartition("/")[2] for path in paths]


async def test_an_entry_is_described(session: Session) -> None:
    await write_file(session, "dir/a", 3, pieces(b"abc"), mode=0o640)
    entry = await stat_file(session, "/home/user/dir/a")
    assert (entry["name"], entry["path"], entry["type"], entry["size"]) == ("a", "dir/a", "file", 3)
    assert (entry["mode"], entry["permissions"]) == (0o640, "-rw-r-----")
    assert (await stat_file(session, ""))["type"] == "directory"
    with pytest.raises(FileNotFound):
        await stat_file(session, "none")


async def test_making_a_directory_again_changes_nothing(session: Session) -> None:
    with pytest.raises(FileNotFound):
        await make_directory(session, "a/b", 0o750, parents=False)
    made = await make_directory(session, "a/b", 0o750)
    assert (made["path"], made["type"], made["mode"]) == ("a/b", "directory", 0o750)
    assert await make_directory(session, "/home/user/a/b", 0o700, parents=False) == made
    await write_file(session, "file", 0, pieces())
    with pytest.raises(FileExists):
        await make_directory(session, "file", 0o700)


async def test_moving_a_file_again_changes_nothing(session: Session) -> None:
    await write_file(session, "a", 3, pieces(b"abc"))
    await write_file(session, "b", 3, pieces(b"old"))
    await make_directory(session, "dir", 0o700)
    for _ in range(2):
        assert (await move_file(session, "a", "/home/user/b"))["path"] == "b"
    assert await content(session, "b") == b"abc"
    with pytest.raises(FileExists):
        await move_file(session, "b", "dir")
    await write_file(session, "c", 3, pieces(b"new"))
    with pytest.raises(FileExists):
        await move_file(session, "c", "b", replace=False)
    assert await content(session, "b") == b"abc"
    with pytest.raises(FileNotFound):
        await move_file(session, "none", "neither")


async def test_missing_parent_directories_are_made_only_on_request(session: Session) -> None:
    with pytest.raises(FileNotFound):
        await write_file(session, "dir/a", 1, pieces(b"x"), parents=False)
    assert (await list_files(session, "")).entries == []
    await write_file(session, "dir/a", 1, pieces(b"x"))
    assert await write_file(session, "dir/a", 3, pieces(b"new"), parents=False) == 3


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1], [1, 0, 2], [300_000, 1], [1_000_000]])
async def test_content_of_unknown_size_is_written_whole(session: Session, sizes: list[int]) -> None:
    everything = [bytes([number % 251 for number in range(size)]) for size in sizes]
    assert await write_file(session, "a", None, pieces(*everything)) == sum(sizes)
    assert await content(session) == b"".join(everything)


async def test_content_of_unknown_size_that_breaks_off_leaves_nothing(session: Session) -> None:
    await write_file(session, "a", 3, pieces(b"old"))
    sent = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield b"new"
        sent.set()
        await asyncio.Event().wait()

    upload = spawn(write_file(session, "a", None, stalls()), "upload")
    await sent.wait()
    upload.cancel()
    await asyncio.wait({upload})
    assert await content(session) == b"old"
    assert [entry["name"] for entry in (await list_files(session, "")).entries] == ["a"]


async def test_a_deleted_directory_is_gone(session: Session) -> None:
    await write_file(session, "a/b", 1, pieces(b"x"))
    await delete_file(session, "a")
    assert (await list_files(session, "")).entries == []
    with pytest.raises(FileNotFound):
        await delete_file(session, "a")


async def test_files_outlive_a_restart(session: Session) -> None:
    await write_file(session, "a", 5, pieces(b"still"))
    await session.restart()
    assert await content(session) == b"still"


async def test_a_missing_entry_raises_file_not_found(session: Session) -> None:
    for attempt in (content(session, "none"), list_files(session, "none"), delete_file(session, "none")):
        with pytest.raises(FileNotFound):
            await attempt


async def test_the_workspace_itself_is_no_file(session: Session) -> None:
    for attempt in (write_file(session, "/", 0, pieces()), delete_file(session, "."), content(session, "")):
        with pytest.raises(InvalidRequest):
            await attempt
    for path in ("", "/home/user", "/workspace/", "/tmp"):
        nameless: list[Coroutine[Any, Any, object]] = [
            write_file(session, path, 0, pieces()),
            delete_file(session, path),
            move_file(session, path, "a"),
            move_file(session, "a", path),
        ]
        for refused in nameless:
            with pytest.raises(InvalidRequest, match="names no file"):
                await refused
    assert (await list_files(session, "")).entries == []


async def test_an_upload_that_breaks_off_leaves_nothing(session: Session) -> None:
    await write_file(session, "a", 3, pieces(b"old"))
    with pytest.raises(InvalidRequest, match="shorter than announced"):
        await write_file(session, "a", 1000, pieces(b"new"))
    assert await content(session) == b"old"
    assert [entry["name"] for entry in (await list_files(session, "")).entries] == ["a"]


async def test_a_file_larger_than_the_workspace_is_not_even_sent(world: World) -> None:
    spec = SessionSpec(limits=Limits(disk=1000))
    session = await world.registry.create(SessionKey("acme", "small"), spec)
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=_is_not_called)
    with pytest.raises(NoSpace) as refused:
        await write_file(session, "a", 1001, pieces())
    assert refused.value.details == {"size": 1001}


def _is_not_called(_argument: str) -> bytes:
    raise AssertionError


async def test_paths_are_checked_before_the_tool_is_called(world: World, session: Session) -> None:
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=_is_not_called)
    for attempt in (
        list_files(session, "../x"),
        content(session, "a/../../x"),
        delete_file(session, ".."),
        write_file(session, "a/..", 1, pieces(b"x")),
        list_files(session, "/etc"),
        stat_file(session, "/etc/passwd"),
        make_directory(session, "/etc/x", 0o700),
        move_file(session, "a", "/etc/x"),
        move_file(session, "/etc/passwd", "a"),
    ):
        with pytest.raises(InvalidRequest):
            await attempt


async def test_a_session_that_ended_has_no_files(session: Session) -> None:
    await session.close()
    for attempt in (content(session), list_files(session, ""), delete_file(session, "a")):
        with pytest.raises(SessionClosed):
            await attempt


# -- false answers of a sandbox --------------------------------------------------------------------------------


def says(world: World, answer: bytes | dict[str, Any]) -> None:
    """Let the tool give this answer to every request."""
    line = answer if isinstance(answer, bytes) else orjson.dumps(answer) + b"\n"
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=lambda _argument: line)


def opened(size: int) -> dict[str, Any]:
    """Return the first line of the tool's answer to a read of a whole file."""
    return {"size": size, "modified": 1.5, "tag": "a-1", "start": 0, "count": size, "partial": False}


NO_ANSWERS = [
    *(b"", b"\n", b"no JSON\n", b"[]\n", b"null\n", b'"error"\n', b"{", b"\xff\xfe\n", b'{"size": 1e999}\n'),
    b"x" * (9 * 1024**2),
]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=lambda answer: repr(answer[:16]))
async def test_an_invalid_answer_is_a_failure(world: World, session: Session, answer: bytes) -> None:
    says(world, answer)
    for attempt in (
        content(session),
        list_files(session, ""),
        delete_file(session, "a"),
        write_file(session, "a", 1, pieces(b"x")),
    ):
        with pytest.raises(ConnectionFailed):
            await attempt


@pytest.mark.parametrize("size", [None, -1, 1.5, "3", True, [3], {}])
async def test_an_invalid_size_is_a_failure(world: World, session: Session, size: object) -> None:
    says(world, opened(3) | {"size": size})
    for attempt in (content(session), write_file(session, "a", None, pieces(b"x"))):
        with pytest.raises(ConnectionFailed):
            await attempt


@pytest.mark.parametrize(
    "wrong",
    [
        *({"start": -1}, {"start": 4}, {"count": 4}, {"count": -1}, {"count": True}, {"partial": None}),
        *({"tag": "é"}, {"tag": "a\r\nSet-Cookie: x"}, {"tag": ""}, {"tag": "a" * 101}, {"modified": "now"}),
    ],
)
async def test_a_part_that_cannot_be_is_a_failure(world: World, session: Session, wrong: dict[str, Any]) -> None:
    says(world, orjson.dumps(opened(3)) + b"\nabc")
    assert await content(session) == b"abc", "control"
    says(world, orjson.dumps(opened(3) | wrong) + b"\nabc")
    with pytest.raises(ConnectionFailed):
        await content(session)


async def test_bytes_beyond_the_announced_size_are_dropped(world: World, session: Session) -> None:
    says(world, orjson.dumps(opened(3)) + b"\nabcdef")
    assert await content(session) == b"abc"


async def test_fewer_bytes_than_announced_are_a_failure(world: World, session: Session) -> None:
    says(world, orjson.dumps(opened(7)) + b"\nabcdef")
    with pytest.raises(ConnectionFailed, match="ended early"):
        await content(session)


ENTRY = {
    "name": "a",
    "path": "a",
    "type": "file",
    "size": 1,
    "modified": 1.5,
    "mode": 0o644,
    "permissions": "-rw-r--r--",
    "owner": "kernel",
    "group": "kernel",
}
WRONG: list[dict[str, Any]] = [
    *({"path": None}, {"mode": "644"}, {"permissions": 1}, {"owner": 0}, {"group": []}),
    *({"name": 1}, {"type": "door"}, {"type": []}, {"size": "1"}, {"modified": None}),
]


@pytest.mark.parametrize(
    "entries",
    [
        *(None, 1, "x", {}, [1, None, "x", [], {}]),
        *([ENTRY | wrong] for wrong in WRONG),
    ],
)
async def test_invalid_entries_are_left_out_of_a_listing(world: World, session: Session, entries: object) -> None:
    says(world, {"entries": entries})
    assert (await list_files(session, "")).entries == []
    says(world, {"entries": [ENTRY]})
    assert (await list_files(session, "")).entries == [ENTRY]


@pytest.mark.parametrize(("said", "truncated"), [(True, True), (False, False), (None, False), ("yes", False)])
async def test_a_cut_listing_says_so(world: World, session: Session, said: object, truncated: bool) -> None:  # noqa: FBT001
    says(world, {"entries": [ENTRY], "truncated": said})
    assert await list_files(session, "") == FileList([ENTRY], truncated)


@pytest.mark.parametrize("entry", [None, [], {}, 1, *(ENTRY | wrong for wrong in WRONG)])
async def test_an_invalid_entry_is_a_failure(world: World, session: Session, entry: object) -> None:
    says(world, {"entry": entry})
    for attempt in (stat_file(session, "a"), make_directory(session, "a", 0o700), move_file(session, "a", "b")):
        with pytest.raises(ConnectionFailed):
            await attempt
    says(world, {"entry": ENTRY})
    assert await stat_file(session, "a") == ENTRY


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("absent", FileNotFound),
        ("full", NoSpace),
        ("outside", InvalidRequest),
        ("link", InvalidRequest),
        ("directory", InvalidRequest),
        ("exists", FileExists),
        ("special", InvalidRequest),
        ("incomplete", InvalidRequest),
        ("denied", InvalidRequest),
        ("left", InvalidRequest),
        ("name", InvalidRequest),
        ("failed", InvalidRequest),
        ("never heard of", InvalidRequest),
        (None, InvalidRequest),
        ([1], InvalidRequest),
        ({"code": "SB001"}, InvalidRequest),
    ],
)
async def test_a_refusal_is_our_error(world: World, session: Session, word: object, kind: type[SessionError]) -> None:
    says(world, {"error": word, "message": "<script>", "errno": 1})
    with pytest.raises(SessionError) as refused:
        await delete_file(session, "a")
    assert type(refused.value) is kind
    assert "script" not in str(refused.value.as_dict())
