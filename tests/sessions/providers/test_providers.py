"""The table of providers is complete, and the providers are independent of one another."""

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


def test_providers_do_not_import_one_another() -> None:
    assert arrows("sessions.providers.self_managed", "sessions.providers.executor")  # `arrows` finds an import
    for name in PROVIDERS:
        assert not arrows(
            f"sessions.providers.{name}", *(f"sessions.providers.{other}" for other in PROVIDERS.keys() - {name})
        )


def test_program_runners_import_nothing_of_this_project() -> None:
    assert not arrows("sessions.providers.programs", "sessions", "kernel_gateway", "kernel_image")
