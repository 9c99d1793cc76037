"""Every method of the fake backend can fail, as in a real one."""

from __future__ import annotations

import inspect
from contextlib import aclosing
from typing import Any

import pytest

from sessions.backends.base import Backend, KernelHandle, Launch
from tests.fakes import PYTHON, FakeBackend


def methods(protocol: type) -> list[str]:
    """Return the names of a protocol's methods, without its attributes."""
    return [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]


async def call(thing: object, method: str) -> Any:
    """Call a method with None for each required argument."""
    function = getattr(thing, method)
    wanted = inspect.signature(function).parameters.values()
    result = function(*(None for parameter in wanted if parameter.default is parameter.empty))
    if inspect.isasyncgen(result):
        async with aclosing(result):
            return await anext(result)
    return await result if inspect.isawaitable(result) else result


#: methods of a backend that only keep a listener, which cannot fail
KEEP_A_LISTENER = {"report_doubts", "report_restores"}


@pytest.mark.parametrize("method", sorted({*methods(Backend)} - KEEP_A_LISTENER))
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


async def test_a_method_works_again_after_its_failure_is_removed(backend: FakeBackend) -> None:
    backend.failures["start"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await backend.start(Launch(PYTHON))
    backend.failures.clear()
    assert (await backend.start(Launch(PYTHON))).alive
