"""Outputs as plain text: what a language model gets of a cell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernel_gateway.http.html_text import READ_MAX
from kernel_gateway.http.plain_text import PRINTED_MAX, TEXT_MAX, TRACEBACK_MAX, PlainText, plain_outputs
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import process_only, streamed


def error(*traceback: str, evalue: str = "x") -> dict[str, Any]:
    return {"output_type": "error", "ename": "E", "evalue": evalue, "traceback": list(traceback)}


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def display(**data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {name.replace("_", "/"): value for name, value in data.items()}}


@pytest.mark.parametrize("escape", ["\x1b[31m", "\x1b[38;5;28;01m", "\x1b]8;;https://a.b\x07", "\x1b(B", "\x1bM"])
def test_escape_sequences_are_left_out(escape: str) -> None:
    assert PlainText().output({"output_type": "stream", "name": "stdout", "text": f"a{escape}b"})["text"] == "ab"


def test_text_stays_in_place_of_markup_and_images_stay() -> None:
    shown = PlainText().output(display(text_plain="3", text_html="<b>3</b>", image_png="aGk="))["data"]
    assert shown == {"text/plain": "3", "image/png": "aGk="}
    assert PlainText().output(display(text_markdown="*3*"))["data"] == {"text/plain": "*3*"}
    assert PlainText().output(display(text_html="<b>"))["data"] == {"text/plain": "<text/html>"}
    nameless = "<IPython.core.display.Markdown object>", "<a.Thing object at 0x7f00>", "<pandas.io.Styler at 0x7f00>"
    for name in nameless:
        assert PlainText().output(display(text_plain=name, text_markdown="*3*"))["data"] == {"text/plain": "*3*"}
        assert PlainText().output(display(text_plain=name, text_html="<b>"))["data"] == {"text/plain": name}
    shown = PlainText().output(display(text_plain=nameless[0], application_json={"a": [1]}))["data"]
    assert shown == {"text/plain": '{"a":[1]}'}
    event = {"type": "update_display_data", "display_id": "d", "data": {"text/plain": "\x1b[1m4", "text/html": "4"}}
    assert PlainText().event(event)["data"] == {"text/plain": "4"}


def test_a_display_that_is_only_html_becomes_its_text() -> None:
    html = """<style>td { color: red }</style><!-- <p>no</p> --><h1>Two &lt; three</h1><table>
      <tr><th>name</th><th>age</th></tr> <tr><td>Ann  Lee</td><td><b>3</b>1</table><script>f("<p>")</script>"""
    text = "Two < three\nname\tage\nAnn Lee\t31"
    for data in display(text_html=html), display(text_html=html, text_plain="<IPython.core.display.HTML object>"):
        assert PlainText().output(data)["data"] == {"text/plain": text}
    long = PlainText().output(display(text_html="<p>a</p>" * READ_MAX))
    assert long["data"]["text/plain"].endswith("a\na…")


OWN = "Cell In[1], line 1\n----> 1 f()"
LIBRARIES = [
    "File /opt/venv/lib/python3.12/site-packages/requests/api.py:73, in get()\n---> 73 x",
    "File /usr/lib/python3.12/json/decoder.py:355, in raw_decode()\n--> 355 y",
    "File pandas/_libs/index.pyx:172, in pandas._libs.index.IndexEngine.get_loc()\n--> 172 'Could not get source'",
    "File /opt/kernel/python_kernel/kernel.py:283, in PythonKernel.raw_input(self, prompt)\n--> 283 z",
]
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n"


def test_only_the_codes_own_frames_stay() -> None:
    file = "File /home/user/helper.py:3, in f()\n----> 3 g()"
    lines = ["-" * 75, "E" + " " * 40 + "Traceback (most recent call last)", OWN, *LIBRARIES, file, "E: x"]
    shown = PlainText().output(error(*lines))["traceback"]
    assert "\n".join(shown) == f"E Traceback (most recent call last)\n{OWN}\n{file}\nE: x"


def test_an_earlier_exception_stays_if_the_code_has_seen_it() -> None:
    own = ["-" * 75, "KeyError      Traceback (most recent call last)", OWN, *LIBRARIES, "KeyError: 1"]
    foreign = ["-" * 75, "KeyError      Traceback (most recent call last)", *LIBRARIES, "KeyError: 1"]
    last = ["E    Traceback (most recent call last)", OWN, "E: x"]
    shown = PlainText().output(error(*own, CHAIN, *last))["traceback"]
    assert shown[:4] == ["KeyError Traceback (most recent call last)", *OWN.split("\n"), "KeyError: 1"]
    assert "\n".join(shown[4:]) == f"{CHAIN}\nE Traceback (most recent call last)\n{OWN}\nE: x"
    alone = PlainText().output(error(*foreign, CHAIN, *last))["traceback"]
    assert "\n".join(alone) == f"E Traceback (most recent call last)\n{OWN}\nE: x"


def test_texts_are_bounded_and_tell_what_is_left_out() -> None:
    printed = PlainText().output({"output_type": "stream", "name": "stdout", "text": "x" * (PRINTED_MAX + 7)})["text"]
    assert "... 7 characters left out ..." in printed
    assert len(PlainText().output(display(text_plain="x" * 10**6))["data"]["text/plain"]) < TEXT_MAX + 100
    failed = PlainText().output(error(*["line " * 100] * 10_000, evalue="v" * 10**6))
    assert len("\n".join(failed["traceback"])) < TRACEBACK_MAX + 100
    assert len(failed["evalue"]) < TEXT_MAX + 100


def test_what_is_cut_off_is_counted() -> None:
    plain = PlainText()
    plain.output(printed("é" * PRINTED_MAX))
    assert plain.counted({"truncated": False, "omitted_bytes": 3}) == {"truncated": False, "omitted_bytes": 3}
    assert "... 7 characters left out ..." in plain.output(printed("é" * (PRINTED_MAX + 7)))["text"]
    assert plain.omitted == 14
    plain.event({"type": "update_display_data", "data": {"text/plain": "x" * (TEXT_MAX + 2)}})
    plain.output(error("x" * (TEXT_MAX + 1)))
    counted = plain.counted({"truncated": False, "omitted_bytes": 3})
    assert counted["truncated"]
    assert counted["omitted_bytes"] > 14 + 2 + TEXT_MAX - TRACEBACK_MAX
    very_long = plain.output(printed("x" * 3_000_000))["text"]
    assert f"... {3_000_000 - PRINTED_MAX} characters left out ..." in very_long
    assert len(very_long) < PRINTED_MAX + 100


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r50%\r100%\n", "100%\n"),
        ("longer\rab", "abnger"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("ab\b\bc", "cb"),
        ("\b\bx", "x"),
        ("a\x1b[Kb", "ab"),
        ("working\r\x1b[Kdone", "done"),
        ("working\x1b[2K\rdone", "done"),
        ("working\x1b[2K!", "       !"),
        ("one\ntwo\x1b[A!\x1b[B?", "one!\ntwo ?"),
        ("outer 1\ninner 1\x1b[A\router 2\ninner 2", "outer 2\ninner 2"),
        ("a\nb\nc\x1b[2A\r\x1b[Jd", "d"),
        ("abc\x1b[2Dx\x1b[Gy\x1b[3Cz", "yxc z"),
        ("\x1b[31mred\x1b[0m\rblue", "blue"),
        ("\x1b[31mab\x1b[0mc\bd", "abd"),
        ("x\x1b[9999Cy", "xy"),
        ("x\x1b[2Jy\x1b[1Kz", "xyz"),
        ("日本\r中", "中本"),
        ("\x1b", ""),
        ("a\x1b\rb", "b"),
    ],
)
def test_printed_text_is_as_a_terminal_shows_it(text: str, shown: str) -> None:
    assert PlainText().output({"output_type": "stream", "name": "stdout", "text": text})["text"] == shown


def test_of_a_long_progress_bar_the_last_state_stays() -> None:
    bar = "".join(f"\r\x1b[32m{done:4}%\x1b[0m {'#' * 60:60}" for done in range(1, 1001)) + "\nready\n"
    assert len(bar) > PRINTED_MAX
    assert PlainText().output({"output_type": "stream", "name": "stderr", "text": bar})["text"] == (
        f"1000% {'#' * 60}\nready\n"
    )


def test_a_piece_of_a_stream_that_overwrites_earlier_ones_still_does() -> None:
    texts = ["a\r10%", "\r20%\r30%", "\r\n"]
    pieces = [{"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": text}} for text in texts]
    assert [PlainText().event(piece)["output"]["text"] for piece in pieces] == ["10%", "\r30%", "\r\n"]


async def test_outputs_of_a_result_are_converted_alike_however_many_there_are() -> None:
    few = [printed("\x1b[1ma"), error("\x1b[1mE: x"), display(text_plain="3", text_html="<b>3</b>", image_png="aGk=")]
    one_by_one = [PlainText().output(output) for output in few]
    assert await plain_outputs(few) == (one_by_one, 0)
    assert await plain_outputs(few * 200) == (one_by_one * 200, 0)
    _, cut = await plain_outputs([*few, display(text_plain="x" * (TEXT_MAX + 50))])
    assert cut == 50


@process_only
def test_every_answer_says_that_plain_text_was_cut(gateway: Gateway, session: str) -> None:
    code = f"print('x' * {PRINTED_MAX + 50}); '{'y' * TEXT_MAX}'"
    assert (said := gateway.execute(session, code))["omitted_bytes"] == 0
    assert not said["truncated"]
    told = [gateway.execute(session, code, plain=True, idempotency_key="cut")]
    with streamed(gateway, session, code, plain=True) as events:
        told.append(list(events)[-1])
    path = f"/v1/sessions/{session}/executions"
    (run,) = gateway.call("GET", path).json()["executions"]
    shown = gateway.call("GET", f"{path}/{run['id']}?plain").json()
    assert len(text_of(shown)) < PRINTED_MAX + TEXT_MAX + 100
    told.append(shown["result"])
    omitted = 51 + 2  # with the end of the line, and the quotes
    assert [(end["truncated"], end["omitted_bytes"]) for end in told] == [(True, omitted)] * 3
    assert not gateway.call("GET", f"{path}/{run['id']}").json()["result"]["truncated"]


@process_only
def test_a_client_chooses_plain_text(gateway: Gateway, session: str) -> None:
    code = "import json\njson.loads('{')"
    usual, plain = (gateway.execute(session, code, plain=plain)["outputs"][0] for plain in (False, True))
    assert "\x1b[" in "".join(usual["traceback"])
    assert "json/decoder.py" in "".join(usual["traceback"])
    assert "\x1b[" not in json.dumps(plain)
    assert "json/decoder.py" not in "".join(plain["traceback"])
    assert plain["traceback"][0] == "JSONDecodeError Traceback (most recent call last)"
    assert any("json.loads('{')" in line for line in plain["traceback"])
    with streamed(gateway, session, "for n in range(500): print(f'\\r{n:99}', end='')", plain=True) as events:
        texts = [event["output"]["text"] for event in events if event["type"] == "output"]
    assert "".join(texts).rpartition("\r")[2] == f"{499:99}"
    assert len(texts[0]) < 200
    with streamed(gateway, session, "print('\\x1b[31mred')", plain=True) as events:
        assert [event["output"]["text"] for event in events if event["type"] == "output"] == ["red\n"]
    assert text_of(gateway.execute(session, "import pandas; pandas.DataFrame({'a': [1]})", plain=True)).split() == list(
        "a01"
    )
