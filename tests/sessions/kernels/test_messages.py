"""Frames from a hostile kernel become a `Message` whose parts have the right types, or `MalformedMessage`."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jupyter_client.session import DELIM

from sessions.kernels.messages import DEPTH_MAX, Codec, MalformedMessage, Message, TooManyValues
from sessions.model.bounded_json import CONTAINERS_MAX

KEY = b"the-kernel's-key"
CODEC = Codec(KEY)

HEADER = b'{"msg_id": "m1", "msg_type": "stream"}'
PARENT = b'{"msg_id": "r1"}'
CONTENT = b'{"name": "stdout", "text": "hi"}'
PARTS = (HEADER, PARENT, b"{}", CONTENT)


def signature(*parts: bytes, key: bytes = KEY) -> bytes:
    return Codec(key).sign(parts, [])[1]


def signed(*parts: bytes) -> list[bytes]:
    """Return the frames of a message with a valid signature, also for invalid parts."""
    return [b"topic", DELIM, signature(*parts), *parts]


def with_part(place: int, part: bytes) -> list[bytes]:
    return signed(*PARTS[:place], part, *PARTS[place + 1 :])


def nested(depth: int) -> bytes:
    return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"


# -- well-formed messages --------------------------------------------------------------------------------------


def test_a_signed_message_is_parsed() -> None:
    assert CODEC.parse("iopub", signed(*PARTS)) == Message(
        channel="iopub",
        header={"msg_id": "m1", "msg_type": "stream"},
        parent={"msg_id": "r1"},
        metadata={},
        content={"name": "stdout", "text": "hi"},
        size=sum(map(len, signed(*PARTS))),
    )


MANY = b'{"data": {"application/json": [' + b",".join([b"[]"] * CONTAINERS_MAX) + b"]}}"


def test_an_output_of_very_many_values_is_replaced_by_a_line_that_says_so() -> None:
    header = b'{"msg_id": "m1", "msg_type": "display_data", "session": "s"}'
    message = CODEC.parse("iopub", signed(header, PARENT, b"{}", MANY))
    assert message.header == {"msg_id": "m1", "msg_type": "stream", "session": "s"}
    assert message.parent_id == "r1"
    assert message.content["name"] == "stderr"
    assert message.content["text"].startswith("kernel-gateway: an output was left out: it has more than 200000 lists")
    assert [orjson.loads(part) for part in message.parts] == [message.header, message.parent, {}, message.content]


@pytest.mark.parametrize(("channel", "place"), [("shell", 3), ("iopub", 2)])
def test_any_other_part_of_very_many_values_is_refused(channel: str, place: int) -> None:
    with pytest.raises(TooManyValues):
        CODEC.parse(channel, with_part(place, MANY))


def deep(levels: int) -> bytes:
    """Return the content of a display with one value of so many levels, and two others."""
    value = b"[" * levels + b"]" * levels
    return b'{"data": {"text/plain": "told", "application/json": %b, "a/json": [%d]}, "metadata": {}}' % (value, 2**70)


def test_a_value_that_is_nested_too_deeply_takes_no_other_away() -> None:
    header = b'{"msg_id": "m1", "msg_type": "display_data"}'
    shown = {"text/plain": "told", "a/json": [2**70]}
    whole = CODEC.parse("iopub", signed(header, PARENT, b"{}", deep(198)))
    assert (whole.content["data"] | shown, whole.parts[3]) == (whole.content["data"], deep(198))
    assert isinstance(whole.content["data"]["application/json"], list)
    for levels in (199, 500):
        message = CODEC.parse("iopub", signed(header, PARENT, b"{}", deep(levels)))
        why = "kernel-gateway: this was left out: it is nested more deeply than 198 levels"
        assert message.content["data"] == shown | {"application/json": why}
        assert json.loads(message.parts[3]) == message.content
        with pytest.raises(MalformedMessage):
            CODEC.parse("shell", signed(header, PARENT, b"{}", deep(levels)))


def test_only_the_agreed_signature_scheme_is_accepted() -> None:
    frames = Codec(KEY, "hmac-blake2b").request("kernel_info_request", {})[1]
    assert Codec(KEY, "hmac-blake2b").parse("shell", frames).type == "kernel_info_request"
    with pytest.raises(MalformedMessage, match="wrong signature"):
        CODEC.parse("shell", frames)


def test_a_message_has_its_type_and_the_id_of_its_request() -> None:
    message = CODEC.parse("iopub", signed(*PARTS))
    assert (message.type, message.parent_id) == ("stream", "r1")


def test_the_kernel_can_parse_a_request() -> None:
    msg_id, frames = CODEC.request("execute_request", {"code": "x = 'ü'"}, parent={"msg_id": "p", "msg_type": "x"})
    message = Codec(KEY).parse("shell", frames)
    assert message.header["msg_id"] == msg_id
    assert (message.type, message.parent_id, message.content) == ("execute_request", "p", {"code": "x = 'ü'"})


def test_every_request_has_its_own_id() -> None:
    assert len({CODEC.request("kernel_info_request", {})[0] for _ in range(100)}) == 100


def test_buffers_are_kept() -> None:
    buffers = [bytes([number % 256]) for number in range(20_000)]
    assert CODEC.parse("iopub", [*signed(*PARTS), *buffers]).buffers == tuple(buffers)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_identities_before_the_delimiter_do_not_matter(count: int) -> None:
    assert CODEC.parse("shell", [b"\x00\xff"] * count + signed(*PARTS)[1:]).type == "stream"


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    message = CODEC.parse("iopub", with_part(3, b'{"text": "a\xffb"}'))
    assert message.content == {"text": "a\ufffdb"}


def test_only_the_kernel_s_own_key_is_accepted() -> None:
    theirs = Codec(b"another key").request("kernel_info_request", {})[1]
    assert Codec(b"another key").parse("shell", theirs).type == "kernel_info_request"
    with pytest.raises(MalformedMessage, match="signature"):
        CODEC.parse("shell", theirs)


@pytest.mark.parametrize("parent", [b"{}", b'{"msg_id": null}', b'{"msg_id": 7}', b'{"msg_id": ["r1"]}'])
def test_a_message_without_a_usable_parent_has_an_empty_parent_id(parent: bytes) -> None:
    assert CODEC.parse("iopub", with_part(1, parent)).parent_id == ""


@pytest.mark.parametrize(
    "extra",
    [b'"date": "9999-99-99"', b'"version": "abc"', b'"version": 5.3', b'"username": null', b'"session": [1]'],
)
def test_unused_header_fields_may_have_any_value(extra: bytes) -> None:
    assert CODEC.parse("iopub", with_part(0, HEADER[:-1] + b", " + extra + b"}")).type == "stream"


# -- malformed messages ----------------------------------------------------------------------------------------

NO_OBJECTS = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a list of pairs": b'[["msg_id", "m1"], ["msg_type", "stream"]]',
    "a string": b'"{}"',
    "a number": b"1",
    "a boolean": b"true",
    "cut off": b'{"msg_id": "m1", "msg_type": "str',
    "single quotes": b"{'msg_id': 'm1', 'msg_type': 'stream'}",
    "two values": b"{}{}",
    "a trailing NUL": b"{}\0",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"msg_id": "m1"}'.encode("utf-16"),
    "no text at all": bytes(range(256)),
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a number beyond all": b'{"a": 1e999}',
    "5000 digits": b'{"a": ' + b"1" * 5000 + b"}",
    "half a character": b'{"a": "\\ud800"}',
    "a pickle": b"\x80\x04}\x94.",
    "201 levels": nested(201),
    "500 levels": nested(500),
    "5000 levels": nested(5000),
    "5000 levels, cut off": b"[" * 5000,
}

HEADERS = {
    "empty": b"{}",
    "no type": b'{"msg_id": "m1"}',
    "no id": b'{"msg_type": "stream"}',
    "type null": b'{"msg_id": "m1", "msg_type": null}',
    "type a list": b'{"msg_id": "m1", "msg_type": ["stream"]}',
    "type an object": b'{"msg_id": "m1", "msg_type": {}}',
    "type a number": b'{"msg_id": "m1", "msg_type": 1}',
    "id null": b'{"msg_id": null, "msg_type": "stream"}',
    "id a list": b'{"msg_id": ["m1"], "msg_type": "stream"}',
    "id a boolean": b'{"msg_id": true, "msg_type": "stream"}',
    "keys of another case": b'{"Msg_Id": "m1", "MSG_TYPE": "stream"}',
}

FRAMES = {
    "none": [],
    "one empty": [b""],
    "a subscription": [b"\x01"],
    "no delimiter": [b"topic", signature(*PARTS), *PARTS],
    "delimiter of another case": [b"<ids|msg>", signature(*PARTS), *PARTS],
    "delimiter inside a frame": [b"x<IDS|MSG>", signature(*PARTS), *PARTS],
    "delimiter alone": [DELIM],
    "delimiters only": [DELIM] * 8,
    "signature alone": [DELIM, signature()],
    **{f"{count} parts": [DELIM, signature(*PARTS[:count]), *PARTS[:count]] for count in range(4)},
    "no signature": [DELIM, b"", *PARTS],
    "signature left out": [DELIM, *PARTS, b""],
    "signature of other parts": [DELIM, signature(*PARTS, b"more"), *PARTS],
    "signature of another key": [DELIM, signature(*PARTS, key=b"other"), *PARTS],
    "signature in capitals": [DELIM, signature(*PARTS).upper(), *PARTS],
    "signature cut off": [DELIM, signature(*PARTS)[:-1], *PARTS],
    "signature and more": [DELIM, signature(*PARTS) + b"0", *PARTS],
    "signature of no text": [DELIM, b"\xff" * 64, *PARTS],
    "parts in another order": [DELIM, signature(*PARTS), *reversed(PARTS)],
    "a delimiter as identity": [DELIM, DELIM, signature(*PARTS), *PARTS],
}

MALFORMED = {
    **{f"frames: {name}": frames for name, frames in FRAMES.items()},
    **{f"header: {name}": with_part(0, part) for name, part in HEADERS.items()},
    "parent: an id that is too long": with_part(1, b'{"msg_id": "%b"}' % (b"x" * 257)),
    **{
        f"{where}: {name}": with_part(place, part)
        for place, where in enumerate(("header", "parent", "metadata", "content"))
        for name, part in NO_OBJECTS.items()
    },
}


def test_there_are_enough_malformed_examples() -> None:
    assert len(MALFORMED) >= 40


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_malformed_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.parse("iopub", frames)


@pytest.mark.parametrize("place", range(4))
def test_a_part_may_be_nested_as_deep_as_outputs_are(place: int) -> None:
    part = nested(DEPTH_MAX - 10)[:-1] + b', "msg_id": "m1", "msg_type": "stream"}'
    assert CODEC.parse("iopub", with_part(place, part)).channel == "iopub"


def test_many_shallow_brackets_are_accepted() -> None:
    part = b'{"a": [' + b",".join([b"[[]]"] * 1000) + b"]}"
    assert len(CODEC.parse("iopub", with_part(3, part)).content["a"]) == 1000


@pytest.mark.parametrize("before", [b"[" + b",".join([b"1"] * 100_000) + b"]", b'"' + b"[" * 100_000 + b'"', b"1"])
def test_deep_nesting_is_found_behind_shallow_values(before: bytes) -> None:
    part = b'{"a": ' + before + b', "b": ' + nested(DEPTH_MAX + 1) + b"}"
    with pytest.raises(MalformedMessage, match="nested"):
        CODEC.parse("iopub", with_part(3, part))


# -- arbitrary frames ------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["msg_id", "msg_type"]), inner),
    max_leaves=20,
)
PART = st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | st.sampled_from(PARTS)


def understood_or_refused(frames: list[bytes]) -> Message | None:
    try:
        return CODEC.parse("iopub", frames)
    except MalformedMessage:
        return None


@given(st.lists(st.binary() | st.sampled_from([DELIM, signature(*PARTS), *PARTS])))
@example(signed(*PARTS))
def test_any_frames_are_parsed_or_refused(frames: list[bytes]) -> None:
    understood_or_refused(frames)


@given(st.lists(PART, min_size=4, max_size=4))
@example(list(PARTS))
def test_any_signed_parts_are_parsed_or_refused(parts: list[bytes]) -> None:
    message = understood_or_refused(signed(*parts))
    if message is not None:
        assert isinstance(message.type, str)
        assert isinstance(message.parent_id, str)
        for part in (message.header, message.parent, message.metadata, message.content):
            assert isinstance(part, dict)
            orjson.dumps(part)
            json.dumps(part, allow_nan=False)


@given(st.data())
def test_one_changed_byte_breaks_the_signature(data: st.DataObject) -> None:
    frames = signed(*PARTS)
    place = data.draw(st.integers(2, len(frames) - 1))
    frame = bytearray(frames[place])
    if frame:
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] ^= data.draw(st.integers(1, 255))
    else:
        frame += b"x"
    assert understood_or_refused(frames)
    frames[place] = bytes(frame)
    assert understood_or_refused(frames) is None
