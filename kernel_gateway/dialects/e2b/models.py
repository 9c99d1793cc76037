"""Models of the dialect's requests and answers. Unknown fields are ignored, because clients have several versions."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kernel_gateway.config import Settings
from kernel_gateway.dialects.e2b.base import ENVD_VERSION
from kernel_gateway.dialects.e2b.templates import find_template, size_model
from kernel_gateway.dialects.e2b.tokens import access_token, new_secret, traffic_token
from kernel_gateway.errors import NotSupported
from kernel_gateway.times import rfc3339
from sessions.model.errors import InvalidRequest
from sessions.model.units import METADATA_PAIRS
from sessions.model.values import SandboxSpec, valid_env
from sessions.sandbox.sandbox import Sandbox
from sessions.store.session_records import SnapshotRecord

#: default lifetime of a sandbox in seconds, for SDKs since 2.51; earlier SDKs always send a number.
#: Source: `e2b` 2.63, `NewSandboxV2` and `ConnectSandboxV2`
LIFETIME = 300
#: minimum seconds that a sandbox lives on when a request has woken it. Source: `e2b-dev/infra`, auto-resume
WAKE_LIFETIME = 300.0
#: maximum bytes of a sandbox's metadata
METADATA_MAX = 16 * 1024
#: maximum characters of a template's name with its tag, which is kept with the sandbox
TEMPLATE_NAME_MAX = 300
NO_VOLUMES = "nothing can be mounted here: a sandbox has its own disk only; copy files with the files API"
#: host that servers of a sandbox are told
_REQUEST_HOST = re.compile(r"(?:[A-Za-z0-9._:\[\]-]|\$\{PORT\}){0,300}")
#: seconds
Seconds = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="ignore")


def _address(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


class Network(Body):
    """What a sandbox may reach. It reaches nothing here, so everything may be denied, and nothing be allowed."""

    allowOut: list[str] | None = None  # noqa: N815 - the wire's names
    denyOut: Annotated[list[Annotated[str, AfterValidator(_address)]], Field(max_length=1000)] | None = None  # noqa: N815
    rules: Any = None
    egressProxy: Any = None  # noqa: N815
    dnsServers: Any = None  # noqa: N815
    allowPublicTraffic: bool | None = None  # noqa: N815
    maskRequestHost: str | None = None  # noqa: N815
    httpsPorts: Any = None  # noqa: N815

    def refuse_openings(self) -> None:
        """Refuse what would let a sandbox reach something, or let it be reached by TLS.

        Raises:
            NotSupported: when the client asks for that.
        """
        for field in ("allowOut", "rules", "egressProxy", "dnsServers"):
            if getattr(self, field):
                raise NotSupported(f"network.{field}: sandboxes have no network here", field=field)
        if self.httpsPorts:
            raise NotSupported("network.httpsPorts: servers are reached by plain HTTP only", field="httpsPorts")

    def shown(self) -> dict[str, Any]:
        """Return the fields that the client has sent, to show them again."""
        return self.model_dump(
            include={"allowOut", "denyOut", "allowPublicTraffic", "maskRequestHost"}, exclude_none=True
        )


class NetworkChange(Network):
    """Other rules for a sandbox's network. They replace all earlier ones, so without any it would be open."""

    allow_internet_access: bool | None = None

    def check(self) -> None:
        """Check that these rules hold for a sandbox without a network.

        Raises:
            NotSupported: when they would let the sandbox reach something.
        """
        self.refuse_openings()
        if not self.denyOut and self.allow_internet_access is not False:
            raise NotSupported("sandboxes have no network here that could be opened; deny it (`denyOut`: 0.0.0.0/0)")


class AutoResume(Body):
    """Whether requests wake a paused sandbox."""

    enabled: bool = False


