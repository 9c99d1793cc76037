"""Directories that clients watch: streams and those who ask, how many there may be, and what a hostile sandbox says."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from sessions.guest.tools import ANSWER_MAX
from sessions.guest.watching import Change
from sessions.model.errors import (
    ConnectionFailed,
    FileNotFound,
    InvalidRequest,
    ProcessNotFound,
    QuotaExceeded,
    SessionError,
)
from sessions.model.tasks import spawn
from sessions.sandbox import watchers
from sessions.sandbox.sandbox import Sandbox
from sessions.sandbox.watchers import WATCHERS_MAX
from tests.fakes import World, until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gateway look often."""
    monkeypatch.setattr(watchers, "EVERY", 0.02)


async def test_a_client_asks_for_what_has_changed(sandbox: Sandbox, place: Path) -> None:
    name = await sandbox.watchers.add("", recursive=False)
    assert await sandbox.watchers.look(name) == []
    (place / "file").touch()
    both = await asyncio.gather(sandbox.watchers.look(name), sandbox.watchers.look(name))
    assert [*both] == [[Change("create", "file")], []]
    await sandbox.watchers.remove(name)
    for attempt in (sandbox.watchers.look(name), sandbox.watchers.remove(name)):
        with pytest.raises(ProcessNotFound):
            await attempt
    assert await sandbox.watchers.add("", recursive=True) != name


async def test_a_client_is_told_what_changes(sandbox: Sandbox, place: Path) -> None:
    (place / "a").mkdir()
    async with aclosing(sandbox.watchers.stream("", recursive=True)) as looks:
        assert await anext(looks) == []
        (place / "a" / "b").touch()
        assert await anext(looks) == [Change("create", "a/b")]
        assert sandbox.idle_for() == 0


@pytest.mark.parametrize(
    ("path", "error"),
    [("absent", FileNotFound), ("file", InvalidRequest), ("../..", InvalidRequest), ("/etc", InvalidRequest)],
)
async def test_what_cannot_be_watched_is_refused(
    sandbox: Sandbox, place: Path, path: str, error: type[SessionError]
) -> None:
    (place / "file").touch()
    with pytest.raises(error):
        await sandbox.watchers.add(path, recursive=False)
    with pytest.raises(error):
        await anext(sandbox.watchers.stream(path, recursive=False))
    await fill(sandbox)


async def fill(sandbox: Sandbox) -> list[str]:
    """Watch as many directories as there may be."""
    names = [await sandbox.watchers.add("", recursive=False) for _ in range(WATCHERS_MAX)]
    with pytest.raises(QuotaExceeded):
        await sandbox.watchers.add("", recursive=False)
    with pytest.raises(QuotaExceeded):
        await anext(sandbox.watchers.stream("", recursive=False))
    return names


async def test_the_number_of_watchers_is_bounded_and_the_end_of_one_makes_room(sandbox: Sandbox) -> None:
    names = await fill(sandbox)
    await sandbox.watchers.remove(names[0])
    async with aclosing(sandbox.watchers.stream("", recursive=False)) as looks:
        await anext(looks)
        with pytest.raises(QuotaExceeded):
            await sandbox.watchers.add("", recursive=False)
    await sandbox.watchers.add("", recursive=False)


async def test_a_watcher_ends_with_its_sandbox(sandbox: Sandbox) -> None:
    name = await sandbox.watchers.add("", recursive=False)
    async with aclosing(sandbox.watchers.stream("", recursive=False)) as looks:
        await anext(looks)
        waiting = spawn(looks.asend(None), "look")
        await sandbox.close()
        with pytest.raises(ConnectionFailed):
            await waiting
    with pytest.raises(ProcessNotFound):
        await sandbox.watchers.look(name)


async def test_a_sandbox_ends_while_a_client_begins_to_watch(world: World, sandbox: Sandbox) -> None:
    adding = spawn(sandbox.watchers.add("", recursive=False), "watch")
    await until(lambda: sandbox.watchers.present)
    await sandbox.close()
    with pytest.raises(ConnectionFailed):
        await adding
    assert world.backend.workspaces == []


async def test_a_look_that_is_cut_off_ends_its_watcher(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await sandbox.watchers.add("", recursive=False)
    cut = spawn(sandbox.watchers.look(name), "look")
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.wait({cut})
    with pytest.raises(ConnectionFailed):
        await sandbox.watchers.look(name)
    with pytest.raises(ProcessNotFound):
        await sandbox.watchers.look(name)


@pytest.fixture
def only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may have one watcher at a time."""
    monkeypatch.setattr(watchers, "WATCHERS_MAX", 1)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\n",
        b"no json\n",
        b"[]\n",
        b'{"changes": 7}\n',
        b'{"changes": [7]}\n',
        b'{"changes": [["create"]]}\n',
        b'{"changes": [["steal", "a"]]}\n',
        b'{"changes": [["create", 7]]}\n',
        b'{"changes": []}',
        b'{"changes": [' + b",".join([b'["create", "a"]'] * 40_001) + b"]}\n",
        b"x" * (ANSWER_MAX + 1),
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda said: repr(said[:30]),
)
@pytest.mark.usefixtures("only_one")
async def test_a_sandbox_that_says_anything_else_is_not_believed(world: World, sandbox: Sandbox, said: bytes) -> None:
    for kernel in world.backend.alive:
        kernel.behaviour.tool = lambda _: said
    with pytest.raises(SessionError):
        await sandbox.watchers.add("", recursive=False)
    for kernel in world.backend.alive:
        kernel.behaviour.tool = lambda _: b'{}\n{"changes": []}\n'
    assert await sandbox.watchers.add("", recursive=False), "the one that failed takes no place"


@pytest.mark.usefixtures("only_one")
async def test_a_tree_that_grows_too_large_ends_its_watcher(world: World, sandbox: Sandbox) -> None:
    for kernel in world.backend.alive:
        kernel.behaviour.tool = lambda _: b'{}\n{"changes": []}\n{"error": "many"}\n'
    name = await sandbox.watchers.add("", recursive=False)
    with pytest.raises(QuotaExceeded, match="10000"):
        await sandbox.watchers.look(name)
    with pytest.raises(ProcessNotFound):
        await sandbox.watchers.look(name)
    assert await sandbox.watchers.add("", recursive=False), "the one that has ended takes no place"
