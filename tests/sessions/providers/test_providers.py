"""The table of providers: complete, and each of them for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions.providers import PROVIDERS
from tests.sessions.providers.runner import LocalRunner
from tests.test_layers import arrows


@pytest.mark.parametrize("name", PROVIDERS)
def test_each_is_made_by_its_own_id_and_is_under_the_contract(name: str) -> None:
    assert PROVIDERS[name](LocalRunner()).id == name
    suite = Path(__file__).with_name(f"test_{name}.py").read_text()
    assert "from tests.sessions.providers.contract import *" in suite
    assert "def case(" in suite


def test_they_do_not_know_one_another() -> None:
    assert arrows("sessions.providers.self_managed", "sessions.providers.executor")  # it would be seen
    for name in PROVIDERS:
        assert not arrows(
            f"sessions.providers.{name}", *(f"sessions.providers.{other}" for other in PROVIDERS.keys() - {name})
        )


def test_what_runs_in_other_interpreters_knows_nothing_of_ours() -> None:
    assert not arrows("sessions.providers.programs", "sessions", "kernel_gateway", "kernel_image")
