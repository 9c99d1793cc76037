"""The AgentRun dialect: sandboxes and contexts of Alibaba Cloud's Code Interpreter, as `agentrun-sdk` uses them.

The API has two planes. The data plane, `/sandboxes/…`, runs code and reads files; the control plane, `/2025-09-10/…`,
manages templates and sandboxes. A sandbox of the API is a `Sandbox`, a context is one of its sessions, and an access
key is an entry of the setting `access_keys`.
Sources: the requests and parsers of `agentrun-sdk` 0.0.18 and 0.0.54, and the vendor's page "Code Interpreter".
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
        (one + "/contexts/execute", ExecuteHandler),  # before the next row, where `execute` would be a context's name
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
