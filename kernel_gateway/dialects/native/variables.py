"""Lists and describes the variables of sessions."""

from __future__ import annotations

from kernel_gateway.dialects.native.sessions import ExistingHandler


class VariablesHandler(ExistingHandler):
    """`/v1/sessions/{name}/variables`."""

    async def get(self, name: str) -> None:
        """List the session's variables, also while a cell runs."""
        found = await self.session(name).variables()
        self.finish_json(found.model_dump(mode="json", exclude_none=True))


class VariableHandler(ExistingHandler):
    """`/v1/sessions/{name}/variables/{variable}`."""

    async def get(self, name: str, variable: str) -> None:
        """Describe one variable with the beginning of its content."""
        found = await self.session(name).variable(variable)
        self.finish_json(found.model_dump(mode="json", exclude_none=True))
