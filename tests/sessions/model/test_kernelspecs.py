"""The language table: each folder is a language, found by all of its names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessions.kernels.messages import Codec
from sessions.model.errors import InvalidRequest
from sessions.model.kernelspecs import KernelSpecs
from sessions.model.values import MEMORY_MIN, Limits
from tests.fakes import KERNELSPECS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(
        tmp_path,
        "python",
        interrupt_messages=True,
        aliases=["py"],
        jupyter_name="python3",
        encryption=True,
        signature="hmac-sha512",
    )
    add(
        tmp_path,
        "deno",
        aliases=["javascript", "typescript"],
        ipc=False,
        flush="flush()",
        min_memory=256,
    )
    return tmp_path


def add(folder: Path, language: str, **ours: Any) -> None:
    """Add the folder of a language."""
    (folder / language).mkdir()
    content = {
        "display_name": language.title(),
        "argv": ["{python}", "-f", "{connection_file}"],
        "env": {"A": "1"},
        "interrupt_mode": "message" if ours.pop("interrupt_messages", False) else "signal",
        "metadata": {"kernel_gateway": ours},
    }
    (folder / language / "kernel.json").write_text(json.dumps(content))


def test_a_folder_is_a_language(folder: Path) -> None:
    assert [spec.name for spec in KernelSpecs(folder).all] == ["deno", "python"]


@pytest.mark.parametrize("name", ["python", "py", "python3", "Python", "PY"])
def test_a_language_is_found_by_all_of_its_names(folder: Path, name: str) -> None:
    assert KernelSpecs(folder).find(name).name == "python"


def test_who_asks_a_kernel_for_what_it_cannot_do_is_told_which_languages_can(folder: Path) -> None:
    add(folder, "able", tools=True)
    refused = KernelSpecs(folder).find("python").cannot("tools", "call tools")
    assert refused.message == "Python cannot call tools; languages that can: able"


@pytest.mark.parametrize("name", ["ruby", "", "pyt", "python ", "../python", "x" * 100_000])
def test_a_refused_unknown_language_lists_the_known_ones(folder: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="known: deno, python") as refused:
        KernelSpecs(folder).find(name)
    assert len(refused.value.message) < 200


def test_the_fields_of_a_kernelspec_are_read(folder: Path) -> None:
    python, deno = KernelSpecs(folder).find("python"), KernelSpecs(folder).find("deno")
    assert python.argv == ("{python}", "-f", "{connection_file}")
    assert (python.display_name, python.env, python.encryption) == ("Python", {"A": "1"}, True)
    assert python.signature == "hmac-sha512"
    assert (deno.jupyter_name, deno.encryption, deno.signature) == ("deno", False, "hmac-sha256")
    assert (python.interrupt_messages, deno.interrupt_messages) == (True, False)
    assert (python.ipc, python.flush) == (True, "")
    assert (deno.ipc, deno.flush) == (False, "flush()")
    assert (python.min_memory, deno.min_memory) == (MEMORY_MIN, 256 * 1024**2)


def test_memory_below_what_a_language_needs_is_refused_with_both(folder: Path) -> None:
    deno = KernelSpecs(folder).find("deno")
    deno.check(Limits(memory=256 * 1024**2))
    with pytest.raises(InvalidRequest, match=r"deno needs at least 268435456 bytes of memory \(256 MiB\)") as refused:
        deno.check(Limits(memory=256 * 1024**2 - 1))
    assert refused.value.details == {"field": "limits.memory", "language": "deno", "min": 256 * 1024**2}


ARGUMENTS = [
    {},
    {"a": 1, "b": [True, None, 1.5]},
    {"text": "both ' and \" and \\ and {json}", "lines": "a\nb\r\u2028\0", "astral": "\U0001f389", "empty": {}},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_main_is_called_with_just_these_arguments(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_own = SimpleNamespace(shown=lambda value: value)
    monkeypatch.setitem(sys.modules, "_kernel_gateway_programs", kernels_own)
    program = KERNELSPECS.find("python").code_with_call("def main(**given): seen.append(given)", arguments)
    seen: list[dict[str, Any]] = []
    exec(program, {"seen": seen})  # noqa: S102 - what a kernel would do
    assert seen == [arguments]


def test_without_arguments_nothing_is_called(folder: Path) -> None:
    assert KERNELSPECS.find("python").code_with_call("main()", None) == "main()"
    assert KernelSpecs(folder).find("deno").code_with_call("main()", None) == "main()"


def test_a_language_without_a_call_refuses_arguments(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="deno code takes no arguments"):
        KernelSpecs(folder).find("deno").code_with_call("", {})


def test_arguments_nested_too_deeply_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        KERNELSPECS.find("python").code_with_call("", {"deep": deep})


@pytest.mark.parametrize("taken", ["python", "py", "python3"])
def test_a_name_belongs_to_one_language(folder: Path, taken: str) -> None:
    add(folder, "snake", aliases=[taken])
    with pytest.raises(ValueError, match=f"'{taken}' is taken twice"):
        KernelSpecs(folder)


def test_a_folder_without_a_kernelspec_is_no_language(folder: Path) -> None:
    (folder / "notes").mkdir()
    assert len(KernelSpecs(folder).all) == 2


def test_a_prelude_is_read_from_its_own_file(folder: Path) -> None:
    (folder / "deno" / "prelude.js").write_text("begin()")
    assert [spec.prelude for spec in KernelSpecs(folder).all] == ["begin()", ""]


def test_there_is_python() -> None:
    assert KERNELSPECS.find("python").encryption


@pytest.mark.parametrize("name", ["js", "deno", "ts", "typescript"])
def test_there_is_javascript(name: str) -> None:
    assert KERNELSPECS.find(name).name == "javascript"


@pytest.mark.parametrize("spec", KERNELSPECS.all, ids=lambda spec: spec.name)
def test_every_kernel_gets_the_path_of_its_connection_file(spec: Any) -> None:
    assert any("{connection_file}" in part for part in spec.argv)
    assert spec.name == spec.name.lower()


@pytest.mark.parametrize("spec", KERNELSPECS.all, ids=lambda spec: spec.name)
def test_every_kernel_signs_as_we_do(spec: Any) -> None:
    assert Codec(b"key", spec.signature).sign([b""] * 4, [])
    assert all(alias == alias.lower() for alias in (*spec.aliases, spec.jupyter_name))


def test_modules_to_preload_are_those_of_the_kernelspec_unless_others_are_given(tmp_path: Path) -> None:
    add(tmp_path, "python", preload=["numpy", "pandas"])
    add(tmp_path, "r", preload=["tidyr"])

    def preloads(*others: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
        return {spec.name: spec.preload for spec in KernelSpecs(tmp_path, *others).all}

    assert preloads() == {"python": ("numpy", "pandas"), "r": ("tidyr",)}
    assert preloads({"python": ["scipy"]}) == {"python": ("scipy",), "r": ("tidyr",)}
    assert preloads({"python": []}) == {"python": (), "r": ("tidyr",)}


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MPLCONFIGDIR", "XDG_CACHE_HOME"])
def test_a_variable_that_a_preloaded_module_has_read_needs_a_new_kernel(name: str) -> None:
    python = KERNELSPECS.find("python")
    assert not python.accepts({name: "1"}, "")
    assert python.accepts({f"MY_{name}": "1"}, "")
