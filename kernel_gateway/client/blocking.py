"""Calls for programs without an event loop.

Each call is written once, as a coroutine over a transport. The transport of a blocking client waits in place, so its
coroutines never suspend: their first step is their last, and its value is the call's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine that never suspends."""
    try:
        call.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    call.close()
    raise RuntimeError("a blocking call has suspended: does it await something else than its transport?")


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of a call, for a class that has the asynchronous object as `calls`."""

    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return finished(method(self.calls, *arguments, **named))

    return update_wrapper(call, method)


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Generator[T, None, None]]:
    """Return the blocking form of a call that yields values as they come."""

    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        return in_place(method(self.calls, *arguments, **named))

    return update_wrapper(call, method)


def in_place(values: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield the values of a generator that never suspends. Its end, or that of this one, ends both."""
    try:
        while True:
            try:
                value = finished(values.__anext__())
            except StopAsyncIteration:
                return
            yield value
    finally:
        finished(values.aclose())
