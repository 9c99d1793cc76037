"""Create, list, describe, stop and delete sandboxes, on both planes."""

from __future__ import annotations

from time import time
from uuid import uuid4

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import CreateSandbox, sandbox_model
from kernel_gateway.times import rfc3339
from sessions.model.values import SessionKey, valid_name

PAGE_MAX = 100


class SandboxesHandler(AgentRunHandler):
    """`/sandboxes`."""

    def get(self) -> None:
        """List one page of the tenant's sandboxes, newest first."""
        found = [sandbox_model(sandbox) for sandbox in reversed(self.gateway.sandboxes.of(self.tenant))]
        for field in ("status", "templateName", "templateType"):
            if wanted := self.get_query_argument(field, ""):
                found = [sandbox for sandbox in found if sandbox[field] == wanted]
        size = self.number("maxResults", 10, PAGE_MAX)
        start = self.number("nextToken", 1, len(found) + 1) - 1
        more = str(start + size + 1) if len(found) > start + size else ""
        self.finish_enveloped({"items": found[start : start + size], "nextToken": more})

    async def post(self) -> None:
        """Create a sandbox."""
        body = self.body(CreateSandbox)
        template = self.gateway.templates.get(self.tenant, body.templateName)
        key = SessionKey(self.tenant, valid_name("sandboxId", body.sandboxId or str(uuid4())))
        sandbox = await self.gateway.sandboxes.create(key, body.spec(template, self.tenant_settings))
        self.finish_enveloped(sandbox_model(sandbox), flat=True)


class SandboxHandler(AgentRunHandler):
    """`/sandboxes/{id}`."""

    def get(self, sandbox_id: str) -> None:
        """Describe the sandbox. An ended sandbox can be described for a while."""
        self.finish_enveloped(sandbox_model(self.gateway.sandboxes.find(self.key(sandbox_id))), flat=True)

    async def delete(self, sandbox_id: str) -> None:
        """End the sandbox and forget it."""
        sandbox = await self.gateway.sandboxes.forget(self.key(sandbox_id))
        self.finish_enveloped(sandbox_model(sandbox), flat=True)


class StopHandler(AgentRunHandler):
    """`/sandboxes/{id}/stop`."""

    async def post(self, sandbox_id: str) -> None:
        """End the sandbox. A repeated request changes nothing."""
        key = self.key(sandbox_id)
        await self.gateway.sandboxes.end(key)
        self.finish_enveloped(sandbox_model(self.gateway.sandboxes.find(key)), flat=True)


class HealthHandler(AgentRunHandler):
    """`/sandboxes/{id}/health`."""

    async def get(self, sandbox_id: str) -> None:
        """Report whether the sandbox can be used."""
        sandbox = self.gateway.sandboxes.find(self.key(sandbox_id))
        if not sandbox.closed:
            await sandbox.ensure_container()
        self.finish_json(
            {
                "status": "terminated" if sandbox.closed else "ok",
                "service": "sandbox-code-interpreter",
                "version": "v1",
                "timestamp": rfc3339(time()),
                "uptime": round(sandbox.age() * 1e9),
            }
        )
