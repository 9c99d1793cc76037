"""What code in a sandbox finds installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sessions.errors import InvalidRequest
from sessions.kernelspecs import KernelSpec


@dataclass(frozen=True, slots=True)
class Inventory:
    """What code finds installed, in all languages' kernels."""

    #: version of the Python interpreter
    python: str
    #: version of each Python package, by its normalized name, and of interpreters that are none
    packages: Mapping[str, str]

    def version(self, spec: KernelSpec) -> str | None:
        """Return the version of a language's interpreter; None: it is not installed."""
        return self.packages.get(spec.package) if spec.package else self.python

    def require(self, spec: KernelSpec) -> None:
        """Check that a language's interpreter is installed.

        Raises:
            InvalidRequest: when it is not.
        """
        if self.version(spec) is None:
            where = f"; the image {spec.image} has it, which the operator can set" if spec.image else ""
            raise InvalidRequest(
                f"{spec.display_name} is not installed here{where}", field="language", language=spec.name
            )
