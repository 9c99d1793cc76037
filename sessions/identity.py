"""The data of a session that never change."""

from __future__ import annotations

from dataclasses import dataclass

from sessions.kernelspecs import KernelSpec
from sessions.models import SessionKey, SessionSpec


@dataclass(frozen=True, slots=True)
class Identity:
    """One session, independent of its kernel."""

    key: SessionKey
    spec: SessionSpec
    #: kernelspec of its language
    kernelspec: KernelSpec
    #: seconds since 1970
    created_at: float

    @property
    def in_sandbox(self) -> bool:
        """Whether the session shares the workspace of a sandbox, and ends with it."""
        return self.spec.workspace is not None
