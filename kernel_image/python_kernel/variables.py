"""Describes a cell's variables without running code of the user's: no `__repr__`, no property, no `__len__`.

The description is made in the thread of the control channel, so it is there while a cell runs. Values of known types
(Python's own, NumPy's, pandas', Polars') are shown with their content. Of any other value, only the type and the names
and values of its attributes are known. Each text and each list is bounded, however large the value is.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import pathlib
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

#: maximum variables of a list, characters of a name or a type
LISTED, NAME = 1000, 200
#: maximum characters of a preview in a list, and in the description of one variable
SHORT, LONG = 120, 10_000
#: maximum entries of a value, its columns and rows, and characters of each
ENTRIES, COLUMNS, ROWS, CELL = 100, 50, 50, 200
#: levels of nested values that a preview shows, and values that it shows of each
_DEPTH, _SHOWN = 4, 1000
#: bits of the largest number that is shown in full; Python refuses to write numbers that are much larger
_BITS = 10_000

_PLAIN = {type(None), bool, float, complex, range, type(...), type(NotImplemented)}
_WRITTEN = {  # types whose `repr` calls no code but Python's own
    *(dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.PurePosixPath),
}
_MAPPINGS = {dict, OrderedDict, defaultdict, Counter}
_COLLECTIONS: dict[type, Sequence[str]] = {
    list: "[]",
    tuple: "()",
    set: "{}",
    frozenset: ("frozenset({", "})"),
    deque: ("deque([", "])"),
}

# These read a type or a module without the code of a metaclass or a subclass.
_dict_of: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_name_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__
_bases_of = type.__dict__["__mro__"].__get__
_globals_of: Callable[[types.ModuleType], Mapping[str, Any]] = vars(types.ModuleType)["__dict__"].__get__


def listed(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the variables of a namespace, in the order of their names.

    Args:
        namespace: the variables. Another thread may change it meanwhile.
        hidden: variables that the shell itself has made.
    """
    own = {name: value for name, value in _copy(namespace).items() if _is_own(name, value, hidden)}
    names = sorted(own, key=lambda name: (name.lower(), name))
    return {
        "total": len(names),
        "variables": [described(name, own[name]) for name in names[:LISTED]],
    }


def _copy(namespace: Mapping[str, Any]) -> dict[Any, Any]:
    return dict(namespace)  # one step for the interpreter: no other thread runs in between


def _is_own(name: Any, value: Any, hidden: Mapping[str, Any]) -> bool:
    return type(name) is str and not name.startswith("_") and (name not in hidden or hidden[name] is not value)


def described(name: str, value: Any, most: int = SHORT) -> dict[str, Any]:
    """Describe one variable: its type, its size, and the beginning of its content.

    Args:
        name: its name.
        value: its value.
        most: maximum characters of the content.
    """
    told: dict[str, Any] = {"name": _text(name, NAME), "type": _text(type_name(type(value)), NAME)}
    known = _known(value)
    if known is not None:
        told |= known.measures(value)
    elif type(value) in _SIZED:
        told["length"] = len(value)
    if type(value) in _MEASURED:
        told["bytes"] = sys.getsizeof(value)
    text = preview(value, most + 1)
    return told | {"preview": _text(text if len(text) <= most else f"{text[: most - 1]}…", most)}


def _text(text: str, most: int) -> str:
    """Return at most this many characters, without those that no message can contain."""
    return text[:most].encode(errors="replace").decode()


