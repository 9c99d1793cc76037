"""The gate's cases of tests that need an engine or a browser, and the tests that go to one worker.

README.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: tests that share the gateway whose kernels are sandboxed
SANDBOXED = "tests/kernel_gateway[docker]"
#: tests that share the attacked gateway; the tests of the channels have their own
ATTACKS = "tests/attacks"


def cases(by_name: Mapping[str, Any], *, gate: str | Collection[str]) -> list[Any]:
    """Return the cases of a parametrized test, by their names; one of them, or some, are part of the gate."""
    chosen = {gate} if isinstance(gate, str) else set(gate)
    assert chosen <= by_name.keys()
    return [
        pytest.param(case, id=name, marks=[pytest.mark.gate] if name in chosen else [])
        for name, case in by_name.items()
    ]


def some(of: Iterable[Any], *, gate: int) -> list[Any]:
    """Return the cases of a parametrized test that needs no engine; the first `gate` cases are part of the gate.

    A case for several arguments is a tuple.
    """
    return [case if number < gate else _full(case) for number, case in enumerate(of)]


def _full(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.full)


class ByGateway(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Sends a file's tests to one worker, because they share gateways; and all tests with the shared sandboxed one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file.startswith("tests/attacks/") and not file.endswith("/test_attack_channels.py"):
            return ATTACKS
        shares = file.startswith("tests/kernel_gateway/") and "docker" in nodeid.partition("[")[2]
        return SANDBOXED if shares else file
