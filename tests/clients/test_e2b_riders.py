"""Agent frameworks that run code in E2B's sandboxes, each as it is installed, on gVisor kernels."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import Gateway

ROOT = Path(__file__).parents[2]
RIDERS = Path(__file__).parent / "e2b/riders"
#: options of a pytest that shall not read this project's settings and `conftest.py`
OF_NO_PROJECT: list[str | Path] = [
    "-c",
    os.devnull,
    "-o",
    "asyncio_mode=auto",
    "--rootdir",
    RIDERS,
    "--confcutdir",
    RIDERS,
]
#: early releases of the SDK insist on this form
KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
#: the command of each framework; the first word is a program of its environment
COMMANDS: dict[str, list[str | Path]] = {
    "langchain": ["pytest", "-q", "-p", "no:cacheprovider", *OF_NO_PROJECT, RIDERS / "langchain_suite.py"],
    "openai-agents": ["python", RIDERS / "openai_agents.py"],
    "crewai": ["python", RIDERS / "crewai_files.py"],
    "agno": ["python", RIDERS / "agno_tools.py"],
    "smolagents": ["python", RIDERS / "smolagents_executor.py"],
    # A program that comes from the standard input finds its packages in the directory that it runs in.
    "npm": ["node", "--input-type=module", "-"],
}

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with gateways.gateway("docker", keys=f"alice:{KEY}") as serving:
        yield serving
        assert serving.errors() == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_framework_works_as_it_is_installed(gateway: Gateway, name: str, tmp_path: Path) -> None:
    environment = ROOT / f".venv-e2b-{name}"
    assert environment.exists(), f"run `make test-all FLAGS={Path(__file__).relative_to(ROOT)}`"
    program, *arguments = COMMANDS[name]
    done = subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=environment if name == "npm" else tmp_path,
        input=(RIDERS / "mastra.mjs").read_text() if name == "npm" else None,
        env={
            "PATH": os.defpath,
            "HOME": str(tmp_path),
            "E2B_API_KEY": KEY,
            "E2B_API_URL": gateway.url,
            "E2B_SANDBOX_URL": gateway.url,
            "CREWAI_DISABLE_TELEMETRY": "true",
            "OTEL_SDK_DISABLED": "true",
        },
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
