"""Outputs as plain text: what a language model gets of a cell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernel_gateway.dialects.native.plain import PRINTED_MAX, TEXT_MAX, TRACEBACK_MAX, plain_event, plain_output
from tests.gateways import Gateway, text_of
from tests.kernel_gateway.wire import process_only, streamed


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
    with streamed(gateway, session, "print('\\x1b[31mred')", plain=True) as events:
        assert [event["output"]["text"] for event in events if event["type"] == "output"] == ["red\n"]
    assert text_of(gateway.execute(session, "import pandas; pandas.DataFrame({'a': [1]})", plain=True)).split() == list(
        "a01"
    )
