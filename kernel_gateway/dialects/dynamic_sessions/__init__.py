"""The API of Azure Container Apps' dynamic sessions (code interpreter), for its clients with another endpoint and key.

The identifier of a request is the name of a session, which is made on first use.
Source: `Microsoft.App.DynamicSessions` 2025-10-02-preview and the published clients, read in August 2026.
"""

from __future__ import annotations

import time
from http import HTTPStatus

from kernel_gateway.dialects.dynamic_sessions.base import PoolHandler
from kernel_gateway.dialects.dynamic_sessions.files import ContentHandler, FileHandler, FilesHandler, OldUploadHandler
from kernel_gateway.dialects.dynamic_sessions.models import Execution, OldExecution
from kernel_gateway.dialects.dynamic_sessions.results import new_shape, old_shape
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.times import rfc3339
from sessions.model.values import ExecuteRequest, ExecutionResult


class OldExecuteHandler(PoolHandler, JsonHandler):
    """`code/execute`."""

    async def post(self) -> None:
        """Run code in the session."""
        request = self.body(OldExecution).properties.request(self.tenant_settings.max_execute_timeout)
        await self.run_until_client_leaves(self._run(request))

    async def _run(self, request: ExecuteRequest) -> None:
        async with (await self.session()).execute(request) as execution:
            self.answer(await execution.result())

    def answer(self, result: ExecutionResult) -> None:
        """Send the result in the old shape."""
        self.finish_json(old_shape(result))


class ExecuteHandler(OldExecuteHandler):
    """`executions`."""

    async def post(self) -> None:
        """Run code in the session."""
        request = self.body(Execution).request(self.tenant_settings.max_execute_timeout)
        await self.run_until_client_leaves(self._run(request))

    def answer(self, result: ExecutionResult) -> None:
        """Send the result in the new shape."""
        self.finish_json(new_shape(result, self.identifier, self.request_id))


class SessionHandler(PoolHandler):
    """`session`."""

    def get(self) -> None:
        """Describe the session."""
        session, now = self.gateway.registry.get(self.key), time.time()
        used = now - session.idle_for()
        self.finish_json(
            {
                "identifier": self.identifier,
                "createdAt": rfc3339(now - session.age()),
                "lastAccessedAt": rfc3339(used),
                "expireAt": rfc3339(used + session.spec.idle_timeout),
                "etag": session.id,
            }
        )

    async def delete(self) -> None:
        """End the session."""
        await self.gateway.registry.end(self.key)
        self.set_status(HTTPStatus.NO_CONTENT)


def routes(gateway: Gateway) -> list[Route]:
    """Return the routes of all pools."""
    table = (
        ("code/execute", OldExecuteHandler),
        ("executions", ExecuteHandler),
        ("session", SessionHandler),
        ("files/upload", OldUploadHandler),
        ("files", FilesHandler),
        ("files/content/(.+)", ContentHandler),
        ("files/(.+)/content", ContentHandler),
        ("files/(.+)", FileHandler),
    )
    return [(rf"/dynamic-sessions/[\w.-]+/{path}/?", handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("dynamic_sessions", routes)
