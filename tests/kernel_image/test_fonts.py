"""Plots of preloaded kernels read the image's fonts from memory, and look as they always do."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from sessions.backends.base import KERNEL_IMAGE, Launch
from sessions.backends.docker import DockerBackend, DockerSettings
from sessions.kernels.kernel import Kernel
from tests.attacks.bench import IMAGE, forget_network
from tests.benchmarks.start import printed
from tests.fakes import KERNELSPECS

INSTANCE = f"fonts-{os.getpid()}"
NETWORK = f"kernel-gateway-{INSTANCE}"
#: sets what this process may write, maps fonts if asked to, draws, and prints digests and whether the font is mapped
DRAW = """
import os, sys
os.environ["SOURCE_DATE_EPOCH"] = "0"
sys.path.insert(0, sys.argv[1])
os.access = lambda path, mode: sys.argv[2] == "writable"
from python_kernel import fonts
import matplotlib
if sys.argv[2] != "plain":
    fonts.map_fonts(); fonts.map_fonts()
import hashlib, io
from matplotlib import ft2font
from matplotlib.figure import Figure
figure = Figure()
figure.subplots().set(title="Größe", ylabel="$x^2$")
for kind in ("png", "svg", "pdf", "ps"):
    matplotlib.rcParams["svg.hashsalt"] = "1"
    stamp = {"CreationDate": None} if kind in ("pdf", "ps") else {"Date": None} if kind == "svg" else None
    file = io.BytesIO()
    figure.savefig(file, format=kind, metadata=stamp)
    print(kind, hashlib.sha256(file.getvalue()).hexdigest())
path = matplotlib.font_manager.findfont("DejaVu Sans")
print(ft2font.FT2Font(str(path)).fname == str(path), ft2font.FT2Font(opened := open(path, "rb")).fname is opened)
print("DejaVuSans.ttf" in open("/proc/self/maps").read())
"""
#: a plot, and whether its font is in the kernel's memory
PLOT = """
import matplotlib.pyplot as plt; plt.plot([1, 3, 2]); plt.show()
print("DejaVuSans.ttf" in open("/proc/self/maps").read())
"""


@functools.cache
def drawn(how: str) -> list[str]:
    command = [sys.executable, "-c", DRAW, str(KERNEL_IMAGE), how]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


def test_plots_with_fonts_in_memory_are_the_same_in_every_format() -> None:
    plain, mapped = drawn("plain"), drawn("mapped")
    assert mapped[:-1] == plain[:-1]
    assert (plain[-1], mapped[-1]) == ("False", "True")


def test_a_font_that_the_process_may_write_stays_a_file() -> None:
    assert drawn("writable") == drawn("plain")


@pytest.fixture
async def backend(nothing_left: None) -> AsyncIterator[DockerBackend]:
    backend = DockerBackend(DockerSettings("runsc", IMAGE, NETWORK, INSTANCE))
    await backend.prepare()
    yield backend
    await backend.close()
    forget_network(NETWORK)


@pytest.mark.engine
async def test_a_preloaded_kernel_in_the_sandbox_has_its_fonts_in_memory(backend: DockerBackend) -> None:
    kernel = await Kernel.start(backend, Launch(KERNELSPECS.find("python")))
    assert await kernel.preloading.load("matplotlib.font_manager") == ""
    assert "True" in await printed(kernel, PLOT)
