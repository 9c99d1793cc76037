"""Environment variables of one cell alone."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock, Mock

import pytest

from sessions.cells.environment import CellEnvironment
from tests.fakes import PYTHON


@pytest.mark.parametrize("with_cell", [True, False])
async def test_only_a_kernel_that_is_sent_code_for_them_waits_for_interrupts(with_cell: bool) -> None:  # noqa: FBT001
    kernel = Mock()
    kernel.interrupts.settle = AsyncMock()
    spec = replace(PYTHON, extras=with_cell, setenv="set {json}")
    await CellEnvironment(spec, {"A": "own"}).reset(kernel, ["A"])
    times = 0 if with_cell else 1
    assert (kernel.interrupts.settle.await_count, kernel.connection.send.call_count) == (times, times)
