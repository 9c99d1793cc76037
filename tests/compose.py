"""The deployment as a user gets it: a checkout's images, and the containers that `docker-compose up` starts.

python -m tests.compose       builds the images, which takes a minute the first time; the tests reuse them
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import docker
import requests
from docker.errors import APIError, ImageNotFound

from tests.gateways import text_of

ROOT = Path(__file__).parents[1]
#: the sources of the images, and no other files: a checkout has no .venv
SOURCES = (
    *(".dockerignore", "LICENSE", "README.md", "docker-compose.yml", "pyproject.toml"),
    *("kernel_gateway", "kernel_image", "sessions"),
)
LOCAL_BASE = "kernel-gateway/base:bookworm"
KEY = "compose-key-0001"
#: tags of the tests, so that images in use do not change; the images are kept to make the next build quick
KERNEL_IMAGE = "kernel-gateway/python:compose-test"
GATEWAY_IMAGE = "kernel-gateway/gateway:compose-test"
#: name of the compose project
NAME = "kernel-gateway-compose"
READY_TIMEOUT = 60.0

#: filters of a list of containers, in the form of the engine's client
Filters = dict[str, str | list[str] | bool]


@dataclass(frozen=True)
class Checkout:
    """A copy of the project's folder, and docker-compose in it."""

    folder: Path
    command: tuple[str, ...]

    @classmethod
    def into(cls, folder: Path, command: tuple[str, ...]) -> Self:
        """Copy the sources of the images."""
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "ca.pem"))
            else:
                shutil.copy2(ROOT / name, folder / name)
        return cls(folder, command)

    def build(self, *services: str, image: str = GATEWAY_IMAGE) -> None:
        """Build the images of these services, or both images.

        Args:
            services: names of services.
            image: tag of the gateway's image.
        """
        if bundle := os.environ.get("PIP_CERT"):  # noqa: TID251 - as in kernel_image/build.sh
            for context in (self.folder, self.folder / "kernel_image"):
                shutil.copyfile(bundle, context / "ca.pem")
                (context / "ca.pem").chmod(0o644)  # the build's cache compares the mode, too
        if "BASE_IMAGE" in environment():  # the local base has no package sources; as in kernel_image/build.sh, too
            commands = {
                "debian.sources": ["kernel_image/package_sources.sh"],
                "apt.conf": ["apt-config", "dump", "Acquire"],
            }
            for file, command in commands.items():
                said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
                (self.folder / "kernel_image" / file).write_text(said)
        with closing(docker.from_env()) as client:
            before = _image_id(client, image)
            done = self.compose("build", *services, **environment() | {"GATEWAY_IMAGE": image})
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            assert services or _image_id(client, KERNEL_IMAGE)
            if before and before != _image_id(client, image):
                with suppress(APIError):  # a container of an aborted run uses it
                    client.images.remove(before)  # it has lost its name to the new image

    def compose(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run docker-compose without this process's own settings."""
        inherited = {
            name: value
            for name, value in os.environ.items()  # noqa: TID251 - for a child process
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
    """The containers that `up` has started."""

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
        """Run a command in the gateway's container, and return its exit code and all that it says.

        The engine's Python client loses output that arrives together with the head of the engine's answer: it has read
        these bytes into a buffer, and goes on reading behind it (docker-py issue 2042). The engine's command does not.
        """
        with closing(docker.from_env()) as client:
            [gateway] = client.containers.list(filters=self._mine("gateway"))
        variables = [f"--env={name}={value}" for name, value in (environment or {}).items()]
        done = subprocess.run(
            ["docker", "exec", *variables, str(gateway.id), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.decode()

    def containers(self, instance: str) -> list[Any]:
        """Return the containers of the project, and those of its kernels."""
        with closing(docker.from_env()) as client:
            kernels: Filters = {"label": f"kernel-gateway.instance={instance}"}
            return [
                *client.containers.list(all=True, filters=self._mine()),
                *client.containers.list(all=True, filters=kernels),
            ]

    def volumes(self, instance: str) -> list[Any]:
        """Return the volumes of the kernels' workspaces."""
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


def compose_command() -> tuple[str, ...] | None:
    """Return the command docker-compose, or the plugin of docker; None if neither is installed."""
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    ):
        return ("docker", "compose")
    return None


def environment() -> dict[str, str]:
    """Return variables with the images' names, and with the local base image if there is one."""
    with closing(docker.from_env()) as client:
        base_image = LOCAL_BASE if _image_id(client, LOCAL_BASE) else None
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


def main() -> None:
    """Build the images, so that no test waits for that."""
    command = compose_command()
    if command is None:
        sys.exit("docker-compose is not installed; make engine installs it")
    print("==> building the images of docker-compose.yml (a minute the first time)", flush=True)
    with TemporaryDirectory(prefix="kgw-compose-") as folder:
        Checkout.into(Path(folder), command).build()


if __name__ == "__main__":
    main()
