"""Types of the settings' values. Each type parses the text of a flag, an environment variable or a file."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from sessions.model.egress import host_and_port, name_server
from sessions.model.errors import InvalidRequest
from sessions.model.tenant_limits import OwnLimits
from sessions.model.values import CPUS_MIN, MEMORY_MIN, valid_name

#: bytes of a mebibyte
MIB = 1024**2
_UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB}
#: minimum number of characters of a key
KEY_MIN = 8


def _bytes(value: object) -> object:
    """Convert `512m` to a number of bytes."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(\d+)([kmg]?)b?", value.strip().lower())
    if found is None:
        raise ValueError("write a number of bytes, or one with a unit: 65536, 512k, 256m, 2g")
    return int(found[1]) * _UNITS[found[2]]


def _items(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_tenant(name: str) -> None:
    try:
        valid_name("tenant", name)
    except InvalidRequest as error:
        raise ValueError(error.message) from error


def _keys(value: object) -> object:
    """Parse `tenant:key,tenant:key` into a dict from key to tenant."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    for item in _items(value):
        tenant, separator, key = item.partition(":")
        if not separator or len(key) < KEY_MIN:
            raise ValueError(f"each must be tenant:key, with a key of at least {KEY_MIN} characters")
        _check_tenant(tenant)
        if pairs.setdefault(key, tenant) != tenant:
            raise ValueError("each key must belong to one tenant")
    return pairs


def _access_keys(value: object) -> object:
    """Parse `tenant:id:secret,tenant:id:secret` into a dict from id to (tenant, secret)."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, tuple[str, str]] = {}
    for item in _items(value):
        tenant, _, rest = item.partition(":")
        access_key, separator, secret = rest.partition(":")
        if not separator or not re.fullmatch(r"[A-Za-z0-9._-]+", access_key) or len(secret) < KEY_MIN:
            raise ValueError(f"each must be tenant:id:secret, with a secret of at least {KEY_MIN} characters")
        _check_tenant(tenant)
        if access_key in pairs:
            raise ValueError("each id must be listed only once")
        pairs[access_key] = tenant, secret
    return pairs


def _names(value: object) -> object:
    return _items(value) if isinstance(value, str) else value


def _modules(value: object) -> object:
    """Split a list of modules, and check that each item is a full name."""
    modules = _names(value)
    for module in modules if isinstance(modules, list) else ():
        if not all(part.isidentifier() for part in str(module).split(".")):
            raise ValueError(f"{module!r} is no module's name")
    return modules


def _hosts(value: object) -> object:
    """Split a list of hosts, and check that each item is an exact name, perhaps with a port."""
    hosts = _names(value)
    for host in hosts if isinstance(hosts, list) else ():
        host_and_port(str(host))
    return hosts


def _name_servers(value: object) -> object:
    """Split a list of addresses, and check that a container can reach each of them."""
    servers = _names(value)
    return [name_server(str(each)) for each in servers] if isinstance(servers, list) else servers


def _origins(value: object) -> object:
    """Split a list of origins, and check that each item has the form that browsers send."""
    origins = _names(value)
    for origin in origins if isinstance(origins, list) else ():
        if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#@]+", str(origin), re.IGNORECASE):
            raise ValueError(f"{origin!r} is no origin: write scheme://host or scheme://host:port, with no path")
    return origins


def _enough(memory: int) -> int:
    if memory < MEMORY_MIN:
        raise ValueError(f"must be at least {MEMORY_MIN // MIB}m: a kernel with less does not start")
    return memory


#: a size as clients and operators write it, for example 512m
_SIZE = Annotated[str, Field(pattern="^[0-9]+[kKmMgG]?[bB]?$")]
Bytes = Annotated[int, Field(gt=0), BeforeValidator(_bytes, json_schema_input_type=Annotated[int, Field(gt=0)] | _SIZE)]
Memory = Annotated[Bytes, AfterValidator(_enough)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
#: 0 means no limit
SomeBytes = Annotated[int, Field(ge=0), BeforeValidator(_bytes)]
SomeSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: text with commas between the items, like all lists
Names = Annotated[list[str], NoDecode, BeforeValidator(_names)]
Modules = Annotated[list[str] | None, NoDecode, BeforeValidator(_modules)]
Hosts = Annotated[list[str], NoDecode, BeforeValidator(_hosts)]
NameServers = Annotated[list[str], NoDecode, BeforeValidator(_name_servers)]
Origins = Annotated[list[str], NoDecode, BeforeValidator(_origins)]
#: tenant by key
Keys = Annotated[dict[str, str], NoDecode, BeforeValidator(_keys)]
#: tenant and secret by id
AccessKeys = Annotated[dict[str, tuple[str, str]], NoDecode, BeforeValidator(_access_keys)]


class TenantForm(BaseModel):
    """The limits of one tenant, as operators write them. What is absent or null is the gateway's own limit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sessions: Count | None = Field(None, description="sessions and sandboxes at a time")
    memory: Memory | None = Field(None, description='memory of each kernel: bytes, or for example "256m"')
    cpus: Annotated[float, Field(ge=CPUS_MIN, allow_inf_nan=False)] | None = Field(
        None, description="processors of each kernel"
    )
    disk: Bytes | None = Field(None, description='workspace of each session: bytes, or for example "64m"')
    timeout: Seconds | None = Field(None, description="the longest timeout of a cell, in seconds")
    images: Names | None = Field(None, description="images that a session may ask for, beside the usual one")
    egress: bool | None = Field(None, description="whether a session may have the network `allowlist`")

    def given(self) -> dict[str, Any]:
        """Return the limits that were written, by name; None is the gateway's limit."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: frozenset(value) if isinstance(value, list) else value for name, value in values.items()}

    def own(self, tenant: str) -> OwnLimits:
        """Return the limits of a tenant."""
        return OwnLimits(tenant, **self.given())


def _tables(check: Callable[[str], None], value: object) -> object:
    """Parse JSON with a table for each name, and check the names."""
    try:
        tables = json.loads(value or "{}") if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    for name in tables if isinstance(tables, dict) else ():
        check(str(name))
    return tables


#: limits by tenant
Tenants = Annotated[dict[str, TenantForm], NoDecode, BeforeValidator(partial(_tables, _check_tenant))]


class ToolServerForm(BaseModel):
    """A server of tools, as operators write it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="its MCP endpoint over HTTP, for example `https://tools.example/mcp`")
    tenants: Names = Field(description="tenants whose cells may call it; `*` for all")
    header: str = Field(
        "Authorization", pattern=r"^[A-Za-z][A-Za-z0-9-]*$", description="name of the header with the credential"
    )
    credential: SecretStr | None = Field(None, description="value of that header, for example `Bearer TOKEN`")
    credential_file: Path | None = Field(
        None, description="file with that value, in place of `credential`; read at each call"
    )
    timeout: Seconds = Field(30, description="seconds that a call may take")

    @field_validator("url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write http://… or https://…")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a user or password in a URL is shown in errors: use `credential`")
        return url

    @model_validator(mode="after")
    def _has_one_credential(self) -> Self:
        if self.credential is not None and self.credential_file is not None:
            raise ValueError("give `credential` or `credential_file`, not both")
        self._check(self.credential.get_secret_value() if self.credential is not None else "")
        return self

    @staticmethod
    def _check(value: str) -> None:
        if not value.isprintable() or not value.isascii():
            raise ValueError("a credential has only printable ASCII characters")

    def _value(self) -> str:
        if self.credential_file is not None:
            value = self.credential_file.read_text("ascii").strip()
            self._check(value)
            return value
        return "" if self.credential is None else self.credential.get_secret_value()

    def headers(self) -> dict[str, str]:
        """Return the header with the credential, if there is one.

        Raises:
            OSError: when the file with the credential cannot be read.
            ValueError: when the file has other characters than a header may have.
        """
        value = self._value()
        return {self.header: value} if value else {}

    def secrets(self) -> list[str]:
        """Return what no code may see: the credential, and the part after a word such as `Bearer`. None unreadable."""
        try:
            value = self._value()
        except (OSError, ValueError):
            return []
        return [part for part in (value, value.rpartition(" ")[2]) if len(part) >= KEY_MIN]


#: names of Python's module `tools` that no server can have
_TAKEN = frozenset({"ToolError"})


def _check_server(name: str) -> None:
    usable = re.fullmatch("[A-Za-z][A-Za-z0-9_]{0,31}", name) and not keyword.iskeyword(name)
    if not usable or name in _TAKEN:
        raise ValueError(f"{name[:64]!r} is no name of a server: code imports it, `from tools import NAME`")


#: servers of tools by name
ToolServers = Annotated[dict[str, ToolServerForm], NoDecode, BeforeValidator(partial(_tables, _check_server))]
