"""The list of packages holds what pip would list, under the same names."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from kernel_image.inventory import interpreters, packages
from sessions.backends.base import KERNEL_IMAGE


def test_packages_are_listed_as_their_metadata_says() -> None:
    expected = {canonicalize_name(each.name): each.version for each in distributions()}
    assert packages(sys.path) == expected
    assert {"ipykernel", "jupyter-client", "sandboxed-kernel-gateway"} <= expected.keys()


def test_of_two_versions_the_imported_one_is_listed(tmp_path: Path) -> None:
    for place, version in ("first", "2.0"), ("second", "1.0"):
        (tmp_path / place / f"a_package-{version}.dist-info").mkdir(parents=True)
    path = [str(tmp_path / place) for place in ("absent", "first", "second")]
    assert packages(path) == {"a-package": "2.0"}


def test_the_probe_lists_packages_though_it_runs_without_them() -> None:
    command = [sys.executable, "-I", "-S", str(KERNEL_IMAGE / "probe.py"), '{"listen": null, "targets": []}']
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert answer["python"] == platform.python_version()
    assert answer["packages"].items() <= (packages(sys.path) | interpreters()).items()
    assert {"ipykernel", "bash"} <= answer["packages"].keys()
