"""Files of a session: which paths are taken, and that a sandbox that lies gains nothing by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.errors import ConnectionFailed, FileNotFound, InvalidRequest, NoSpace, SessionClosed, SessionError
from sessions.models import Limits, SessionKey, SessionSpec
from sessions.session import Session
from sessions.workspace import PATH_MAX, delete_file, list_files, read_file, valid_path, write_file
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
        ("x" * PATH_MAX, "x" * PATH_MAX),
    ],
)
def test_a_path_is_taken_relative_to_the_workspace(path: str, means: str) -> None:
    assert valid_path(path) == means


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../a", "a/..", "a/../b", "/..", "a/../../etc/passwd", "./..", "..//", "a/b/../.."),
        *("a\0", "a\nb", "a\r", "\x1b[2J", "a\u202eb", "\ufeff", "a\x7f", "a\u0085", "\ud800"),
        *("x" * (PATH_MAX + 1), "ü" * (PATH_MAX // 2 + 1), "a/" * PATH_MAX),
    ],
)
def test_a_path_that_leads_out_or_hides_something_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        valid_path(path)
    assert refused.value.details == {"field": "path"}


@given(st.text(st.sampled_from("./\\a~\0\n%") | st.characters()))
def test_whatever_path_it_is_it_stays_inside(path: str) -> None:
    try:
        inside = valid_path(path)
    except InvalidRequest:
        return
    assert not inside.startswith("/")
    assert not {"", ".", ".."} & set(inside.split("/")) - ({""} if not inside else set())
    assert inside.isprintable()
    assert valid_path(inside) == inside


# -- files, by the tool itself ---------------------------------------------------------------------------------


async def test_what_is_written_can_be_read(session: Session) -> None:
    everything = bytes(range(256)) * 4000
    await write_file(session, "deep/er/a.bin", len(everything), pieces(everything[:7], everything[7:]))
    assert await content(session, "./deep//er/a.bin") == everything


async def test_files_are_listed(session: Session) -> None:
    await write_file(session, "b/c", 3, pieces(b"abc"))
    await write_file(session, "a", 0, pieces())
    entries = await list_files(session, "")
    assert [(entry["name"], entry["type"], entry["size"]) for entry in entries if entry["type"] == "file"] == [
        ("a", "file", 0)
    ]
    assert [entry["name"] for entry in await list_files(session, "b")] == ["c"]


async def test_what_is_deleted_is_gone(session: Session) -> None:
    await write_file(session, "a/b", 1, pieces(b"x"))
    await delete_file(session, "a")
    assert await list_files(session, "") == []
    with pytest.raises(FileNotFound):
        await delete_file(session, "a")


async def test_files_outlive_a_restart(session: Session) -> None:
    await write_file(session, "a", 5, pieces(b"still"))
    await session.restart()
    assert await content(session) == b"still"


async def test_what_is_not_there_is_said_so(session: Session) -> None:
    for attempt in (content(session, "none"), list_files(session, "none"), delete_file(session, "none")):
        with pytest.raises(FileNotFound):
            await attempt


async def test_the_workspace_itself_is_no_file(session: Session) -> None:
    for attempt in (write_file(session, "/", 0, pieces()), delete_file(session, "."), content(session, "")):
        with pytest.raises(InvalidRequest):
            await attempt
    assert await list_files(session, "") == []


async def test_an_upload_that_breaks_off_leaves_nothing(session: Session) -> None:
    await write_file(session, "a", 3, pieces(b"old"))
    with pytest.raises(InvalidRequest, match="shorter than announced"):
        await write_file(session, "a", 1000, pieces(b"new"))
    assert await content(session) == b"old"
    assert [entry["name"] for entry in await list_files(session, "")] == ["a"]


async def test_a_file_larger_than_the_workspace_is_not_even_sent(world: World) -> None:
    spec = SessionSpec(limits=Limits(disk=1000))
    session = await world.registry.create(SessionKey("acme", "small"), spec)
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=_is_not_called)
    with pytest.raises(NoSpace) as refused:
        await write_file(session, "a", 1001, pieces())
    assert refused.value.details == {"size": 1001}


def _is_not_called(_argument: str) -> bytes:
    raise AssertionError


async def test_paths_are_checked_before_anything_is_asked(world: World, session: Session) -> None:
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=_is_not_called)
    for attempt in (
        list_files(session, "../x"),
        content(session, "a/../../x"),
        delete_file(session, ".."),
        write_file(session, "a/..", 1, pieces(b"x")),
    ):
        with pytest.raises(InvalidRequest):
            await attempt


async def test_a_session_that_ended_has_no_files(session: Session) -> None:
    await session.close()
    for attempt in (content(session), list_files(session, ""), delete_file(session, "a")):
        with pytest.raises(SessionClosed):
            await attempt


# -- a sandbox that lies ---------------------------------------------------------------------------------------


def says(world: World, answer: bytes | dict[str, Any]) -> None:
    """Let the tool answer this, whatever it is asked."""
    line = answer if isinstance(answer, bytes) else orjson.dumps(answer) + b"\n"
    world.backend.kernel.behaviour = replace(world.backend.kernel.behaviour, tool=lambda _argument: line)


NO_ANSWERS = [
    *(b"", b"\n", b"no JSON\n", b"[]\n", b"null\n", b'"error"\n', b"{", b"\xff\xfe\n", b'{"size": 1e999}\n'),
    b"x" * (9 * 1024**2),
]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=lambda answer: repr(answer[:16]))
async def test_an_answer_that_is_none_is_a_failure(world: World, session: Session, answer: bytes) -> None:
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
async def test_a_size_that_is_none_is_a_failure(world: World, session: Session, size: object) -> None:
    says(world, {"size": size})
    with pytest.raises(ConnectionFailed):
        await content(session)


async def test_not_more_is_passed_on_than_was_announced(world: World, session: Session) -> None:
    says(world, b'{"size": 3}\nabcdef')
    assert await content(session) == b"abc"


async def test_less_than_was_announced_is_a_failure(world: World, session: Session) -> None:
    says(world, b'{"size": 7}\nabcdef')
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
WRONG: list[dict[str, Any]] = [{"name": 1}, {"type": "door"}, {"type": []}, {"size": "1"}, {"modified": None}]


@pytest.mark.parametrize(
    "entries",
    [
        *(None, 1, "x", {}, [1, None, "x", [], {}]),
        *([ENTRY | wrong] for wrong in WRONG),
    ],
)
async def test_a_listing_holds_entries_or_nothing(world: World, session: Session, entries: object) -> None:
    says(world, {"entries": entries})
    assert await list_files(session, "") == []
    says(world, {"entries": [ENTRY]})
    assert await list_files(session, "") == [ENTRY]


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("absent", FileNotFound),
        ("full", NoSpace),
        ("outside", InvalidRequest),
        ("link", InvalidRequest),
        ("directory", InvalidRequest),
        ("special", InvalidRequest),
        ("incomplete", InvalidRequest),
        ("denied", InvalidRequest),
        ("name", InvalidRequest),
        ("failed", InvalidRequest),
        ("never heard of", InvalidRequest),
        (None, InvalidRequest),
        ([1], InvalidRequest),
        ({"code": "SB001"}, InvalidRequest),
    ],
)
async def test_a_refusal_is_one_of_ours(world: World, session: Session, word: object, kind: type[SessionError]) -> None:
    says(world, {"error": word, "message": "<script>", "errno": 1})
    with pytest.raises(SessionError) as refused:
        await delete_file(session, "a")
    assert type(refused.value) is kind
    assert "script" not in str(refused.value.as_dict())
