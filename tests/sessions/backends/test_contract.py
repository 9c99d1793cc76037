"""What every place where kernels run must do. One suite, over all of them.

To put a backend under it: add one line to `BACKENDS`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from sessions.backends.base import Backend, KernelHandle, Launch
from sessions.backends.process import ProcessBackend
from sessions.errors import KernelDied, SessionClosed
from sessions.kernel import Kernel
from sessions.models import ExitReason, KernelExit, Limits
from sessions.quotas import Quotas, TenantLimits
from sessions.session import KernelSource, Session, Surroundings
from tests.fakes import KERNELSPECS, PYTHON, FakeBackend, run

#: every backend, and whether it needs what only some machines have
BACKENDS: list[Any] = [
    pytest.param(FakeBackend, id="fake"),
    pytest.param(ProcessBackend, id="process"),
]

#: seconds for a kernel's end to be noticed
NOTICED = 3.0


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, nothing_left: None) -> AsyncIterator[Backend]:
    make: Callable[[], Backend] = request.param
    backend = make()
    await backend.prepare()
    yield backend
    await backend.close()


@pytest.fixture
async def kernel(backend: Backend) -> AsyncIterator[Kernel]:
    kernel = await Kernel.start(backend, Launch(PYTHON))
    yield kernel
    await kernel.kill(SessionClosed())


class Cells(KernelSource):
    """Hands one kernel to a session, for tests that run code."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def acquire(self, launch: Launch) -> Kernel:
        return self._kernel

    async def delete_workspace(self, workspace: str) -> None:
        pass


async def session_on(kernel: Kernel) -> Session:
    """A session that runs its cells in this kernel."""
    from sessions.execution import Patience
    from sessions.models import SessionKey, SessionSpec

    around = Surroundings(
        Cells(kernel), Quotas(TenantLimits()), asyncio.get_running_loop().time, lambda *_: None, Patience()
    )
    session = Session(SessionKey("acme", "s1"), SessionSpec(), kernel.launch.kernelspec, around)
    await session.ensure_kernel()
    return session
