"""The table of how to extend the gateway is true, and a half-finished extension fails a test."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest

from kernel_gateway.cli import tenants
from kernel_gateway.config import Settings
from kernel_gateway.dialects import DIALECTS
from kernel_gateway.dialects.native.models import LimitsBody, LimitsInfo
from kernel_gateway.dialects.native.tenant_limits import TenantLimits
from kernel_gateway.gateway import Dialect, Gateway
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
        "a call of the native API",
        "a command",
        "a table or a column",
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
    backends = {path.parent.name for path in (ROOT / "sessions/backends").glob("*/__init__.py")}
    assert {"process", "docker"} <= backends
    assert not [backend for backend in backends if f"from sessions.backends.{backend} import" not in suite]


def test_every_dialect_is_in_the_table() -> None:
    exported = [
        import_module(f"kernel_gateway.dialects.{name}").DIALECT for name in _modules("kernel_gateway/dialects")
    ]
    assert len(exported) == len({dialect.name for dialect in DIALECTS})  # E2B's has two entries
    assert all(dialect in DIALECTS for dialect in exported)


#: pages that describe the gateway's own dialects; a foreign one has a page in `docs/clients/`
PAGES = {"admin": "docs/providers.md", "native": "docs/api.md", "ops": "docs/operating.md", "web": "docs/ui.md"}
#: test files of dialects whose names are in no name of a file
TESTS = {"ops": "test_ready.py"}
#: dialects that serve no OpenAPI, and why
NO_OPENAPI = {
    "admin": "the operator's page and WeKnora's administration are its only clients",
    "agentrun": "the original has its own description, and clients know no path for one",
    "dify": "six paths, in the form of Dify's sandbox, which serves no description",
    "dynamic_sessions": "the original has its own description, and clients know no path for one",
    "e2b": "the original has its own description, and clients know no path for one",
    "librechat": "ten paths, in the form of LibreChat's code API, whose clients read no description",
    "mcp": "JSON-RPC, whose `tools/list` describes the tools",
    "ops": "four fixed paths without a request body",
    "ragflow": "two paths, in the form of RAGFlow's executor, which serves no description",
    "web": "pages for people",
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_dialect_has_tests_and_a_page_that_the_readme_links(dialect: Dialect) -> None:
    name = dialect.name
    pattern, page = TESTS.get(name, f"test_{name}*.py"), PAGES.get(name, f"docs/clients/{name}.md")
    assert list((ROOT / "tests/kernel_gateway").rglob(pattern)), f"no {pattern} is below tests/kernel_gateway"
    assert (ROOT / page).exists(), page
    assert f"]({page})" in (ROOT / "README.md").read_text(), f"README.md does not link {page}"


def test_every_dialect_serves_its_openapi_or_says_why_not() -> None:
    def describes_itself(dialect: Dialect) -> bool:
        patterns = [pattern for pattern, _, _ in dialect.routes(cast("Gateway", None))]
        return any("openapi" in pattern or "swagger" in pattern for pattern in patterns)

    silent = {dialect.name for dialect in DIALECTS if not describes_itself(dialect)}
    assert silent == NO_OPENAPI.keys(), "NO_OPENAPI of this test says why a dialect serves none"


def settings_read(tree: ast.AST, owner: str) -> set[str]:
    """Return the attributes that code reads of objects with this name, such as `settings` and `self._settings`.

    What only checks the settings' values, a validator, does not count.
    """
    checks = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any("validator" in ast.unparse(name) for name in node.decorator_list)
        for inner in ast.walk(node)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node not in checks
        if re.search(rf"(?:^|\b|_){owner}$", ast.unparse(node.value))
    }


@pytest.mark.parametrize(
    ("code", "read"),
    [
        ("Backend(settings.image)", {"image"}),
        ("self._settings.image", {"image"}),
        ("gateway.settings.image", {"image"}),
        ("settings.image = 1", set()),
        ("other.image", set()),
        ("class Settings:\n  @model_validator(mode='after')\n  def f(self): return settings.image", set()),
    ],
)
def test_every_use_of_a_setting_is_found(code: str, read: set[str]) -> None:
    assert settings_read(ast.parse(code), "settings") == read


def test_every_setting_is_read() -> None:
    config = ROOT / "kernel_gateway/config.py"
    read = settings_read(ast.parse(config.read_text()), "self")
    for path in (ROOT / "kernel_gateway").rglob("*.py"):
        read |= settings_read(ast.parse(path.read_text()), "settings")
    assert Settings.model_fields.keys() <= read


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
