"""The fake backend can fail as a real one can: everywhere."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import Any

import pytest

from sessions.backends.base import Backend, KernelHandle, Launch
from tests.fakes import PYTHON, FakeBackend


def methods(protocol: type) -> list[str]:
    """What a backend or a handle has to have, but for its attributes."""
    return [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]


async def call(thing: object, method: str) -> Any:
    """Call a method with whatever arguments."""
    function = getattr(thing, method)
    wanted = inspect.signature(function).parameters.values()
    result = function(*(None for parameter in wanted if parameter.default is parameter.empty))
    if inspect.isasyncgen(result):
        async with aclosing(result):
            return await anext(result)
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize("method", methods(Backend))
async def test_every_method_of_a_backend_can_fail(backend: FakeBackend, method: str) -> None:
    backend.failures[method] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await call(backend, method)


@pytest.mark.parametrize("method", methods(KernelHandle))
async def test_every_method_of_a_kernel_can_fail(backend: FakeBackend, method: str) -> None:
    kernel = await backend.start(Launch(PYTHON))
    backend.failures[method] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await call(kernel, method)


async def test_what_failed_works_when_its_failure_is_taken_away(backend: FakeBackend) -> None:
    backend.failures["start"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await backend.start(Launch(PYTHON))
    backend.failures.clear()
    assert (await backend.start(Launch(PYTHON))).alive
