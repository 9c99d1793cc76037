"""The code API of LibreChat, for LibreChat and its agents with another base URL.

A token that LibreChat has signed says tenant and user. A run with a `runtime_session_hint` is a cell of the user's
session for this hint, so that variables survive; without one it gets a fresh kernel.
Source: `@librechat/agents` 3.9.2, and ClickHouse/code-interpreter @18bf002, read in November 2026.
"""

from __future__ import annotations

from kernel_gateway.dialects.librechat.base import ID_MAX, CodeHandler
from kernel_gateway.dialects.librechat.files import (
    BatchHandler,
    DownloadHandler,
    FileHandler,
    ListHandler,
    ObjectHandler,
    OneUploadHandler,
)
from kernel_gateway.dialects.librechat.models import Cancellation, Continuation, Exec, WithTools
from kernel_gateway.dialects.librechat.runs import CodeRun
from kernel_gateway.dialects.librechat.tool_runs import Owner, ToolRun, ToolRuns
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import JsonHandler

#: header with the id of a request that the client may cancel
REQUEST_ID = "X-LibreChat-Code-Request-ID"


class ExecHandler(CodeHandler, JsonHandler):
    """`exec`."""

    async def post(self) -> None:
        """Run code."""
        timeout = self.tenant_settings.execute_timeout
        run = CodeRun(self.gateway, self.tenant, self.user, self.body(Exec), timeout)
        await self.run_until_client_leaves(self._run(run))

    async def _run(self, run: CodeRun) -> None:
        self.finish_json(await run.answer())


class ProgrammaticHandler(CodeHandler, JsonHandler):
    """`exec/programmatic`."""

    runs: ToolRuns

    def initialize(self, gateway: Gateway, runs: ToolRuns, dialect: str = "none") -> None:  # type: ignore[override]
        """Set up the handler with the runs that wait for their clients."""
        self.runs = runs
        super().initialize(gateway, dialect)

    @property
    def owner(self) -> Owner:
        """Who may continue a run that the caller begins."""
        return self.tenant, self.user

    async def post(self) -> None:
        """Run code that calls tools, or continue a run with their results."""
        await self.run_until_client_leaves(self._answer(self.body(Continuation)))

    async def _answer(self, results: Continuation) -> None:
        run = self._begun() if results.continuation_token is None else self.runs.continued(self.owner, results)
        self.finish_json(await run.answer(self.request.headers.get(REQUEST_ID, "")[:ID_MAX]))

    def _begun(self) -> ToolRun:
        body, timeout = self.body(WithTools), self.tenant_settings.max_execute_timeout
        return self.runs.begin(self.owner, CodeRun(self.gateway, self.tenant, self.user, body, timeout), body)


class CancelHandler(ProgrammaticHandler):
    """`exec/programmatic/cancel`."""

    async def post(self) -> None:
        """End the run of a request, if it is under way."""
        self.runs.cancel(self.owner, self.body(Cancellation).request_id)
        self.finish_json({"status": "ok"})


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
        ("upload", OneUploadHandler),
        ("upload/batch", BatchHandler),
        ("download/([^/]+)/([^/]+)", DownloadHandler),
        ("sessions/([^/]+)/objects/([^/]+)", ObjectHandler),
        ("files/([^/]+)", ListHandler),
        ("files/([^/]+)/([^/]+)", FileHandler),
        ("health", HealthHandler),
    )
    with_tools = (("exec/programmatic", ProgrammaticHandler), ("exec/programmatic/cancel", CancelHandler))
    runs = ToolRuns()
    return [
        *((f"/librechat/v1/{path}", handler, {"gateway": gateway}) for path, handler in table),
        *((f"/librechat/v1/{path}", handler, {"gateway": gateway, "runs": runs}) for path, handler in with_tools),
    ]


DIALECT = Dialect("librechat", routes)
