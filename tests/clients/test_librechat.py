"""LibreChat's agents from npm, unmodified, on sandboxed kernels: `librechat/drive.mjs` uses their code tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import gateways
from tests.kernel_gateway.dialects.test_librechat import BASE, PUBLIC, token, upload

DRIVE = Path(__file__).parent / "librechat/drive.mjs"
#: npm's packages, and the Node.js that they run with
PACKAGES = Path(__file__).parents[2] / ".venv-librechat"


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_librechats_agents_keep_variables_and_files_of_a_chat(tmp_path: Path) -> None:
    assert (PACKAGES / "node_modules").exists(), "run `make .venv-librechat/node_modules`"
    keys = tmp_path / "keys.pem"
    keys.write_bytes(PUBLIC)
    with gateways.gateway("docker", librechat_keys=str(keys)) as gateway:
        file = upload(gateway, token(), name="in.csv", content=b"1,2;")
        done = subprocess.run(
            [PACKAGES / "bin/node", "--input-type=module", "-"],
            input=DRIVE.read_text(),
            cwd=PACKAGES,  # where a program that comes from the standard input finds its packages
            env={
                "BASE_URL": f"{gateway.url}{BASE}",
                "TOKEN": token(),
                "FILE": file["id"],
                "BATCH": file["storage_session_id"],
            },
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        told: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        assert "read 1,2;" in told["first"]["content"]
        assert told["first"]["artifact"]["runtime_status"] == "new"
        assert {each["name"] for each in told["first"]["artifact"]["files"]} == {"in.csv", "out.csv"}
        assert "1,2; 42" in told["second"]["content"]
        assert told["second"]["artifact"]["runtime_status"] == "reused"
        assert "1,2;1,2;" in told["shell"]["content"]
        assert "False" in told["fresh"]["content"]
        assert "ZeroDivisionError" in told["failed"]["content"]
        assert "rejected" in told["unknown"]["content"]
        assert "True False 1,2;\nfailed: no such thing" in told["tools"]["content"]
        assert "weather.txt" in {each["name"] for each in told["tools"]["artifact"]["files"]}
        assert told["tools"]["artifact"]["runtime_status"] == "reused"
        assert "42" in told["withoutTools"]["content"]
        assert "not authorized" in told["forged"]["content"]
        assert gateway.errors() == []
