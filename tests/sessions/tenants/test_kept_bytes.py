"""What sessions keep of their cells is bounded for each tenant and in all, and counted as it is held."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from itertools import count
from typing import Any

import orjson
import pytest

from sessions.cells.packed import PackedOutputs, pack, unpack
from sessions.cells.transcript import Transcript
from sessions.model.bounded_json import CONTAINERS_MAX
from sessions.model.errors import OutcomeUnknown
from sessions.session.session import Session
from sessions.tenants.kept_bytes import KeptBytes
from tests.fakes import Saying, World, busy, exported, idle, run, started, stream

MIB = 1024**2


class Shelf:
    """A collection of a tenant that keeps values of some bytes, and may drop all but the last one."""

    def __init__(self, kept: KeptBytes, tenant: str) -> None:
        self.values: deque[int] = deque()
        self.share = kept.share(tenant, self.drop_oldest)

    def put(self, size: int) -> None:
        self.values.append(size)
        self.share.grow(size)

    def drop_oldest(self) -> bool:
        if len(self.values) < 2:
            return False
        self.share.grow(-self.values.popleft())
        return True


def test_within_the_bounds_nothing_is_dropped() -> None:
    kept = KeptBytes(10, 20)
    shelves = [Shelf(kept, tenant) for tenant in ("acme", "acme", "other")]
    for shelf in shelves:
        shelf.put(2)
        shelf.put(3)
    assert [sum(shelf.values) for shelf in shelves] == [5, 5, 5]
    assert kept.size == 15


def test_a_tenant_loses_the_oldest_of_its_largest_session_and_others_lose_nothing() -> None:
    kept = KeptBytes(10, 100)
    large, small, other = Shelf(kept, "acme"), Shelf(kept, "acme"), Shelf(kept, "other")
    other.put(4)
    other.put(5)
    for size in (3, 4, 1):
        large.put(size)
    small.put(1)
    small.put(2)
    assert (list(large.values), list(small.values), list(other.values)) == ([4, 1], [1, 2], [4, 5])


def test_in_all_the_tenant_loses_that_keeps_most() -> None:
    kept = KeptBytes(100, 20)
    flood, quiet = Shelf(kept, "flood"), Shelf(kept, "quiet")
    quiet.put(1)
    quiet.put(2)
    for _ in range(10):
        flood.put(5)
    assert list(quiet.values) == [1, 2]
    assert kept.size <= 20
    quiet.put(3)
    assert list(quiet.values) == [1, 2, 3]


def test_what_cannot_be_dropped_is_kept_above_the_bounds() -> None:
    kept = KeptBytes(10, 10)
    shelf = Shelf(kept, "acme")
    shelf.put(50)
    assert list(shelf.values) == [50]


def test_a_closed_share_counts_no_more() -> None:
    kept = KeptBytes(10, 10)
    shelf = Shelf(kept, "acme")
    shelf.put(5)
    shelf.share.close()
    shelf.share.close()
    shelf.put(5)
    assert kept.size == 0
    assert not kept._tenants
    assert not kept._sizes


# -- transcripts -----------------------------------------------------------------------------------------------


def floats(number: int) -> Saying:
    return shown([each % 10 + 0.5 for each in range(number)])


def shown(value: Any) -> Saying:
    return Saying("display_data", {"data": {"application/json": value}, "metadata": {}})


def record(transcript: Transcript, cell: str, *sayings: Saying) -> None:
    for saying in sayings:
        transcript.record(saying.to(cell))


def test_the_bytes_of_a_cell_are_its_memory_whatever_its_outputs_are() -> None:
    transcript = Transcript(100 * MIB)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    entry = transcript.open("1", "code")
    for _ in range(5):
        record(transcript, "1", busy(), floats(200_000), idle())
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = entry.size
    assert counted > 3 * MIB
    assert grown < counted * 1.2


def test_small_texts_that_are_kept_take_little_more_than_their_text() -> None:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [pack({"n": number}) for number in range(1000)]
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert orjson.loads(kept[7]) == {"n": 7}
    assert grown < 1000 * 100


def test_packed_outputs_are_those_that_were_added() -> None:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": "stdout", "text": ["a"]},
        {"output_type": "display_data", "display_id": "id", "data": {"text/plain": "x"}},
        {"output_type": "stream", "name": "stderr", "text": ["b", "c"]},
    ]
    packed = PackedOutputs(outputs)
    copied = packed.copy()
    last = packed.last()
    assert last is not None
    last["text"].append("later")
    packed.replace("id", [1], {"data": {"text/plain": "new"}})
    assert list(copied) == [*outputs[:2], outputs[2] | {"text": ["b", "c"]}]
    assert [output.get("data") for output in packed] == [None, {"text/plain": "new"}, None]
    packed.close()
    assert (len(packed), packed.last()) == (3, None)
    assert list(packed)[2]["text"] == ["b", "c", "later"]


@pytest.mark.parametrize("value", [2**70, [-(10**400), 1e300], {"n": 2**63}, [{}] * (CONTAINERS_MAX - 4)])
def test_what_a_kernel_may_send_comes_out_of_what_is_kept_as_it_was(value: Any) -> None:
    transcript = Transcript(100 * MIB)
    transcript.open("1", "code")
    event = transcript.record(shown(value).to("1"))
    assert event
    assert unpack(pack(event)) == event
    assert list(transcript.cells()[0].outputs) == [event["output"]]
    packed = PackedOutputs([{"output_type": "display_data", "display_id": "id", "data": {}, "metadata": {}}])
    packed.replace("id", [0], {"data": {"application/json": value}, "metadata": {}})
    assert [output["data"]["application/json"] for output in packed] == [value]


def sources(transcript: Transcript) -> list[str]:
    return [cell["source"] for cell in exported(transcript)["cells"] if cell["cell_type"] == "code"]


def test_all_sessions_of_a_tenant_share_its_bytes() -> None:
    kept = KeptBytes(100_000, 1_000_000)
    one, two = (Transcript(MIB, kept=kept, tenant="acme") for _ in range(2))
    other = Transcript(MIB, kept=kept, tenant="other")
    names = count(1)
    for transcript in (other, one, one, one, two, two):
        cell = f"cell {next(names)}"
        transcript.open(cell, cell)
        record(transcript, cell, busy(), started(cell), stream("x" * 25_000), idle())
    assert sources(other) == ["cell 1"]
    assert sources(one) == ["cell 3", "cell 4"] or sources(one) == ["cell 4"]
    assert sources(two)[-1] == "cell 6"
    other.close()
    assert kept.size <= 100_000


def test_a_cell_that_runs_is_never_dropped() -> None:
    kept = KeptBytes(50_000, 50_000)
    running, other = (Transcript(MIB, kept=kept, tenant="acme") for _ in range(2))
    running.open("running", "running")
    record(running, "running", busy(), stream("x" * 40_000))
    other.open("ended", "ended")
    record(other, "ended", busy(), stream("x" * 40_000), idle())
    assert (sources(running), sources(other)) == (["running"], [])
    record(running, "running", idle())
    other.open("next", "next")
    record(other, "next", busy(), stream("x" * 40_000))
    assert (sources(running), sources(other)) == ([], ["next"])


def test_the_cells_of_a_kernel_that_is_gone_can_be_dropped() -> None:
    kept = KeptBytes(50_000, 50_000)
    gone, other = (Transcript(MIB, kept=kept, tenant="acme") for _ in range(2))
    gone.open("1", "gone")
    record(gone, "1", busy(), stream("x" * 40_000))
    gone.end_all()
    other.open("2", "other")
    record(other, "2", busy(), stream("x" * 40_000))
    assert (sources(gone), sources(other)) == ([], ["other"])


# -- retries ---------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(world: World) -> KeptBytes:
    return world.services.kept


async def test_results_that_are_kept_for_retries_count_and_go_with_their_session(
    kept: KeptBytes, session: Session
) -> None:
    await run(session, "print('x' * 10_000)", idempotency_key="a")
    assert kept.size > 30_000  # of the transcript, outputs and events
    await session.close()
    assert kept.size == 0


async def test_a_retry_whose_result_had_to_go_is_told_so_and_runs_nothing(world: World, kept: KeptBytes) -> None:
    one = await world.session("one")
    first = await run(one, "print('much')", idempotency_key="a")
    again = await run(one, "print('much')", idempotency_key="a")
    assert (again.replayed, again.outputs) == (True, first.outputs)  # the control
    kept._per_tenant = 1
    await run(one, "print('more')", idempotency_key="b")
    executed = len(world.backend.kernel.executed)
    with pytest.raises(OutcomeUnknown):
        await run(one, "print('much')", idempotency_key="a")
    assert len(world.backend.kernel.executed) == executed
