"""E2B's own tests of its SDKs, as they are in its repositories, against sandboxed kernels.

No package contains them, so `E2B_SOURCES` names a directory with checkouts: `E2B` at b802997 and `code-interpreter` at
7df1757. `e2b/suites/not_passing.json` names each test that does not pass, with the reason, by suite. Any other test
that fails, and any of these that passes, fails the run. Tests that need the internet or build templates are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import Gateway

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-e2b-suites"
OURS = Path(__file__).parent / "e2b/suites"
NOT_PASSING: dict[str, dict[str, list[str]]] = json.loads((OURS / "not_passing.json").read_text())
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
HOW = (
    "set E2B_SOURCES to a directory with checkouts of E2B's tests: git clone https://github.com/e2b-dev/E2B (b802997) "
    "and https://github.com/e2b-dev/code-interpreter (7df1757)"
)
FLAGS = ("-q", "--tb=short", "--timeout=100", "-oaddopts=", "--import-mode=importlib", "-pno:cacheprovider", "-n2")


def with_pytest(source: Path, files: tuple[str, ...], scratch: Path, environment: dict[str, str]) -> set[str]:
    """Run a suite for Python, with the SDK of its checkout, and return the tests that did not pass."""
    report = scratch / "report.xml"
    command = [str(TOOLS / "bin/python"), "-m", "pytest", *FLAGS, f"--junitxml={report}", *files]
    ran = subprocess.run(
        command, cwd=source, env=environment | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False
    )
    assert report.exists(), ran.stdout[-4000:] + ran.stderr[-2000:]
    cases = [*ET.parse(report).iter("testcase")]  # noqa: S314 - written by pytest
    assert len(cases) > 100, ran.stdout[-4000:]
    return {
        f"{case.get('classname', '').replace('.', '/').removeprefix('tests/')}::{case.get('name')}"
        for case in cases
        if len(case.findall("failure")) + len(case.findall("error")) + len(case.findall("skipped"))
    }


def with_vitest(source: Path, files: tuple[str, ...], scratch: Path, environment: dict[str, str]) -> set[str]:
    """Run a suite for JavaScript in a copy of its checkout, and return the tests that did not pass."""
    for part in ("src", "tests"):
        shutil.copytree(source / part, scratch / part)
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(source / name, scratch)
    shutil.copy(OURS / "vitest.config.mts", scratch)
    (scratch / "node_modules").symlink_to(TOOLS / "node_modules")
    report = scratch / "report.json"
    command = [str(TOOLS / "bin/node"), "node_modules/vitest/vitest.mjs", "run", "--reporter=json"]
    ran = subprocess.run(
        [*command, f"--outputFile={report}", *files],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), ran.stdout[-4000:] + ran.stderr[-2000:]
    told = json.loads(report.read_text())
    assert told["numTotalTests"] > 50, ran.stdout[-4000:]
    failed = set()
    for file in told["testResults"]:
        name = file["name"].partition("/tests/")[2]
        failed |= {f"{name}::{each['fullName']}" for each in file["assertionResults"] if each["status"] != "passed"}
        failed |= {name} if file["message"] else set()
    return failed


@dataclass(frozen=True)
class Suite:
    """Tests of one checkout."""

    source: str
    run: Callable[[Path, tuple[str, ...], Path, dict[str, str]], set[str]]
    #: what is run, and flags that leave tests out
    files: tuple[str, ...]


#: tests of E2B's SDK for JavaScript whose server is a mock
MOCKED = ("abortSignal", "egressProxy", "iam", "lifecycleRequest", "networkTransform")

SUITES = {
    "code-interpreter, Python": Suite("code-interpreter/python", with_pytest, ("tests",)),
    "code-interpreter, JavaScript": Suite("code-interpreter/js", with_vitest, ("--exclude=tests/runtimes/**", "tests")),
    # The asynchronous half, without the tests that need the internet.
    "E2B, Python": Suite(
        "E2B/packages/python-sdk",
        with_pytest,
        (
            *(f"--ignore=tests/async/sandbox_async/test_{name}.py" for name in ("internet_access", "network")),
            *("tests/async/api_async", "tests/async/sandbox_async", "tests/shared/git"),
        ),
    ),
    # Without the tests that need the internet, and without those whose server is a mock: they reach no gateway.
    "E2B, JavaScript": Suite(
        "E2B/packages/js-sdk",
        with_vitest,
        (
            *(f"--exclude=tests/sandbox/{name}.test.ts" for name in ("internetAccess", "network")),
            *(f"--exclude=tests/sandbox/{name}.test.ts" for name in MOCKED),
            *("tests/api", "tests/sandbox"),
        ),
    ),
}


@pytest.fixture(scope="module")
def gateway(sources: Path) -> Iterator[Gateway]:
    assert sources.is_dir(), sources
    with gateways.gateway(
        "docker",
        preload="",
        keys=f"alice:{KEY}",
        golden_images="auto",
        pool_size="1",
        sandbox_pool_size="1",
        max_sessions_per_tenant="60",
    ) as serving:
        serving.wait_for_sleep()
        yield serving
        assert serving.errors() == []


@pytest.fixture(scope="module")
def sources() -> Path:
    if not (given := os.environ.get("E2B_SOURCES")):  # noqa: TID251 - a setting of these tests alone
        pytest.skip(HOW)
    return Path(given)


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SUITES)
def test_the_tests_of_e2bs_sdks_pass(sources: Path, gateway: Gateway, name: str, tmp_path: Path) -> None:
    assert (TOOLS / "node_modules").exists(), "run `make .venv-e2b-suites/node_modules`"
    suite = SUITES[name]
    environment = {
        "PATH": os.defpath,
        "E2B_API_KEY": KEY,
        "E2B_API_URL": gateway.url,
        "E2B_SANDBOX_URL": gateway.url,
    }
    failed = suite.run(sources / suite.source, suite.files, tmp_path, environment)
    listed = {test for tests in NOT_PASSING[name].values() for test in tests}
    assert failed == listed, {"failed": sorted(failed - listed), "passed": sorted(listed - failed)}


def test_each_reason_is_in_the_page() -> None:
    page = " ".join((ROOT / "docs/clients/e2b.md").read_text().split())
    assert {name for suite in NOT_PASSING.values() for name in suite if name not in page} == set()
