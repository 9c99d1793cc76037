"""The AgentRun dialect: sandboxes and contexts of Alibaba Cloud's Code Interpreter, as `agentrun-sdk` uses them.

Two planes: `/sandboxes/…` (data) runs code and reads files, `/2025-09-10/…` (control) keeps templates and lists
sandboxes.
Sources: the requests and parsers of `agentrun-sdk` 0.0.18 and 0.0.54, and the vendor's page "Code Interpreter". A
sandbox is a `Sandbox`, a context one of its sessions, an access key an entry of `access_keys`.
"""

from __future__ import annotations

from kernel_gateway.dialects.agentrun.contexts import ContextHandler, ContextsHandler, ExecuteHandler
from kernel_gateway.dialects.agentrun.control import AccessTokenHandler, TemplateHandler, TemplatesHandler
from kernel_gateway.dialects.agentrun.files import (
    DirectoryHandler,
    DownloadHandler,
    FileHandler,
    MakeDirectoryHandler,
    MoveHandler,
    RemoveHandler,
    StatHandler,
)
from kernel_gateway.dialects.agentrun.processes import CommandHandler, ProcessesHandler, ProcessHandler
from kernel_gateway.dialects.agentrun.sandboxes import (
    HealthHandler,
    SandboxesHandler,
    SandboxHandler,
    StopHandler,
)
from kernel_gateway.dialects.agentrun.uploads import FormHandler
from kernel_gateway.gateway import Dialect, Gateway, Route

CONTROL = "/2025-09-10"


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the API."""
    one = r"/sandboxes/([^/]+)"
    table = (
        (r"/sandboxes", SandboxesHandler),
        (one, SandboxHandler),
        (one + "/stop", StopHandler),
        (one + "/health", HealthHandler),
        (one + "/contexts", ContextsHandler),
        (one + "/contexts/execute", ExecuteHandler),  # first, or it would match as a context named `execute`
        (one + "/contexts/([^/]+)", ContextHandler),
        (one + "/contexts/([^/]+)/execute", ExecuteHandler),
        (one + "/files", FileHandler),
        (one + "/filesystem", DirectoryHandler),
        (one + "/filesystem/stat", StatHandler),
        (one + "/filesystem/mkdir", MakeDirectoryHandler),
        (one + "/filesystem/move", MoveHandler),
        (one + "/filesystem/remove", RemoveHandler),
        (one + "/filesystem/upload", FormHandler),
        (one + "/filesystem/download", DownloadHandler),
        (one + "/processes", ProcessesHandler),
        (one + "/processes/cmd", CommandHandler),
        (one + "/processes/([0-9]{1,9})", ProcessHandler),
        (CONTROL + "/agents/accessToken", AccessTokenHandler),
        (CONTROL + "/templates", TemplatesHandler),
        (CONTROL + "/templates/([^/]+)", TemplateHandler),
        (CONTROL + "/sandboxes", SandboxesHandler),
        (CONTROL + one, SandboxHandler),
        (CONTROL + one + "/stop", StopHandler),
    )
    return [(path, handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("agentrun", routes)
