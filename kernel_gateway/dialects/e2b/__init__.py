"""The E2B dialect: sandboxes, code contexts, files and commands, as E2B's SDKs use them.

Three services share one port: the control plane, and for each sandbox its code interpreter and `envd`, the service for
files and commands. `targets.py` finds the service of a request. A sandbox of the API is a `Sandbox`, and a context is
one of its sessions.
Sources: the requests and parsers of `e2b` 2.63 and `e2b-code-interpreter` 2.11, and the code interpreter's server.
"""

from __future__ import annotations

from kernel_gateway.dialects.e2b import (
    control,
    filesystem,
    health,
    metrics,
    ports,
    processes,
    snapshots,
    templates,
    watchers,
)
from kernel_gateway.dialects.e2b.connect import UnsupportedMethod
from kernel_gateway.dialects.e2b.contexts import ContextHandler, ContextsHandler, ExecuteHandler, RestartHandler
from kernel_gateway.dialects.e2b.files import FilesHandler
from kernel_gateway.dialects.e2b.targets import serves
from kernel_gateway.gateway import Dialect, Gateway, Route


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of the API."""
    one = r"/sandboxes/([^/]+)"
    table = (
        (r"(?:/v2)?/sandboxes", control.SandboxesHandler),
        (one, control.OneSandboxHandler),
        (rf"(?:/v2)?{one}/connect", control.ConnectHandler),
        (one + "/pause", control.PauseHandler),
        (one + "/resume", control.ResumeHandler),
        (one + "/timeout", control.TimeoutHandler),
        (one + "/refreshes", control.RefreshHandler),
        (one + "/network", control.NetworkHandler),
        (one + "/metrics", metrics.MetricsHandler),
        (r"(?:/v2)?/templates", templates.TemplatesHandler),
        (r"/templates/aliases/(.+)", templates.AliasHandler),
        (r"/templates/([^/]+)", snapshots.TemplateOrSnapshotHandler),
        (one + "/fork", snapshots.ForkHandler),
        (one + "/snapshots", snapshots.SandboxSnapshotsHandler),
        (r"/snapshots", snapshots.SnapshotsHandler),
        (r"/(?:v[23]/)?(?:sandboxes|snapshots|templates|volumes|secrets)(?:/.*)?", control.UnsupportedHandler),
        (r"/health", health.HealthHandler),
        (r"/execute", ExecuteHandler),
        (r"/contexts", ContextsHandler),
        (r"/contexts/([^/]+)", ContextHandler),
        (r"/contexts/([^/]+)/restart", RestartHandler),
        (r"/files", FilesHandler),
        (r"/filesystem\.Filesystem/Stat", filesystem.StatHandler),
        (r"/filesystem\.Filesystem/ListDir", filesystem.ListHandler),
        (r"/filesystem\.Filesystem/MakeDir", filesystem.MakeDirHandler),
        (r"/filesystem\.Filesystem/Move", filesystem.MoveHandler),
        (r"/filesystem\.Filesystem/Remove", filesystem.RemoveHandler),
        (r"/filesystem\.Filesystem/WatchDir", watchers.WatchHandler),
        (r"/filesystem\.Filesystem/CreateWatcher", watchers.CreateHandler),
        (r"/filesystem\.Filesystem/GetWatcherEvents", watchers.EventsHandler),
        (r"/filesystem\.Filesystem/RemoveWatcher", watchers.RemoveHandler),
        (r"/process\.Process/Start", processes.StartHandler),
        (r"/process\.Process/Connect", processes.ConnectHandler),
        (r"/process\.Process/List", processes.ListHandler),
        (r"/process\.Process/SendInput", processes.SendInputHandler),
        (r"/process\.Process/StreamInput", processes.StreamInputHandler),
        (r"/process\.Process/CloseStdin", processes.CloseStdinHandler),
        (r"/process\.Process/SendSignal", processes.SendSignalHandler),
        (r"/process\.Process/Update", processes.UpdateHandler),
        (r"/(?:filesystem\.Filesystem|process\.Process)/(\w+)", UnsupportedMethod),
        (r"/.*", health.UnsupportedHandler),
    )
    return [(path, handler, {"gateway": gateway}) for path, handler in table]


def port_routes(gateway: Gateway) -> list[Route]:
    """Return the route of all requests to servers in sandboxes."""
    return [(r".*", ports.SandboxPortHandler, {"gateway": gateway})]


#: requests to servers in sandboxes, with any path and method
PORTS = Dialect("e2b", port_routes, ports.serves)
DIALECT = Dialect("e2b", routes, serves)
