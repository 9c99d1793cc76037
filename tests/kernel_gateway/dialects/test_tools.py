"""Code calls functions of its WebSocket's client, on a real gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessions.tools.calls import ANSWER_BYTES_MAX, CALLS_MAX, WAITING_MAX
from tests.gateways import Gateway
from tests.kernel_gateway.calls import SHARED
from tests.kernel_gateway.sockets import Event, Socket, connected

PAGE = Path(__file__).parents[3] / "docs/api.md"
SEARCH = {
    "name": "search",
    "description": "Find rows.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
}


async def _answered(socket: Socket, code: str, answer: Callable[[Event], dict[str, Any]], **fields: Any) -> list[Event]:
    """Run a cell with the tool `search`, answer each of its calls, and return its events."""
    await socket.send(code=code, tools=[SEARCH], **fields)
    events = [await socket.event()]
    while events[-1]["type"] != "result":
        if events[-1]["type"] == "tool_call":
            await socket.send(tool_call=events[-1]["call"], **answer(events[-1]))
        events.append(await socket.event())
    return events


def _echo(event: Event) -> dict[str, Any]:
    return {"value": event["arguments"]}


def _shown(events: list[Event]) -> str:
    return "".join(event["output"].get("text", "") for event in events if event["type"] == "output")


async def test_an_answer_is_the_value_of_the_call(gateway: Gateway) -> None:
    code = "from tools import search\nprint(search.__doc__, search('tea', limit=2), search(query='ä')['query'])"
    async with connected(gateway, SHARED) as socket:
        events = await _answered(socket, code, _echo, id="one")
    calls = [event for event in events if event["type"] == "tool_call"]
    assert [(call["name"], call["arguments"], call["id"]) for call in calls] == [
        ("search", {"query": "tea", "limit": 2}, "one"),
        ("search", {"query": "ä"}, "one"),
    ]
    assert _shown(events) == "Find rows. {'query': 'tea', 'limit': 2} ä\n"
    assert events[-1]["status"] == "ok"


async def test_the_example_of_the_page_works(gateway: Gateway) -> None:
    example = re.search(
        r"^client +(\{.*?)^gateway  (\{.*?)^client +(\{.*?)^ +or  (\{.*?)^```",
        PAGE.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert example is not None
    cell, call, value, error = map(json.loads, example.groups())
    async with connected(gateway, SHARED) as socket:
        for answer in value, error:
            await socket.send(**cell)
            while (told := await socket.event())["type"] != "tool_call":
                pass
            assert {name: told[name] for name in ("name", "arguments")} == {
                "name": call["name"],
                "arguments": call["arguments"],
            }
            await socket.send(**answer | {"tool_call": told["call"]})
            while (told := await socket.event())["type"] != "result":
                pass
            assert told["status"] == ("ok" if answer is value else "error")


@pytest.mark.parametrize(
    ("name", "caught"), [("ValueError", "ValueError: no rows"), ("NoIndex", "ToolError: NoIndex: no rows")]
)
async def test_the_exception_of_a_tool_is_one_in_the_cell(gateway: Gateway, name: str, caught: str) -> None:
    call = "import tools\ntry:\n    tools.search('x')\n"
    code = call + "except Exception as error:\n    print(f'{type(error).__name__}: {error}')"
    async with connected(gateway, SHARED) as socket:
        events = await _answered(socket, code, lambda _: {"error": {"name": name, "text": "no rows"}})
    assert _shown(events) == f"{caught}\n"


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nrows = await asyncio.gather(*(search.aio(str(n)) for n in range(8)))",
        """from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool: rows = list(pool.map(lambda n: search(str(n)), range(8)))""",
    ],
    ids=["await", "threads"],
)
async def test_many_calls_wait_at_once_and_each_gets_its_own_answer(gateway: Gateway, code: str) -> None:
    async with connected(gateway, SHARED) as socket:
        await socket.send(
            code=f"from tools import search\n{code}\nprint([row['query'] for row in rows])", tools=[SEARCH]
        )
        calls = [(await socket.until("tool_call"))[-1] for _ in range(8)]  # none is answered before all are there
        for call in reversed(calls):
            await socket.send(tool_call=call["call"], value=call["arguments"])
        events = await socket.until("result")
    assert _shown(events) == f"{[str(n) for n in range(8)]}\n"


async def test_an_interrupt_and_the_deadline_end_a_call_that_has_no_answer(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        for code in ("search('x')", "await search.aio('x')"):
            await socket.send(code=f"from tools import search\n{code}", tools=[SEARCH])
            await socket.until("tool_call")
            await socket.send(interrupt=True)
            assert (await socket.until("result"))[-1]["status"] == "interrupted"
        await socket.send(code="from tools import search\nsearch('x')", tools=[SEARCH], timeout=1)
        assert (await socket.until("result"))[-1]["status"] == "timeout"
        assert await socket.text("print('alive')") == "alive\n"


async def test_a_call_ends_with_an_error_when_its_client_leaves(gateway: Gateway, session: str) -> None:
    code = (
        "from tools import search\ntry:\n    search('x')\nexcept Exception as error:\n    first = str(error)\n"
        "try:\n    search('y')\nexcept Exception as error:\n    second = str(error)"
    )
    async with connected(gateway, session) as socket:
        await socket.send(code=code, tools=[SEARCH])
        await socket.until("tool_call")
    async with connected(gateway, session) as socket:
        assert await socket.text("print(first == second, first)") == (
            "True the client that has handed over the tools has left\n"
        )


async def test_a_call_after_its_cell_is_refused(gateway: Gateway) -> None:
    async with connected(gateway, SHARED) as socket:
        await _answered(socket, "from tools import search\nsearch('x')", _echo)
        events = await socket.run("search('x')")
        assert "only while a cell runs whose client has handed over tools" in str(events[-1]["error"] or events)
        assert not [event for event in events if event["type"] == "tool_call"]
        # A thread that outlives its cell: its waiting call ends with the cell.
        code = (
            "import threading, time\nfrom tools import search\nends = []\ndef late():\n    try:\n        search('x')\n"
            "    except Exception as error:\n        ends.append(str(error))\n"
            "thread = threading.Thread(target=late)\nthread.start()\ntime.sleep(0.5)"
        )
        await socket.send(code=code, tools=[SEARCH])
        call = (await socket.until("tool_call"))[-1]
        await socket.until("result")
        assert await socket.text("thread.join(); print(ends)") == (
            "['the cell has ended before the tool\\'s answer']\n".replace("'the", '"the')
            .replace("answer'", 'answer"')
            .replace("\\'", "'")
        )
        await socket.send(tool_call=call["call"], value=1)
        assert (await socket.until("error"))[-1]["error"]["code"] == "SB002"


#: lines that publish a call as the module `tools` does, without its checks
FORGE = (
    "kernel = get_ipython().kernel\n"
    "def forge(content, parent=None):\n"
    "    kernel.session.send(kernel.iopub_socket, 'tool_call', content, parent or kernel.get_parent('shell'))\n"
)


async def test_a_cell_that_calls_without_end_is_stopped(gateway: Gateway, session: str) -> None:
    code = FORGE + "for n in range(1_000_000): forge({'call': str(n), 'name': 'none', 'arguments': {}})"
    async with connected(gateway, session) as socket:
        events = await _answered(socket, code, _echo)
        assert events[-1]["error"]["code"] == "SB030" or "more than" in events[-1]["error"]["message"]
        assert str(CALLS_MAX) in events[-1]["error"]["message"]
        assert await socket.text("print('alive')") == "alive\n"


async def test_calls_beyond_the_bounds_are_refused_and_told_so(gateway: Gateway) -> None:
    code = f"""
