"""The operator's servers of tools: which tenant may call which, how many calls run, and what is recorded of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import orjson

from kernel_gateway.setting_types import ToolServerForm
from kernel_gateway.tools.client import NAME_MAX, ServerClient
from sessions.model import exact_json
from sessions.model.errors import SessionError
from sessions.model.tasks import SharedWork
from sessions.model.values import Tool
from sessions.store.records import CallEnd
from sessions.tenants.admission import Admission
from sessions.tenants.waiting import wait_for_turn
from sessions.tools.servers import Caller, ToolFailed

#: calls of one server at a time, of one tenant and of all; more wait for their turn
PER_TENANT, IN_ALL = 8, 32
#: seconds for which a server's list of tools is used
LIFETIME = 300.0
#: stands in an answer in the place of the server's credential
HIDDEN = "[credential]"


class CallJournal(Protocol):
    """Records every call of a server's tool."""

    def call_begins(self, caller: Caller, server: str, tool: str, argument_bytes: int) -> str:
        """Record that a tool is about to be called, and return the call's id.

        Raises:
            SessionError: when the call cannot be recorded, so it must not be made.
        """

    def call_ended(self, call: str, server: str, end: CallEnd) -> None:
        """Record how a call has ended."""


class OperatorServers:
    """The servers of a gateway's settings; see `sessions.tools.servers.ToolServers`."""

    def __init__(self, forms: Mapping[str, ToolServerForm], journal: CallJournal) -> None:
        """Begin without connections.

        Args:
            forms: the servers of the settings, by name.
            journal: records each call.
        """
        self._servers = {name: _Server(name, form) for name, form in forms.items()}
        self._journal = journal

    def names(self, tenant: str) -> Sequence[str]:
        """Return the names of the servers that a tenant may use."""
        return [name for name, server in self._servers.items() if server.serves(tenant)]

    async def tools(self, caller: Caller, server: str) -> Sequence[Tool]:
        """Return the tools of a server; see `ToolServers.tools`."""
        return await self._server(caller, server).tools()

    async def call(self, caller: Caller, server: str, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return a tool's answer; see `ToolServers.call`."""
        found = self._server(caller, server)
        if len(tool) > NAME_MAX:
            raise ToolFailed(f"the server {server} has no tool of this name: it is too long")
        async with found.turn(caller.key.tenant), self._recorded(caller, server, tool, arguments) as answers:
            answers.append(await found.call(tool, arguments))
        return exact_json.loads(answers[0])

    @asynccontextmanager
    async def _recorded(
        self, caller: Caller, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> AsyncIterator[list[bytes]]:
        """Record a call: before it is made, and at its end. The block appends the answer to the list."""
        try:
            call = self._journal.call_begins(caller, server, tool, len(exact_json.dumps(arguments)))
        except SessionError as error:
            raise ToolFailed(f"{error.message} {error.resolution}") from None
        began, answers, outcome = time.monotonic(), list[bytes](), "ended"  # the cell has ended before the answer
        try:
            yield answers
            outcome = "ok"
        except ToolFailed:
            outcome = "error"
            raise
        finally:
            duration = round((time.monotonic() - began) * 1000, 3)
            end = CallEnd(outcome=outcome, duration_ms=duration, answer_bytes=sum(map(len, answers)))
            self._journal.call_ended(call, server, end)

    def _server(self, caller: Caller, server: str) -> _Server:
        found = self._servers.get(server)
        if found is None or not found.serves(caller.key.tenant):
            raise ToolFailed(f"there is no server of tools {server[:NAME_MAX]!r}")
        return found

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers.values():
            await server.close()


class _Server:
    """One server: its tools, its turns and its secret."""

    def __init__(self, name: str, form: ToolServerForm) -> None:
        self._name = name
        self._form = form
        self._client = ServerClient(name, form)
        self._admission = Admission(PER_TENANT, IN_ALL)
        self._fetching = SharedWork[Sequence[Tool] | ToolFailed](f"tools of {name}")
        self._tools: Sequence[Tool] = ()
        #: when the list was fetched, in seconds of the monotonic clock. None: never
        self._fetched_at: float | None = None

    def serves(self, tenant: str) -> bool:
        """Return whether a tenant may use the server."""
        return not {tenant, "*"}.isdisjoint(self._form.tenants)

    async def tools(self) -> Sequence[Tool]:
        """Return its tools, which are fetched when they are older than `LIFETIME`.

        Raises:
            ToolFailed: when the server does not list them as it should.
        """
        if self._fetched_at is None or time.monotonic() - self._fetched_at > LIFETIME:
            outcome = await self._fetching.run(self._fetch)
            if isinstance(outcome, ToolFailed):
                raise outcome
        return self._tools

    async def _fetch(self) -> Sequence[Tool] | ToolFailed:
        try:
            self._tools = await self._client.tools()
        except ToolFailed as error:
            return ToolFailed(self._without_secret(str(error)))
        self._fetched_at = time.monotonic()
        return self._tools

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait until the tenant may make one more call.

        Raises:
            ToolFailed: when its turn does not come in time.
        """
        try:
            await wait_for_turn(self._admission, tenant, self._form.timeout)
        except TimeoutError:
            raise ToolFailed(f"too many other calls of the server {self._name} have no answer") from None
        try:
            yield
        finally:
            self._admission.leave(tenant)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> bytes:
        """Return a tool's answer as JSON, without the credential, which servers repeat in some errors.

        Raises:
            ToolFailed: when the tool has failed, or the server does not answer as it should.
        """
        try:
            answer = exact_json.dumps(await self._client.call(tool, arguments)).decode()
        except orjson.JSONEncodeError:
            raise ToolFailed(f"the answer of the server {self._name} has too many levels") from None
        except ToolFailed as error:
            raise ToolFailed(self._without_secret(str(error))) from None
        return self._without_secret(answer).encode()

    def _without_secret(self, text: str) -> str:
        for secret in self._form.secrets():
            text = text.replace(secret, HIDDEN)
        return text

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()