class NewSandbox(Body):
    """A sandbox to create."""

    templateID: Annotated[str, Field(max_length=TEMPLATE_NAME_MAX)]  # noqa: N815
    timeout: Seconds | None = None
    metadata: Annotated[dict[str, str], Field(max_length=METADATA_PAIRS)] | None = None
    envVars: dict[str, str] | None = None  # noqa: N815
    autoPause: bool | None = None  # noqa: N815
    autoPauseMemory: bool | None = None  # noqa: N815
    autoResume: AutoResume | None = None  # noqa: N815
    allow_internet_access: bool | None = None
    network: Network | None = None
    mcp: Any = None
    iam: Any = None
    volumeMounts: Any = None  # noqa: N815

    def spec(self, settings: Settings, key_id: str | None, snapshot: SnapshotRecord | None = None) -> SandboxSpec:
        """Return the spec with which the sandbox starts.

        Args:
            settings: settings of the gateway, with its limits.
            key_id: id of the key that the client uses. None means a key that cannot be revoked.
            snapshot: the snapshot that `templateID` names. None means that it names a template.

        Raises:
            InvalidRequest: when the timeout is too long, or metadata or variables are not allowed.
            TemplateNotFound: when there is no such template.
        """
        metadata = self.metadata or {}
        if sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items()) > METADATA_MAX:
            raise InvalidRequest(f"metadata is larger than {METADATA_MAX} bytes", field="metadata")
        variables = dict(valid_env(self.envVars or {}))
        return SandboxSpec(
            template=self.templateID,
            limits=snapshot.spec.limits if snapshot else settings.limits,
            env={**snapshot.spec.env, **variables} if snapshot else variables,
            idle_timeout=0.0,
            lifetime=max(1.0, lifetime(self.timeout, settings)),  # 0 would mean no limit
            auto_pause=bool(self.autoPause),
            wake_lifetime=self._wake_lifetime(settings),
            image=self._image(settings, snapshot),
            asked=asked_of(self.network, self.allow_internet_access),
            public_ports=self.network is None or self.network.allowPublicTraffic is not False,
            request_host=self._request_host(),
            max_execute_timeout=settings.max_execute_timeout,
            metadata=metadata,
            secret=new_secret(),
            key_id=key_id,
        )

    def _image(self, settings: Settings, snapshot: SnapshotRecord | None) -> str:
        if snapshot is None:
            return find_template(self.templateID, settings).image
        return settings.valid_image(snapshot.spec.image or None)

    def _request_host(self) -> str:
        host = (self.network and self.network.maskRequestHost) or ""
        if not _REQUEST_HOST.fullmatch(host):
            raise InvalidRequest("network.maskRequestHost is no host", field="network.maskRequestHost")
        return host

    def refuse_what_is_not_there(self) -> None:
        """Refuse what this gateway does not offer. This comes first: some SDKs ask for it by a template, too.

        Raises:
            NotSupported: when the body asks for such a thing.
        """
        reasons = {
            "mcp": (self.mcp, "sandboxes run no MCP servers here"),
            "iam": (self.iam, "sandboxes get no identity tokens here"),
            "volumeMounts": (self.volumeMounts, NO_VOLUMES),
        }
        for field, (asked, reason) in reasons.items():
            if asked:
                raise NotSupported(f"{field}: {reason}", field=field)
        refuse_without_memory("autoPauseMemory", self.autoPauseMemory)
        if self.network is not None:
            self.network.refuse_openings()

    def _wake_lifetime(self, settings: Settings) -> float:
        if self.autoResume is None or not self.autoResume.enabled:
            return 0.0
        return min(max(lifetime(self.timeout, settings), WAKE_LIFETIME), settings.max_idle_timeout)


def refuse_without_memory(field: str, memory: bool | None) -> None:  # noqa: FBT001 - a field of the request
    """Refuse a pause or a resume of the files alone: the client would find programs that it wants ended.

    Args:
        field: the field of the request.
        memory: whether the memory is kept. None means that the client did not say so, and it is kept.

    Raises:
        NotSupported: when the memory shall not be kept.
    """
    if memory is False:
        told = "a paused sandbox keeps its memory here; for the files alone, take a snapshot with memory: false"
        raise NotSupported(f"{field}: {told}", field=field)


def asked_of(network: Network | None, internet: bool | None) -> dict[str, Any]:  # noqa: FBT001 - a field of the request
    """Return what a sandbox remembers of its client's wishes for its network, to show them again.

    Args:
        network: the rules. None means that the client sent none.
        internet: the client's `allow_internet_access`. None means that the client did not send it.
    """
    return {"network": network and network.shown(), "allowInternetAccess": internet}


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
    """Minimum seconds that the sandbox shall live from now on, and what a paused one continues with."""

    timeout: Seconds | None = None
    memory: bool | None = None

    def refuse_without_memory(self) -> None:
        """Refuse a resume that does not continue with the memory; see `refuse_without_memory`."""
        refuse_without_memory("memory", self.memory)


class Pause(Body):
    """What a pause keeps."""

    memory: bool | None = None

    def refuse_without_memory(self) -> None:
        """Refuse a pause that keeps only the files; see `refuse_without_memory`."""
        refuse_without_memory("memory", self.memory)


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
    spec = sandbox.spec
    network, problem = spec.asked.get("network"), sandbox.pausing.problem
    beside = {"network": network} if network is not None else {}
    if problem:  # beside the fields that E2B's clients know
        beside["sleepProblem"] = problem
    return (
        beside
        | size_model(sandbox.limits)
        | {
            "templateID": spec.template,
            "sandboxID": sandbox.key.name,
            "clientID": "kernel-gateway",
            "envdVersion": ENVD_VERSION,
            "startedAt": rfc3339(sandbox.created_at, "microseconds"),
            "endAt": rfc3339(sandbox.created_at + spec.lifetime, "microseconds"),
            "state": state_of(sandbox),
            "metadata": dict(spec.metadata),
            "lifecycle": {"autoResume": bool(spec.wake_lifetime), "onTimeout": "pause" if spec.auto_pause else "kill"},
            "allowInternetAccess": spec.asked.get("allowInternetAccess"),
            "volumeMounts": [],
        }
    )