import asyncio
from tools import search
async def one(n):
    try:
        return await search.aio(str(n))
    except Exception as error:
        print(error)
await asyncio.gather(*(one(n) for n in range({WAITING_MAX + 1})))
"""
    async with connected(gateway, SHARED) as socket:
        await socket.send(code=code, tools=[SEARCH])
        calls = [(await socket.until("tool_call"))[-1] for _ in range(WAITING_MAX)]
        refused = await socket.until("output")  # only then are calls answered: an answer makes room for the last call
        assert f"{WAITING_MAX} calls of this cell already wait for their answers" in _shown(refused)
        for call in calls:
            await socket.send(tool_call=call["call"], value=1)
        assert (await socket.until("result"))[-1]["status"] == "ok"
        huge = "import tools\ntry:\n    tools.search('x' * 100_000_000)\nexcept Exception as error:\n    print(error)"
        assert "more than 1048576" in _shown(await _answered(socket, huge, _echo))


async def test_a_forged_call_with_large_arguments_is_refused(gateway: Gateway) -> None:
    code = FORGE + (
        "from tools import search\nforge({'call': 'a', 'name': 'search', 'arguments': {'query': 'x' * 2_000_000}})\n"
        "print(search('small')['query'])"
    )
    async with connected(gateway, SHARED) as socket:
        events = await _answered(socket, code, _echo)
    assert [event["arguments"] for event in events if event["type"] == "tool_call"] == [{"query": "small"}]
    assert _shown(events) == "small\n"


async def test_an_answer_that_is_too_large_is_an_error_on_both_sides(gateway: Gateway) -> None:
    code = "from tools import search\ntry:\n    search('x')\nexcept Exception as error:\n    print(error)"
    async with connected(gateway, SHARED) as socket:
        await socket.send(code=code, tools=[SEARCH])
        call = (await socket.until("tool_call"))[-1]
        await socket.send(tool_call=call["call"], value="x" * ANSWER_BYTES_MAX)
        events = await socket.until("result")
    assert [event["error"]["code"] for event in events if event["type"] == "error"] == ["SB002"]
    assert f"the answer has more than {ANSWER_BYTES_MAX} bytes" in _shown(events)


async def test_only_the_client_that_was_told_of_a_call_can_answer_it(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket, connected(gateway, SHARED) as other:
        await socket.send(code="from tools import search\nprint(search('x'))", tools=[SEARCH])
        call = (await socket.until("tool_call"))[-1]
        await other.send(code="import time; time.sleep(30)")
        await other.until("started")
        for stranger, known in ((other, call["call"]), (socket, "1")):  # another session's call, and a guess
            await stranger.send(tool_call=known, value="forged")
            assert (await stranger.until("error"))[-1]["error"]["code"] == "SB002"
        await socket.send(tool_call=call["call"], value="true")
        assert _shown(await socket.until("result")) == "true\n"
        await other.send(interrupt=True)
        await other.until("result")


async def test_a_call_that_waits_is_told_again_to_a_client_that_returns(gateway: Gateway, session: str) -> None:
    cell = {
        "code": "from tools import search\nprint(search('a'), search('b'))",
        "idempotency_key": "k",
        "tools": [SEARCH],
    }
    async with connected(gateway, session) as socket:
        await socket.send(**cell)
        first = (await socket.until("tool_call"))[-1]
        await socket.send(tool_call=first["call"], value=1)
        second = (await socket.until("tool_call"))[-1]
    async with connected(gateway, session) as socket:
        await socket.send(**cell)
        events = await socket.until("tool_call")
        assert [event["call"] for event in events if event["type"] == "tool_call"] == [second["call"]]
        await socket.send(tool_call=second["call"], value=2)
        assert _shown(await socket.until("result")) == "1 2\n"


async def test_a_cell_without_tools_imports_the_users_own_module(gateway: Gateway, session: str) -> None:
    async with connected(gateway, session) as socket:
        await socket.run("open('tools.py', 'w').write('mine = 1')")
        await _answered(socket, "from tools import search\nsearch('x')", _echo)
        assert await socket.text("import tools; print(tools.mine)") == "1\n"
