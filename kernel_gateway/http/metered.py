"""Measures what a coroutine takes of the event loop: how long each of its steps runs, and not how long it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class Metered(Coroutine[Any, Any, T]):
    """Runs a coroutine, and reports how long each step has kept the loop from everything else."""

    def __init__(self, work: Coroutine[Any, Any, T], tell: Callable[[float], None]) -> None:
        """Wrap a coroutine.

        Args:
            work: the coroutine.
            tell: called after each step with its seconds.
        """
        self._work = work
        self._tell = tell

    def send(self, value: Any) -> Any:
        """Run the next step."""
        began = time.perf_counter()
        try:
            return self._work.send(value)
        finally:
            self._tell(time.perf_counter() - began)

    def throw(
        self, typ: Any, val: BaseException | object = None, tb: TracebackType | None = None
    ) -> Any:  # the loop passes only an exception
        """Run the next step, which begins with an exception."""
        began = time.perf_counter()
        try:
            return self._work.throw(typ) if val is None and tb is None else self._work.throw(typ, val, tb)
        finally:
            self._tell(time.perf_counter() - began)

    def close(self) -> None:
        """End the coroutine."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine within another one."""
        return (yield from self._work.__await__())
