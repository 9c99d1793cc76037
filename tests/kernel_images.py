"""Images of kernels that tests build for themselves."""

from __future__ import annotations

import subprocess

from sessions.backends.base import KERNEL_IMAGE


def image_with(language: str) -> str:
    """Build the usual image with one language more, if it is not there yet, and return its name.

    Its name differs from that of the users' image; both consist of the same layers.
    """
    name = f"kernel-gateway/python:{language}-test"
    built = subprocess.run(
        [KERNEL_IMAGE / "build.sh", f"--{language}", name], check=False, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    return name
