"""The arrows of the pictures in the READMEs: which modules may import which others, read from the code itself."""

from __future__ import annotations

import ast
import functools
import warnings
from collections import Counter
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
    assert "sessions.session.registry" in imports_of("sessions.upkeep.culler")
    assert "sessions.backends.base" in imports_of("sessions.backends.process")


@pytest.mark.parametrize(
    ("statement", "module", "target"),
    [
        ("import tornado.web", "sessions.session.session", "tornado.web"),
        ("from tornado import web", "sessions.session.session", "tornado"),
        ("from sessions.session import registry", "sessions.session.session", "sessions.session.registry"),
        ("from sessions.session.registry import Registry", "sessions.session.session", "sessions.session.registry"),
        ("from . import registry", "sessions.session.session", "sessions.session.registry"),
        ("from .registry import Registry", "sessions.session.session", "sessions.session.registry"),
        ("from ..session.registry import Registry", "sessions.backends.base", "sessions.session.registry"),
        (
            "def f():\n    from sessions.session.registry import Registry",
            "sessions.session.session",
            "sessions.session.registry",
        ),
        (
            "if TYPE_CHECKING:\n    import sessions.session.registry",
            "sessions.session.session",
            "sessions.session.registry",
        ),
    ],
)
def test_every_form_of_import_is_found(statement: str, module: str, target: str) -> None:
    assert imports_of(module, ast.parse(statement)) == {target}


# -- between packages ------------------------------------------------------------------------------------------


def test_the_domain_knows_no_http_and_no_service() -> None:
    assert not arrows("sessions", "tornado", "http", "kernel_gateway", "pydantic_settings")


def test_pydantic_checks_in_the_domain_only_what_a_disk_and_a_kernel_say() -> None:
    checking = {
        "sessions.store.ledger → pydantic",
        "sessions.kernels.completion → pydantic",
        "sessions.kernels.variables → pydantic",
        "sessions.debugging.model → pydantic",
        "sessions.debugging.adapter → pydantic",
        "sessions.debugging.post_mortem → pydantic",
    }
    assert arrows("sessions", "pydantic") == checking


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


def test_the_domain_reads_no_environment() -> None:
    assert [name for name in modules("sessions") if any(map(_reads_environment, ast.walk(tree_of(name))))] == []


# -- within the domain -----------------------------------------------------------------------------------------

#: The rooms of each package, floor by floor. A module imports from its own room and from rooms on lower floors;
#: a module beside the rooms is a room of its own, and `__init__` is the package itself.
TOWERS: dict[str, list[set[str]]] = {
    "sessions": [
        {"__init__", "model"},
        {"guest", "policy", "store", "tenants"},
        {"backends", "file_store"},
        {"kernels"},
        {"tools"},
        {"cells", "checkpoints"},
        {"channels", "debugging"},
        {"session"},
        {"programs", "proving", "replay", "sandbox"},
        {"ports", "providers", "upkeep"},
    ],
    "sessions.backends.docker": [
        {"profile"},
        {"engine"},
        {"disks", "requirements"},
        {"container", "isolation"},
        {"checkpoint", "fairness"},
        {"golden"},
        {"starter"},
        {"sleep"},
        {"doctor"},
        {"__init__"},
    ],
    "kernel_gateway": [
        {
            "__init__",
            "client",
            "client_config",
            "errors",
            "fair_loop",
            "for_jupyter",
            "own_address",
            "setting_types",
            "state_dir",
            "times",
        },
        {"config"},
        {"identity", "wire"},
        {"observe"},
        {"gateway", "isolation", "journal"},
        {"http"},
        {"ports", "tools"},
        {"dialects"},
        {"app"},
        {"proving"},
        {"cli"},
        {"__main__"},
    ],
}


def room_of(module: str, package: str) -> str:
    """Return the room of a package that a module is in."""
    return "__init__" if module == package else module.removeprefix(f"{package}.").partition(".")[0]


def upward(package: str) -> set[str]:
    """Return the imports between a package's rooms that do not go to a lower floor."""
    floor_of = {room: floor for floor, rooms in enumerate(TOWERS[package]) for room in rooms}
    return {
        f"{module} → {target}"
        for module in modules(package)
        for target in imports_of(module) & set(FILES)
        if is_in(target, package)
        and (above := room_of(module, package)) != (below := room_of(target, package))
        and floor_of[below] >= floor_of[above]
    }


@pytest.mark.parametrize("package", TOWERS)
def test_every_module_belongs_to_a_room(package: str) -> None:
    assert {room_of(module, package) for module in modules(package)} == set().union(*TOWERS[package])


def test_rooms_import_only_from_lower_floors() -> None:
    assert set().union(*map(upward, TOWERS)) == set()


def test_every_package_says_what_lives_there() -> None:
    packages = [name for name, path in FILES.items() if path.name == "__init__.py"]
    assert [package for package in packages if not ast.get_docstring(tree_of(package))] == []


def test_only_providers_import_an_http_client() -> None:
    clients = {"aiohttp", "http", "httpx", "tornado", "websockets"}  # the engine's client raises errors of requests
    # the cluster's client raises errors of aiohttp, and hands out its connections
    known = ("sessions.providers.", "sessions.backends.kubernetes.")
    assert {arrow for arrow in arrows("sessions", *clients) if not arrow.startswith(known)} == set()
    assert arrows("sessions.providers", "httpx"), "control"


#: lines above which a module may hold two things, and below which it may be a part of the only one that imports it
LONG, SHORT = 400, 60


