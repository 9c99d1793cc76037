"""The control plane besides sandboxes: templates, and the key for the other plane."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import CODE_INTERPRETER, TemplateBody, template_model

PAGE_MAX = 100


class TemplatesHandler(AgentRunHandler):
    """`/2025-09-10/templates`."""

    def get(self) -> None:
        """List them, a page at a time."""
        wanted = self.get_query_argument("templateType", "") or CODE_INTERPRETER
        found = [template_model(template) for template in self.gateway.templates.of(self.tenant)]
        found = [template for template in found if template["templateType"] == wanted]
        size = self.number("pageSize", 10, PAGE_MAX)
        page = self.number("pageNumber", 1, len(found) + 1)
        items = found[(page - 1) * size : page * size]
        self.finish_enveloped({"items": items, "pageNumber": page, "pageSize": size, "total": len(found)})

    def post(self) -> None:
        """Keep a new one."""
        body = self.body(TemplateBody).checked()
        template = self.gateway.templates.create(self.tenant, body.templateName, _content(body))
        self.finish_enveloped(template_model(template))


class TemplateHandler(AgentRunHandler):
    """`/2025-09-10/templates/{name}`."""

    def get(self, name: str) -> None:
        """Describe it."""
        self.finish_enveloped(template_model(self.gateway.templates.get(self.tenant, name)))

    def put(self, name: str) -> None:
        """Change what the body names."""
        body = self.body(TemplateBody).checked()
        content = {**self.gateway.templates.get(self.tenant, name).content, **_content(body)}
        self.finish_enveloped(template_model(self.gateway.templates.update(self.tenant, name, content)))

    def delete(self, name: str) -> None:
        """Keep it no longer."""
        self.finish_enveloped(template_model(self.gateway.templates.delete(self.tenant, name)))


class AccessTokenHandler(AgentRunHandler):
    """`/2025-09-10/agents/accessToken`."""

    def get(self) -> None:
        """A key for the data plane: clients before version 0.0.28 sign on the control plane only."""
        self.finish_enveloped({"accessToken": self.gateway.keys.token(self.caller)})


def _content(body: TemplateBody) -> dict[str, Any]:
    return body.model_dump(exclude_unset=True, exclude={"templateName"})
