"""JSON of values that belong to clients and their code: a whole number keeps all its digits.

orjson reads a whole number of more than 64 bits as a float, which changes it or is infinite, and refuses to write one.
Such numbers are rare. So only a text with such a number is read and written by Python's `json`, which is exact but
slower.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from sessions.model import bounded_json

#: floats from here on may have been whole numbers that orjson cannot represent
_LARGE = 2.0**63
#: how orjson says that a whole number is too large
_REFUSED = "64-bit"


def loads(text: bytes | bytearray | str) -> Any:
    """Parse JSON.

    Raises:
        TooManyValues: as in `bounded_json.check`.
        orjson.JSONDecodeError: as in `parse`.
    """
    bounded_json.check(text)
    return parse(text)


def parse(text: bytes | bytearray | str) -> Any:
    """Parse JSON that the gateway itself has written. The number of values is not checked.

    Raises:
        orjson.JSONDecodeError: when the text is no JSON, or a number has more digits than Python reads (4300).
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return _slowly(text)  # a number of more than 308 digits is infinite to orjson
        except orjson.JSONDecodeError:
            raise error from None
    return _slowly(text) if _has_large_float(value) else value


def dumps(value: Any, option: int = 0) -> bytes:
    """Return a value as JSON.

    Args:
        value: value to encode.
        option: options of orjson. If the value may contain large whole numbers, only those for indentation and a
            newline at the end have an effect.

    Raises:
        orjson.JSONEncodeError: when the value cannot be JSON, or is nested more deeply than 254 levels.
    """
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError as error:
        if _REFUSED not in str(error):
            raise
    indent, separators = (2, (",", ": ")) if option & orjson.OPT_INDENT_2 else (None, (",", ":"))
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    return text.encode() + (b"\n" if option & orjson.OPT_APPEND_NEWLINE else b"")


def _slowly(text: bytes | bytearray | str) -> Any:
    """Parse JSON exactly.

    Raises:
        orjson.JSONDecodeError: when the text is no JSON, or its value could not be written again: an infinite float,
            half of a surrogate pair, or a number with too many digits.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_refuse)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise orjson.JSONDecodeError(str(error), "", 0) from None
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _has_large_float(value: Any) -> bool:
    waiting: list[Any] = [[value]]
    while waiting:
        node = waiting.pop()
        values = list(node.values()) if isinstance(node, dict) else node
        kinds = set(map(type, values))  # most lists have values of one kind
        if float in kinds and any(abs(each) >= _LARGE for each in values if type(each) is float):
            return True
        if dict in kinds or list in kinds:
            waiting.extend(each for each in values if type(each) in (dict, list))
    return False
