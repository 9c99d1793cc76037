"""A gateway without a working sandbox listens, reports why it cannot start kernels, and uses no weaker isolation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from structlog.testing import capture_logs

from kernel_gateway.app import Service
from kernel_gateway.config import Settings
from kernel_gateway.isolation import examine, make_backend
from sessions.backends.abilities import Finding
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.backends.process import ProcessBackend
from tests import gateways
from tests.fakes import KERNELSPECS
from tests.gateways import Gateway
from tests.kernel_gateway.calls import children, failure, until


def serves_nothing_and_says_why(gateway: Gateway, code: str, word: str) -> None:
    """Check that calls that need a kernel are refused with the code of `/readyz`, and that no kernel exists."""
    assert gateway.call("GET", "/healthz", tenant=None).json() == {"status": "ok"}
    ready = gateway.call("GET", "/readyz", tenant=None)
    assert ready.status_code == 503
    assert ready.json()["ready"] is False
    told = ready.json()["error"]
    assert told["code"] == code
    assert word in told["message"]
    assert told["resolution"]
    for method, path, body in (
        ("POST", "/v1/sessions/s/execute", {"code": "1"}),
        ("POST", "/v1/sessions", {"name": "s"}),
        ("PUT", "/v1/sessions/s/files/f", {}),
    ):
        response = gateway.call(method, path, json=body)
        assert failure(response) == (503, code)
        assert response.json()["error"]["message"] == told["message"]
        assert int(response.headers["Retry-After"]) >= 1
    assert gateway.call("GET", "/v1/sessions").json() == {"sessions": []}
    assert children(gateway.process.pid) == []
    assert b"kernel_gateway_ready 0.0" in gateway.call("GET", "/metrics", tenant=None).content


@pytest.mark.gate
@pytest.mark.engine
def test_a_gateway_with_a_complete_sandbox_is_ready(started: Callable[[str], Gateway]) -> None:
    gateway = started("docker")
    assert gateway.call("GET", "/readyz", tenant=None).json() == {
        "ready": True,
        "golden_images": {"on": False, "detail": "`golden_images` is off"},
        "sleep": {"on": False, "detail": "`golden_images` is off"},
        "pauses": {"on": True, "detail": "the engine freezes containers"},
    }
    assert b"kernel_gateway_ready 1.0" in gateway.call("GET", "/metrics", tenant=None).content
    assert gateway.text("ready", "1") == "1"
    with closing(docker.from_env()) as engine:
        runtimes = [
            engine.api.inspect_container(container["Id"])["HostConfig"]["Runtime"] for container in gateway.containers()
        ]
    assert set(runtimes) == {"runsc"}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"runtime": "no-such-runtime"}, "no runtime 'no-such-runtime'"),
        ({"image": "kernel-gateway/no-such-image:latest"}, "no image 'kernel-gateway/no-such-image:latest'"),
    ],
    ids=["runtime", "image"],
)
def test_an_absent_runtime_or_image_is_reported(settings: dict[str, str], word: str) -> None:
    with gateways.gateway("docker", must_be_ready=False, **settings) as gateway:
        serves_nothing_and_says_why(gateway, "SB001", word)
        assert gateway.containers() == []


@pytest.mark.parametrize(("memory", "warned"), [("255m", ["javascript"]), ("256m", [])])
async def test_a_language_that_needs_more_memory_is_logged_at_start(
    tmp_path: Path, memory: str, warned: list[str]
) -> None:
    service = Service(
        Settings.model_validate(
            {
                "isolation": "process",
                "state_dir": tmp_path,
                "port": 0,
                "pool_size": 0,
                "sandbox_pool_size": 0,
                "memory": memory,
            }
        )
    )
    with capture_logs() as logs:
        await service.start()
        await service.stop()
    assert [line["language"] for line in logs if "too small for a language" in line["event"]] == warned


@pytest.fixture
def open_network() -> Iterator[str]:
    """A network with Docker's defaults, which is open to the world."""
    name = "kernel-gateway-tests-open"
    with closing(docker.from_env()) as engine:
        network = engine.networks.create(name)
        yield name
        network.remove()


@pytest.mark.engine
def test_a_network_that_is_not_isolated_is_reported(open_network: str) -> None:
    with gateways.gateway("docker", must_be_ready=False, network=open_network) as gateway:
        serves_nothing_and_says_why(gateway, "SB001", "not isolated")
        assert gateway.containers() == []


