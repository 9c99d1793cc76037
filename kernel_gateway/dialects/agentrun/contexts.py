"""Contexts and executions. A context is one session of a sandbox."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import CreateContext, Execute
from kernel_gateway.dialects.agentrun.results import reply
from sessions.guest.paths import seen_path
from sessions.model.errors import InvalidRequest
from sessions.model.values import ExecuteRequest
from sessions.sandbox.sandbox import Sandbox
from sessions.session.session import Session

#: the default language
LANGUAGE = "python"


def context_model(session: Session) -> dict[str, Any]:
    """Return a context as clients see it."""
    return {"id": session.key.name, "language": session.kernelspec.name, "cwd": seen_path(session.spec.cwd)}


class ContextsHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts`."""

    def get(self, sandbox_id: str) -> None:
        """List the sandbox's contexts."""
        self.finish_json([context_model(session) for session in self.sandbox(sandbox_id).sessions()])

    async def post(self, sandbox_id: str) -> None:
        """Create a context."""
        body = self.body(CreateContext)
        sandbox = self.sandbox(sandbox_id)
        session = await sandbox.create_session(body.language or LANGUAGE, body.cwd or "")
        self.finish_json(context_model(session))


class ContextHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts/{context}`."""

    def get(self, sandbox_id: str, context_id: str) -> None:
        """Describe the context."""
        self.finish_json(context_model(self.sandbox(sandbox_id).session(context_id)))

    async def delete(self, sandbox_id: str, context_id: str) -> None:
        """End the context; the sandbox's files are kept."""
        session = self.sandbox(sandbox_id).session(context_id)
        await self.gateway.registry.end(session.key)
        self.set_status(HTTPStatus.NO_CONTENT)


class ExecuteHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts/execute`."""

    async def post(self, sandbox_id: str, context_id: str = "") -> None:
        """Run code in a context. Without a context's id, run it in the sandbox's default context of the language."""
        body = self.body(Execute)
        settings = self.tenant_settings
        request = ExecuteRequest(
            code=body.code,
            # Some clients ask for timeouts far above the maximum, because they send milliseconds. They get the maximum.
            timeout=min(body.timeout or settings.execute_timeout, settings.max_execute_timeout),
            arguments=body.arguments,
        )
        await self.run_until_client_leaves(self._run(self.sandbox(sandbox_id), context_id, body, request))

    async def _run(self, sandbox: Sandbox, context_id: str, body: Execute, request: ExecuteRequest) -> None:
        session = await self._session(sandbox, context_id or body.contextId, body.language)
        async with session.execute(request) as execution:
            result = await execution.result()
        self.finish_json(reply(session.key.name, result))

    async def _session(self, sandbox: Sandbox, context_id: str | None, language: str | None) -> Session:
        if not context_id:
            return await sandbox.default_session(language or LANGUAGE)
        session = sandbox.session(context_id)
        if language and self.gateway.registry.language(language) != session.kernelspec.name:
            raise InvalidRequest(f"the context runs {session.kernelspec.name}", field="language")
        return session
