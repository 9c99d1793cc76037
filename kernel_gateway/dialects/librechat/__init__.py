"""The code API of LibreChat, for LibreChat and its agents with another base URL.

A token that LibreChat has signed says tenant and user. A run with a `runtime_session_hint` is a cell of the user's
session for this hint, so that variables survive; without one it gets a fresh kernel.
Source: `@librechat/agents` 3.9.2, and ClickHouse/code-interpreter @18bf002, read in November 2026.
"""

from __future__ import annotations

from kernel_gateway.dialects.librechat.base import CodeHandler
from kernel_gateway.dialects.librechat.files import (
    BatchHandler,
    DownloadHandler,
    FileHandler,
    ListHandler,
    ObjectHandler,
    OneUploadHandler,
)
from kernel_gateway.dialects.librechat.models import Exec
from kernel_gateway.dialects.librechat.runs import CodeRun
from kernel_gateway.errors import NotSupported
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import JsonHandler


class ExecHandler(CodeHandler, JsonHandler):
    """`exec`."""

    async def post(self) -> None:
        """Run code."""
        run = CodeRun(self.gateway, self.tenant, self.user, self.body(Exec))
        await self.run_until_client_leaves(self._run(run))

    async def _run(self, run: CodeRun) -> None:
        self.finish_json(await run.answer())


class ProgrammaticHandler(CodeHandler):
    """`exec/programmatic` and `exec/programmatic/cancel`."""

    def post(self) -> None:
        """Refuse the request."""
        raise NotSupported("this gateway runs no code that calls LibreChat's tools: let the agent call them itself")


class HealthHandler(CodeHandler):
    """`health`."""

    public = True

    def get(self) -> None:
        """Answer that the process is alive."""
        self.finish_json({"status": "ok"})


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/librechat/v1`."""
    table = (
        ("exec", ExecHandler),
        ("exec/programmatic", ProgrammaticHandler),
        ("exec/programmatic/cancel", ProgrammaticHandler),
        ("upload", OneUploadHandler),
        ("upload/batch", BatchHandler),
        ("download/([^/]+)/([^/]+)", DownloadHandler),
        ("sessions/([^/]+)/objects/([^/]+)", ObjectHandler),
        ("files/([^/]+)", ListHandler),
        ("files/([^/]+)/([^/]+)", FileHandler),
        ("health", HealthHandler),
    )
    return [(f"/librechat/v1/{path}", handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("librechat", routes)