@pytest.mark.filterwarnings("always:look twice")  # shown at the end of a run; all other warnings are errors
def test_sizes_are_a_hint_and_fail_nothing() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in FILES.items()}
    importers = Counter(target for module in FILES for target in imports_of(module) - {module})
    long = [module for module in FILES if lines[module] > LONG]
    short = [
        module
        for module, path in FILES.items()
        if lines[module] < SHORT and importers[module] == 1 and path.name != "__init__.py"
    ]
    if long:
        warnings.warn(f"look twice: above {LONG} lines: {', '.join(long)}", stacklevel=1)
    if short:
        warnings.warn(f"look twice: below {SHORT} lines, with one importer: {', '.join(short)}", stacklevel=1)


PURE = [
    "cells.notebook",
    "cells.outputs",
    "cells.past_run",
    "cells.timeline",
    "cells.transcript",
    "guest.paths",
    "kernels.messages",
    "model.bounded_json",
    "model.egress",
    "model.errors",
    "model.exact_json",
    "model.units",
    "model.values",
    "policy",
    "programs.outcomes",
    "programs.program",
    "session.states",
    "tenants.admission",
    "tenants.usage",
]


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_have_no_loop_no_socket_and_no_clock(name: str) -> None:
    impure = {"asyncio", "datetime", "os", "pathlib", "random", "socket", "subprocess", "threading", "time", "zmq"}
    assert not arrows(f"sessions.{name}", *impure)


def test_backends_do_not_import_one_another_and_the_domain_imports_none() -> None:
    backends = {module.split(".")[2] for module in modules("sessions.backends") if module.count(".") > 2}
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
    *("backends.docker.checkpoint.restore", "backends.docker.checkpoint.sleep_images", "channels.subscription"),
    *("store.audit", "store.database", "store.ledger", "store.templates", "store.usage_store"),
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


def test_what_runs_in_a_users_jupyter_server_knows_nothing_of_the_gateway() -> None:
    others = [room for rooms in TOWERS["kernel_gateway"] for room in rooms - {"__init__", "for_jupyter"}]
    forbidden = ("sessions", "kernel_image", *(f"kernel_gateway.{room}" for room in others))
    assert not arrows("kernel_gateway.for_jupyter", *forbidden)
    assert arrows("kernel_gateway", "jupyter_server") == arrows("kernel_gateway.for_jupyter", "jupyter_server")


def test_the_client_library_knows_nothing_of_the_gateway() -> None:
    others = [room for rooms in TOWERS["kernel_gateway"] for room in rooms - {"__init__", "client"}]
    assert not arrows("kernel_gateway.client", "sessions", *(f"kernel_gateway.{room}" for room in others))


def test_dialects_do_not_know_one_another() -> None:
    table = "kernel_gateway.dialects"
    dialects = {module.split(".")[2] for module in modules(table) if module.count(".") > 1}
    for dialect in dialects:
        assert not arrows(f"{table}.{dialect}", *(f"{table}.{other}" for other in dialects - {dialect}))


# -- everywhere ------------------------------------------------------------------------------------------------

#: objects of other libraries that take their options as attributes
OF_LIBRARIES = {
    "kernel_gateway.cli.client_command: parser": "an ArgumentParser, made by `add_parser`",
    "kernel_gateway.cli.exec_json: parser": "an ArgumentParser, made by `add_parser`",
    "kernel_gateway.cli.settings: parser": "an ArgumentParser, made by `add_parser`",
    "kernel_gateway.wire.tls: made": "an SSLContext, which takes this option only as an attribute",
    "sessions.backends.docker.engine.engine: _call_limits": "a threading.local, which has only attributes",
    "sessions.kernels.sockets: socket": "a ZMQ socket, whose options are attributes",
    "sessions.providers.agentrun: logging.getLogger('agentrun-logger')": "a logger, which an attribute switches off",
    "sessions.providers.programs.program: module": "a Python module, whose file name is an attribute",
}


def foreign_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that code sets or deletes, if no class in this code declares or sets them as its own."""
    changed = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    ]
    own = [node for node in changed if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}]
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {
        line.target.id
        for body in bodies
        for line in body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    known = fields | {node.attr for node in own}
    yield from (node for node in changed if node not in own and node.attr not in known)


@pytest.mark.parametrize(
    "code",
    [
        "kernel.cut = True",
        "self.kernel.cut = True",
        "kernel.count += 1",
        "kernel.cut: bool = True",
        "kernel.cut, other = True, 1",
        "for kernel.cut in cuts: pass",
        "with opened() as kernel.cut: pass",
        "del kernel.cut",
        "class Slot:\n    def f(self): self.kernel = 1; self.kernel.cut = 1",
    ],
)
def test_every_way_to_set_the_attribute_of_another_object_is_found(code: str) -> None:
    assert [node.attr in {"cut", "count"} for node in foreign_attributes(ast.parse(code))] == [True]


@pytest.mark.parametrize(
    "code",
    [
        "class Kernel:\n    def f(self): self.cut = True",
        "class Kernel:\n    cut: bool\ndef f(kernel): kernel.cut = True",
        "class Kernel:\n    def f(self, other): self.cut = other.cut = True",
    ],
)
def test_a_module_may_set_the_attributes_of_its_own_classes(code: str) -> None:
    assert not list(foreign_attributes(ast.parse(code)))


def test_nobody_sets_the_attributes_of_an_object_whose_class_is_elsewhere() -> None:
    """The kernel's image is left out: it changes what Jupyter's own classes do."""
    found = {
        f"{module}: {ast.unparse(node.value)}"
        for module in modules("sessions") + modules("kernel_gateway")
        for node in foreign_attributes(tree_of(module))
    }
    assert found == set(OF_LIBRARIES)


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
