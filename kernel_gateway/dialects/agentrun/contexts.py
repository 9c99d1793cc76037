"""Contexts, which are a sandbox's sessions, and code that runs in them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import CreateContext, Execute
from kernel_gateway.dialects.agentrun.results import reply
from sessions.errors import InvalidRequest
from sessions.models import ExecuteRequest
from sessions.sandbox import Sandbox
from sessions.session import Session
from sessions.workspace import seen_path

#: what runs when nothing is said
LANGUAGE = "python"


def context_model(session: Session) -> dict[str, Any]:
    """A context as clients see it."""
    return {"id": session.key.name, "language": session.kernelspec.name, "cwd": seen_path(session.spec.cwd)}


class ContextsHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts`."""

    def get(self, sandbox_id: str) -> None:
        """List them."""
        self.finish_json([context_model(session) for session in self.sandbox(sandbox_id).sessions()])

    async def post(self, sandbox_id: str) -> None:
        """Make one."""
        body = self.body(CreateContext)
        sandbox = self.sandbox(sandbox_id)
        session = await sandbox.create_session(body.language or LANGUAGE, body.cwd or "")
        self.finish_json(context_model(session))


class ContextHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts/{context}`."""

    def get(self, sandbox_id: str, context_id: str) -> None:
        """Describe it."""
        self.finish_json(context_model(self.sandbox(sandbox_id).session(context_id)))

    async def delete(self, sandbox_id: str, context_id: str) -> None:
        """End it; the sandbox's files are kept."""
        session = self.sandbox(sandbox_id).session(context_id)
        await self.gateway.registry.end(session.key)
        self.set_status(HTTPStatus.NO_CONTENT)


class ExecuteHandler(AgentRunHandler):
    """`/sandboxes/{id}/contexts/execute`."""

    async def post(self, sandbox_id: str, context_id: str = "") -> None:
        """Run code in a context; in the sandbox's own one of a language when none is named."""
        body = self.body(Execute)
        settings = self.gateway.settings
        request = ExecuteRequest(
            code=body.code,
            # Clients ask for far more than can be had, some in milliseconds: they get what there is.
            timeout=min(body.timeout or settings.execute_timeout, settings.max_execute_timeout),
            arguments=body.arguments,
        )
        await self.while_client_stays(self._run(self.sandbox(sandbox_id), context_id, body, request))

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
