"""The code interpreter of a sandbox: contexts, and code that runs in them. A context is one session of the sandbox."""

from __future__ import annotations

from typing import Any

from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.e2b.base import InterpreterHandler
from kernel_gateway.dialects.e2b.events import END, FORMATS, KEEPALIVE, events_of, failure_event, line, omission
from kernel_gateway.dialects.e2b.models import Execute, NewContext
from kernel_gateway.http.keepalive import with_keepalive
from sessions.guest.paths import seen_path
from sessions.model.errors import InvalidRequest, SessionError, SessionNotFound
from sessions.model.values import ExecuteRequest, valid_env
from sessions.session.session import Session

#: the default language
LANGUAGE = "python"
#: languages whose default contexts are always listed; the first use of such a context starts its kernel
LISTED = ("python", "javascript")
#: seconds without an event after which a keep-alive is sent, which reveals a lost connection
PAUSE = 5.0


def context_model(session: Session) -> dict[str, Any]:
    """Return a context as clients see it."""
    return {"id": session.key.name, "language": session.kernelspec.name, "cwd": seen_path(session.spec.cwd)}


class ContextBase(InterpreterHandler):
    """Base of the handlers for contexts."""

    def defaults(self) -> dict[str, str]:
        """Return the language of each default context that is always listed, by the context's id.

        A language that the usual image lacks is not listed.
        """
        inventory = self.gateway.inventory()
        there = {spec.name for spec in self.gateway.specs.all if inventory is None or inventory.version(spec)}
        return {self.sandbox.default_name(language): language for language in LISTED if language in there}

    async def context(self, context_id: str) -> Session:
        """Return a context. Start a default context that was not used yet.

        Raises:
            SessionNotFound: when there is no such context.
        """
        try:
            return self.sandbox.session(context_id)
        except SessionNotFound:
            if (language := self.defaults().get(context_id)) is None:
                raise SessionNotFound(f"Context {context_id[:64]} not found") from None
            return await self.sandbox.default_session(language)


class ContextsHandler(ContextBase):
    """`/contexts`."""

    def get(self) -> None:
        """List the contexts: first the default contexts, then the others, oldest first."""
        home, defaults = seen_path(""), self.defaults()
        first = [{"id": name, "language": language, "cwd": home} for name, language in defaults.items()]
        others = [session for session in self.sandbox.sessions() if session.key.name not in defaults]
        self.finish_json([*first, *(context_model(session) for session in others)])

    async def post(self) -> None:
        """Create a context."""
        body = self.body(NewContext)
        session = await self.sandbox.create_session(_language(body.language), body.cwd or "")
        self.finish_json(context_model(session))


class ContextHandler(ContextBase):
    """`/contexts/{id}`."""

    async def delete(self, context_id: str) -> None:
        """End the context. The sandbox's files are kept. A default context gets a new kernel when it is used again."""
        if context_id not in self.defaults() or any(context_id == each.key.name for each in self.sandbox.sessions()):
            await self.gateway.registry.end((await self.context(context_id)).key, "the context was removed")
        self.finish_json(None)


class RestartHandler(ContextBase):
    """`/contexts/{id}/restart`."""

    async def post(self, context_id: str) -> None:
        """Give the context a fresh kernel. The context's id and the sandbox's files are kept."""
        await (await self.context(context_id)).restart()
        self.finish_json(None)


class ExecuteHandler(ContextBase):
    """`/execute`."""

    async def post(self) -> None:
        """Run code, and send its outputs while it runs. When the client leaves, interrupt the code."""
        body = self.body(Execute)
        # These clients send no timeout: they leave when they have waited for too long.
        longest = self.tenant_settings.max_execute_timeout
        request = ExecuteRequest(body.code, longest, env=valid_env(body.env_vars or {}), formats=FORMATS)
        await self.run_until_client_leaves(self._run(body, request))

    async def _run(self, body: Execute, request: ExecuteRequest) -> None:
        session = await self._session(body)
        self.set_header("Content-Type", "application/x-ndjson")
        self.http.stream.set_nodelay(True)
        try:
            await self.flush()  # the clients' timeout for the headers is shorter than that for events
            try:
                await self._stream(session, request)
            except SessionError as failure:
                self._end(failure)
        except StreamClosedError:
            return  # the client has left, and this work is cancelled

    async def _stream(self, session: Session, request: ExecuteRequest) -> None:
        async with session.execute(request) as execution:
            async for event in with_keepalive(execution, PAUSE):
                told = [KEEPALIVE] if event is None else events_of(event)
                for each in told:
                    self.write(line(each))
                await self.flush()
            result = await execution.result()
            if result.truncated or execution.gap:
                self.write(line(omission(result)))
            self._end(result.error)  # the answer ends before the end of the execution is recorded

    def _end(self, failure: SessionError | None) -> None:
        """End the answer.

        Args:
            failure: the reason why the gateway refused or ended the run. None means that the code ended on its own.
        """
        if self.sandbox.closed:
            self.http.close()  # clients understand only a broken connection
            return
        if failure is not None:
            self.write(line(failure_event(failure)))
        self.finish(line(END))

    async def _session(self, body: Execute) -> Session:
        if body.context_id is None:
            return await self.sandbox.default_session(_language(body.language))
        if body.language:
            raise InvalidRequest("only one of context_id and language can be given", field="language")
        return await self.context(body.context_id)


def _language(name: str | None) -> str:
    return (name or "").strip() or LANGUAGE
