"""Functions of a program that cells call through the client library, on real gateways."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from kernel_gateway.client import AsyncSession, GatewayError, Session
from kernel_gateway.client.tools import Calls, Tools
from kernel_gateway.client.transport import BlockingTransport
from sessions.tools.calls import ANSWER_BYTES_MAX
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until
from tests.kernel_gateway.client.cutting import cutter

PAGE = Path(__file__).parents[3] / "docs/clients/python.md"


Make = Callable[..., Session]


@pytest.fixture
def with_tools(gateway: Gateway, session: str) -> Iterator[Make]:
    """Return a function that makes a session with tools."""
    made: list[Session] = []

    def make(*tools: Callable[..., Any]) -> Session:
        made.append(Session(gateway.url, KEYS["alice"], session, tools=tools))
        return made[-1]

    yield make
    for each in made:
        each.close()


def search(query: str, limit: int = 10) -> list[str]:
    """Find rows."""
    return [f"{query} {number}" for number in range(limit)]


async def fetch(url: str) -> dict[str, str]:
    """Get a page."""
    await asyncio.sleep(0)
    return {"url": url}


def test_a_function_is_described_by_its_signature() -> None:
    def find(
        words: list[str],
        kind: Literal["a", "b"],
        limit: Annotated[int, "most rows"] = 10,
        filters: dict[str, float | None] | None = None,
        price: Decimal = Decimal(0),
        **more: bool,
    ) -> None:
        """Find rows.

        Slowly.
        """

    [described] = Tools([find]).described
    assert described == {
        "name": "find",
        "description": "Find rows.\n\nSlowly.",
        "parameters": {
            "type": "object",
            "properties": {
                "words": {"type": "array", "items": {"type": "string"}},
                "kind": {"enum": ["a", "b"]},
                "limit": {"type": "integer", "description": "most rows"},
                "filters": {
                    "anyOf": [
                        {
                            "type": "object",
                            "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                        },
                        {"type": "null"},
                    ]
                },
                "price": {},
            },
            "required": ["words", "kind"],
            "additionalProperties": True,
        },
    }


@pytest.mark.parametrize(
    ("tools", "error", "says"),
    [
        ([lambda x: x], TypeError, "use `def`"),
        ([partial(search, "tea")], TypeError, "use `def`"),
        ([print], TypeError, "has no name"),
        ([search, search], ValueError, "a name of its own"),
    ],
)
def test_a_function_that_cells_could_not_call_is_refused_at_once(
    tools: list[Callable[..., Any]], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Session("http://127.0.0.1:1", "key", "none", tools=tools)


def test_the_example_of_the_page_works_when_pasted(gateway: Gateway) -> None:
    class Database:
        def find(self, query: str, limit: int) -> list[str]:
            return search(query, limit)

    [example] = re.findall(r"```text\n(def search.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"database": Database(), "url": gateway.url, "key": KEYS["alice"], "Session": Session}
    exec(example, names)  # noqa: S102 - the example is what is tested
    with Session(gateway.url, KEYS["alice"], "demo") as s:
        assert s.run("rows").value == ["tea 0", "tea 1"]
        s.end()


def test_code_gets_the_values_of_functions(with_tools: Make) -> None:
    s = with_tools(search, fetch)
    code = "from tools import search, fetch\nprint(search.__doc__); search('tea', limit=2), fetch('x')"
    result = s.run(code).check()
    assert (result.value, result.text.splitlines()[0]) == ((["tea 0", "tea 1"], {"url": "x"}), "Find rows.")
    assert [event.type for event in s.stream(code)].count("tool_call") == 0, "the library itself answers"


async def test_code_gets_the_values_of_functions_in_an_event_loop(gateway: Gateway, session: str) -> None:
    loop, where = asyncio.get_running_loop(), []

    def place() -> None:
        where.append(threading.current_thread() is threading.main_thread())

    async def aplace() -> None:
        where.append(asyncio.get_running_loop() is loop)

    async with AsyncSession(gateway.url, KEYS["alice"], session, tools=[search, place, aplace]) as s:
        assert (await s.run("from tools import *\nplace(); aplace(); search('a', 1)")).value == ["a 0"]
    assert where == [False, True]


def test_the_exception_of_a_function_is_one_in_the_cell(with_tools: Make) -> None:
    def fails(text: str) -> None:
        raise ValueError(text)

    s = with_tools(fails, search)
    assert s.run("import tools; tools.fails('no rows')").error_text == "ValueError: no rows"
    missing = s.run("import tools; tools.search()").error_text
    assert missing is not None
    assert missing.startswith("TypeError: search() missing 1 required positional argument: 'query'")
    assert s.run("1").value == 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "TypeError: the tool's value is no JSON"),
        (float("nan"), "TypeError: the tool's value is no JSON"),
        ("\ud800", "TypeError: the tool's value is no JSON"),
        ("x" * (ANSWER_BYTES_MAX + 1), "ToolError: the answer has more than"),
        (json.loads("[" * 600 + "]" * 600), "ToolError: the answer has more than"),
        ([[]] * 200_000, "ToolError: GatewayError: SB"),
    ],
    ids=["object", "nan", "no text", "too large", "too deep", "too many values"],
)
def test_a_value_that_cannot_be_sent_is_an_exception_in_the_cell(with_tools: Make, value: object, says: str) -> None:
    def give() -> object:
        return value

    error = with_tools(give).run("import tools; tools.give()", timeout=20).error_text
    assert error is not None
    assert says in error


SIDE_BY_SIDE = """
import asyncio
from tools import meet
print(await asyncio.gather(*(meet.aio(n) for n in range(8))))
"""


def test_functions_run_side_by_side(with_tools: Make) -> None:
    all_there = threading.Barrier(8)

    def meet(number: int) -> int:
        all_there.wait(20)
        return number

    assert with_tools(meet).run(SIDE_BY_SIDE).check().text == f"{[*range(8)]}\n"


async def test_functions_run_side_by_side_in_an_event_loop(gateway: Gateway, session: str) -> None:
    all_there = asyncio.Barrier(8)

    async def meet(number: int) -> int:
        await asyncio.wait_for(all_there.wait(), 20)
        return number

    async with AsyncSession(gateway.url, KEYS["alice"], session, tools=[meet]) as s:
        assert (await s.run(SIDE_BY_SIDE)).check().text == f"{[*range(8)]}\n"


@pytest.mark.parametrize("how", ["interrupt", "deadline"])
def test_a_call_ends_with_its_cell(gateway: Gateway, with_tools: Make, how: str) -> None:
    called, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        called.set()
        goes_on.wait(60)

    s = with_tools(hang)
    if how == "interrupt":

        def interrupt() -> None:
            called.wait(30)
            gateway.call("POST", f"/v1/sessions/{s.name}/interrupt")

        threading.Thread(target=interrupt).start()
    result = s.run("import tools; tools.hang()", timeout=2 if how == "deadline" else 60)
    goes_on.set()
    assert result.status == {"interrupt": "interrupted", "deadline": "timeout"}[how]
    assert s.run("1").value == 1


async def test_a_client_that_leaves_ends_its_functions_and_its_cell(gateway: Gateway, session: str) -> None:
    ends: list[str] = []
    called = asyncio.Event()

    async def hang() -> None:
        called.set()
        try:
            await asyncio.sleep(60)
        finally:
            ends.append("cancelled")

    code = "import tools\ntry:\n    tools.hang()\nexcept BaseException as error:\n    end = type(error).__name__"
    async with AsyncSession(gateway.url, KEYS["alice"], session, tools=[hang]) as s:
        running = asyncio.ensure_future(s.run(code))  # noqa: TID251 - a test awaits it
        await called.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert (await s.run("end")).value == "KeyboardInterrupt"
    assert ends == ["cancelled"]


async def test_a_cell_with_tools_that_waits_for_its_turn_is_cancelled(gateway: Gateway, session: str) -> None:
    async with (
        AsyncSession(gateway.url, KEYS["alice"], session, tools=[fetch]) as first,
        AsyncSession(gateway.url, KEYS["alice"], session, tools=[fetch]) as second,
    ):
        running = asyncio.ensure_future(first.run("import time; time.sleep(60)", timeout=90))  # noqa: TID251 - awaited
        await asyncio.to_thread(until, lambda: _statuses(gateway, session) == ["running"])
        waiting = asyncio.ensure_future(second.run("ran = 1"))  # noqa: TID251 - as above
        await asyncio.to_thread(until, lambda: _statuses(gateway, session) == ["queued", "running"])
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await first.interrupt()
        assert (await running).status == "interrupted"
        assert (await second.run("ran")).error_text == "NameError: name 'ran' is not defined"


def _statuses(gateway: Gateway, session: str) -> list[str]:
    answer = gateway.call("GET", f"/v1/sessions/{session}/executions").json()
    return [each["status"] for each in answer.get("executions", [])]


@pytest.mark.parametrize(
    "cuts",
    [[b"event: tool_call"], [b"event: result"], [b"204 No Content"], [b"event: tool_call", b"204 No Content"]],
    ids=["before-the-call", "after-the-calls", "at-the-answer", "at-both"],
)
def test_a_function_runs_once_for_each_call_whatever_breaks_off(
    gateway: Gateway, session: str, cuts: list[bytes]
) -> None:
    ran: list[int] = []

    def note(number: int) -> int:
        ran.append(number)
        return number

    with cutter(gateway) as way, Session(way.url, KEYS["alice"], session, tools=[note]) as s:
        s.run("from tools import note")
        way.cuts += cuts
        assert s.run("from tools import note\nprint(note(1), note(2))").text == "1 2\n"
        assert way.cuts == [], "control: the connection was cut"
    assert ran == [1, 2]


def test_an_event_that_comes_again_begins_no_second_run() -> None:
    ran: list[str] = []
    answers: list[dict[str, Any]] = []

    async def post(_what: str, answer: dict[str, Any]) -> None:
        answers.append(answer)

    def note(text: str) -> None:
        ran.append(text)

    calls = Calls(Tools([note]), BlockingTransport("http://127.0.0.1:1", "", verify=True), post)
    for _ in range(2):
        calls.begin({"call": "c1", "name": "note", "arguments": {"text": "a"}})
    until(lambda: answers)
    assert (ran, answers) == (["a"], [{"tool_call": "c1", "value": None}])


def test_a_session_of_another_language_says_that_it_has_no_tools(gateway: Gateway, with_tools: Make) -> None:
    s = with_tools(search)
    s.create(language="bash")
    with pytest.raises(GatewayError, match="languages that can: python"):
        s.run("echo 1")


@pytest.mark.engine
def test_code_in_a_sandbox_gets_the_values_of_functions(started: Callable[[str], Gateway], session: str) -> None:
    def fails() -> None:
        raise KeyError("none")

    with Session(started("docker").url, KEYS["alice"], session, tools=[search, fails]) as s:
        assert s.run("from tools import search\nsearch('tea', limit=2)").check().value == ["tea 0", "tea 1"]
        assert s.run("import tools; tools.fails()").error_text == "KeyError: \"'none'\""
        s.end()
