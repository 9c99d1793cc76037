"""The arrows of the picture in the README: who may import whom, read from the code itself."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernel_gateway", "kernel_image", "sessions")


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


@functools.cache  # when it is asked for, not in each worker that only looks for tests
def tree_of(module: str) -> ast.Module:
    """A module's syntax."""
    return ast.parse(FILES[module].read_text())


def _named(module: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The modules that one import statement names; `from a import b` may name a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        base = f"{package}.{base}".rstrip(".")
    for alias in node.names:
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base


@functools.cache
def imports_of(module: str, tree: ast.AST | None = None) -> set[str]:
    """All that a module imports, anywhere in it."""
    nodes = ast.walk(tree or tree_of(module))
    return {name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in _named(module, node)}


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def modules(package: str) -> list[str]:
    return [module for module in FILES if is_in(module, package)]


def arrows(package: str, *forbidden: str) -> set[str]:
    """Imports from a package into what it must not know."""
    return {
        f"{module} → {target}"
        for module in modules(package)
        for target in imports_of(module)
        if any(is_in(target, name) for name in forbidden)
    }


# -- the instrument --------------------------------------------------------------------------------------------


def test_the_code_is_there_to_be_read() -> None:
    for package in PACKAGES:
        assert len(modules(package)) > 2
    assert "sessions.registry" in imports_of("sessions.culler")
    assert "sessions.backends.base" in imports_of("sessions.backends.process")


@pytest.mark.parametrize(
    ("statement", "module", "target"),
    [
        ("import tornado.web", "sessions.session", "tornado.web"),
        ("from tornado import web", "sessions.session", "tornado"),
        ("from sessions import registry", "sessions.session", "sessions.registry"),
        ("from sessions.registry import Registry", "sessions.session", "sessions.registry"),
        ("from . import registry", "sessions.session", "sessions.registry"),
        ("from .registry import Registry", "sessions.session", "sessions.registry"),
        ("from ..registry import Registry", "sessions.backends.process", "sessions.registry"),
        ("def f():\n    from sessions.registry import Registry", "sessions.session", "sessions.registry"),
        ("if TYPE_CHECKING:\n    import sessions.registry", "sessions.session", "sessions.registry"),
    ],
)
def test_no_way_to_import_is_overlooked(statement: str, module: str, target: str) -> None:
    assert imports_of(module, ast.parse(statement)) == {target}


# -- between packages ------------------------------------------------------------------------------------------


def test_the_domain_knows_no_http_and_no_service() -> None:
    assert not arrows("sessions", "tornado", "http", "kernel_gateway", "pydantic_settings")


def test_the_domain_validates_itself_but_for_what_it_reads_back_from_the_disk() -> None:
    assert arrows("sessions", "pydantic") == {"sessions.ledger → pydantic"}


def test_what_runs_in_the_sandbox_knows_nothing_of_ours() -> None:
    assert not arrows("kernel_image", "sessions", "kernel_gateway")


def _reads_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv" | "getenvb"):
            return True
        case ast.ImportFrom(module="os"):
            return any(alias.name in {"environ", "environb", "getenv", "getenvb"} for alias in node.names)
    return False


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['A']",
        "import os\nx = os.getenv('A')",
        "from os import environ",
        "from os import getenv as g",
    ],
)
def test_no_way_to_read_the_environment_is_overlooked(code: str) -> None:
    assert any(map(_reads_environment, ast.walk(ast.parse(code))))


@pytest.mark.parametrize("module", modules("sessions"))
def test_the_domain_reads_no_environment(module: str) -> None:
    assert not any(map(_reads_environment, ast.walk(tree_of(module))))


# -- within the domain -----------------------------------------------------------------------------------------

