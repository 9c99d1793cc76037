"""Server-sent events: comments in pauses, so that no proxy drops a connection that waits for a long cell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kernel_gateway.http.keepalive import with_keepalive
from tests.gateways import Gateway
from tests.kernel_gateway.calls import SERVER_SENT, process_only


class Slow:
    """An execution with a number of events, each given by the test."""

    def __init__(self) -> None:
        self.number = 0
        self.events: asyncio.Queue[int | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while (event := await self.events.get()) is not None:
            self.number += 1
            yield {"event": event}


async def test_a_pause_is_seen_before_the_next_event_and_no_event_is_lost() -> None:
    execution = Slow()
    seen = with_keepalive(execution, 0.01)
    for number in (1, 2):
        assert await anext(seen) is None
        assert await anext(seen) is None
        execution.events.put_nowait(number)
        while (event := await anext(seen)) is None:
            pass
        assert (event, execution.number) == ({"event": number}, number)
    execution.events.put_nowait(None)
    assert [event async for event in seen if event is not None] == []


@pytest.mark.full
@process_only
def test_a_client_gets_a_comment_while_a_cell_is_silent(gateway: Gateway, session: str) -> None:
    with gateway.call(
        "POST",
        f"/v1/sessions/{session}/execute",
        headers={"Accept": SERVER_SENT},
        json={"code": "import time; time.sleep(16)", "timeout": 60},
        stream=True,
    ) as response:
        lines = list(response.iter_lines())
    assert lines.count(b":") == 1
    assert lines[-4].startswith(b"id: ")
