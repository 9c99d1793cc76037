"""A release: its wheel is built and installed as the operators' guide says, apart from this folder, and serves."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import files, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.gateways import KEYS, gateway
from tests.readme import ROOT
from tests.test_examples import example, shell

#: the first test of an installed wheel also waits until pip has made a new environment: minutes on a busy machine
pytestmark = pytest.mark.timeout(600)

PACKAGES = ("kernel_gateway", "kernel_image", "sessions")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
#: stands for the docker command: there is no image yet, and it prints with which sources one would be built
DOCKER = """#!/bin/sh
case "$*" in
  *inspect*) exit 1 ;;
  *) printf '%s\\n' "$@" | grep '^kernel-gateway.sources=' ;;
esac
"""


@dataclass(frozen=True)
class Installed:
    """An environment in which the wheel was installed."""

    environment: Path
    #: what the guide's commands have printed
    said: str

    @property
    def packages(self) -> Path:
        """The folder of the installed packages."""
        (found,) = self.environment.glob("lib/python3*/site-packages")
        return found


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path of programs on which the docker command is a stub."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "docker").write_text(DOCKER)
    (folder / "docker").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"  # noqa: TID251 - a child gets the programs of this environment


def _commands() -> tuple[str, str]:
    """Return the guide's commands: the one that builds the wheel, and those that install it."""
    [code] = example("docs/operating.md", "make wheel")
    build, _, install = code.partition("\n")
    return build, install


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the guide's first command builds, in another folder."""
    dist = tmp_path_factory.mktemp("dist")
    # `--old-file`, because tests must not change the environment in which they run
    shell(
        f"make --silent --directory={ROOT} --old-file=.venv/.setup {_commands()[0].removeprefix('make ')} DIST={dist}"
    )
    (built,) = dist.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, docker: str, wheel: Path) -> Installed:
    """What the guide's other commands install, in another folder."""
    environment = tmp_path_factory.mktemp("opt")
    code = _commands()[1].replace("dist/*.whl", str(wheel)).replace("/opt/kernel-gateway", str(environment))
    return Installed(environment, shell(f"cd {environment}\n{code}", PATH=docker))


def test_the_wheel_contains_each_file_of_the_packages_and_no_other(wheel: Path) -> None:
    ours = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "ca.pem"
    }
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == ours


@pytest.mark.full
def test_an_installed_wheel_serves_and_runs_cells(installed: Installed) -> None:
    program = str(installed.environment / "bin" / "kernel-gateway")
    asked = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    assert asked.stdout == f"kernel-gateway {VERSION}\n"
    with gateway("process", command=(program,)) as serving:
        serving.execute("s", "import sys; x = 40")
        assert serving.text("s", "print(sys.prefix, x + 2)") == f"{installed.environment} 42\n"
        files = [path for page in ("admin", "ui") for path in (ROOT / f"kernel_gateway/web/{page}").iterdir()]
        for page in ("/admin", "/ui", *(f"/{path.parent.name}/{path.name}" for path in files)):
            assert serving.call("GET", page).status_code == 200, page
        assert serving.call("GET", "/v1/openapi.json").json()["info"]["version"] == VERSION


def _needs(distribution: str) -> set[str]:
    """Return the distributions that one needs without its extras, itself included, as they are installed here."""
    found = {distribution}
    for line in requires(distribution) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found |= _needs(requirement.name)
    return found


def test_the_readmes_client_example_works_in_an_environment_with_the_clients_needs_alone(
    wheel: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path)
    (packages,) = tmp_path.glob("lib/python3*/site-packages")
    for name in _needs("httpx"):
        for file in files(name) or ():
            if ".." not in file.parts:  # no programs
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), packages / file)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(packages)
    python = tmp_path / "bin" / "python"
    assert subprocess.run([python, "-c", "import pydantic"], check=False, capture_output=True).returncode, "control"
    [code] = example("README.md", "from pathlib")
    with gateway("process") as serving:
        (serving.state_dir / "key").write_text(KEYS["alice"])
        code = code.replace("http://127.0.0.1:8888", serving.url)
        code = code.replace("~/.local/state/kernel-gateway", str(serving.state_dir))
        ran = subprocess.run([python, "-I", "-c", code], check=False, capture_output=True, text=True)
        assert ("6" in ran.stdout, ran.stderr) == (True, "")


@pytest.mark.full
def test_the_wheel_builds_the_same_images_as_a_checkout(installed: Installed, docker: str) -> None:
    for script in ("kernel_image/build.sh", "kernel_image/egress/build.sh"):
        ours, theirs = (shell(str(folder / script), PATH=docker) for folder in (ROOT, installed.packages))
        assert re.search("^kernel-gateway.sources=[0-9a-f]{64}$", ours, re.MULTILINE)
        assert theirs == ours
        if "egress" not in script:
            assert installed.said.endswith(ours)


def test_the_runtimes_wrapper_is_a_program_also_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        kept = packed.getinfo("sessions/backends/docker/checkpoint/runsc.sh").external_attr >> 16
    assert stat.S_IMODE(kept) == 0o755


def test_the_changelog_begins_with_the_present_version() -> None:
    headings = re.findall("^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(VERSION)} \((\d{{4}}-\d\d-\d\d|not yet released)\)", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", earlier) for earlier in headings[1:])
