"""What `build.sh` asks the engine for; the engine is a stub that prints its arguments and knows one image's labels."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from sessions.backends.base import KERNEL_IMAGE
from tests.languages import DEBIAN, Contract, contracts

STUB = """#!/bin/sh
case "$1 $2" in
  "image inspect") sed -n "s/^$(echo "$*" | sed -n 's/.*kernel-gateway\\.\\([a-z]*\\).*/\\1/p')=//p" "$LABELS" ;;
  "build "*) printf '%s\\n' "$@" > "$ASKED" ;;
esac
"""


class Build:
    """The script, and the labels of the image that it finds."""

    def __init__(self, folder: Path) -> None:
        self._asked = folder / "asked"
        self._labels = folder / "labels"
        self._labels.touch()
        (folder / "docker").write_text(STUB)
        (folder / "docker").chmod(0o755)
        self._env = {
            "PATH": f"{folder}:/usr/bin:/bin",
            "BASE_IMAGE": "python:3.12-slim",  # the local base would need this machine's package sources
            "ASKED": str(self._asked),
            "LABELS": str(self._labels),
        }

    def __call__(self, *arguments: str, **env: str) -> dict[str, str] | None:
        """Run it; returns the arguments and labels of the build, or None when nothing was built."""
        self._asked.unlink(missing_ok=True)
        subprocess.run([KERNEL_IMAGE / "build.sh", *arguments], env=self._env | env, check=True, capture_output=True)
        if not self._asked.exists():
            return None
        asked = self._asked.read_text()
        given = dict(re.findall(r"^(?:kernel-gateway\.)?(\w+)=(.*)$", asked, re.MULTILINE))
        given["name"] = asked.splitlines()[-2]
        self._labels.write_text(f"sources={given['sources']}\nextra={given['extra']}\n")
        return given


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def chosen(built: dict[str, str] | None) -> tuple[str, str, str]:
    assert built is not None, json.dumps(built)
    assert built["EXTRA"] == built["extra"]
    assert built["TOOLS"] == ("/dev/null" if "slim" in built["REQUIREMENTS"] else "tools.txt")
    return built["name"], built["REQUIREMENTS"], built["EXTRA"]


def test_an_image_is_built_once(build: Build) -> None:
    assert chosen(build()) == ("kernel-gateway/python:latest", "requirements.txt", "")
    assert build() is None


def test_the_slim_image_has_its_own_name(build: Build) -> None:
    assert chosen(build("--slim")) == ("kernel-gateway/python:slim", "requirements-slim.txt", "")
    assert chosen(build("--slim", "mine", EXTRA="a"))[0] == "mine"


def test_the_image_with_r_is_the_usual_one_and_r(build: Build) -> None:
    built = build("--r")
    assert chosen(built) == ("kernel-gateway/python:r", "requirements.txt", "")
    assert built is not None
    assert built["DEBIAN"] == "r-base-core r-cran-irkernel"
    assert build("--r") is None
    usual = build()
    assert usual is not None
    assert usual["DEBIAN"] == ""


def test_an_image_can_have_several_languages_more(build: Build) -> None:
    built = build("--slim", "--ruby", "--r")
    assert chosen(built) == ("kernel-gateway/python:slim-ruby-r", "requirements-slim.txt", "")
    assert built is not None
    assert built["DEBIAN"] == "ruby r-base-core r-cran-irkernel"


@pytest.mark.parametrize("language", ["--python", "--cobol", "--"])
def test_a_language_that_needs_no_packages_of_debian_is_refused(build: Build, language: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        build(language)
    assert (refused.value.returncode, b"no such language" in refused.value.stderr) == (2, True)


SOURCES = "Types: deb\nURIs: http://a/debian\nSuites: bookworm\nComponents: main extra\n\n"
LINES = """
#deb cdrom:[Debian 12]/ bookworm main
deb [signed-by=/k arch=amd64] http://a/debian bookworm main extra
deb-src http://a/debian bookworm main
"""


@pytest.mark.parametrize(("file", "written"), [("sources.list.d/debian.sources", SOURCES), ("sources.list", LINES)])
def test_a_build_gets_the_machines_package_sources_in_either_form(tmp_path: Path, file: str, written: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / file).write_text(written)
    told = subprocess.run([KERNEL_IMAGE / "package_sources.sh", tmp_path], check=True, capture_output=True, text=True)
    assert told.stdout == SOURCES


OPTIONAL = [contract for contract in contracts() if (contract.folder / DEBIAN).exists()]


def test_a_language_is_in_an_image_of_its_own_if_it_needs_packages_of_debian() -> None:
    assert {contract.spec.name for contract in OPTIONAL} == {"r", "ruby"}
    for contract in contracts():
        expected = f"kernel-gateway/python:{contract.spec.name}" if contract in OPTIONAL else ""
        assert contract.spec.image == expected


@pytest.mark.parametrize("contract", OPTIONAL, ids=lambda contract: contract.spec.name)
def test_the_makefile_builds_the_image_of_each_language(contract: Contract) -> None:
    rules = (KERNEL_IMAGE.parent / "Makefile").read_text()
    name = contract.spec.name
    assert re.search(rf"^image-{name}: ## .*\n\tkernel_image/build\.sh --{name}$", rules, re.MULTILINE)


def test_more_packages_stay_until_they_are_taken_away(build: Build) -> None:
    assert chosen(build(EXTRA="a b"))[2] == "a b"
    assert build() is None, "they are kept"
    assert chosen(build(EXTRA="c"))[2] == "c"
    assert chosen(build(EXTRA=""))[2] == ""
