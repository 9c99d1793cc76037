"""Lists the Python packages of an environment by the names of their folders.

`importlib.metadata` would read a file of each of a hundred packages, which takes a second in gVisor.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable

_SUFFIX = ".dist-info"


def packages(directories: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, by its normalized name. Of two versions the first is imported, and listed.

    Args:
        directories: path for imports, in order. Source of the folders' names: the binary distribution format (PyPA).
    """
    found: dict[str, str] = {}
    for directory in directories:
        with contextlib.suppress(OSError):  # an entry of the path need not exist
            for name in os.listdir(directory):
                if name.endswith(_SUFFIX):
                    package, _, version = name.removesuffix(_SUFFIX).rpartition("-")
                    found.setdefault(re.sub(r"[-_.]+", "-", package).lower(), version)
    return dict(sorted(found.items()))


def site_packages() -> str:
    """Return the directory of the environment's packages, also when the interpreter was started without them."""
    environment = os.path.dirname(os.path.dirname(sys.executable))
    return f"{environment}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