def test_an_engine_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with gateways.gateway("docker", must_be_ready=False) as gateway:
        serves_nothing_and_says_why(gateway, "SB009", "does not answer")


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({"isolation": "process"}, ProcessBackend),
        ({"isolation": "docker"}, DockerBackend),
        ({"isolation": "auto"}, ProcessBackend),
        ({"isolation": "auto", "host": "192.0.2.1", "keys": "team:a-long-key"}, DockerBackend),
        ({"isolation": "auto", "keys": "team:a-long-key"}, DockerBackend),
        ({"isolation": "auto", "access_keys": "team:an-id:a-long-secret"}, DockerBackend),
        ({"isolation": "auto", "admin_key": "a-long-key"}, DockerBackend),
    ],
    ids=str,
)
def test_without_an_engine_only_auto_without_keys_uses_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], backend: type[object]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    given = Settings.model_validate(settings | {"state_dir": tmp_path})
    assert type(make_backend(given, "tests", "secret", KERNELSPECS, bytes)) is backend


async def test_a_gateway_that_had_sandboxed_kernels_never_falls_back_to_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    settings = {"state_dir": tmp_path, "port": 0}
    unused = Service(Settings.model_validate(settings | {"isolation": "auto"}))
    assert unused.backend.name == "process", "an unused state directory may have plain processes"
    await unused.stop()
    await Service(Settings.model_validate(settings | {"isolation": "docker"})).stop()
    with capture_logs() as logs:
        again = Service(Settings.model_validate(settings | {"isolation": "auto"}))
    await again.stop()
    assert again.backend.name == "docker"
    (said,) = logs
    assert "plain processes are not used" in said["event"]
    assert "`process`" in said["fix"]


def test_the_engine_gets_the_settings_of_the_deployment() -> None:
    given = {"isolation": "docker", "kernels_weight": 2.5, "files": "memory", "image": "kernels:tests"}
    backend = make_backend(Settings.model_validate(given), "tests", "secret", KERNELSPECS, bytes)
    assert isinstance(backend, DockerBackend)
    found = backend.settings
    assert (found.kernels_weight, found.files, found.image) == (2.5, "memory", "kernels:tests")


def test_the_doctor_judges_by_the_settings_of_the_gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {"isolation": "docker", "state_dir": str(tmp_path), "sleep_disk": "1g", "files": "memory", "wheels": "/w"}
    settings = Settings.model_validate(given)
    backend = make_backend(settings, "tests", "secret", KERNELSPECS, bytes)
    assert isinstance(backend, DockerBackend)
    asked: list[DockerSettings] = []

    def examined(settings: DockerSettings, *, tried: bool) -> list[Finding]:
        assert tried
        asked.append(settings)
        return []

    monkeypatch.setattr("sessions.backends.docker.examine", examined)
    list(examine(settings))
    (found,) = asked
    assert found.sleep is not None
    own = replace(found, instance="tests", sleep=replace(found.sleep, key=bytes), golden=None)
    assert own == replace(backend.settings, golden=None)
    assert len({found.sleep.key() for _ in range(2)}) == 1, "what it has encrypted it can decrypt"
    assert found.golden is not None
    assert found.golden.directory == tmp_path / "checkpoints"


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("given", [{}, {"sleep_disk": "0"}, {"files": "memory"}, {"golden_images": "off"}], ids=str)
def test_the_doctor_says_of_sleep_what_the_gateway_says(given: dict[str, str], tmp_path: Path) -> None:
    settings = {"golden_images": "auto", "preload": "", "state_dir": str(tmp_path)} | given
    with gateways.gateway("docker", must_be_ready=True, **settings) as gateway:
        # the first checkpoint, and then the proof of sleep
        until(lambda: not re.search("is being made|is under way", gateway.call("GET", "/readyz", tenant=None).text))
        told = gateway.call("GET", "/readyz", tenant=None).json()["sleep"]
    told_to = {"isolation": "docker", "network": gateways.NETWORK} | settings
    said = {finding.name: finding.detail for finding in examine(Settings.model_validate(told_to))}
    assert said["sleep"] == f"{'on' if told['on'] else 'off'}, {told['detail']}"


@pytest.mark.engine
def test_with_an_engine_auto_uses_it() -> None:
    assert (
        type(make_backend(Settings.model_validate({"isolation": "auto"}), "tests", "secret", KERNELSPECS, bytes))
        is DockerBackend
    )
