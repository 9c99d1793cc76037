"""The Jupyter dialect's words. A kernel id is one of our sessions, and the other way round.

Source: the REST API of Jupyter Server (`api.yaml`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pydantic import BaseModel, ConfigDict, Field

from sessions.errors import SessionNotFound
from sessions.kernelspecs import KernelSpec
from sessions.models import SessionKey
from sessions.registry import Registry
from sessions.session import Session
from sessions.states import State

#: what clients accept as a kernel id
KERNEL_ID = re.compile(r"\w+-\w+-\w+-\w+-\w+")
_STATES = {State.STARTING: "starting", State.IDLE: "idle", State.BUSY: "busy"}


class Body(BaseModel):
    """What a client sends; clients send more than this gateway uses."""

    model_config = ConfigDict(extra="ignore", strict=True)


class StartKernel(Body):
    """`POST /api/kernels`."""

    name: str | None = None
    kernel_id: str | None = None
    #: the directory it starts in, relative to the workspace; `cwd` is another word for it
    path: str | None = None
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def wanted_env(self) -> dict[str, str]:
        """Without what tells a remote server of the client's own machine."""
        return {name: value for name, value in self.env.items() if not name.startswith("KERNEL_")}


class KernelOfSession(Body):
    """The kernel that a notebook session is to have: an existing one, or a new one of this name."""

    id: str | None = None
    name: str | None = None


class NotebookName(Body):
    """The older form of a path."""

    path: str | None = None


class NotebookSession(Body):
    """`POST` and `PATCH /api/sessions`."""

    path: str | None = None
    name: str | None = None
    type: str | None = None
    kernel: KernelOfSession | None = None
    notebook: NotebookName | None = None

    @property
    def any_path(self) -> str | None:
        """The path, in whichever form it came."""
        return self.path or (self.notebook.path if self.notebook else None)


def kernel_id(key: SessionKey) -> str:
    """The id of a session's kernel: its name, where clients take that for an id."""
    return key.name if KERNEL_ID.fullmatch(key.name) else str(uuid5(NAMESPACE_URL, f"{key.tenant}/{key.name}"))


def find(registry: Registry, tenant: str, asked: str) -> Session:
    """The tenant's session with this kernel id.

    Raises:
        SessionNotFound: there is none; other tenants' are not told apart from none.
    """
    for session in registry.of(tenant):
        if kernel_id(session.key) == asked:
            return session
    raise SessionNotFound(f"there is no kernel {asked[:64]}", kernel=asked[:64])


def time_of(seconds_ago: float) -> str:
    """A moment as clients parse it: always with a fraction."""
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def kernel_model(session: Session) -> dict[str, Any]:
    """A session as a kernel."""
    state = _STATES.get(session.doing, "restarting" if session.channels.clients else "dead")
    return {
        "id": kernel_id(session.key),
        "name": session.kernelspec.jupyter_name,
        "last_activity": time_of(session.idle_for()),
        "execution_state": state,
        "connections": session.channels.clients,
    }


def spec_model(spec: KernelSpec) -> dict[str, Any]:
    """A language as a kernelspec; what runs it is the gateway's own business."""
    return {
        "name": spec.jupyter_name,
        "spec": {
            "argv": [],
            "display_name": spec.display_name,
            "language": spec.name,
            "interrupt_mode": "message",
            "env": {},
            "metadata": {},
        },
        "resources": {name: f"/kernelspecs/{spec.jupyter_name}/{logo.name}" for name, logo in spec.logos.items()},
    }
