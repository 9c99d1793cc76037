"""Lists installed Python packages, by the names of their folders, and interpreters of other languages.

`importlib.metadata` would read a file of each package, which takes a second for a hundred packages in gVisor.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable

_SUFFIX = ".dist-info"
_KERNELSPECS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernelspecs")
#: maximum seconds for an interpreter to print its version
_TIMEOUT = 10


def packages(directories: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, by its normalized name.

    If there are two versions of a package, the first one is listed, because Python imports that one.

    Args:
        directories: directories of the import path, in order. Source of the folders' names: the binary distribution
            format (PyPA).
    """
    found: dict[str, str] = {}
    for directory in directories:
        with contextlib.suppress(OSError):  # a directory of the path need not exist
            for name in os.listdir(directory):
                if name.endswith(_SUFFIX):
                    package, _, version = name.removesuffix(_SUFFIX).rpartition("-")
                    found.setdefault(re.sub(r"[-_.]+", "-", package).lower(), version)
    return dict(sorted(found.items()))


def site_packages() -> str:
    """Return the directory of the environment's packages, even if the interpreter was started without them."""
    environment = os.path.dirname(os.path.dirname(sys.executable))
    return f"{environment}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def interpreters(search_path: str | None = None) -> dict[str, str]:
    """Return the version of each installed interpreter of another language, by `package` of its kernelspec.

    Args:
        search_path: `PATH` of the kernels. None means that of this process.
    """
    env = None if search_path is None else {"PATH": search_path}
    found: dict[str, str] = {}
    for path in glob.glob(os.path.join(_KERNELSPECS, "*", "kernel.json")):
        with open(path) as file:
            ours = json.load(file)["metadata"]["kernel_gateway"]
        if "version" in ours:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                asked = subprocess.run(  # noqa: S603 - the image's own
                    ours["version"], env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=True
                )
                found[ours["package"]] = asked.stdout.strip()
    return found
