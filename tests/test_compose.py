"""The deployment as a user gets it: built from a clean checkout, started, used, and taken down again."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
from docker.errors import APIError, ImageNotFound

from kernel_gateway.config import Settings
from sessions.backends.docker import firewall, network
from tests.gateways import text_of

ROOT = Path(__file__).parents[1]
#: what the images are made of, and nothing else: a checkout has no .venv
SOURCES = (
    *(".dockerignore", "LICENSE", "README.md", "docker-compose.yml", "pyproject.toml"),
    *("kernel_gateway", "kernel_image", "sessions"),
)
LOCAL_BASE = "kernel-gateway/base:bookworm"
KEY = "compose-key-0001"
#: Tags of the tests' own, so that images in use stay what they are. They are left there: the next build is quick.
KERNEL_IMAGE = "kernel-gateway/python:compose-test"
GATEWAY_IMAGE = "kernel-gateway/gateway:compose-test"
#: of the project and of the kernels' network
NAME = "kernel-gateway-compose"
BRIDGE = network.bridge_name(NAME)
NET_ADMIN = 1 << 12
READY_TIMEOUT = 60.0

#: of a list of containers, as the engine's client wants it
Filters = dict[str, str | list[str] | bool]

pytestmark = pytest.mark.timeout(400)  # a first build fetches all packages


@dataclass(frozen=True)
class Checkout:
    """The project's folder, and docker-compose in it."""

    folder: Path
    command: tuple[str, ...]

    def compose(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it, without this process's own settings."""
        inherited = {
            name: value
            for name, value in os.environ.items()  # noqa: TID251 - a child gets this process's own
            if not name.startswith(("KERNEL_GATEWAY_", "COMPOSE_"))
        }
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            env=inherited | environment,
            capture_output=True,
            text=True,
            timeout=380,
            check=False,
        )


@dataclass(frozen=True)
class Deployment:
    """What `up` has started."""

    checkout: Checkout
    port: int
    environment: dict[str, str]

    def compose(self, *arguments: str) -> str:
        done = self.checkout.compose("-p", NAME, *arguments, **self.environment)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def get(self, path: str) -> requests.Response:
        return requests.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)

    def execute(self, code: str) -> str:
        response = requests.post(
            f"http://127.0.0.1:{self.port}/v1/sessions/demo/execute",
            headers={"Authorization": f"Bearer {KEY}"},
            json={"code": code},
            timeout=60,
        )
        assert response.status_code == 200, response.text
        return text_of(response.json())

    def inside(self, *command: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
        """Run a command in the gateway's container."""
        with closing(docker.from_env()) as client:
            [gateway] = client.containers.list(filters=self._mine("gateway"))
            done = gateway.exec_run(list(command), environment=environment)
            assert isinstance(done.output, bytes)
            return int(done.exit_code or 0), done.output.decode()

    def containers(self, instance: str) -> list[Any]:
        """Those of the project, and its kernels."""
        with closing(docker.from_env()) as client:
            kernels: Filters = {"label": f"kernel-gateway.instance={instance}"}
            return [
                *client.containers.list(all=True, filters=self._mine()),
                *client.containers.list(all=True, filters=kernels),
            ]

    def volumes(self, instance: str) -> list[Any]:
        """Workspaces of kernels."""
        with closing(docker.from_env()) as client:
            return list(client.volumes.list(filters={"label": f"kernel-gateway.instance={instance}"}))

    def instance(self) -> str:
        code, said = self.inside("cat", "/var/lib/kernel-gateway/instance")
        assert code == 0, said
        return said

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            try:
                if self.get("/readyz").status_code == 200:
                    return
            except requests.ConnectionError:
                pass
            time.sleep(0.2)
        raise AssertionError("the gateway is not ready: " + self.compose("logs", "gateway")[-3000:])

    def _mine(self, service: str | None = None) -> Filters:
        labels = [f"com.docker.compose.project={NAME}"]
        return {"label": labels + ([f"com.docker.compose.service={service}"] if service else [])}


def compose_command() -> tuple[str, ...]:
    """docker-compose, or the plugin of the docker command."""
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    ):
        return ("docker", "compose")
    missing = "docker-compose is not installed (make engine installs it)"
    if os.environ.get("CI"):  # noqa: TID251 - there, what cannot be tried has failed
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "ca.pem"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    return Checkout(folder, compose_command())


@pytest.fixture(scope="module")
def base_image() -> str | None:
    """What the images are built on where no registry can be reached; None: the usual one."""
    with closing(docker.from_env()) as client:
        return LOCAL_BASE if _image_id(client, LOCAL_BASE) else None


@pytest.fixture(scope="module")
def built(checkout: Checkout, base_image: str | None) -> Checkout:
    """The checkout with both images built."""
    if bundle := os.environ.get("PIP_CERT"):  # noqa: TID251 - as kernel_image/build.sh takes it
        for context in (checkout.folder, checkout.folder / "kernel_image"):
            shutil.copyfile(bundle, context / "ca.pem")
            (context / "ca.pem").chmod(0o644)  # the mode is part of what the build's cache compares
    with closing(docker.from_env()) as client:
        before = _image_id(client, GATEWAY_IMAGE)
        done = checkout.compose("build", **_environment(base_image))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert _image_id(client, KERNEL_IMAGE)
        if before and before != _image_id(client, GATEWAY_IMAGE):
            with suppress(APIError):  # a container of a run that was ended
                client.images.remove(before)  # nameless from now on
    return checkout


