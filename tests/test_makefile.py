"""What `make serve` and `make bench` set up first; stubs that print their names stand for the steps themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.readme import ROOT

ENGINE, IMAGE, SERVE = "tests/engine/setup.sh", "kernel_image/build.sh", ".venv/bin/kernel-gateway"
PYTHON = ".venv/bin/python"
OS = Path("/etc/os-release").read_text()


def stub(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def steps(checkout: Path, target: str, *variables: str, engine: bool, root: bool) -> list[str]:
    """Return the steps that `make` takes."""
    shutil.copy(ROOT / "Makefile", checkout)
    for step in (ENGINE, IMAGE, SERVE, PYTHON):
        stub(checkout / step, f'echo "step {step} $*"')
    stub(checkout / "bin" / "docker", f"exit {int(not engine)}")
    stub(checkout / "bin" / "id", f"echo {0 if root else 1000}")
    (checkout / "pyproject.toml").touch()
    (checkout / ".venv" / ".setup").touch()
    done = subprocess.run(
        ["make", "--silent", target, *variables, "FLAGS=--port 0"],
        cwd=checkout,
        env={"PATH": f"{checkout / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.removeprefix("step ").strip() for line in done.stdout.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize(
    ("engine", "root", "variable", "expected"),
    [
        (True, True, "ISOLATION=", [IMAGE, f"{SERVE} serve --port 0"]),
        (False, True, "ISOLATION=", [ENGINE, IMAGE, f"{SERVE} serve --port 0"]),
        (False, True, "ISOLATION=process", [f"{SERVE} serve --isolation process --port 0"]),
        (False, True, "IS_DEBIAN_12=false", [f"{SERVE} serve --port 0"]),
        (False, False, "ISOLATION=", [f"{SERVE} serve --port 0"]),
    ],
)
@pytest.mark.skipif("VERSION_CODENAME=bookworm" not in OS, reason="an engine is set up on Debian 12 only")
def test_serve_sets_up_what_is_missing(
    tmp_path: Path, expected: list[str], variable: str, *, engine: bool, root: bool
) -> None:
    assert steps(tmp_path, "serve", variable, engine=engine, root=root) == expected


def test_bench_measures_also_what_needs_no_engine(tmp_path: Path) -> None:
    assert steps(tmp_path, "bench", engine=False, root=False) == [f"{PYTHON} -m tests.benchmarks --write --port 0"]


def test_the_engines_tests_run_side_by_side_like_the_gates(tmp_path: Path) -> None:
    [step] = steps(tmp_path, "test-engine", engine=True, root=True)
    assert step.startswith(f"{PYTHON} -m tests.engine.tested --numprocesses=3 --dist=loadfile --no-loadscope-reorder ")
    assert step.endswith(" --port 0")


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("", True),
        ("--artifacts=test-artifacts", True),
        ("--artifacts test-artifacts -k 'not page'", True),
        ("tests/attacks", False),
        ("-x tests/clients/web/test_ui.py::test_a_name", False),
        ("'tests/test_compose.py::test_a_case[with a space]'", False),
    ],
)
def test_the_second_run_of_the_gate_collects_only_files_with_such_tests(flags: str, *, chosen: bool) -> None:
    asked = ["make", "--dry-run", "test", f"FLAGS={flags}"]
    done = subprocess.run(asked, cwd=ROOT, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    [_, second] = [line for line in done.stdout.splitlines() if line.startswith(".venv/bin/pytest ")]
    assert f'(engine or browser)" {flags}'.strip() in second
    collected = {word for word in second.partition(f'browser)" {flags}')[2].split() if word.endswith(".py")}
    assert ("tests/test_compose.py" in collected) == chosen
    assert "tests/test_makefile.py" not in collected