def detailed(name: str, value: Any) -> dict[str, Any]:
    """Describe one variable with its content: the rows of a table, the entries of a collection, or its attributes."""
    told = described(name, value, LONG)
    known = _known(value)
    if known is not None and known.rows is not None:
        return told | known.rows(value)
    entries = _entries(value)
    return told if entries is None else told | {"entries": [described(key, one) for key, one in entries]}


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    kind = type(value)
    if kind in _MAPPINGS:
        return [(preview(key, NAME), one) for key, one in _first(dict.items(value), ENTRIES)]
    if kind in _COLLECTIONS:
        return [(str(number), one) for number, one in enumerate(_first(value, ENTRIES))]
    return _attributes(value) or None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the first attributes of an object, without its properties. Functions, modules and classes have none."""
    kind = type(value)
    if kind in _NAMED or type in _bases_of(kind):
        return []
    for base in _bases_of(kind):
        found = _dict_of(base).get("__dict__")
        if found is not None:
            # A class may have a `__dict__` of its own, which is code.
            own = found.__get__(value) if type(found) is types.GetSetDescriptorType else {}
            return [(name, one) for name, one in _first(dict.items(own), ENTRIES) if type(name) is str]
    return []


def _first(values: Iterable[Any], most: int) -> list[Any]:
    """Return the first values. Another thread may change the collection, which then is asked again."""
    for _ in range(3):
        try:
            return list(islice(iter(values), most))
        except RuntimeError:  # changed during the iteration
            continue
    return []


def type_name(kind: type) -> str:
    """Return the name of a type with its module, without the metaclass' code."""
    module, name = _module_of(kind), str(_name_of(kind))
    return name if type(module) is not str or module in {"builtins", "__main__"} else f"{module}.{name}"


def preview(value: Any, most: int) -> str:
    """Return at most this many characters of a value, as Python writes it."""
    return "".join(_pieces(value, [most], _DEPTH))[:most]


def _pieces(value: Any, left: list[int], depth: int) -> Iterable[str]:
    """Yield the pieces of a value's text, until the characters in `left` are used up."""
    for piece in _parts(value, left, depth):
        left[0] -= len(piece)
        yield piece
        if left[0] <= 0:
            return


def _parts(value: Any, left: list[int], depth: int) -> Iterable[str]:
    kind = type(value)
    if kind in _PLAIN or kind in _WRITTEN:
        yield repr(value)
    elif kind is int:
        yield repr(value) if value.bit_length() < _BITS else f"<int of {value.bit_length()} bits>"
    elif kind in (str, bytes, bytearray):
        yield repr(value[: left[0]])
    elif kind in _MAPPINGS:
        yield from _mapping(value, left, depth)
    elif kind in _COLLECTIONS:
        yield from _collection(value, left, depth)
    elif type in _bases_of(kind):
        yield f"<class {type_name(value)}>"
    elif kind in _NAMED:
        yield _NAMED[kind](value)
    elif (known := _known(value)) is not None:
        yield known.text(value, left[0])
    else:
        yield from _object(value, left, depth)


def _mapping(value: Any, left: list[int], depth: int) -> Iterable[str]:
    opening, closing = "{}" if type(value) is dict else (f"{type(value).__name__}({{", "})")
    yield opening
    if depth == 0 and value:
        yield "…"
    for number, (key, one) in enumerate(_first(dict.items(value), _SHOWN) if depth else ()):
        yield ", " if number else ""
        yield from _inner(key, left, depth)
        yield ": "
        yield from _inner(one, left, depth)
    yield ", …" + closing if depth and len(value) > _SHOWN else closing


def _collection(value: Any, left: list[int], depth: int) -> Iterable[str]:
    kind = type(value)
    opening, closing = _COLLECTIONS[kind] if value or kind not in {set, frozenset} else (f"{kind.__name__}(", ")")
    yield opening
    if depth == 0 and value:
        yield "…"
    for number, one in enumerate(_first(value, _SHOWN) if depth else ()):
        yield ", " if number else ""
        yield from _inner(one, left, depth)
    if depth and len(value) > _SHOWN:
        yield ", …"
    yield "," + closing if kind is tuple and len(value) == 1 else closing


def _inner(value: Any, left: list[int], depth: int) -> Iterable[str]:
    # The caller counts what this yields, so the inner count is a copy.
    return _pieces(value, [left[0]], depth - 1)


def _object(value: Any, left: list[int], depth: int) -> Iterable[str]:
    yield f"<{type_name(type(value))}"
    for number, (name, one) in enumerate(_attributes(value) if depth else ()):
        yield f"{', ' if number else ': '}{name}="
        yield from _inner(one, left, depth)
    yield ">"


def _signature(value: types.FunctionType) -> str:
    code = value.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    return f"<function {value.__name__}({', '.join(code.co_varnames[:count])})>"


def _module_name(value: types.ModuleType) -> str:
    name = _globals_of(value).get("__name__")
    return f"<module {name}>" if type(name) is str else "<module>"


