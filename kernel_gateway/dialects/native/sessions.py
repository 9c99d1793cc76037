"""Makes, lists, describes, interrupts, restarts and ends sessions, and exports their notebooks."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from kernel_gateway.dialects.native.models import CreateSession, Interrupted, SessionInfo, SessionList
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.transfers import send_pieces
from sessions.cells.notebook import notebook
from sessions.model.values import SessionKey
from sessions.session.session import Session


class SessionsHandler(JsonHandler):
    """`/v1/sessions`."""

    def get(self) -> None:
        """List the tenant's sessions."""
        sessions = [SessionInfo.of(session) for session in self.gateway.registry.of(self.tenant)]
        self.finish_json(SessionList(sessions=sessions).model_dump(mode="json"))

    async def post(self) -> None:
        """Make a session and start its kernel."""
        body = self.body(CreateSession)
        name = f"s-{secrets.token_hex(8)}" if body.name is None else body.name
        key = SessionKey(self.tenant, name)
        defaults = self.gateway.registry.defaults_of(self.tenant)
        session = await self.gateway.registry.create(key, body.spec(self.tenant_settings, defaults))
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/v1/sessions/{name}")
        self.finish_json(SessionInfo.of(session).model_dump(mode="json"))


class ExistingHandler(JsonHandler):
    """Base of the handlers for an existing session."""

    def session(self, name: str) -> Session:
        """Return the tenant's session of this name."""
        return self.gateway.registry.get(SessionKey(self.tenant, name))


class SessionHandler(ExistingHandler):
    """`/v1/sessions/{name}`."""

    def get(self, name: str) -> None:
        """Describe the session."""
        self.finish_json(SessionInfo.of(self.session(name)).model_dump(mode="json"))

    async def delete(self, name: str) -> None:
        """End the session."""
        await self.gateway.registry.end(SessionKey(self.tenant, name))
        self.set_status(HTTPStatus.NO_CONTENT)


class InterruptHandler(ExistingHandler):
    """`/v1/sessions/{name}/interrupt`."""

    urgent = frozenset({"POST"})

    async def post(self, name: str) -> None:
        """Interrupt the running cell; the variables are kept."""
        interrupted = await self.session(name).interrupt()
        self.finish_json(Interrupted(interrupted=interrupted).model_dump())


class RestartHandler(ExistingHandler):
    """`/v1/sessions/{name}/restart`."""

    async def post(self, name: str) -> None:
        """Start a fresh kernel in the same session; files are kept."""
        session = self.session(name)
        await session.restart()
        self.finish_json(SessionInfo.of(session).model_dump(mode="json"))


class NotebookHandler(ExistingHandler):
    """`/v1/sessions/{name}/notebook`."""

    async def get(self, name: str) -> None:
        """Export the transcript as `.ipynb`."""
        session = self.session(name)
        session.touch()
        self.set_header("Content-Type", "application/x-ipynb+json")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.ipynb"')
        book = notebook(session.transcript.cells(), session.kernelspec)
        await send_pieces(self, self.gateway.fair_loop.iterate(self.tenant, book))
