"""Outputs as plain text: what a language model gets of a cell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernel_gateway.dialects.native.plain_text import PRINTED_MAX, TEXT_MAX, TRACEBACK_MAX, plain_event, plain_output
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.calls import process_only, streamed


def error(*traceback: str, evalue: str = "x") -> dict[str, Any]:
    return {"output_type": "error", "ename": "E", "evalue": evalue, "traceback": list(traceback)}


def display(**data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {name.replace("_", "/"): value for name, value in data.items()}}


@pytest.mark.parametrize("escape", ["\x1b[31m", "\x1b[38;5;28;01m", "\x1b]8;;https://a.b\x07", "\x1b(B", "\x1bM"])
def test_escape_sequences_are_left_out(escape: str) -> None:
    assert plain_output({"output_type": "stream", "name": "stdout", "text": f"a{escape}b"})["text"] == "ab"


def test_text_stays_in_place_of_markup_and_images_stay() -> None:
    shown = plain_output(display(text_plain="3", text_html="<b>3</b>", image_png="aGk="))["data"]
    assert shown == {"text/plain": "3", "image/png": "aGk="}
    assert plain_output(display(text_markdown="*3*"))["data"] == {"text/plain": "*3*"}
    named = "<IPython.core.display.Markdown object>"
    assert plain_output(display(text_plain=named, text_markdown="*3*"))["data"] == {"text/plain": "*3*"}
    assert plain_output(display(text_plain=named, text_html="*3*"))["data"] == {"text/plain": named}
    assert plain_output(display(text_html="<b>"))["data"] == {"text/plain": "<text/html>"}
    event = {"type": "update_display_data", "display_id": "d", "data": {"text/plain": "\x1b[1m4", "text/html": "4"}}
    assert plain_event(event)["data"] == {"text/plain": "4"}


def test_only_the_last_exception_and_the_codes_own_frames_stay() -> None:
    own = "Cell In[1], line 1\n----> 1 f()"
    file = "File /home/user/helper.py:3, in f()\n----> 3 g()"
    libraries = [
        "File /opt/venv/lib/python3.12/site-packages/requests/api.py:73, in get()\n---> 73 x",
        "File /usr/lib/python3.12/json/decoder.py:355, in raw_decode()\n--> 355 y",
    ]
    chain = ["\nDuring handling of the above exception, another exception occurred:\n"]
    first = ["-" * 75, "KeyError      Traceback (most recent call last)", "Cell In[1], line 9", "KeyError: 1"]
    last = ["E" + " " * 40 + "Traceback (most recent call last)", own, *libraries, file, "E: x"]
    shown = plain_output(error(*first, *chain, *last))["traceback"]
    assert "\n".join(shown) == f"E Traceback (most recent call last)\n{own}\n{file}\nE: x"


def test_texts_are_bounded_and_tell_what_is_left_out() -> None:
    printed = plain_output({"output_type": "stream", "name": "stdout", "text": "x" * (PRINTED_MAX + 7)})["text"]
    assert "... 7 characters left out ..." in printed
    assert len(plain_output(display(text_plain="x" * 10**6))["data"]["text/plain"]) < TEXT_MAX + 100
    failed = plain_output(error(*["line " * 100] * 10_000, evalue="v" * 10**6))
    assert len("\n".join(failed["traceback"])) < TRACEBACK_MAX + 100
    assert len(failed["evalue"]) < TEXT_MAX + 100


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
    assert plain_output({"output_type": "stream", "name": "stdout", "text": text})["text"] == shown


def test_of_a_long_progress_bar_the_last_state_stays() -> None:
    bar = "".join(f"\r\x1b[32m{done:4}%\x1b[0m {'#' * 60:60}" for done in range(1, 1001)) + "\nready\n"
    assert len(bar) > PRINTED_MAX
    assert plain_output({"output_type": "stream", "name": "stderr", "text": bar})["text"] == (
        f"1000% {'#' * 60}\nready\n"
    )


def test_a_piece_of_a_stream_that_overwrites_earlier_ones_still_does() -> None:
    texts = ["a\r10%", "\r20%\r30%", "\r\n"]
    pieces = [{"type": "output", "output": {"output_type": "stream", "name": "stdout", "text": text}} for text in texts]
    assert [plain_event(piece)["output"]["text"] for piece in pieces] == ["10%", "\r30%", "\r\n"]


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
