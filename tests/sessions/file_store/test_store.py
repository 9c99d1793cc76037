"""Stored files: whole or absent, of their owner alone, within the tenant's share, and for a limited time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sessions.file_store.store import LEAST, FileStore, Place, StoredFile
from sessions.model.errors import FileNotFound, QuotaExceeded
from sessions.tenants.budget import Budget
from tests.fakes import Clock

ADA = Place("acme", "ada", "batch")
KEPT = 100.0


class Broken(Exception):
    """What a client that leaves raises."""


async def pieces(*content: bytes, broken: bool = False) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
    if broken:
        raise Broken


def opened(directory: Path, clock: Clock, budget: Budget | None = None) -> FileStore:
    return FileStore(directory, budget or Budget(), KEPT, clock)


async def content(store: FileStore, file: StoredFile) -> bytes:
    return b"".join([piece async for piece in store.read(file)])


def on_disk(directory: Path) -> set[str]:
    return {path.name for path in (directory / "files").iterdir()}


async def test_a_file_outlives_the_gateway_and_what_was_half_written_does_not(tmp_path: Path) -> None:
    clock = Clock()
    store = opened(tmp_path, clock)
    kept = await store.write(ADA, "a/b.txt", pieces(b"ab", b"c"))
    lost = await store.write(ADA, "c", pieces(b"c"))
    store.close()
    (tmp_path / "files" / lost.id).unlink()
    (tmp_path / "files" / "half").write_bytes(b"x")
    budget = Budget()
    again = opened(tmp_path, clock, budget)
    assert again.of(ADA) == [kept]
    assert await content(again, again.find(ADA, kept.id)) == b"abc"
    assert on_disk(tmp_path) == {kept.id}
    assert budget.by_tenant() == {"acme": LEAST}
    again.close()


@pytest.mark.parametrize(
    "other", [Place("evil", "ada", "batch"), Place("acme", "eve", "batch"), Place("acme", "ada", "b")]
)
async def test_a_file_is_found_only_in_its_place(tmp_path: Path, other: Place) -> None:
    store = opened(tmp_path, Clock())
    file = await store.write(ADA, "a", pieces(b"x"))
    assert store.find(ADA, file.id) == file, "control"
    with pytest.raises(FileNotFound):
        store.find(other, file.id)
    assert store.of(other) == []
    store.close()


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    budget = Budget(3 * LEAST, 0.5)
    store = opened(tmp_path, Clock(), budget)
    with pytest.raises(Broken):
        await store.write(ADA, "a", pieces(b"x", broken=True))
    with pytest.raises(QuotaExceeded):
        await store.write(ADA, "a", pieces(bytes(LEAST), bytes(LEAST)))
    assert (on_disk(tmp_path), budget.used, store.of(ADA)) == (set(), 0, [])
    store.close()


async def test_a_tenant_that_takes_all_it_can_leaves_room_for_others(tmp_path: Path) -> None:
    store = opened(tmp_path, Clock(), Budget(8 * LEAST, 0.5))
    for _ in range(4):
        await store.write(ADA, "a", pieces())
    with pytest.raises(QuotaExceeded):
        await store.write(ADA, "a", pieces())
    other = await store.write(Place("other", "ada", "b"), "a", pieces(b"x"))
    store.delete(store.of(ADA)[0])
    store.delete(other)
    store.delete(other)
    await store.write(ADA, "a", pieces())
    assert store.delete_all("acme") == 4
    assert (on_disk(tmp_path), store.by_tenant()) == (set(), {})
    store.close()


async def test_a_file_whose_time_is_over_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    store = opened(tmp_path, clock)
    file = await store.write(ADA, "a", pieces(b"x"))
    clock.passes(KEPT)
    with pytest.raises(FileNotFound):
        store.find(ADA, file.id)
    young = await store.write(ADA, "b", pieces(b"y"))
    store.expire()
    assert (on_disk(tmp_path), store.of(ADA)) == ({young.id}, [young])
    store.close()