_NAMED: dict[type, Callable[[Any], str]] = {
    types.FunctionType: _signature,
    types.BuiltinFunctionType: lambda value: f"<built-in function {value.__name__}>",
    types.ModuleType: _module_name,
}
_SIZED = {str, bytes, bytearray, range, *_MAPPINGS, *_COLLECTIONS}
_MEASURED = {int, float, complex, bool, *_SIZED}


class Known:
    """How values of a library's type are described. The library's own code runs, and no code of the user's."""

    def __init__(
        self,
        measures: Callable[[Any], dict[str, Any]],
        text: Callable[[Any, int], str],
        rows: Callable[[Any], dict[str, Any]] | None = None,
    ) -> None:
        """Keep the functions: for the sizes, the text of at most some characters, and the rows of a table."""
        self.measures, self.text, self.rows = measures, text, rows


def _known(value: Any) -> Known | None:
    """Return how to describe a value of a library's type, or None."""
    kind = type(value)
    module, name = _module_of(kind), _name_of(kind)
    if type(module) is not str or getattr(sys.modules.get(module), name, None) is not kind:
        return None
    library = module.partition(".")[0]
    if library == "numpy" and sys.modules["numpy"].generic in _bases_of(kind):
        return _SCALAR
    return _LIBRARIES.get((library, name))


def _array_text(value: Any, most: int) -> str:
    content = preview(value.flat[: min(_SHOWN, value.size)].tolist(), most)
    return f"array({content}, shape={value.shape}, dtype={value.dtype.name})"


def _frame_text(names: list[Any], shape: tuple[int, int], most: int) -> str:
    return f"{shape[0]} rows × {shape[1]} columns: {preview(names, most)}"  # noqa: RUF001 - the sign of a product


def _name(value: Any, most: int = NAME) -> str:
    return _text(value if type(value) is str else preview(value, most), most)


def _table(columns: Iterable[tuple[Any, Any]], rows: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Describe a table by the names and types of its columns, and the cells of its first rows as text."""
    return {
        "columns": [{"name": _name(name), "type": _text(str(kind), NAME)} for name, kind in columns],
        "rows": [[_cell(one) for one in row] for row in rows],
    }


def _cell(value: Any) -> str:
    is_time = type(value) in _WRITTEN or _known(value) is _SCALAR
    return _name(str(value) if is_time else value, CELL)


def _pandas_rows(value: Any) -> dict[str, Any]:
    part = value.iloc[:ROWS, :COLUMNS]
    columns = [part.iloc[:, number].tolist() for number in range(part.shape[1])]
    return _table(zip(part.columns.tolist(), part.dtypes.tolist(), strict=True), zip(*columns, strict=True))


def _polars_rows(value: Any) -> dict[str, Any]:
    part = value[:ROWS, :COLUMNS]
    return _table(zip(part.columns, part.dtypes, strict=True), part.rows())


#: a number, a time, or a missing value
_SCALAR = Known(lambda _value: {}, lambda value, most: repr(value)[:most])
_LIBRARIES: dict[tuple[str, str], Known] = {
    **dict.fromkeys([("pandas", name) for name in ("Timestamp", "Timedelta", "Period", "NaTType", "NAType")], _SCALAR),
    ("numpy", "ndarray"): Known(
        lambda value: {"shape": list(value.shape), "bytes": value.nbytes, "dtype": value.dtype.name}, _array_text
    ),
    ("pandas", "DataFrame"): Known(
        lambda value: {"shape": list(value.shape), "bytes": int(value.memory_usage().sum())},
        lambda value, most: _frame_text(value.columns[:COLUMNS].tolist(), value.shape, most),
        _pandas_rows,
    ),
    ("pandas", "Series"): Known(
        lambda value: {"shape": list(value.shape), "bytes": int(value.memory_usage()), "dtype": str(value.dtype)},
        lambda value, most: preview(value.iloc[:_SHOWN].tolist(), most),
    ),
    ("polars", "DataFrame"): Known(
        lambda value: {"shape": list(value.shape), "bytes": int(value.estimated_size())},
        lambda value, most: _frame_text(value.columns[:COLUMNS], value.shape, most),
        _polars_rows,
    ),
    ("polars", "Series"): Known(
        lambda value: {"shape": [value.len()], "bytes": int(value.estimated_size()), "dtype": str(value.dtype)},
        lambda value, most: preview(value[:_SHOWN].to_list(), most),
    ),
}
