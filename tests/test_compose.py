"""The deployment as a user gets it: built from a clean checkout, started, used, and taken down again."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import requests
from docker.errors import APIError

from kernel_gateway.config import Settings
from kernel_gateway.wire.tls import own_certificate
from sessions.backends.docker.isolation import firewall, network
from tests.compose import GATEWAY_IMAGE, KEY, NAME, ROOT, Checkout, Deployment, compose_command, environment
from tests.kernel_gateway.calls import until

#: bridge of the kernels' network
BRIDGE = network.bridge_name(NAME)
NET_ADMIN = 1 << 12

pytestmark = pytest.mark.timeout(400)  # a first build fetches all packages


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    command = compose_command()
    if command is None:
        missing = "docker-compose is not installed (make engine installs it)"
        if os.environ.get("CI"):  # noqa: TID251 - set by CI, where a missing tool is a failure
            pytest.fail(missing)
        pytest.skip(missing)
    return Checkout.into(tmp_path_factory.mktemp("checkout"), command)


@pytest.fixture(scope="module")
def deployed(checkout: Checkout) -> Iterator[Deployment]:
    checkout.build()
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    settings = {"KERNEL_GATEWAY_PORT": str(port), "KERNEL_GATEWAY_NETWORK": NAME}
    running = Deployment(checkout, port, environment() | settings)
    running.compose("down", "--volumes")  # of an aborted run
    try:
        running.compose("up", "-d")
        running.wait_until_ready()
        yield running
    finally:
        running.compose("down", "--volumes")
        _remove_network()


def _remove_network() -> None:
    """Remove the gateway's network and the rules around it, which it leaves on purpose."""
    with closing(docker.from_env()) as client:
        while found := client.networks.list(names=[f"^{NAME}$"]):
            with suppress(APIError):  # the engine has not yet disconnected the last container
                found[0].remove()
            time.sleep(0.1)
    for program, rule in firewall.rules(BRIDGE):
        subprocess.run([program, "-w", "-D", *rule], check=False, capture_output=True)
    for option in ("-F", "-X"):
        subprocess.run(["iptables", "-w", option, firewall.chain_name(BRIDGE)], check=False, capture_output=True)


def test_every_setting_can_be_given() -> None:
    lines = (ROOT / "docker-compose.yml").read_text()
    assert sorted(re.findall(r"^ +KERNEL_GATEWAY_([A-Z_]+):", lines, re.MULTILINE)) == sorted(
        name.upper() for name in Settings.model_fields
    )


def test_the_compose_file_is_valid_with_keys(checkout: Checkout) -> None:
    done = checkout.compose("config", KERNEL_GATEWAY_KEYS=f"team:{KEY}")
    assert done.returncode == 0, done.stderr
    assert {"gateway:", "kernel-image:", f"KERNEL_GATEWAY_KEYS: team:{KEY}"} <= set(
        map(str.strip, done.stdout.split("\n"))
    )


def test_settings_are_read_from_the_env_file(checkout: Checkout) -> None:
    file = checkout.folder / ".env"
    file.write_text(f"KERNEL_GATEWAY_KEYS=team:{KEY}\nKERNEL_GATEWAY_MEMORY=300m\n")
    try:
        assert "KERNEL_GATEWAY_MEMORY: 300m" in checkout.compose("config").stdout
    finally:
        file.unlink()


@pytest.mark.parametrize("environment", [{}, {"KERNEL_GATEWAY_KEYS": ""}])
def test_without_keys_the_error_names_the_remedy(checkout: Checkout, environment: dict[str, str]) -> None:
    done = checkout.compose("config", **environment)
    assert done.returncode != 0
    assert "set it in .env to tenant:key" in done.stderr


@pytest.mark.gate
@pytest.mark.engine
def test_a_cell_runs_in_gvisor(deployed: Deployment) -> None:
    assert deployed.execute("1+1") == "2"
    assert "Starting gVisor" in deployed.execute(
        "import subprocess; print(subprocess.check_output(['dmesg'], text=True))"
    )


@pytest.mark.gate
@pytest.mark.engine
def test_a_request_without_a_key_is_refused(deployed: Deployment) -> None:
    assert deployed.get("/v1/sessions").status_code == 401


@pytest.mark.gate
@pytest.mark.engine
def test_the_firewall_is_put_up_from_the_container(deployed: Deployment) -> None:
    """The gateway proved that the firewall holds before it was ready."""
    for program, rule in firewall.rules(BRIDGE):
        assert deployed.inside(program, "-w", "-C", *rule)[0] == 0, rule
    _, listed = deployed.inside("iptables", "-w", "-S", firewall.chain_name(BRIDGE))
    assert listed.splitlines()[1:] == firewall.chain_rules(BRIDGE)


@pytest.mark.gate
@pytest.mark.engine
def test_the_gateway_has_no_capability_except_for_the_firewall(deployed: Deployment) -> None:
    _, status = deployed.inside("cat", "/proc/1/status")
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    assert int(found["CapBnd"], 16) == NET_ADMIN
    assert int(found["CapEff"], 16) == NET_ADMIN
    assert found["NoNewPrivs"] == "1"
    code, said = deployed.inside("touch", "/opt/venv/new")
    assert code != 0
    assert "Read-only file system" in said


@pytest.mark.engine
def test_a_certificate_of_the_host_is_served(deployed: Deployment, tmp_path: Path) -> None:
    given = own_certificate(tmp_path, frozenset({"127.0.0.1"}))
    settings = {"GATEWAY_CERTIFICATES": str(tmp_path), "KERNEL_GATEWAY_TLS_CERTIFICATE": f"/certificates/{given.name}"}
    try:
        replace(deployed, environment=deployed.environment | settings).compose("up", "-d")
        until(lambda: _answers(f"https://127.0.0.1:{deployed.port}/healthz", trusted=tmp_path / "tls.pem"))
    finally:
        deployed.compose("up", "-d")
        deployed.wait_until_ready()


def _answers(url: str, trusted: Path) -> bool:
    try:
        return requests.get(url, verify=str(trusted), timeout=10).status_code == 200
    except requests.ConnectionError:  # also while the gateway of before answers without TLS
        return False


@pytest.mark.engine
def test_the_image_holds_no_sources_and_no_tools_of_the_build(deployed: Deployment) -> None:
    code, _ = deployed.inside("kernel-gateway", "--version")
    assert code == 0
    for path in ("/src", "/opt/build", "/opt/venv/bin/pip"):
        assert deployed.inside("test", "-e", path)[0] == 1, path


@pytest.mark.engine
def test_the_health_check_fails_only_without_a_gateway(deployed: Deployment) -> None:
    with closing(docker.from_env()) as client:
        kind, *check = client.images.get(GATEWAY_IMAGE).attrs["Config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert deployed.inside(*check)[0] == 0
    assert deployed.inside(*check, environment={"KERNEL_GATEWAY_PORT": "1"})[0] != 0


@pytest.mark.gate
@pytest.mark.engine
def test_down_leaves_no_kernel(deployed: Deployment) -> None:
    """The last test: it ends the deployment that the other tests use."""
    instance = deployed.instance()
    assert deployed.execute("1+1") == "2"
    assert len(deployed.containers(instance)) >= 3  # the gateway, the image's trial, and at least one kernel
    deployed.compose("down")
    assert deployed.containers(instance) == []
    assert deployed.volumes(instance) == []
