"""Models of the dialect's requests and answers. Unknown fields are ignored, because clients have several versions."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kernel_gateway.config import Settings
from kernel_gateway.dialects.e2b.tokens import access_token, new_secret, traffic_token
from kernel_gateway.errors import NotSupported
from kernel_gateway.http.formats import rfc3339
from sessions.model.errors import InvalidRequest, TemplateNotFound
from sessions.model.units import METADATA_PAIRS
from sessions.model.values import SandboxSpec, valid_env
from sessions.sandbox.sandbox import Sandbox

#: names of templates; each of them means the gateway's own image
TEMPLATES = frozenset({"base", "code-interpreter-v1"})
#: version of E2B's `envd` that clients find here. From it they know that uploads may be octet-streams and gzip
ENVD_VERSION = "0.5.7"
#: default lifetime of a sandbox in seconds, for SDKs since 2.51; earlier SDKs always send a number.
#: Source: `e2b` 2.63, `NewSandboxV2` and `ConnectSandboxV2`
LIFETIME = 300
#: maximum bytes of a sandbox's metadata
METADATA_MAX = 16 * 1024
#: host that servers of a sandbox are told
_REQUEST_HOST = re.compile(r"(?:[A-Za-z0-9._:\[\]-]|\$\{PORT\}){0,300}")
_MIB = 1024**2
#: seconds
Seconds = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="ignore")


class NewSandbox(Body):
    """A sandbox to create."""

    templateID: str  # noqa: N815 - the wire's names
    timeout: Seconds | None = None
    metadata: Annotated[dict[str, str], Field(max_length=METADATA_PAIRS)] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    autoPause: bool | None = None  # noqa: N815
    network: dict[str, Any] | None = None
    mcp: Any = None
    iam: Any = None
    volumeMounts: Any = None  # noqa: N815

    def spec(self, settings: Settings, key_id: str | None) -> SandboxSpec:
        """Return the spec with which the sandbox starts.

        Args:
            settings: settings of the gateway, with its limits.
            key_id: id of the key that the client uses. None means a key that cannot be revoked.

        Raises:
            InvalidRequest: when the timeout is too long, or metadata or variables are not allowed.
            NotSupported: when the body asks for something that this gateway does not offer.
            TemplateNotFound: when there is no such template.
        """
        self._refuse_what_is_not_there()
        metadata = self.metadata or {}
        if sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items()) > METADATA_MAX:
            raise InvalidRequest(f"metadata is larger than {METADATA_MAX} bytes", field="metadata")
        return SandboxSpec(
            template=self.templateID,
            limits=settings.limits,
            env=valid_env(self.envVars or {}),
            idle_timeout=0.0,
            lifetime=max(1.0, lifetime(self.timeout, settings)),  # 0 would mean no limit
            auto_pause=bool(self.autoPause),
            public_ports=(self.network or {}).get("allowPublicTraffic") is not False,
            request_host=self._request_host(),
            max_execute_timeout=settings.max_execute_timeout,
            metadata=metadata,
            secret=new_secret(),
            key_id=key_id,
        )

    def _request_host(self) -> str:
        host = (self.network or {}).get("maskRequestHost") or ""
        if not isinstance(host, str) or not _REQUEST_HOST.fullmatch(host):
            raise InvalidRequest("maskRequestHost is no host", field="network.maskRequestHost")
        return host

    def _refuse_what_is_not_there(self) -> None:
        reasons = {
            "network.allowOut": ((self.network or {}).get("allowOut"), "sandboxes have no network here"),
            "mcp": (self.mcp, "sandboxes run no MCP servers here"),
            "iam": (self.iam, "sandboxes get no identity tokens here"),
            "volumeMounts": (self.volumeMounts, "nothing can be mounted into sandboxes here"),
        }
        for field, (asked, reason) in reasons.items():
            if asked:
                raise NotSupported(f"{field}: {reason}", field=field)
        if self.templateID.partition(":")[0] not in TEMPLATES:
            known = ", ".join(sorted(TEMPLATES))
            raise TemplateNotFound(f"template {self.templateID[:64]!r} not found; there are: {known}")


def lifetime(timeout: int | None, settings: Settings) -> float:
    """Return the seconds that a sandbox may live from now on.

    Args:
        timeout: the wanted number of seconds. None means the default.
        settings: settings of the gateway, with the maximum.

    Raises:
        InvalidRequest: when the client asks for more than `max_idle_timeout`.
    """
    if timeout is None:
        return min(LIFETIME, settings.max_idle_timeout)
    if timeout > settings.max_idle_timeout:
        raise InvalidRequest(f"timeout must be at most {settings.max_idle_timeout:g} s", field="timeout")
    return float(timeout)


class Timeout(Body):
    """Seconds that a sandbox may live from now on."""

    timeout: Seconds


class Connect(Body):
    """Minimum seconds that the sandbox shall live from now on."""

    timeout: Seconds | None = None


class Refresh(Body):
    """Minimum seconds that the sandbox shall live from now on, as early SDKs send it."""

    duration: Seconds = 15


class NewContext(Body):
    """A context to create."""

    language: str | None = None
    cwd: str | None = None


class Execute(Body):
    """Code to run."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


def access_model(sandbox: Sandbox) -> dict[str, Any]:
    """Return the data that a client needs to use a sandbox."""
    return {
        "templateID": sandbox.spec.template,
        "sandboxID": sandbox.key.name,
        "clientID": "kernel-gateway",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": access_token(sandbox.spec.secret),
        "trafficAccessToken": traffic_token(sandbox.spec.secret),
    }


def state_of(sandbox: Sandbox) -> str:
    """Return the state of a sandbox, `running` or `paused`."""
    return "paused" if sandbox.pausing.paused else "running"


def sandbox_model(sandbox: Sandbox) -> dict[str, Any]:
    """Return a sandbox as clients see it."""
    return {
        "templateID": sandbox.spec.template,
        "sandboxID": sandbox.key.name,
        "clientID": "kernel-gateway",
        "envdVersion": ENVD_VERSION,
        "startedAt": rfc3339(sandbox.created_at, "microseconds"),
        "endAt": rfc3339(sandbox.created_at + sandbox.spec.lifetime, "microseconds"),
        "cpuCount": math.ceil(sandbox.limits.cpus),
        "memoryMB": sandbox.limits.memory // _MIB,
        "diskSizeMB": sandbox.limits.disk // _MIB,
        "state": state_of(sandbox),
        "metadata": dict(sandbox.spec.metadata),
    }
