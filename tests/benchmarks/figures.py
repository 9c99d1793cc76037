"""Output, statistics and descriptions of the machine, for all benchmarks."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

import docker


def say(text: str) -> None:
    """Print progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


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
    """Return the engine's version."""
    client = docker.from_env()
    try:
        return f"Docker {client.version()['Version']}"
    finally:
        client.close()
