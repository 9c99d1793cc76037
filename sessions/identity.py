"""The data of a session that never change."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from sessions.backends.base import Launch
from sessions.kernelspecs import KernelSpec
from sessions.models import Network, SessionKey, SessionSpec


@dataclass(frozen=True, slots=True)
class Identity:
    """One session, independent of its kernel."""

    key: SessionKey
    spec: SessionSpec
    #: kernelspec of its language
    kernelspec: KernelSpec
    #: seconds since 1970
    created_at: float
    #: differs from the ids of all other sessions, also of earlier and later ones with the same key
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def launch(self, workspace: str | None) -> Launch:
        """Return the order to start a kernel of it.

        Args:
            workspace: workspace of the kernel; None: a new one.
        """
        of = self.spec
        return Launch(
            self.kernelspec,
            of.limits,
            of.env,
            workspace,
            of.cwd,
            shared=of.in_sandbox,
            tenant=self.key.tenant,
            image=of.image,
            egress=self.key if of.network is Network.ALLOWLIST else None,
        )
