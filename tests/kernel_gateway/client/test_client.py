"""The client library, against real gateways; each call is written once, so most tests take the blocking form."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import secrets
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from kernel_gateway.client import AsyncSession, CellFailed, ClientError, GatewayError, Session, Unreachable
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import HANGS, exists, until
from tests.kernel_gateway.client.cutting import cutter

PAGE = Path(__file__).parents[3] / "docs/clients/python.md"
SERVER = {"tornado", "docker", "structlog", "pydantic", "zmq", "jupyter_client", "sessions", "kernel_gateway.config"}


def test_the_library_loads_nothing_of_the_server() -> None:
    code = "import sys, kernel_gateway.client; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in loaded, "control"
    assert not SERVER & {*loaded}


# -- results ---------------------------------------------------------------------------------------------------


def test_variables_stay_from_cell_to_cell(s: Session) -> None:
    assert s.run("x = 40 + 2").state == "new"
    result = s.run("print('hi'); x")
    assert (result.ok, result.state, result.text, result.value) == (True, "preserved", "hi\n42\n", 42)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("{'a': [1, 2.5, None]}", {"a": [1, 2.5, None]}),
        ("'text'", "text"),
        ("object", "object"),
        ("1;", None),
    ],
)
def test_the_value_of_a_cell_is_that_of_its_last_expression(s: Session, code: str, value: object) -> None:
    assert s.run(code).value == value


def test_the_value_of_main_is_the_value(s: Session) -> None:
    assert s.run("def main(a, b): return {'sum': a + b}", arguments={"a": 2**70, "b": 1}).value == {"sum": 2**70 + 1}


def test_pictures_and_tables_are_taken_from_the_outputs(s: Session) -> None:
    result = s.run(
        "import pandas as pd, matplotlib.pyplot as plt; plt.plot([1, 3, 2]); plt.show()\n"
        "pd.DataFrame({'x': [1, 2, 3], 'y': list('abc')})"
    )
    assert result.png is not None
    assert result.png.startswith(b"\x89PNG")
    assert result.dataframe.to_dict("list") == {"x": [1, 2, 3], "y": ["a", "b", "c"]}
    shown = result._repr_mimebundle_()
    assert "<table" in shown["text/html"]
    assert shown["text/plain"] == result.text
    forged = s.run("from IPython.display import display; display({'image/png': 'no base64!'}, raw=True)")
    assert forged.png is None
    with pytest.raises(ClientError, match="no table"):
        _ = s.run("1").dataframe


def test_an_exception_of_the_code_is_in_the_result(s: Session) -> None:
    result = s.run("1 / 0")
    assert (result.status, result.error_text) == ("error", "ZeroDivisionError: division by zero")
    assert "\x1b" not in result.text
    with pytest.raises(CellFailed, match="division by zero") as failed:
        result.check()
    assert failed.value.result is result
    assert s.run("2").check().value == 2


def test_a_deadline_has_a_code_and_a_resolution(s: Session) -> None:
    result = s.run("while True: pass", timeout=0.5)
    assert result.status == "timeout"
    assert result.error is not None
    assert (result.error.code, "timeout" in result.error.resolution) == ("SB005", True)


def test_a_refusal_is_an_exception_with_code_and_resolution(s: Session) -> None:
    with pytest.raises(GatewayError) as refused:
        s.run("1", timeout=1e9)
    assert (refused.value.code, refused.value.status) == ("SB002", 400)
    assert refused.value.message
    assert refused.value.resolution in str(refused.value)


def test_a_wrong_address_and_a_wrong_key_are_told(gateway: Gateway) -> None:
    with Session("http://127.0.0.1:1", "key", "none") as nowhere, pytest.raises(Unreachable, match="no gateway at"):
        nowhere.run("1")
    with Session(gateway.url, "unknown", "none") as stranger, pytest.raises(GatewayError, match="SB020"):
        stranger.run("1")


def test_the_example_of_the_page_works_when_pasted(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pasted = example.replace("http://127.0.0.1:8888", gateway.url).replace('"KEY"', repr(KEYS["alice"]))
    undoing = ("    s.checkpoint(", "    s.rollback(")  # they need sandboxes; the test with an engine has them
    monkeypatch.chdir(tmp_path)
    kept = [line for line in pasted.splitlines() if not line.startswith(undoing)]
    assert len(kept) == len(pasted.splitlines()) - 2
    exec("\n".join(kept), {})  # noqa: S102 - the example is what is tested
    assert capsys.readouterr().out == "np.float64(2.0)\n 3\n0\n1\n2\n"
    assert (tmp_path / "demo.ipynb").exists()
    gateway.call("DELETE", "/v1/sessions/demo")


# -- streams ---------------------------------------------------------------------------------------------------


def test_a_stream_yields_what_the_cell_shows_as_it_comes(s: Session) -> None:
    code = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.2)\n'end'"
    *events, last = s.stream(code)
    assert next(each.type for each in events) == "started"
    assert len([each for each in events if each.text]) >= 3
    assert last.result is not None
    assert last.result.text == "0\n1\n2\n'end'\n"
    assert len(last.result.outputs) == 2


def test_cleared_and_changed_displays_are_as_a_notebook_keeps_them(s: Session) -> None:
    code = """
