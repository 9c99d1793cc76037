"""Makes, lists, describes, interrupts, restarts and ends sessions, and exports their notebooks."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from pydantic import Field

from kernel_gateway.dialects.native.models import CODE_MAX, CreateSession, Interrupted, SessionInfo, SessionList
from kernel_gateway.errors import NotSupported
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.request_body import Body
from kernel_gateway.http.transfers import send_pieces
from sessions.cells.notebook import notebook
from sessions.model.errors import CheckpointRefused
from sessions.model.values import SessionKey
from sessions.session.session import Session
from sessions.session.states import State


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

    def describe(self, session: Session) -> None:
        """Answer with the description of a session."""
        self.finish_json(SessionInfo.of(session).model_dump(mode="json"))


class SessionHandler(ExistingHandler):
    """`/v1/sessions/{name}`."""

    def get(self, name: str) -> None:
        """Describe the session."""
        self.describe(self.session(name))

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
        self.describe(session)


class SleepHandler(ExistingHandler):
    """`/v1/sessions/{name}/sleep`."""

    async def post(self, name: str) -> None:
        """Write the memory of the session's kernel to disk, and end the kernel."""
        session = self.session(name)
        if not session.can_sleep:
            raise NotSupported("this gateway cannot let sessions sleep")
        if session.state is not State.ASLEEP and (reason := await session.fall_asleep()):
            raise CheckpointRefused(f"the session stays awake: {session.sleep_problem or reason}")
        self.describe(session)


class WakeHandler(ExistingHandler):
    """`/v1/sessions/{name}/wake`."""

    async def post(self, name: str) -> None:
        """Wake the session's kernel, or start one if there is none."""
        session = self.session(name)
        await session.start()
        self.describe(session)


class Complete(Body):
    """Code to complete."""

    code: str = Field(max_length=CODE_MAX)
    cursor: int = Field(ge=0, description="number of characters of the code before the cursor")


class CompleteHandler(ExistingHandler):
    """`/v1/sessions/{name}/complete`."""

    async def post(self, name: str) -> None:
        """Tell how the code may go on at its cursor."""
        body = self.body(Complete)
        found = await self.session(name).complete(body.code, min(body.cursor, len(body.code)))
        self.finish_json(found.model_dump(mode="json"))


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
