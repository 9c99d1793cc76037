"""The control plane's calls that are not about sandboxes: templates, and the key for the data plane."""

from __future__ import annotations

from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunHandler
from kernel_gateway.dialects.agentrun.models import CODE_INTERPRETER, TemplateBody, template_model
from sessions.model.values import valid_name

PAGE_MAX = 100


class TemplatesHandler(AgentRunHandler):
    """`/2025-09-10/templates`."""

    def get(self) -> None:
        """List one page of the tenant's templates of one type."""
        wanted = self.get_query_argument("templateType", "") or CODE_INTERPRETER
        found = [template_model(template) for template in self.gateway.templates.of(self.tenant)]
        found = [template for template in found if template["templateType"] == wanted]
        size = self.number("pageSize", 10, PAGE_MAX)
        page = self.number("pageNumber", 1, len(found) + 1)
        items = found[(page - 1) * size : page * size]
        self.finish_enveloped({"items": items, "pageNumber": page, "pageSize": size, "total": len(found)})

    def post(self) -> None:
        """Create a template."""
        body = self.body(TemplateBody).checked()
        name = valid_name("templateName", body.templateName)
        template = self.gateway.templates.create(self.tenant, name, _content(body))
        self.finish_enveloped(template_model(template))


class TemplateHandler(AgentRunHandler):
    """`/2025-09-10/templates/{name}`."""

    def get(self, name: str) -> None:
        """Describe the template."""
        self.finish_enveloped(template_model(self.gateway.templates.get(self.tenant, name)))

    def put(self, name: str) -> None:
        """Change the fields that the body names."""
        body = self.body(TemplateBody).checked()
        content = {**self.gateway.templates.get(self.tenant, name).content, **_content(body)}
        self.finish_enveloped(template_model(self.gateway.templates.update(self.tenant, name, content)))

    def delete(self, name: str) -> None:
        """Delete the template."""
        self.finish_enveloped(template_model(self.gateway.templates.delete(self.tenant, name)))


class AccessTokenHandler(AgentRunHandler):
    """`/2025-09-10/agents/accessToken`."""

    def get(self) -> None:
        """Return a key for the data plane, because clients before version 0.0.28 sign only on the control plane."""
        self.finish_enveloped({"accessToken": self.gateway.keys.token(self.caller)})


def _content(body: TemplateBody) -> dict[str, Any]:
    return body.model_dump(exclude_unset=True, exclude={"templateName"})