from IPython.display import display, clear_output
print('gone'); clear_output(wait=True); print('kept')
shown = display({'a': 1}, display_id=True); shown.update({'a': 2})
"""
    result = s.run(code)
    book = nbformat.reads(s.notebook().decode(), as_version=4)
    assert result.text == "kept\n{'a': 2}\n"
    assert [dict(each) for each in result.outputs] == json.loads(json.dumps(book.cells[-1].outputs))


def test_who_leaves_a_stream_interrupts_the_cell_and_keeps_the_variables(s: Session, gateway: Gateway) -> None:
    s.run("x = 1")
    for event in s.stream(f"print('begun', flush=True)\n{HANGS}"):
        if event.text:
            break
    assert s.run("x").value == 1
    executions = gateway.call("GET", f"/v1/sessions/{s.name}/executions").json()["executions"]
    assert [each["result"]["status"] for each in executions] == ["ok", "interrupted", "ok"]


async def test_a_cancelled_task_interrupts_a_cell_that_waits_for_its_turn(gateway: Gateway, session: str) -> None:
    async with (
        AsyncSession(gateway.url, KEYS["alice"], session) as first,
        AsyncSession(gateway.url, KEYS["alice"], session) as second,
    ):
        running = asyncio.ensure_future(first.run(HANGS))  # noqa: TID251 - a test awaits it
        await asyncio.to_thread(until, lambda: exists(gateway, session, "begun"))
        waiting = asyncio.ensure_future(second.run("open('ran', 'w')"))  # noqa: TID251 - as above
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await first.interrupt()
        assert (await running).status == "interrupted"
        await second.run("1")
    assert not exists(gateway, session, "ran")


def test_questions_of_a_cell_are_answered_by_the_callback(gateway: Gateway, session: str) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, hidden: bool) -> str | None:  # noqa: FBT001 - the library passes both by position
        asked.append((prompt, hidden))
        return {"name? ": "Ada", "again? ": "Bob", "secret? ": "x"}.get(prompt)

    code = """
import getpass
print(input('name? '), input('again? '), getpass.getpass('secret? '))
try:
    input('end? ')
except EOFError:
    print('ended')
"""
    with Session(gateway.url, KEYS["alice"], session, input=answer) as client:
        assert client.run(code).check().text.endswith("Ada Bob x\nended\n")
        assert client.run("input()", stdin=["given"]).value == "given"
    assert asked == [("name? ", False), ("again? ", False), ("secret? ", True), ("end? ", False)]


async def test_the_asynchronous_session_awaits_its_callback(gateway: Gateway, session: str) -> None:
    async def answer(_prompt: str, _hidden: bool) -> str:  # noqa: FBT001 - as above
        await asyncio.sleep(0)
        return "Ada"

    async with AsyncSession(gateway.url, KEYS["alice"], session, input=answer) as client:
        assert (await client.run("input()")).value == "Ada"
        assert [event.type async for event in client.stream("1")][-1] == "result"


# -- a connection that breaks off ------------------------------------------------------------------------------


COUNTS = """
import time
with open('runs', 'a') as file:
    file.write('x')
for word in ('one', 'two', 'three'):
    print(word, flush=True)
    time.sleep(0.3)
