"""Tools in code: functions of this program that cells call. A cell gets their values, and nothing else of them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from kernel_gateway.client.errors import GatewayError
from kernel_gateway.client.gateway import encoded
from kernel_gateway.client.transport import Begun, Transport

#: a function that cells may call; it may be a coroutine function
Tool = Callable[..., Any]
#: sends an answer: to what, and its fields
Post = Callable[[str, dict[str, Any]], Awaitable[None]]
#: maximum characters of a description, of an exception's name, and of its text: the gateway takes no more
DESCRIPTION_MAX = 10_000
NAME_MAX = 128
TEXT_MAX = 10_000
#: the JSON type of each type of Python
_TYPES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    list: "array",
    dict: "object",
}
_LISTS = {list, set, frozenset, Sequence, Collection}
_OBJECTS = {dict, Mapping}


class Tools:
    """The functions that the cells of a session may call, by name."""

    def __init__(self, functions: Sequence[Tool]) -> None:
        """Describe the functions.

        Raises:
            TypeError: when a function cannot be called by the names of its arguments, or has no name for an `import`.
            ValueError: when two functions have the same name.
        """
        self.described = [_described(function) for function in functions]
        self._functions = {described["name"]: each for described, each in zip(self.described, functions, strict=True)}
        if len(self._functions) < len(functions):
            raise ValueError(f"each tool needs a name of its own: {[each['name'] for each in self.described]}")

    def find(self, name: str) -> Tool:
        """Return the function of a call.

        Raises:
            LookupError: when there is none: the cell was begun by a client with other tools, and has the same key.
        """
        if name not in self._functions:
            raise LookupError(f"the client of this cell has no tool {name!r}")
        return self._functions[name]


class Calls:
    """The calls of one cell. A function runs once for each, also if the event of a call comes again."""

    def __init__(self, tools: Tools, transport: Transport, post: Post) -> None:
        """Begin without calls.

        Args:
            tools: functions that the cell may call.
            transport: runs them beside the cell's stream.
            post: sends an answer.
        """
        self._tools = tools
        self._transport = transport
        self._post = post
        #: ids of all calls that were begun
        self._known: set[str] = set()
        self._running: set[Begun] = set()
        self._failure: BaseException | None = None
        self._over = False

    def begin(self, event: Mapping[str, Any]) -> None:
        """Run the function of a call, unless it was begun before: a stream that was cut may bring the call again."""
        call = str(event["call"])
        if call in self._known:
            return
        self._known.add(call)
        begun = self._transport.begin(partial(self._run, call, str(event["name"]), event["arguments"]))
        self._running.add(begun)
        begun.add_done_callback(self._ended)

    def check(self) -> None:
        """Raise the error because of which a call has no answer, if there is one: the cell would wait in vain."""
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """End the calls with their cell. A function in a thread runs to its end, and nobody gets its value."""
        self._over = True
        for begun in list(self._running):
            begun.cancel()

    def _ended(self, begun: Begun) -> None:
        self._running.discard(begun)
        if not begun.cancelled():
            self._failure = self._failure or begun.exception()

    async def _run(self, call: str, name: str, arguments: Mapping[str, Any]) -> None:
        try:
            value = await self._transport.call(self._tools.find(name), arguments)
        except Exception as error:  # noqa: BLE001 - whatever it raises is raised in the cell
            answer = error_answer(call, error)
        else:
            answer = value_answer(call, value)
        await self._answer(call, answer)

    async def _answer(self, call: str, answer: dict[str, Any]) -> None:
        """Send an answer. The cell gets the reason if the gateway refuses it, for example because of its size."""
        if self._over:
            return
        try:
            await self._post("tools", answer)
        except GatewayError as refused:
            if refused.status == HTTPStatus.NOT_FOUND or refused.details.get("field") == "tool_call":
                return  # the call has ended meanwhile
            if "error" in answer:
                raise
            await self._answer(call, error_answer(call, refused))


def value_answer(call: str, value: object) -> dict[str, Any]:
    """Return the answer to a call that has succeeded. If the value is no JSON, the call fails."""
    answer = {"tool_call": call, "value": value}
    try:
        encoded(answer, exact=True)
    except (TypeError, ValueError, RecursionError) as error:
        return error_answer(call, TypeError(f"the tool's value is no JSON: {error}"))
    return answer


def error_answer(call: str, error: Exception) -> dict[str, Any]:
    """Return the answer to a call that has raised an exception."""
    text = str(error)[:TEXT_MAX].encode(errors="replace").decode()
    return {"tool_call": call, "error": {"name": type(error).__name__[:NAME_MAX], "text": text}}


def _described(function: Tool) -> dict[str, Any]:
    """Return a function's name, its docstring, and the JSON schema of its arguments."""
    name = getattr(function, "__name__", "")
    if not (name.isidentifier() and name.isascii()):
        raise TypeError(f"a tool needs a name that code can import, and {function!r} has none: use `def`")
    return {
        "name": name,
        "description": (inspect.getdoc(function) or "")[:DESCRIPTION_MAX],
        "parameters": _parameters(name, function),
    }


def _parameters(name: str, function: Tool) -> dict[str, Any]:
    try:
        types = get_type_hints(function, include_extras=True)
    except NameError:  # types that are imported for type checkers only: the schema says nothing about the values
        types = {}
    properties: dict[str, Any] = {}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": []}
    for each in inspect.signature(function).parameters.values():
        match each.kind:
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.VAR_POSITIONAL:
                raise TypeError(f"the tool {name} is called with named arguments, and {each} has no name")
            case inspect.Parameter.VAR_KEYWORD:
                schema["additionalProperties"] = True
            case _:
                properties[each.name] = _schema(types.get(each.name, Any))
                if each.default is inspect.Parameter.empty:
                    schema["required"].append(each.name)
    return schema


def _schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; {}, which any value fits, for a type that has no JSON type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        texts = [each for each in inner[1:] if isinstance(each, str)]
        return _schema(inner[0]) | ({"description": texts[0]} if texts else {})
    if origin in {Union, UnionType}:
        return {"anyOf": [_schema(each) for each in inner]}
    if origin is Literal:
        return {"enum": [*inner]}
    if origin in _LISTS:
        return {"type": "array", "items": _schema(inner[0])}
    if origin in _OBJECTS:
        return {"type": "object", "additionalProperties": _schema(inner[1])}
    return {"type": _TYPES[kind]} if isinstance(kind, type) and kind in _TYPES else {}
