"""The table of how to extend the gateway is true, and a half-finished extension fails a test."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from kernel_gateway.cli import tenants
from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.dialects.native.models import LimitsBody, LimitsInfo
from kernel_gateway.dialects.native.tenant_limits import TenantLimits
from kernel_gateway.setting_types import TenantForm
from sessions.model.tenant_limits import SETTINGS, OwnLimits
from sessions.model.values import Limits

ROOT = Path(__file__).parents[1]
SECTION = re.search(
    r"^## What goes where\n(.*?)^## ", (ROOT / "docs/extending.md").read_text(), re.DOTALL | re.MULTILINE
)
#: what is added, where, and the tests that fail until it is complete
ROWS = re.findall(r"^\| (a\w* [\w ]+) \| (.+?) \| (.+?) \|$", SECTION[1] if SECTION else "", re.MULTILINE)


def _modules(folder: str) -> set[str]:
    found = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return found - {"__init__", "__pycache__"}


def test_the_page_answers_every_question_of_a_newcomer() -> None:
    asked = {
        "a language",
        "a backend",
        "a dialect",
        "a provider",
        "a limit",
        "a limit of one tenant",
        "an error",
        "an alert",
        "a metric",
        "a setting",
    }
    assert {what for what, _, _ in ROWS} == asked


@pytest.mark.parametrize(("where", "held_by"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_places_and_tests_that_the_page_names_exist(where: str, held_by: str) -> None:
    paths = re.findall(r"`([\w/]+(?:/|\.py))`", where)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held_by)
    assert paths
    assert tests
    assert not [path for path in paths if not (ROOT / path).exists()]
    for path, name in tests:
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"


def test_every_backend_is_under_the_contract_suite() -> None:
    suite = (ROOT / "tests/sessions/backends/test_contract.py").read_text()
    backends = _modules("sessions/backends") - {"abilities", "base", "handshake"}
    assert {"process", "docker"} <= backends
    assert not [backend for backend in backends if f"from sessions.backends.{backend} import" not in suite]


def test_every_dialect_is_in_the_table() -> None:
    exported = [
        import_module(f"kernel_gateway.dialects.{name}").DIALECT for name in _modules("kernel_gateway/dialects")
    ]
    assert len(exported) == len(DIALECTS)
    assert all(dialect in DIALECTS for dialect in exported)


def test_every_limit_can_be_set_lowered_and_seen() -> None:
    names = {field.name for field in fields(Limits)}
    assert names == set(LimitsBody.model_fields) == set(LimitsInfo.model_fields)
    assert names - {"output"} <= set(Settings.model_fields), "output is max_output_bytes there"


def test_every_limit_of_a_tenant_can_be_set_everywhere() -> None:
    names = {field.name for field in fields(OwnLimits)} - {"tenant"}
    assert names == SETTINGS.keys() == TenantForm.model_fields.keys() == TenantLimits.model_fields.keys()
    assert names == tenants.LIMITS.keys() == Settings.model_validate({}).most_of("acme").named().keys()
    assert set(SETTINGS.values()) <= set(Settings.model_fields)
    page = (ROOT / "kernel_gateway/web/admin/limits.js").read_text()
    assert set(re.findall(r"^  (\w+): {", page, re.MULTILINE)) == names
