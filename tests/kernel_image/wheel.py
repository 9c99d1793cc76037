"""A wheel for tests, made without an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

_INFO = "greeting-1.2.dist-info"
_FILES = {
    "greeting.py": "def hello():\n    return 'from the wheel'\n",
    f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.2\n",
    f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def write_wheel(directory: Path) -> Path:
    """Write a wheel with the module `greeting`, and return its path. Source: the binary distribution format (PyPA)."""
    rows = []
    for name, content in _FILES.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}")
    path = directory / "greeting-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in _FILES.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{_INFO}/RECORD", "\n".join([*rows, f"{_INFO}/RECORD,,"]) + "\n")
    return path
