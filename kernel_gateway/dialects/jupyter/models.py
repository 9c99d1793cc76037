"""Models of requests and answers of the Jupyter dialect. Each session has one kernel id, and each id one session.

Source: the REST API of Jupyter Server (`api.yaml`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import NAMESPACE_URL, uuid5

from pydantic import BaseModel, ConfigDict, Field

from sessions.guest.paths import NOT_IN_PATHS
from sessions.model.errors import InvalidRequest, SessionNotFound
from sessions.model.kernelspecs import KernelSpec
from sessions.model.values import SessionKey
from sessions.session.registry import Registry
from sessions.session.session import Session
from sessions.session.states import State

#: format of a kernel id that clients accept
KERNEL_ID = re.compile(r"\w+-\w+-\w+-\w+-\w+")
#: variables that are not passed to the kernel: Jupyter Server adds them itself, they are for the gateway or its command
#: line (`KERNEL_GATEWAY_URL`), or the gateway sets them itself (`NETWORK` in `protocol.py`)
DROPPED = re.compile(r"KERNEL_(IDLE_TIMEOUT|LAUNCH_TIMEOUT|NETWORK|USERNAME|WORKING_DIR|GATEWAY(_.*)?)", re.DOTALL)
#: variable with a wanted idle timeout: Jupyter Server sends its own variables `KERNEL_…` with each request for a kernel
IDLE_TIMEOUT = "KERNEL_IDLE_TIMEOUT"
#: variable with the directory of the notebook for which Jupyter Server starts a kernel
WORKING_DIR = "KERNEL_WORKING_DIR"
#: maximum characters of `place`, which is a part of some messages
PLACE_MAX = 500
_STATES = {State.STARTING: "starting", State.IDLE: "idle", State.BUSY: "busy", State.ASLEEP: "idle"}


class Body(BaseModel):
    """A request's body. Unknown fields are ignored, because clients send more fields than this gateway uses."""

    model_config = ConfigDict(extra="ignore", strict=True)


class StartKernel(Body):
    """`POST /api/kernels`."""

    name: str | None = None
    kernel_id: str | None = None
    #: working directory of the kernel as a path of Jupyter's API, whose root is the workspace
    path: str | None = None
    #: working directory of the kernel as its code writes it: in the workspace or `/tmp`. It has priority over `path`
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)

    @property
    def wanted_env(self) -> dict[str, str]:
        """The environment without the variables that are not for the kernel."""
        return {name: value for name, value in self.env.items() if not DROPPED.fullmatch(name)}

    @property
    def place(self) -> str:
        """The directory of the client's notebook. It is empty if the client does not name one."""
        return place_of(self.env.get(WORKING_DIR, ""))

    @property
    def idle_timeout(self) -> float | None:
        """The idle timeout in seconds that the client asks for, or None if it asks for none.

        Raises:
            InvalidRequest: when the value is not a positive number.
        """
        if (asked := self.env.get(IDLE_TIMEOUT)) is None:
            return None
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", asked) or not float(asked):
            raise InvalidRequest(f"{IDLE_TIMEOUT} must be a number of seconds", field="env")
        return float(asked)


#: a text that is kept while the kernel lives
_Text = Annotated[str, Field(max_length=4096)]


class KernelOfSession(Body):
    """The kernel for a notebook session: an existing kernel with this id, or a new kernel of the kernelspec `name`."""

    id: str | None = None
    name: str | None = None


class NotebookName(Body):
    """A notebook's path in an older format of the request, which has two names for it."""

    name: _Text | None = None
    path: _Text | None = None


class NotebookSession(Body):
    """`POST` and `PATCH /api/sessions`."""

    path: _Text | None = None
    name: _Text | None = None
    type: _Text | None = None
    kernel: KernelOfSession | None = None
    notebook: NotebookName | None = None

    @property
    def any_path(self) -> str | None:
        """The notebook's path, from either format."""
        older = self.notebook
        return (older.name or older.path if older else None) or self.path

    @property
    def kind(self) -> str | None:
        """The type of the session. In the older format it is always a notebook."""
        return "notebook" if self.notebook else self.type


def place_of(path: str) -> str:
    """Return the field `place` of `SessionSpec` for a path on the client's machine. An unusable path becomes empty."""
    return "" if len(path) > PLACE_MAX or NOT_IN_PATHS.search(path) else path


def kernel_id(key: SessionKey) -> str:
    """Return a session's kernel id: the session's name if clients accept it as an id, else a UUID made from it."""
    return key.name if KERNEL_ID.fullmatch(key.name) else str(uuid5(NAMESPACE_URL, f"{key.tenant}/{key.name}"))


def find(registry: Registry, tenant: str, asked: str) -> Session:
    """Return the tenant's session with this kernel id, or with this name.

    Raises:
        SessionNotFound: when the tenant has no such session. The error does not reveal sessions of other tenants.
    """
    for session in registry.of(tenant):
        if asked in {kernel_id(session.key), session.key.name}:
            return session
    raise SessionNotFound(f"Kernel does not exist: {asked[:64]}", kernel=asked[:64])


def time_ago(seconds_ago: float) -> str:
    """Return a time in the past in the format that clients parse, always with a fraction of the second."""
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def kernel_model(session: Session) -> dict[str, Any]:
    """Return a session as a kernel, as clients see it."""
    state = _STATES.get(session.state, "restarting" if session.channels.clients else "dead")
    return {
        "id": kernel_id(session.key),
        "name": session.kernelspec.jupyter_name,
        "last_activity": time_ago(session.idle_for()),
        "execution_state": state,
        "connections": session.channels.clients,
    }


def spec_model(spec: KernelSpec) -> dict[str, Any]:
    """Return a kernelspec as clients see it. They do not see the command that starts a kernel (`argv`)."""
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
