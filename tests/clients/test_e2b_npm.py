"""The real npm SDK of E2B, newest release, unmodified, on sandboxed kernels: `e2b/drive.mjs` uses all of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import KEYS

DRIVE = Path(__file__).parent / "e2b/drive.mjs"
#: npm's packages, and the Node.js that they run with
PACKAGES = Path(__file__).parents[2] / ".venv-e2b-npm"


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_npm_sdk_uses_a_sandbox_from_its_creation_to_its_end() -> None:
    assert (PACKAGES / "node_modules").exists(), "run `make .venv-e2b-npm/node_modules`"
    with gateways.gateway("docker") as gateway:
        done = subprocess.run(
            [PACKAGES / "bin/node", "--input-type=module", "-"],
            input=DRIVE.read_text(),
            cwd=PACKAGES,  # where a program that comes from the standard input finds its packages
            env={"E2B_API_KEY": KEYS["alice"], "E2B_API_URL": gateway.url, "E2B_SANDBOX_URL": gateway.url},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert gateway.errors() == []
