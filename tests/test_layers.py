"""The arrows of the picture in the README: which modules may import which others, read from the code itself."""

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


@functools.cache  # parsed on demand, not in each worker that only collects tests
def tree_of(module: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(FILES[module].read_text())


def _named(module: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the modules that one import statement names; `from a import b` may name a.b."""
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
    """Return all imports of a module, anywhere in it."""
    nodes = ast.walk(tree or tree_of(module))
    return {name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in _named(module, node)}


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def modules(package: str) -> list[str]:
    return [module for module in FILES if is_in(module, package)]


def arrows(package: str, *forbidden: str) -> set[str]:
    """Return the imports of a package from packages that it must not know."""
    return {
        f"{module} → {target}"
        for module in modules(package)
        for target in imports_of(module)
        if any(is_in(target, name) for name in forbidden)
    }


# -- the reader of imports -------------------------------------------------------------------------------------


def test_all_packages_and_their_imports_are_read() -> None:
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
        ("from ..registry import Registry", "sessions.backends.base", "sessions.registry"),
        ("def f():\n    from sessions.registry import Registry", "sessions.session", "sessions.registry"),
        ("if TYPE_CHECKING:\n    import sessions.registry", "sessions.session", "sessions.registry"),
    ],
)
def test_every_form_of_import_is_found(statement: str, module: str, target: str) -> None:
    assert imports_of(module, ast.parse(statement)) == {target}


# -- between packages ------------------------------------------------------------------------------------------


def test_the_domain_knows_no_http_and_no_service() -> None:
    assert not arrows("sessions", "tornado", "http", "kernel_gateway", "pydantic_settings")


def test_only_the_ledger_of_the_domain_imports_pydantic() -> None:
    assert arrows("sessions", "pydantic") == {"sessions.store.ledger → pydantic"}


def test_the_kernel_image_imports_nothing_of_the_gateway() -> None:
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
def test_every_way_to_read_the_environment_is_found(code: str) -> None:
    assert any(map(_reads_environment, ast.walk(ast.parse(code))))


@pytest.mark.parametrize("module", modules("sessions"))
def test_the_domain_reads_no_environment(module: str) -> None:
    assert not any(map(_reads_environment, ast.walk(tree_of(module))))


# -- within the domain -----------------------------------------------------------------------------------------

#: the packages of the domain from the inside out: a module imports from its own package and from earlier lines
ROOMS = [
    {"vocabulary"},
    {"guest", "policy", "store", "tenants"},
    {"backends"},
    {"kernels"},
    {"cells"},
    {"channels"},
    {"live"},
    {"programs", "proving"},
    {"providers"},
]
#: modules that are in no package: the vocabulary that all others use, and the sessions themselves
VOCABULARY = {
    *("activity", "asleep", "bounded_json", "connection_info", "egress", "errors", "exact_json", "exits", "heap"),
    *("inventory", "kernelspecs", "models", "names", "notices", "states", "stopwatch", "tasks", "timeouts", "units"),
}
LIVE = {
    *("attached", "automatic", "beginning", "commands", "culler", "executions", "fall_asleep", "host", "hosts"),
    *("identity", "measuring", "pausing", "recovery", "registry", "sandbox", "sandboxes", "services"),
    *("session", "sleep_turns", "sleeper", "slot", "slot_listener", "slot_record", "snapshots", "strays"),
    *("take_over", "take_snapshot", "undo", "watchers"),
}


def room_of(module: str) -> str:
    """Return the package of a module of the domain, or its group if it is in no package."""
    first = module.split(".")[1]
    return "vocabulary" if first in VOCABULARY else "live" if first in LIVE else first


def _allowed(room: str) -> set[str]:
    rank = next(rank for rank, rooms in enumerate(ROOMS) if room in rooms)
    return {room}.union(*ROOMS[:rank])


def test_every_module_of_the_domain_belongs_to_a_package_or_group() -> None:
    assert {room_of(module) for module in modules("sessions") if module != "sessions"} == set().union(*ROOMS)


def test_packages_of_the_domain_import_only_earlier_ones() -> None:
    assert not {
        f"{module} → {target}"
        for module in modules("sessions")
        if module != "sessions"
        for target in imports_of(module)
        if target.startswith("sessions.") and room_of(target) not in _allowed(room_of(module))
    }


PURE = [
    "bounded_json",
    "cells.notebook",
    "cells.outputs",
    "cells.transcript",
    "egress",
    "errors",
    "exact_json",
    "exits",
    "guest.paths",
    "kernels.messages",
    "models",
    "policy",
    "programs.outcomes",
    "programs.program",
    "states",
    "tenants.admission",
    "tenants.usage",
    "units",
]


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_have_no_loop_no_socket_and_no_clock(name: str) -> None:
    impure = {"asyncio", "datetime", "os", "pathlib", "random", "socket", "subprocess", "threading", "time", "zmq"}
    assert not arrows(f"sessions.{name}", *impure)


def test_backends_do_not_import_one_another_and_the_domain_imports_none() -> None:
    backends = {module.split(".")[2] for module in modules("sessions.backends") if module.count(".") > 1}
    backends -= {"abilities", "base", "handshake"}
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


#: modules that record times for people or read those of files; no wait and no deadline depends on them
CALENDAR = {
    *("backends.docker.checkpoints.restoring", "backends.docker.memories", "channels.subscription"),
    *("store.audit", "store.database", "store.ledger", "store.templates"),
}


def _reads_calendar(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns" | "localtime" | "gmtime"):
            return True
        case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr="now" | "today" | "utcnow"):
            return True
        case ast.ImportFrom(module="time"):
            return any(alias.name != "monotonic" for alias in node.names)
    return False


def test_only_listed_modules_read_the_calendar() -> None:
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


def test_an_import_cycle_is_found() -> None:
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not _cycle({"a": {"b", "c"}, "b": {"c"}})


def test_there_are_no_import_cycles() -> None:
    assert not _cycle({module: imports_of(module) & set(FILES) - {module} for module in FILES})
