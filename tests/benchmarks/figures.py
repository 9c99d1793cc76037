"""Output, statistics and descriptions of the machine, for all benchmarks."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median

import docker
from docker.errors import DockerException


def say(text: str) -> None:
    """Print progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def rounds(what: str, most: int, seconds: float) -> Iterator[int]:
    """Yield the numbers of rounds until there were `most`, or the time is used up; at least one.

    Args:
        what: name of what is measured, for the progress.
        most: number of rounds.
        seconds: time in which a round may begin.
    """
    until = time.monotonic() + seconds
    for number in range(most):
        if number and time.monotonic() > until:
            say(f"{what}: no time for more than {number} of {most} rounds")
            return
        yield number
        say(f"{what}: round {number + 1} of {most}")


def percentile(seconds: list[float], share: float) -> float:
    """Return the smallest value that a `share` of all values does not exceed."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(seconds: list[float]) -> str:
    """Return the median, minimum and maximum as text."""
    return f"{median(seconds):.3f} s ({min(seconds):.3f}-{max(seconds):.3f})"


def machine() -> str:
    """Describe the machine in one line."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    name = model[1] if model else platform.machine()
    return f"{os.cpu_count()} x {name}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


def versions(*packages: str) -> str:
    """Return the versions of Python and some packages in one line."""
    known = [f"{name} {version(name)}" for name in packages]
    return ", ".join([f"Python {platform.python_version()}", *known])


def engine() -> str:
    """Return the versions of the engine and of gVisor, as far as they are there."""
    try:
        client = docker.from_env()
    except DockerException:
        return "no Docker engine"
    try:
        known = f"Docker {client.version()['Version']}"
    finally:
        client.close()
    if shutil.which("runsc") is None:
        return known
    said = subprocess.run(["runsc", "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    return f"{known}, gVisor {said.splitlines()[0].removeprefix('runsc version ')}"


def hindrance(isolation: str, image: str) -> str:
    """Return why this machine cannot run kernels with an isolation; empty: it can."""
    if isolation == "process":
        return ""
    try:
        client = docker.from_env()
    except DockerException:
        return "no Docker engine answers"
    try:
        if isolation not in client.info()["Runtimes"]:
            return f"the Docker engine has no runtime `{isolation}`"
        return "" if client.images.list(image) else f"there is no image `{image}`"
    finally:
        client.close()
