"""The contract of who calls the operator's servers of tools. What it does is outside of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from sessions.model.values import SessionKey, Tool


class ToolFailed(Exception):
    """A call of a server's tool has no answer. The text says why, to the code that called."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The cell that calls a server."""

    key: SessionKey
    #: the execution's id in the audit
    execution: str


class ToolServers(Protocol):
    """Calls the operator's servers for cells."""

    def names(self, tenant: str) -> Sequence[str]:
        """Return the names of the servers that a tenant's cells may use. No server is asked."""

    async def tools(self, caller: Caller, server: str) -> Sequence[Tool]:
        """Return the tools of a server, which may be some minutes old.

        Raises:
            ToolFailed: when the tenant has no such server, or the server does not answer as it should.
        """

    async def call(self, caller: Caller, server: str, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return a tool's answer, which is JSON.

        Raises:
            ToolFailed: when the tenant has no such server, the server does not answer as it should, or the tool has
                failed.
        """

    async def close(self) -> None:
        """Close all connections."""


class NoToolServers:
    """What calls servers if the operator has configured none."""

    def names(self, _tenant: str) -> Sequence[str]:
        """Return no names."""
        return ()

    async def tools(self, _caller: Caller, server: str) -> Sequence[Tool]:
        """Refuse."""
        raise ToolFailed(f"there is no server of tools {server!r}")

    async def call(self, _caller: Caller, server: str, _tool: str, _arguments: Mapping[str, Any]) -> Any:
        """Refuse."""
        raise ToolFailed(f"there is no server of tools {server!r}")

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class CellServers:
    """The operator's servers, as one cell may use them."""

    servers: ToolServers
    caller: Caller

    @property
    def names(self) -> Sequence[str]:
        """The names of the servers."""
        return self.servers.names(self.caller.key.tenant)

    async def listed(self, server: str) -> list[dict[str, Any]]:
        """Return the tools of a server as the kernel gets them; see `ToolServers.tools`."""
        return [asdict(tool) for tool in await self.servers.tools(self.caller, server)]

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return a tool's answer; see `ToolServers.call`."""
        return await self.servers.call(self.caller, server, tool, arguments)