#: from the outside in; a module may import those of later lines, and of its own
ORDER = [
    {"culler", "recovery"},
    {"sandboxes"},
    {"sandbox"},
    {"runs"},
    {"registry"},
    {"pool", "session"},
    {"seat"},
    {"commands"},
    {"processes"},
    {"artifacts"},
    {"workspace"},
    {"tools"},
    {"channels", "retries", "surroundings"},
    {"orphan", "requests"},
    {"execution", "shelf", "starts"},
    {"kernel"},
    {"readiness"},
    {"connection", "subscription", "transcript", "backends.base"},
    {"outputs"},
    {"flush"},
    {"vigil"},
    {"backlog", "messages"},
    {"kernelspecs"},
    {"outcomes"},
    {"audit", "oneshot", "quotas"},
    {"policy", "records"},
    {"activity", "admission", "ledger", "memory", "models", "states", "tasks", "templates", "usage"},
    {"errors"},
]
RANK = {f"sessions.{name}": rank for rank, names in enumerate(ORDER) for name in names}


def test_no_arrow_of_the_domain_points_back() -> None:
    assert not {
        f"{module} → {target}"
        for module, rank in RANK.items()
        for target in imports_of(module)
        if target in RANK and RANK[target] < rank
    }


def test_every_module_of_the_domain_has_its_place() -> None:
    inner = {"sessions", "sessions.backends", "sessions.providers"}
    assert {name for name in modules("sessions") if name.rpartition(".")[0] == "sessions"} - inner == set(RANK) - {
        "sessions.backends.base"
    }


PURE = [
    "admission",
    "errors",
    "messages",
    "models",
    "oneshot",
    "outcomes",
    "outputs",
    "policy",
    "states",
    "transcript",
    "usage",
]


@pytest.mark.parametrize("name", PURE)
def test_the_pure_ones_have_no_loop_no_socket_and_no_clock(name: str) -> None:
    impure = {"asyncio", "datetime", "os", "pathlib", "random", "socket", "subprocess", "threading", "time", "zmq"}
    assert not arrows(f"sessions.{name}", *impure)


def test_backends_know_only_their_base_and_the_domain_none_of_them() -> None:
    backends = {module.split(".")[2] for module in modules("sessions.backends") if module.count(".") > 1} - {"base"}
    assert {"process"} <= backends
    for backend in backends:
        package = f"sessions.backends.{backend}"
        others = [f"sessions.backends.{other}" for other in backends - {backend}]
        assert not arrows(package, *others)
        assert not {
            f"{module} → {target}"
            for module in modules("sessions")
            if not is_in(module, package)
            for target in imports_of(module)
            if is_in(target, package)
        }
        above = [name for name, rank in RANK.items() if rank <= RANK["sessions.readiness"]]
        assert not arrows(package, *above)


#: they tell people when something was; nothing waits for it or ends by it
CALENDAR = {"audit", "ledger", "sandbox", "subscription", "templates"}


def _reads_calendar(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns" | "localtime" | "gmtime"):
            return True
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "today" | "utcnow"):
            return True
        case ast.ImportFrom(module="time"):
            return any(alias.name != "monotonic" for alias in node.names)
    return False


def test_no_deadline_follows_a_clock_that_can_be_set() -> None:
    reading = {module for module in modules("sessions") if any(map(_reads_calendar, ast.walk(tree_of(module))))}
    assert reading == {f"sessions.{name}" for name in CALENDAR}


# -- within the service ----------------------------------------------------------------------------------------


def test_dialects_do_not_know_one_another() -> None:
    table = "kernel_gateway.dialects"
    dialects = {module.split(".")[2] for module in modules(table) if module.count(".") > 1}
    for dialect in dialects:
        assert not arrows(f"{table}.{dialect}", *(f"{table}.{other}" for other in dialects - {dialect}))


# -- everywhere ------------------------------------------------------------------------------------------------


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_cycle_would_be_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not _cycle({"a": {"b", "c"}, "b": {"c"}})


def test_no_modules_import_one_another() -> None:
    assert not _cycle({module: imports_of(module) & set(FILES) - {module} for module in FILES})
