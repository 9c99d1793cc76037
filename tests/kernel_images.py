"""Images of kernels that tests build for themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sessions.backends.base import KERNEL_IMAGE


def image_with(language: str) -> str:
    """Build the usual image with one language more, if it is not there yet, and return its name.

    Its name differs from that of the users' image; both consist of the same layers.
    """
    return _built(f"kernel-gateway/python:{language}-test", KERNEL_IMAGE / "build.sh", f"--{language}")


def image_with_packages(name: str, *packages: str) -> str:
    """Build the usual image with some packages more, if it is not there yet, and return its name.

    Args:
        name: end of its name.
        *packages: packages as pip names them.
    """
    extra = f"EXTRA={' '.join(packages)}"
    return _built(f"kernel-gateway/python:{name}-test", "env", extra, KERNEL_IMAGE / "build.sh")


def _built(image: str, *command: str | Path) -> str:
    built = subprocess.run([*command, image], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    return image
