"""Downloads: how long the gateway waits for a client that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kernel_gateway.http import transfers
from kernel_gateway.http.transfers import send_file, send_headers
from sessions.guest.reading import OpenFile


class StuckClient:
    """A request whose client takes some pieces of the answer, and reads no more."""

    def __init__(self, reads: int) -> None:
        self.reads = reads
        self.http = SimpleNamespace(close=Mock())
        self.set_header = Mock()
        self.write = Mock()

    async def flush(self) -> None:
        if self.reads == 0:
            await asyncio.Event().wait()
        self.reads -= 1


@pytest.mark.parametrize(("reads", "closes"), [(0, True), (3, True), (4, False)])
async def test_a_download_ends_when_its_client_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
    reads: int,
    closes: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(transfers, "STALL_TIMEOUT", 0.05)
    client: Any = StuckClient(reads)

    async def content() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"piece"

    await send_file(client, OpenFile(15, 1.5, "a-1", 0, 15, content(), partial=False), "dir/name")
    assert client.http.close.called is closes


@pytest.mark.parametrize(("modified", "sent"), [(-(10**12), False), (-1, True), (253402300799, True), (10**12, False)])
async def test_a_time_that_no_header_can_hold_is_left_out(modified: float, sent: bool) -> None:  # noqa: FBT001
    client: Any = StuckClient(1)

    async def content() -> AsyncIterator[bytes]:
        yield b"piece"

    await send_headers(client, OpenFile(5, modified, "a-1", 0, 5, content(), partial=False), "name", 5)
    assert ("Last-Modified" in {call.args[0] for call in client.set_header.call_args_list}) is sent
