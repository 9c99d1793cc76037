"""The real `agentrun-sdk`, a release of early 2026 and the current one, unmodified: all functions supported here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import gateways
from tests.gateways import KEYS, Gateway
from tests.kernel_gateway.calls import until

ROOT = Path(__file__).parents[2]
DRIVE = Path(__file__).parent / "agentrun/drive.py"
RELEASES = ["agentrun", pytest.param("agentrun-early", marks=pytest.mark.full)]
MODES = ["sync", "async"]
ACCESS_KEY = {"AGENTRUN_ACCESS_KEY_ID": "LTAI-alice", "AGENTRUN_ACCESS_KEY_SECRET": "secret-of-alice"}
#: the access key is ignored when the session token is a key of the gateway
TOKEN = {"AGENTRUN_ACCESS_KEY_ID": "any", "AGENTRUN_ACCESS_KEY_SECRET": "any", "AGENTRUN_SECURITY_TOKEN": KEYS["alice"]}
ACCESS_KEYS = "alice:LTAI-alice:secret-of-alice,bob:LTAI-bob:secret-of-bob"
#: methods that every test of a sandbox's whole life must call
CALLED = {
    *("Sandbox.create_template", "Sandbox.update_template", "Sandbox.list_templates", "Sandbox.delete_template"),
    *("Sandbox.create", "Sandbox.connect", "Sandbox.list", "CodeInterpreterSandbox.check_health"),
    *("ContextOperations.create", "ContextOperations.execute", "ContextOperations.list", "ContextOperations.delete"),
    *("FileOperations.read", "FileOperations.write", "FileSystemOperations.upload", "FileSystemOperations.download"),
    *("ProcessOperations.cmd", "ProcessOperations.list", "ProcessOperations.get", "ProcessOperations.kill"),
}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def sandboxed() -> Iterator[Gateway]:
    with gateways.gateway("docker", access_keys=ACCESS_KEYS) as serving:
        yield serving


@pytest.fixture(scope="module")
def plain() -> Iterator[Gateway]:
    """A gateway without containers, for tests that need none."""
    with gateways.gateway("process", access_keys=ACCESS_KEYS) as serving:
        yield serving


def drive(gateway: Gateway, release: str, flow: str, credentials: Mapping[str, str], mode: str = "sync") -> set[str]:
    """Run one of the driver's flows.

    Returns:
        names of the SDK's methods that the flow has called.
    """
    scheme, _, address = gateway.url.partition("://")
    environment = {
        "PATH": os.defpath,
        "HOME": str(gateway.state_dir),
        "DISABLE_BREAKING_CHANGES_WARNING": "1",
        "AGENTRUN_DATA_ENDPOINT": gateway.url,
        # The SDK removes one scheme and then uses https, unless a second scheme follows.
        "AGENTRUN_CONTROL_ENDPOINT": gateway.url if scheme == "https" else f"http://http://{address}",
        **credentials,
    }
    python = ROOT / f".venv-{release}/bin/python"
    assert python.exists(), f"run `make sdks`: there is no {python}"
    done = subprocess.run(
        [python, str(DRIVE), flow, mode], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return set(done.stdout.split())


def sandboxes_of(gateway: Gateway, tenant: str) -> list[str]:
    answer = gateway.call("GET", "/2025-09-10/sandboxes?maxResults=100", tenant=tenant).json()
    return [sandbox["sandboxId"] for sandbox in answer["data"]["items"]]


@pytest.mark.gate
@pytest.mark.engine
@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.full)])
@pytest.mark.parametrize("release", RELEASES)
def test_a_sandbox_lives_its_whole_life(sandboxed: Gateway, release: str, mode: str) -> None:
    assert drive(sandboxed, release, "everything", ACCESS_KEY, mode) >= CALLED


@pytest.mark.engine
def test_sandboxes_take_warm_kernels() -> None:
    with gateways.gateway("docker", sandbox_pool_size="2", pool_max="2") as serving:

        def scraped() -> str:
            return serving.call("GET", "/metrics", tenant=None).text

        until(lambda: "kernel_gateway_warm_kernels 2.0" in scraped())
        drive(serving, "agentrun", "warm", TOKEN)
        assert 'kernel_gateway_pool_leases_total{language="sandbox",result="hit"} 2.0' in scraped()


@pytest.mark.engine
def test_directories_have_the_names_that_clients_expect(sandboxed: Gateway) -> None:
    drive(sandboxed, "agentrun", "paths", TOKEN)


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_sdks_shorthands_work(plain: Gateway, release: str, mode: str) -> None:
    assert "SandboxClient.create_sandbox" in drive(plain, release, "shorthands", ACCESS_KEY, mode)


@pytest.mark.full
@pytest.mark.parametrize("credentials", [ACCESS_KEY, TOKEN], ids=["access-key", "token"])
@pytest.mark.parametrize("release", RELEASES)
def test_another_tenants_sandbox_is_not_there(plain: Gateway, release: str, credentials: dict[str, str]) -> None:
    made = plain.call("POST", "/sandboxes", tenant="bob", json={"templateName": "code-interpreter-v1"})
    foreign = made.json()["sandboxId"]
    drive(plain, release, "other_tenants", credentials | {"FOREIGN": foreign})
    assert plain.call("GET", f"/sandboxes/{foreign}", tenant="bob").json()["status"] == "READY"
    assert plain.call("DELETE", f"/sandboxes/{foreign}", tenant="bob").status_code == 200


@pytest.mark.full
@pytest.mark.parametrize(
    "wrong",
    [
        {"AGENTRUN_ACCESS_KEY_SECRET": "secret-of-bob"},
        {"AGENTRUN_ACCESS_KEY_ID": "LTAI-nobody"},
        {"AGENTRUN_ACCESS_KEY_ID": "LTAI-bob"},
    ],
    ids=["secret", "id", "somebody-elses-id"],
)
@pytest.mark.parametrize("release", RELEASES)
def test_wrong_credentials_open_nothing(plain: Gateway, release: str, wrong: dict[str, str]) -> None:
    before = [sandboxes_of(plain, tenant) for tenant in KEYS]
    drive(plain, release, "strangers", ACCESS_KEY | wrong)
    assert [sandboxes_of(plain, tenant) for tenant in KEYS] == before


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_sdk_speaks_https_to_both_planes(release: str, mode: str) -> None:
    with gateways.gateway("process", tls="true", access_keys=ACCESS_KEYS) as serving:
        assert serving.url.startswith("https://")
        trusting = ACCESS_KEY | {"SSL_CERT_FILE": str(serving.state_dir / "tls.pem")}
        assert "Template.get_by_name" in drive(serving, release, "shorthands", trusting, mode)


@pytest.mark.full
@pytest.mark.parametrize("release", RELEASES)
def test_the_example_works_when_pasted(plain: Gateway, release: str) -> None:
    page = (ROOT / "docs/clients/agentrun.md").read_text()
    [endpoints] = re.findall(r"```sh\n(export AGENTRUN_.*?)```", page, re.DOTALL)
    [program] = re.findall(r"```python\n(from agentrun.*?)```", page, re.DOTALL)
    endpoints = endpoints.replace("http://127.0.0.1:8888", plain.url).replace("=KEY", f"={KEYS['alice']}")
    assert endpoints.count(plain.url) == 2
    done = subprocess.run(
        ["sh", "-eu", "-c", f'{endpoints}\nexec "$0" -c "$1"', ROOT / f".venv-{release}/bin/python", program],
        env={"PATH": os.defpath, "HOME": str(plain.state_dir), "DISABLE_BREAKING_CHANGES_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "42" in done.stdout
