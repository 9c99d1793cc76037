"""Settings. Only this module and `client_config.py` read the environment.

A setting is one field of `Settings`, declared in the group of its subject. Its name in a file, its environment variable
`KERNEL_GATEWAY_<NAME>`, its flag of `kernel-gateway serve` and the row of the tables in docs/settings.md come from that
field (a test compares them). To add a setting, add a field.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import TomlConfigSettingsSource as TomlFile

from kernel_gateway.client_config import NAMES as CLIENT_NAMES
from kernel_gateway.client_config import PREFIX, STATE_DIR, config_file, content_of
from kernel_gateway.setting_types import (
    KEY_MIN,
    MIB,
    AccessKeys,
    Bytes,
    Count,
    Hosts,
    Keys,
    Labels,
    Memory,
    Modules,
    Names,
    NameServers,
    Networks,
    Origins,
    Seconds,
    SomeBytes,
    SomeSeconds,
    Tenants,
    Tolerations,
    ToolServers,
)
from sessions.model.errors import InvalidRequest
from sessions.model.kernelspecs import USUAL_IMAGE
from sessions.model.tenant_limits import OwnLimits, at_most
from sessions.model.values import CPUS_MIN, PROCESSES_MIN, Limits
from sessions.ports.limits import PortLimits
from sessions.tenants.kept_bytes import IN_ALL, PER_TENANT
from sessions.tenants.quotas import TenantLimits
from sessions.tenants.usage import Allowance

#: former names of settings, and their present names
RENAMED = {"checkpoints": "golden_images", "checkpoint_disk": "golden_disk"}
#: memory that kernels may be promised, as a multiple of the machine's memory
OVERCOMMIT = 2
#: default of `max_unread_bytes`; all such bounds together stay below the 2 GiB that the systemd unit allows
UNREAD = 256 * MIB
#: how many connections to servers there may be if the operator says nothing
PORTS = PortLimits()
#: smallest default of `temporary`, in bytes; an operator may set less
TEMPORARY_MIN = 64 * MIB


class Group(StrEnum):
    """The subjects of settings, in the order of the help and of docs/settings.md."""

    ADDRESS = "Address and https"
    KEYS = "Keys"
    PLACE = "Where kernels run"
    KUBERNETES = "Kernels in a Kubernetes cluster"
    EGRESS = "Hosts that kernels may reach"
    KERNEL = "One kernel and its cells"
    LIFE = "Life of sessions"
    WARM = "Warm kernels"
    TENANTS = "What tenants may use"
    TOOLS = "Tools of the operator"
    WIRE = "Connections"
    RECORDS = "Records and rules"


def _group(group: Group) -> partial[Any]:
    """Return what declares a setting of a group, as `Field` does."""
    return partial(Field, json_schema_extra={"group": group})


_address = _group(Group.ADDRESS)
_keys = _group(Group.KEYS)
_place = _group(Group.PLACE)
_kubernetes = _group(Group.KUBERNETES)
_egress = _group(Group.EGRESS)
_kernel = _group(Group.KERNEL)
_life = _group(Group.LIFE)
_warm = _group(Group.WARM)
_tenants = _group(Group.TENANTS)
_tools = _group(Group.TOOLS)
_wire = _group(Group.WIRE)
_records = _group(Group.RECORDS)


class Settings(BaseSettings):
    """All settings of a deployment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    host: str = _address(
        "127.0.0.1", description="address to listen on; another than loopback needs keys and a sandbox"
    )
    port: int = _address(8888, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    allowed_hosts: Names = _address(
        [],
        description="names in the Host header to answer to, with commas; `*.name` is any name one label below; "
        "loopback names always work on loopback",
    )
    allowed_origins: Origins = _address(
        [], description="origins of web pages that may use the gateway, with commas; * for all"
    )
    isolation: Literal["auto", "docker", "kubernetes", "process"] = _place(
        "auto",
        description="where kernels run: docker, kubernetes, process (no sandbox), or auto: docker; process only "
        "without keys, where no engine has ever answered",
    )
    runtime: str = _place("runsc", description="the engine's runtime for kernels; runc is used only when set here")
    image: str = _place(USUAL_IMAGE, description="the kernels' image")
    images: Names = _place(
        [], description="further images that a session may ask for, with commas; without any, all sessions have `image`"
    )
    wheels: Path | None = _place(
        None, description="directory with wheels that sessions may install with pip; absolute, on the engine's machine"
    )
    network: str = _place("kernel-gateway", description="the kernels' network; made if it is absent")
    kubernetes_config: Path | None = _kubernetes(
        None, description="kubeconfig file of the cluster; none: the cluster in which the gateway itself is a Pod"
    )
    kubernetes_namespace: str = _kubernetes(
        "kernel-gateway", description="namespace of the kernels' Pods, which is there already"
    )
    kubernetes_runtime_class: str = _kubernetes(
        "gvisor",
        min_length=1,
        description="RuntimeClass of the kernels, which is proven to be gVisor; only with `runc` they have the nodes' "
        "own runtime, and share the node's kernel",
    )
    kubernetes_image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = _kubernetes(
        "IfNotPresent", description="when nodes pull the kernels' image: IfNotPresent, Always or Never"
    )
    kubernetes_node_selector: Labels = _kubernetes(
        {}, description="labels of the nodes that kernels may run on: name=value, with commas"
    )
    kubernetes_tolerations: Tolerations = _kubernetes(
        [],
        description='taints of nodes that kernels tolerate: JSON in the API\'s form, `[{"key": "…", "operator": '
        '"Exists"}]`',
    )
    kubernetes_priority_class: str = _kubernetes("", description="PriorityClass of the kernels; empty: the cluster's")
    kubernetes_lost_node_seconds: int = _kubernetes(
        20,
        ge=0,
        description="seconds that a node may be lost until its kernels are given up, and their sessions told; "
        "the cluster itself takes about 50 s more to call a node lost. Below 15, kernels may be given up when the "
        "cluster's API was away: nodes need that long to report themselves again",
    )
    kubernetes_gateway_label: Labels = _kubernetes(
        {"kernel-gateway/gateway": "true"},
        description="labels of the gateway's own Pod, which alone may connect to kernels: name=value, with commas",
    )
    kubernetes_gateway_address: Networks = _kubernetes(
        [],
        description="addresses of a gateway outside the cluster, which may connect to kernels in place of such a Pod: "
        "in CIDR form, with commas",
    )
    egress_allow: Hosts = _egress(
        [],
        description="hosts that sessions with network `allowlist` may reach: name or name:port, with commas; none: off",
    )
    egress_tenants: Names = _egress([], description="tenants that may have such sessions, with commas; * for all")
    egress_dns: NameServers = _egress(
        [], description="IPv4 addresses of the name servers that the egress proxy asks, with commas"
    )
    egress_image: str = _egress("kernel-gateway/egress:latest", description="the egress proxy's image")
    keys: Keys = _keys(
        {},
        description="tenant:key,tenant:key; without any, a key for tenant `local` is made and written to state_dir",
        repr=False,
    )
    access_keys: AccessKeys = _keys(
        {},
        description="tenant:id:secret,tenant:id:secret; access keys of clients that sign, like the AgentRun SDK",
        repr=False,
    )
    admin_key: str | None = _keys(
        None,
        min_length=KEY_MIN,
        description="key of tenant `admin` with the role admin; none: no such key",
        repr=False,
    )
    fallback_provider: Literal["self_managed", "aliyun_codeinterpreter", "e2b", "local"] | None = _place(
        None, description="provider for programs that the active one cannot begin; none: no fallback"
    )
    librechat_keys: Path | None = _keys(
        None,
        description="PEM file with the public keys that verify the tokens of LibreChat's users; none: LibreChat needs "
        "a key, and its users share their sessions",
    )
    secrets_key_file: Path | None = _keys(
        None,
        description="file with the key of providers' secrets and sleeping memory; "
        "else secrets.key in state_dir, made if absent",
    )
    tls: bool = _address(False, description="serve https, with a certificate of its own unless one is given")  # noqa: FBT003
    tls_certificate: Path | None = _address(
        None,
        description="PEM file with the certificate, its issuers and its private key; turns https on; a renewed file is "
        "used within a minute",
    )
    idle_timeout: Seconds = _life(
        300, description="seconds without activity after which a session sleeps or ends, as `on_idle` says"
    )
    max_idle_timeout: Seconds = _life(3600, description="the longest idle timeout that a client may ask for")
    cull_connected: bool = _life(
        False,  # noqa: FBT003
        description="end idle sessions with connected Jupyter clients, too; otherwise only after max_idle_timeout",
    )
    on_idle: Literal["auto", "end", "sleep"] = _life(
        "auto",
        description="what happens to an idle session: sleep: its memory is kept on disk; end; or auto: it sleeps where "
        "that is proven, and ends elsewhere",
    )
    sleep_for: Seconds = _life(86400, description="seconds that a session may sleep; then it is ended")
    sleep_disk: SomeBytes = _life(
        4096 * MIB, description="disk for sleeping sessions, checkpoints and snapshots, in state_dir; 0: none may sleep"
    )
    stored_disk: Bytes = _tenants(
        1024 * MIB, description="disk for files that belong to no session (LibreChat's), in state_dir, for example 1g"
    )
    stored_for: Seconds = _life(86400, description="seconds for which such files are kept")
    max_lifetime: float = _life(
        0, ge=0, allow_inf_nan=False, description="seconds after which any session is ended; 0: no limit"
    )
    max_pause: float = _life(
        86400, ge=0, allow_inf_nan=False, description="seconds after which a paused sandbox is ended; 0: no limit"
    )
    ping_interval: Seconds = _wire(
        20, description="seconds between two pings of a WebSocket, and to wait for the answer before closing"
    )
    drain_timeout: float = _life(
        10,
        ge=0,
        allow_inf_nan=False,
        description="seconds that running cells have to finish when the gateway stops; with `keep_sessions`, those of "
        "sandboxed sessions run on instead",
    )
    keep_sessions: bool = _life(
        False,  # noqa: FBT003
        description="on stop, leave the sessions to the gateway that is started next; otherwise end them",
    )
    pool_size: int = _warm(1, ge=0, description="kernels kept warm per language in use; 0: none")
    pool_max: int = _warm(4, ge=0, description="most warm kernels per language, while sessions outpace kernel starts")
    sandbox_pool_size: int = _warm(
        1,
        ge=0,
        description="sandboxes kept warm, each with a container and a kernel, and more as with `pool_max`; 0: none",
    )
    preload: Modules = _warm(
        None,
        description="modules that warm Python kernels import ahead of need, with commas, or an empty list; "
        "none: what pandas, plots and sklearn need (`preload` of the kernelspec)",
    )
    golden_images: Literal["auto", "off"] = _warm(
        "auto",
        description="restore new kernels from golden images, which have imported `preload`: auto, where proven; or off",
    )
    golden_disk: Bytes = _warm(1024 * MIB, description="disk for golden images, in state_dir, for example 1g")
    max_connections: Count = _wire(
        2000, description="connections at a time, WebSockets included; at most half of the files that it may open"
    )
    max_connections_per_address: Count = _wire(
        500, description="connections of one address at a time; behind a proxy, as many as max_connections"
    )
    max_sockets: Count = _wire(500, description="WebSockets at a time")
    max_sockets_per_tenant: Count = _wire(100, description="WebSockets a tenant may have at a time")
    max_sockets_per_session: Count = _wire(16, description="WebSockets a session may have at a time")
    max_port_connections: Count = _wire(
        PORTS.in_all, description="connections to servers that code has started, at a time; each takes up to 512 KiB"
    )
    max_port_connections_per_tenant: Count = _wire(
        PORTS.per_tenant, description="connections to its servers that a tenant may have at a time"
    )
    max_port_connections_per_session: Count = _wire(
        PORTS.per_owner, description="connections to its servers that a session or sandbox may have at a time"
    )
    max_incoming_bytes_per_tenant: Bytes = _wire(
        128 * MIB,
        description="bytes of a tenant's requests and WebSocket messages that arrive, or wait for kernels, together, "
        "files aside",
    )
    max_incoming_bytes: Bytes = _wire(512 * MIB, description="the same of all tenants, together")
    max_kept_bytes_per_tenant: Bytes = _tenants(
        PER_TENANT,
        description="bytes of outputs that a tenant's sessions keep for notebooks and retries, together; the oldest go",
    )
    max_kept_bytes: Bytes = _tenants(IN_ALL, description="bytes of outputs that all sessions keep, together")
    max_unread_bytes_per_tenant: Bytes = _wire(
        PER_TENANT,
        description="bytes of messages that a tenant's Jupyter clients have not read, together; beyond, the slowest "
        "is disconnected",
    )
    max_unread_bytes: Bytes = _wire(UNREAD, description="the same of all tenants' clients, together")
    message_timeout: Seconds = _wire(120, description="seconds for a WebSocket message to arrive once it has begun")
    max_sessions_per_tenant: Count = _tenants(50, description="sessions and sandboxes a tenant may have at a time")
    max_share_per_tenant: float | None = _tenants(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="part of what other tenants leave that one tenant may use: of memory, disks, connections, "
        "WebSockets, executions and incoming bytes; none: 0.5, or 1 without `keys`",
    )
    max_concurrent_per_tenant: Count = _tenants(10, description="executions a tenant may have at a time")
    max_concurrent: Count = _tenants(100, description="executions of all tenants at a time, shared evenly")
    max_queued_per_tenant: int = _tenants(20, ge=0, description="executions of a tenant that may wait for their turn")
    queue_timeout: Seconds = _tenants(30, description="seconds that an execution may wait for its turn")
    quota_window: Seconds = _tenants(
        3600, description="seconds over which the next three settings count a tenant's use"
    )
    max_execution_seconds: SomeSeconds = _tenants(
        0, description="seconds of a tenant's executions together; 0: no limit"
    )
    max_total_output_bytes: SomeBytes = _tenants(
        0, description="output of a tenant's executions, for example 1g; 0: no limit"
    )
    max_upload_bytes: SomeBytes = _tenants(0, description="files that a tenant uploads, for example 1g; 0: no limit")
    audit_retention: float = _records(
        0, ge=0, allow_inf_nan=False, description="days for which the audit is kept; 0: for ever"
    )
    admin_looks: bool = _tenants(
        False,  # noqa: FBT003
        description="an admin may look at the sessions of every tenant, on the session page and without any change to "
        "them; the tenant's page says so, and each look is in the audit",
    )
    tenants: Tenants = _tenants(
        {},
        description="own limits of single tenants, each at most the gateway's: in the file a table `[tenants.NAME]`, "
        'else JSON: `{"NAME": {"sessions": 5}}`',
    )
    tool_servers: ToolServers = _tools(
        {},
        description="MCP servers whose tools code may call: in the file a table `[tool_servers.NAME]`, else JSON: "
        '`{"NAME": {"url": "https://…", "tenants": ["*"]}}`',
        repr=False,
    )
    code_policy: Literal["none", "ragflow-strict", "weknora"] = _records(
        "none", description="rules that refuse code by its text, before it runs: a hint, no boundary"
    )
    memory: Memory = _kernel(512 * MIB, description="memory per kernel, at least 128m")
    max_total_memory: SomeBytes | None = _tenants(
        None,
        description="memory of all kernels together, by their limits; 0: no limit; none: twice this machine's memory, "
        "or with isolation `kubernetes` no limit",
    )
    temporary: Bytes | None = _kernel(
        None,
        description="the most that files in `/tmp` may take, and as much again those in `/dev/shm`; both count as the "
        "kernel's memory, unless a sandbox has its `/tmp` on disk; none: a quarter of `memory`, at least 64m",
    )
    cpus: float = _kernel(1.0, ge=CPUS_MIN, allow_inf_nan=False, description="processors per kernel, at least 0.1")
    kernels_weight: float = _place(
        0.1,
        ge=0.01,
        le=100,
        allow_inf_nan=False,
        description="share of all kernels together when other programs of the machine want its processors, too; "
        "1: as one of these. The gateway is one, and slow when it has to wait for kernels",
    )
    processes: int = _kernel(64, ge=PROCESSES_MIN, description="processes and threads per kernel, at least 16")
    disk: Bytes = _kernel(256 * MIB, description="workspace per session, for example 256m")
    files: Literal["disk", "memory"] = _kernel(
        "disk",
        description="where workspaces are: disk, where they outlive their kernels, or memory, where they count as the "
        "kernel's; disk needs loop devices on the engine's machine",
    )
    execute_timeout: Seconds = _kernel(30, description="seconds a cell may run when it names no timeout")
    max_execute_timeout: Seconds = _kernel(600, description="the longest timeout of a cell, in seconds")
    mcp_answer_after: Seconds = _kernel(
        45,
        description="seconds after which a call over MCP answers that its cell still runs; many clients wait for 60",
    )
    max_output_bytes: Bytes = _kernel(10 * MIB, description="output kept per execution, for example 10m")
    state_dir: Path = _records(STATE_DIR, description="directory for the data that must outlive the gateway")

    #: the tenant's own limits, in settings as this tenant has them; see `of_tenant`
    _own: OwnLimits = PrivateAttr(default_factory=OwnLimits)

    @model_validator(mode="after")
    def _within_the_gateways_limits(self) -> Self:
        for tenant, own in self.fixed_limits.items():
            for name, value in own.named().items():
                try:
                    self.most_of(tenant).require(name, value)
                except InvalidRequest as error:
                    raise ValueError(f"tenants.{tenant}: {error.message}") from error
        return self

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.wheels is not None and not self.wheels.is_absolute():
            raise ValueError(f"wheels must be an absolute path, not {self.wheels}")
        if not self.loopback and not self.keys:
            raise ValueError(
                f"host {self.host} is not loopback: set keys, for example --keys team:$(openssl rand -hex 24)"
            )
        if not self.loopback and self.isolation == "process":
            raise ValueError(
                f"host {self.host} is not loopback: isolation `process` is no sandbox and stays on loopback"
            )
        if not self.loopback and self.fallback_provider == "local":
            raise ValueError(f"host {self.host} is not loopback: fallback_provider `local` is no sandbox")
        if self.admin_key is not None and self.admin_key in self.keys:
            raise ValueError("admin_key is a key of a tenant already")
        if self.egress and not self.egress_dns:
            raise ValueError("egress_allow needs egress_dns: the name servers that the egress proxy asks")
        if self.egress and self.isolation == "process":
            raise ValueError("egress_allow needs a sandbox: isolation `process` cannot keep code from any host")
        if self.idle_timeout > self.max_idle_timeout:
            raise ValueError("idle_timeout is above max_idle_timeout")
        if self.execute_timeout > self.max_execute_timeout:
            raise ValueError("execute_timeout is above max_execute_timeout")
        return self

    @model_validator(mode="after")
    def _possible_in_a_cluster(self) -> Self:
        if self.isolation == "kubernetes" and (self.egress or self.wheels is not None):
            raise ValueError("isolation `kubernetes` has no egress proxy and no directory of wheels: leave them out")
        return self

    def valid_idle_timeout(self, seconds: float | None) -> float:
        """Return the idle timeout in seconds of a session whose client asks for `seconds`.

        Args:
            seconds: the wanted timeout. None means the default.

        Raises:
            InvalidRequest: when the client asks for more than `max_idle_timeout`.
        """
        if seconds is not None and seconds > self.max_idle_timeout:
            raise InvalidRequest(f"idle_timeout must be at most {self.max_idle_timeout:g} s", field="idle_timeout")
        return seconds or self.idle_timeout

    def valid_timeout(self, seconds: float | None) -> float:
        """Return the timeout in seconds of a cell whose client asks for `seconds`.

        Args:
            seconds: the wanted timeout. None means the default.

        Raises:
            InvalidRequest: when the client asks for more than `max_execute_timeout`.
        """
        timeout = seconds or self.execute_timeout
        if timeout > self.max_execute_timeout:
            note = self.note("timeout")
            raise InvalidRequest(f"timeout must be at most {self.max_execute_timeout:g} s{note}", field="timeout")
        return timeout

    def valid_image(self, image: str | None) -> str:
        """Return the image of a session whose client asks for `image`. An empty text means the default image.

        Args:
            image: the wanted image. None means the default image.

        Raises:
            InvalidRequest: when the operator does not allow this image, or does not allow it for this tenant.
        """
        if image is None or image == self.image:
            return ""
        if image not in self.images:
            known = ", ".join([self.image, *self.images])
            raise InvalidRequest(
                f"unknown image {image[:200]!r}; known: {known}. The operator can add it to the setting `images`",
                field="image",
            )
        self._own.check_image(image)
        return image

    # -- of single tenants ----------------------------------------------------------------------------------

    def most_of(self, tenant: str) -> OwnLimits:
        """Return the largest limits that a tenant may have of its own."""
        return OwnLimits(
            tenant,
            sessions=self.max_sessions_per_tenant,
            memory=self.memory,
            cpus=self.cpus,
            disk=self.disk,
            timeout=self.max_execute_timeout,
            images=frozenset(self.images),
            egress=self.egress and not {tenant, "*"}.isdisjoint(self.egress_tenants),
        )

    @property
    def fixed_limits(self) -> dict[str, OwnLimits]:
        """The limits that the settings give to single tenants, by tenant."""
        return {tenant: form.own(tenant) for tenant, form in self.tenants.items()}

    def of_tenant(self, own: OwnLimits) -> Settings:
        """Return the settings as a tenant has them, with its own limits in place of the gateway's."""
        if not own.named():
            return self
        limits, timeout = own.lowered(self.limits), at_most(self.max_execute_timeout, own.timeout)
        lowered = {
            "memory": limits.memory,
            "cpus": limits.cpus,
            "disk": limits.disk,
            "max_execute_timeout": timeout,
            "execute_timeout": min(self.execute_timeout, timeout),
        }
        settings = self.model_copy(update=lowered)
        settings._own = own  # noqa: SLF001 - a copy of this class
        return settings

    def note(self, limit: str) -> str:
        """Return the end of a message about a limit: that it is the tenant's own. Empty: it is the gateway's."""
        return self._own.note(limit)

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the gateway."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def egress(self) -> bool:
        """True if some session may reach some host."""
        return bool(self.egress_allow and self.egress_tenants)

    @property
    def tenant_limits(self) -> TenantLimits:
        """The limits of one tenant."""
        return TenantLimits(
            sessions=self.max_sessions_per_tenant,
            executions=self.max_concurrent_per_tenant,
            queued=self.max_queued_per_tenant,
            queue_timeout=self.queue_timeout,
            allowance=Allowance(
                self.quota_window, self.max_execution_seconds, self.max_total_output_bytes, self.max_upload_bytes
            ),
        )

    @property
    def port_limits(self) -> PortLimits:
        """How many connections to servers there may be."""
        return PortLimits(
            self.max_port_connections_per_session, self.max_port_connections_per_tenant, self.max_port_connections
        )

    @property
    def total_memory(self) -> int:
        """The largest sum of all kernels' memory limits, in bytes. 0 means no limit.

        The default is above the machine's memory, because kernels rarely use their whole limit: an idle kernel with
        the usual libraries uses a third of it.
        """
        if self.max_total_memory is not None:
            return self.max_total_memory
        if self.isolation == "kubernetes":
            return 0  # the cluster's scheduler knows the memory of the nodes
        return OVERCOMMIT * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def share(self) -> float:
        """The part of a shared budget that one tenant may use, from 0 to 1. Without keys there is only one tenant."""
        if self.max_share_per_tenant is not None:
            return self.max_share_per_tenant
        return 0.5 if self.keys or self.access_keys else 1.0

    @property
    def temporary_bytes(self) -> int:
        """The most bytes of files in `/tmp`; `/dev/shm` has the same limit.

        With the default, two full folders take half of a kernel's memory, so they alone do not end the kernel.
        """
        return max(TEMPORARY_MIN, self.memory // 4) if self.temporary is None else self.temporary

    @property
    def limits(self) -> Limits:
        """The limits of one kernel."""
        return Limits(self.memory, self.cpus, self.processes, self.disk, self.max_output_bytes)


def settings_by_group() -> dict[Group, dict[str, FieldInfo]]:
    """Return all settings by their group and name."""
    grouped: dict[Group, dict[str, FieldInfo]] = {group: {} for group in Group}
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            raise TypeError(f"the setting {name} has no group")
        grouped[Group(str(extra["group"]))][name] = field
    return grouped


def load(flags: dict[str, Any], file: Path | None = None) -> Settings:
    """Return the settings: flags first, then the environment, then a TOML file, then defaults.

    Args:
        flags: value of each setting, by the setting's name.
        file: the TOML file. None means the file that `KERNEL_GATEWAY_CONFIG` names, if that is set.

    Raises:
        InvalidRequest: when the file cannot be read or parsed, or the file or the environment has an unknown setting.
            The message suggests the setting's present name, or a similar name.
        pydantic.ValidationError: when a value is not valid.
    """
    _refuse_unknown()
    return _with_file(file)(**flags)


def _refuse_unknown() -> None:
    """Check that every environment variable with our prefix names a setting.

    Raises:
        InvalidRequest: when a variable names none; the message suggests the setting's present name, or a similar name.
    """
    known = {name: f"{PREFIX}{name.upper()}" for name in (*Settings.model_fields, *CLIENT_NAMES, "config")}
    for name in sorted(os.environ):  # noqa: TID251 - this module reads it
        if name.startswith(PREFIX) and name not in known.values():
            near = _meant(name.removeprefix(PREFIX).lower(), known)
            raise InvalidRequest(f"the environment variable {name} is no setting{near}", field="environment")


def _meant(name: str, known: Mapping[str, str]) -> str:
    """Return a question that names the setting which `name` was once called or resembles, or an empty text.

    Args:
        name: an unknown name.
        known: how the user writes each setting, by the setting's name.
    """
    similar = [RENAMED[name]] if name in RENAMED else get_close_matches(name, known, n=1)
    return "".join(f"; did you mean {known[each]}?" for each in similar)


def _with_file(file: Path | None) -> type[Settings]:
    """Return a class of settings that also reads a TOML file. Every other source has priority over the file."""
    named = config_file(file)
    if named is None:
        return Settings
    source = named

    class Filed(Settings):
        model_config = SettingsConfigDict(extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_sources: PydanticBaseSettingsSource, **by_name: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return by_name["init_settings"], by_name["env_settings"], _toml(settings_cls, source)

    return Filed


def _toml(settings: type[BaseSettings], file: Path) -> TomlFile:
    known = {name: name for name in settings.model_fields}
    unknown = [name for name in content_of(file) if name not in known]  # pydantic would ignore a missing file
    if unknown:
        raise InvalidRequest(f"{file}: {unknown[0]} is no setting{_meant(unknown[0], known)}", field="config")
    return TomlFile(settings, file)