"""


@pytest.mark.parametrize(
    "cuts",
    [[b"HTTP/1.1 200"], [b"two"], [b"one", b"two", b"three"], [b"event: result"]],
    ids=["before-it-answers", "mid-cell", "again-and-again", "at-its-end"],
)
def test_a_cell_whose_stream_is_cut_runs_once_and_loses_no_output(
    gateway: Gateway, session: str, cuts: list[bytes]
) -> None:
    with cutter(gateway) as way, Session(way.url, KEYS["alice"], session) as client:
        client.run("1")
        way.cuts += cuts
        result = client.run(COUNTS)
        assert way.cuts == [], "control: the connection was cut"
        assert result.text == "one\ntwo\nthree\n"
        assert client.files.read("runs") == b"x"


async def test_the_same_holds_in_an_event_loop(gateway: Gateway, session: str) -> None:
    with cutter(gateway) as way:
        async with AsyncSession(way.url, KEYS["alice"], session) as client:
            await client.run("1")
            way.cuts.append(b"two")
            assert (await client.run(COUNTS)).text == "one\ntwo\nthree\n"
            assert (way.cuts, await client.files.read("runs")) == ([], b"x")


def test_a_run_that_ended_with_its_session_is_not_begun_anew(gateway: Gateway, session: str) -> None:
    with cutter(gateway) as way, Session(way.url, KEYS["alice"], session) as client:
        stream = client.stream(f"print('begun', flush=True)\n{HANGS}")
        next(stream)
        way.cuts.append(b"event: result")
        gateway.call("DELETE", f"/v1/sessions/{session}")
        with pytest.raises(GatewayError, match="SB011"):
            list(stream)
        assert way.cuts == [], "control: the connection was cut"
    assert gateway.call("GET", f"/v1/sessions/{session}").status_code == 404


def test_a_key_of_ones_own_returns_the_first_result(s: Session) -> None:
    code, key = "import random; random.random()", secrets.token_hex(8)
    first, second = s.run(code, key=key), s.run(code, key=key)
    assert (first.value, second.replayed) == (second.value, True)


# -- files, notebook, the session ------------------------------------------------------------------------------


def test_files_pass_unchanged(s: Session, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    s.files.write("a b/ü.bin", content)
    assert s.files.read("a b/ü.bin") == content
    assert b"".join(s.files.pieces("a b/ü.bin")) == content
    s.files.move("a b/ü.bin", "moved")
    s.files.download("moved", tmp_path / "local")
    s.files.upload(tmp_path / "local")
    s.files.make_directory("new")
    assert {(each["name"], each["type"]) for each in s.files.list()} >= {("local", "file"), ("new", "directory")}
    s.files.remove("local")
    with pytest.raises(GatewayError, match="SB014"):
        s.files.read("local")
    with pytest.raises(GatewayError, match="SB014"):
        s.files.download("local", tmp_path / "local")
    assert s.files.read("moved") == content


async def test_files_pass_unchanged_in_an_event_loop(gateway: Gateway, session: str) -> None:
    async with AsyncSession(gateway.url, KEYS["alice"], session) as client:
        await client.files.write("a", (bytes([number]) for number in range(3)))
        assert await client.files.read("a") == b"\0\1\2"


def test_a_session_is_made_as_asked_restarted_and_ended(s: Session) -> None:
    assert s.create(language="bash", idle_timeout=77)["language"] == "bash"
    assert s.run("x=1; echo $x").text == "1\n"
    s.restart()
    assert s.run('echo "[$x]"').text == "[]\n"
    assert s.info()["idle_timeout"] == 77
    assert s.interrupt() is False
    assert len(json.loads(s.notebook())["cells"]) >= 1
    s.end()
    with pytest.raises(GatewayError, match="SB011"):
        s.info()


def test_the_blocking_session_has_every_call() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}

    assert calls(Session) == calls(AsyncSession)
    assert inspect.signature(Session.run).parameters.keys() == inspect.signature(AsyncSession.run).parameters.keys()


async def test_the_blocking_session_works_within_a_running_loop(gateway: Gateway, session: str) -> None:
    with Session(gateway.url, KEYS["alice"], session) as client:
        assert client.run("6 * 7").value == 42
