"""The module `tools` of cells: functions that live outside of the sandbox.

The client of a cell hands over functions, and the gateway names them in the cell's request (see `extras.py`). While the
cell runs, code can import them from `tools`. The operator's servers of tools are modules in it, such as
`tools.SERVER`; their functions are asked for when code first names one. A call is a message `tool_call` on iopub; the
answer is a request `tool_reply` on the control channel, which a thread of its own reads, so it arrives while the cell
waits.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any

#: name of the module that code imports
MODULE = "tools"
#: maximum bytes of a call's arguments, as JSON. The gateway refuses larger ones, too
ARGUMENTS_MAX = 1024**2
#: function that publishes a call: the cell's request, and the content of the message
Publish = Callable[[Mapping[str, Any], dict[str, Any]], None]


class ToolError(Exception):
    """A call of a tool had no answer, or its answer was an error.

    `name` is the name of the error that the tool raised, if it raised one that Python does not know.
    """

    def __init__(self, text: str, name: str = "") -> None:
        """Set the text and the name of the error outside."""
        super().__init__(f"{name}: {text}" if name else text)
        self.name = name


class Tool:
    """One function outside of the sandbox. A call returns its answer; `await TOOL.aio(…)` does not block the cell."""

    def __init__(self, calls: Calls, described: Mapping[str, Any], server: str | None = None) -> None:
        """Describe the function, as the client or server that has it did.

        Args:
            calls: publishes its calls.
            described: its name, description and the names of its parameters.
            server: the operator's server that has it. None means that the client has it.
        """
        self.__name__ = self.__qualname__ = str(described["name"])
        self.__doc__ = str(described["description"])
        self._names: list[str] = described["parameters"]
        self._calls = calls
        self._server = server

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        """Call the function and wait for its answer."""
        with self._calls.call(self.__name__, self._named(args, arguments), self._server) as answer:
            return answer.result()

    async def aio(self, *args: Any, **arguments: Any) -> Any:
        """Call the function. Other tasks of the cell run until its answer is there."""
        with self._calls.call(self.__name__, self._named(args, arguments), self._server) as answer:
            return await asyncio.wrap_future(answer)

    def __repr__(self) -> str:
        """Show the function's name and parameters."""
        return f"<tool {self.__name__}({', '.join(self._names)})>"

    def _named(self, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._names):
            raise TypeError(
                f"{self.__name__}() takes {len(self._names)} positional arguments but {len(args)} were given"
            )
        given = dict(zip(self._names, args, strict=False))
        if twice := given.keys() & named.keys():
            raise TypeError(f"{self.__name__}() got multiple values for argument {min(twice)!r}")
        return given | named


class Server(ModuleType):
    """The functions of one server of the operator. The gateway is asked for them when code first names one."""

    def __init__(self, calls: Calls, name: str) -> None:
        """Begin without functions."""
        super().__init__(f"{MODULE}.{name}", f"The tools of the server {name}, outside of this sandbox.")
        self._calls = calls
        self._server = name
        self._tools: dict[str, Tool] | None = None

    def _listed(self) -> dict[str, Tool]:
        if self._tools is None:
            with self._calls.listing(self._server) as answer:
                listed = answer.result()
            self._tools = {str(tool["name"]): Tool(self._calls, tool, self._server) for tool in listed}
        return self._tools

    def __getattr__(self, name: str) -> Any:
        """Return a function of the server, or the names of all for `import *`."""
        if name == "__all__":
            return sorted(filter(str.isidentifier, self._listed()))
        if name.startswith("__") or name not in self._listed():  # Python itself looks for `__path__` and the like
            raise AttributeError(f"the server {self._server} has no tool {name!r}; dir({self.__name__}) lists them")
        return self._listed()[name]

    def __dir__(self) -> list[str]:
        """Return the names of the functions."""
        return sorted(self._listed())

    def __repr__(self) -> str:
        """Show the server's name."""
        return f"<tools of the server {self._server}>"


class Calls:
    """The calls of the running cell."""

    def __init__(self, publish: Publish) -> None:
        """Begin without a cell.

        Args:
            publish: publishes a call.
        """
        self._publish = publish
        #: the request of the cell that may call tools. None means that no cell may.
        self._cell: Mapping[str, Any] | None = None
        self._numbers = count(1)
        self._waiting: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def allowed(
        self, cell: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], servers: Sequence[str] = ()
    ) -> Iterator[None]:
        """Let code import and call tools while its cell runs. Calls that wait at its end get an error.

        Args:
            cell: request of the cell.
            tools: functions of the cell's client. One with the name of a server hides the server.
            servers: names of the operator's servers.
        """
        module = ModuleType(MODULE, "Functions that live outside of this sandbox.")
        modules: dict[str, ModuleType] = {MODULE: module}
        for name in set(servers) - {str(tool["name"]) for tool in tools}:
            vars(module)[name] = modules[f"{MODULE}.{name}"] = Server(self, name)
        vars(module).update({str(tool["name"]): Tool(self, tool) for tool in tools}, ToolError=ToolError)
        before = {name: sys.modules.get(name) for name in modules}
        self._cell = cell
        sys.modules.update(modules)
        try:
            yield
        finally:
            self._cell = None
            for name, former in before.items():
                if former is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = former
            for call in list(self._waiting):
                self._end(call, ToolError("the cell has ended before the tool's answer"))

    @contextmanager
    def call(self, name: str, arguments: dict[str, Any], server: str | None = None) -> Iterator[Future[Any]]:
        """Publish a call, and yield its answer to come. Nobody waits for it after the `with` block.

        Raises:
            ToolError: when no cell runs that may call tools, or the arguments are too large.
            TypeError: when the arguments are no JSON.
        """
        text = json.dumps(arguments, allow_nan=False)
        if len(text) > ARGUMENTS_MAX:
            raise ToolError(f"the arguments of {name} are {len(text)} bytes, more than {ARGUMENTS_MAX}")
        asked = {"name": name, "arguments": arguments} | ({} if server is None else {"server": server})
        with self._published(name, asked) as answer:
            yield answer

    @contextmanager
    def listing(self, server: str) -> Iterator[Future[Any]]:
        """Ask for the functions of a server, and yield the answer to come, as `call` does."""
        with self._published(server, {"server": server}) as answer:
            yield answer

    @contextmanager
    def _published(self, name: str, asked: dict[str, Any]) -> Iterator[Future[Any]]:
        with self._lock:
            call = str(next(self._numbers))
        answer: Future[Any] = Future()
        self._waiting[call] = answer
        try:
            cell = self._cell
            if cell is None:
                raise ToolError(f"{name} can be called only while a cell runs whose client has handed over tools")
            self._publish(cell, {"call": call, **asked})
            yield answer
        finally:
            self._waiting.pop(call, None)

    def answered(self, reply: Mapping[str, Any]) -> None:
        """Take an answer of the gateway."""
        if reply["status"] == "ok":
            self._end(reply["call"], None, json.loads(reply["value"]))
        else:
            self._end(reply["call"], _error(reply["ename"], reply["evalue"]))

    def _end(self, call: str, error: Exception | None, value: Any = None) -> None:
        answer = self._waiting.pop(call, None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)


def _error(name: str, text: str) -> Exception:
    """Return the tool's error as the built-in exception of this name, or else as a `ToolError`."""
    kind = vars(sys.modules["builtins"]).get(name)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
        try:
            return kind(text)
        except TypeError:  # some errors need more than a text
            pass
    return ToolError(text, "" if name == ToolError.__name__ else name)
