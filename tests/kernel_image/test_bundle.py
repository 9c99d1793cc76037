"""The bundle: the modules of a kernel's start in one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessions.backends.base import KERNEL_IMAGE

LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from python_kernel import bundle
bundle.FILE = sys.argv[2]
bundle.use(bundle.FILE)
import inspect, ipykernel.kernelbase as one, zmq.backend.cython._zmq as other
try:
    one.Kernel.send_response()
except TypeError:
    pass
found = type(sys.meta_path[0]).__module__
bundle.release()
print(json.dumps({
    "found": found,
    "released": type(sys.meta_path[0]).__module__,
    "code": one.__spec__.loader.get_code(one.__name__).co_filename,
    "loaded": type(one.__spec__.loader).__module__,
    "file": one.__file__,
    "extension": other.__file__,
    "source": inspect.getsource(one.Kernel.start).strip().splitlines()[0],
    "package": list(sys.modules["ipykernel"].__path__),
}))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, made as when the image is built."""
    home = tmp_path_factory.mktemp("home")
    program = KERNEL_IMAGE / "python_kernel/bundle.py"
    environment = {"PATH": os.defpath, "HOME": str(home)}
    subprocess.run([sys.executable, program, home / "modules"], cwd=home, env=environment, check=True, timeout=60)
    return home / "modules"


def look(bundle: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", LOOK, str(KERNEL_IMAGE), str(bundle)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return found


def test_a_module_from_the_bundle_equals_one_from_its_own_file(bundle: Path, tmp_path: Path) -> None:
    ours, plain = look(bundle), look(tmp_path / "none")
    assert (ours.pop("found"), ours.pop("loaded")) == ("python_kernel.bundle", "python_kernel.bundle")
    assert "python_kernel" not in plain.pop("found") + plain.pop("loaded")
    assert ours == plain


def test_a_bundle_of_another_interpreter_is_not_used(bundle: Path, tmp_path: Path) -> None:
    content = bundle.read_bytes()
    version = sys.version.encode()
    assert content.count(version) == 1
    Path(tmp_path, "modules").write_bytes(content.replace(version, version[:-1] + b"!"))
    assert "python_kernel" not in look(tmp_path / "modules")["found"]


@pytest.mark.full
def test_modules_are_imported_ahead_from_a_bundle_of_their_own(tmp_path: Path) -> None:
    program = KERNEL_IMAGE / "python_kernel/bundle.py"
    command = [sys.executable, str(program), str(tmp_path / "modules"), str(tmp_path / "ahead")]
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
from python_kernel import bundle, imports
bundle.AHEAD = sys.argv[2]
problem = imports.ahead("sklearn.linear_model")
import zipfile, numpy, scipy, sklearn
made = [type(module.__spec__.loader).__module__ for module in (numpy, scipy, sklearn, zipfile)]
print(json.dumps([problem, type(sys.meta_path[0]).__module__, *made, numpy.__file__]))
"""
    run = [sys.executable, "-c", code, str(KERNEL_IMAGE)]
    ours, plain = (
        json.loads(subprocess.run([*run, str(file)], check=True, capture_output=True, timeout=60).stdout)
        for file in (tmp_path / "ahead", tmp_path / "none")
    )
    assert ours[2:5] == ["python_kernel.bundle"] * 3
    assert "python_kernel.bundle" not in plain
    assert (ours[:2], ours[-1]) == (plain[:2], plain[-1])


@pytest.mark.engine
def test_kernels_of_the_image_import_from_the_bundle() -> None:
    code = "import ipykernel, sys; print(type(ipykernel.__spec__.loader).__module__, len(sys.meta_path))"
    use = "from python_kernel import bundle; bundle.use(bundle.FILE)"
    program = f"import sys; sys.path.insert(0, '/opt/kernel'); {use}; {code}"
    command = ["docker", "run", "--rm", "--network=none", "kernel-gateway/python:latest", "python", "-c", program]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0] == "python_kernel.bundle"
    )
