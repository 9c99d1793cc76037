"""`/ports` and `/proxy/{port}/{path}`: servers that code has started in the sandbox."""

from __future__ import annotations

from kernel_gateway.dialects.open_terminal.base import PLACE, USER, TerminalBaseHandler, TerminalHandler
from kernel_gateway.ports.handler import PortHandler, port_of
from kernel_gateway.ports.headers import Place
from sessions.guest.processes import listening_ports
from sessions.sandbox.sandbox import Sandbox

#: headers that servers do not get
WITHHELD = frozenset({USER.lower(), PLACE.lower()})


class PortsHandler(TerminalHandler):
    """`/ports`."""

    async def get(self) -> None:
        """List the ports on which the sandbox's processes listen."""
        found = await listening_ports(await self.sandbox())
        self.finish_json({"ports": [{"port": each.port, "pid": each.pid, "process": each.program} for each in found]})


class ProxyHandler(TerminalBaseHandler, PortHandler):
    """`/proxy/{port}/{path}`."""

    async def find(self) -> tuple[Sandbox, int]:
        """Return the sandbox and the port."""
        port = port_of(self.path_args[0])
        return await self.sandbox(), port

    def target_path(self) -> str:
        """Return the rest of the path and the query, as the client has sent them."""
        path = "/" + self.request.path.partition("/proxy/")[2].partition("/")[2]
        return f"{path}?{self.request.query}" if self.request.query else path

    def place(self, port: int) -> Place:
        """Return a path of the gateway's own origin."""
        return Place(f"localhost:{port}", own_host=False, withheld=WITHHELD)