@pytest.fixture(scope="module")
def deployed(built: Checkout, base_image: str | None) -> Iterator[Deployment]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    settings = {"KERNEL_GATEWAY_PORT": str(port), "KERNEL_GATEWAY_NETWORK": NAME}
    running = Deployment(built, port, _environment(base_image) | settings)
    running.compose("down", "--volumes")  # of a run that was ended
    try:
        running.compose("up", "-d")
        running.wait_until_ready()
        yield running
    finally:
        running.compose("down", "--volumes")
        _remove_network()


def _remove_network() -> None:
    """What the gateway leaves on purpose: its network and the rules around it."""
    with closing(docker.from_env()) as client:
        while found := client.networks.list(names=[f"^{NAME}$"]):
            with suppress(APIError):  # the engine has not yet taken the last container off it
                found[0].remove()
            time.sleep(0.1)
    for program, rule in firewall.rules(BRIDGE):
        subprocess.run([program, "-w", "-D", *rule], check=False, capture_output=True)
    for option in ("-F", "-X"):
        subprocess.run(["iptables", "-w", option, firewall.chain_name(BRIDGE)], check=False, capture_output=True)


def _environment(base_image: str | None) -> dict[str, str]:
    return {
        "KERNEL_GATEWAY_KEYS": f"team:{KEY}",
        "KERNEL_GATEWAY_IMAGE": KERNEL_IMAGE,
        "GATEWAY_IMAGE": GATEWAY_IMAGE,
    } | ({"BASE_IMAGE": base_image} if base_image else {})


def _image_id(client: docker.DockerClient, name: str) -> str | None:
    try:
        return client.images.get(name).id
    except ImageNotFound:
        return None


def test_every_setting_can_be_given() -> None:
    lines = (ROOT / "docker-compose.yml").read_text()
    assert sorted(re.findall(r"^ +KERNEL_GATEWAY_([A-Z_]+):", lines, re.MULTILINE)) == sorted(
        name.upper() for name in Settings.model_fields
    )


def test_is_valid_with_keys(checkout: Checkout) -> None:
    done = checkout.compose("config", KERNEL_GATEWAY_KEYS=f"team:{KEY}")
    assert done.returncode == 0, done.stderr
    assert {"gateway:", "kernel-image:", f"KERNEL_GATEWAY_KEYS: team:{KEY}"} <= set(
        map(str.strip, done.stdout.split("\n"))
    )


def test_takes_settings_from_the_env_file(checkout: Checkout) -> None:
    file = checkout.folder / ".env"
    file.write_text(f"KERNEL_GATEWAY_KEYS=team:{KEY}\nKERNEL_GATEWAY_MEMORY=300m\n")
    try:
        assert "KERNEL_GATEWAY_MEMORY: 300m" in checkout.compose("config").stdout
    finally:
        file.unlink()


@pytest.mark.parametrize("environment", [{}, {"KERNEL_GATEWAY_KEYS": ""}])
def test_says_what_to_do_without_keys(checkout: Checkout, environment: dict[str, str]) -> None:
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
def test_nobody_is_served_without_a_key(deployed: Deployment) -> None:
    assert deployed.get("/v1/sessions").status_code == 401


@pytest.mark.gate
@pytest.mark.engine
def test_the_firewall_is_put_up_from_the_container(deployed: Deployment) -> None:
    """That it holds was proven by the gateway before it was ready."""
    for program, rule in firewall.rules(BRIDGE):
        assert deployed.inside(program, "-w", "-C", *rule)[0] == 0, rule
    _, listed = deployed.inside("iptables", "-w", "-S", firewall.chain_name(BRIDGE))
    assert listed.splitlines()[1:] == firewall.chain_rules(BRIDGE)


@pytest.mark.gate
@pytest.mark.engine
def test_the_gateway_has_no_power_but_the_firewall(deployed: Deployment) -> None:
    _, status = deployed.inside("cat", "/proc/1/status")
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    assert int(found["CapBnd"], 16) == NET_ADMIN
    assert int(found["CapEff"], 16) == NET_ADMIN
    assert found["NoNewPrivs"] == "1"
    code, said = deployed.inside("touch", "/opt/venv/new")
    assert code != 0
    assert "Read-only file system" in said


@pytest.mark.engine
def test_the_image_holds_no_sources_and_no_tools_of_the_build(deployed: Deployment) -> None:
    code, _ = deployed.inside("kernel-gateway", "--version")
    assert code == 0
    for path in ("/src", "/opt/build", "/opt/venv/bin/pip"):
        assert deployed.inside("test", "-e", path)[0] == 1, path


@pytest.mark.engine
def test_the_health_check_tells_life_from_death(deployed: Deployment) -> None:
    with closing(docker.from_env()) as client:
        kind, *check = client.images.get(GATEWAY_IMAGE).attrs["Config"]["Healthcheck"]["Test"]
    assert kind == "CMD"
    assert deployed.inside(*check)[0] == 0
    assert deployed.inside(*check, environment={"KERNEL_GATEWAY_PORT": "1"})[0] != 0


@pytest.mark.gate
@pytest.mark.engine
def test_down_leaves_no_kernel(deployed: Deployment) -> None:
    """The last test: it ends what the others use."""
    instance = deployed.instance()
    assert deployed.execute("1+1") == "2"
    assert len(deployed.containers(instance)) >= 3  # the gateway, the image's try, and at least one kernel
    deployed.compose("down")
    assert deployed.containers(instance) == []
    assert deployed.volumes(instance) == []
