"""The API of Open Terminal, by which Open WebUI gives its models and users a computer: a sandbox for each user.

The id of a user is believed only from a key with the role frontend. A request that names no user is for the sandbox of
its key.
Source: `open-terminal` 0.14.5, and the calls of `open-webui` 0.12.4, read in November 2026.
"""

from __future__ import annotations

from kernel_gateway.dialects.open_terminal import (
    archive,
    commands,
    description,
    files,
    notebooks,
    ports,
    search,
    terminals,
)
from kernel_gateway.dialects.open_terminal.desks import Desks
from kernel_gateway.dialects.open_terminal.uploads import UploadHandler
from kernel_gateway.gateway import Dialect, Gateway, Route

#: paths of the API; the setting of Open WebUI for the URL ends with it. Open WebUI adds a policy for an orchestrator
PREFIX = r"/open-terminal(?:/p/[\w.-]+)?"


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the API."""
    public = (
        ("/health", description.HealthHandler),
        ("/api/config", description.ConfigHandler),
        ("/openapi.json", description.OpenApiHandler),
    )
    table = (
        ("/system", description.SystemHandler),
        ("/skills", description.SkillsHandler),
        ("/files/cwd", files.WorkingDirectoryHandler),
        ("/files/list", files.ListHandler),
        ("/files/read", files.ReadHandler),
        ("/files/display", files.DisplayHandler),
        ("/files/view", files.ViewHandler),
        ("/files/serve/(.+)", files.ViewHandler),
        ("/files/write", files.WriteHandler),
        ("/files/replace", files.ReplaceHandler),
        ("/files/mkdir", files.MakeDirectoryHandler),
        ("/files/delete", files.DeleteHandler),
        ("/files/move", files.MoveHandler),
        ("/files/upload", UploadHandler),
        ("/files/archive", archive.ArchiveHandler),
        ("/files/grep", search.GrepHandler),
        ("/files/glob", search.GlobHandler),
        ("/files/search", search.NamesHandler),
        ("/files/matches", search.MatchesHandler),
        ("/execute", commands.ExecuteHandler),
        ("/execute/([^/]+)", commands.ProcessHandler),
        ("/execute/([^/]+)/status", commands.StatusHandler),
        ("/execute/([^/]+)/input", commands.InputHandler),
        ("/ports", ports.PortsHandler),
        ("/proxy/([0-9]{1,9})/(.*)", ports.ProxyHandler),
        ("/api/terminals", terminals.TerminalsHandler),
        ("/api/terminals/user/output", terminals.OutputHandler),
        ("/api/terminals/user/input", terminals.InputHandler),
        ("/api/terminals/([^/]+)", terminals.OneTerminalHandler),
        ("/notebooks", notebooks.NotebooksHandler),
        ("/notebooks/([^/]+)", notebooks.OneNotebookHandler),
        ("/notebooks/([^/]+)/execute", notebooks.CellHandler),
    )
    with_desks = {"gateway": gateway, "desks": Desks()}
    return [
        *((PREFIX + path, handler, {"gateway": gateway}) for path, handler in public),
        *((PREFIX + path, handler, with_desks) for path, handler in table),
    ]


DIALECT = Dialect("open_terminal", routes)
