"""One cell, from its request to its last event. It runs once, however often its connection breaks off."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

from kernel_gateway.client.errors import ClientError, GatewayError
from kernel_gateway.client.gateway import Gateway, encoded, lines_of, quoted
from kernel_gateway.client.results import Event, Outputs, Result
from kernel_gateway.client.tools import Calls, Tools

#: answers a cell's `input()`: gets the prompt and whether to hide the answer; None ends the input
Ask = Callable[[str, bool], str | Awaitable[str | None] | None]
#: seconds without a sign of the gateway after which a stream is dead; it sends one every 15 seconds
SILENCE = 50.0
#: fields of a request that need a client that answers
ANSWERED = {"interactive", "tools"}


class Cell:
    """A cell on its way. Its idempotency key makes each further request return to the same run."""

    def __init__(self, gateway: Gateway, path: str, body: dict[str, Any], ask: Ask | None, tools: Tools) -> None:
        """Send nothing yet.

        Args:
            gateway: where it runs.
            path: path of its session.
            body: fields of the request.
            ask: answers its `input()`; None: the input has ended.
            tools: functions that it may call.
        """
        self._gateway = gateway
        self._path = path
        self._body = {"idempotency_key": secrets.token_hex(16)} | body
        if ask is not None:
            self._body["interactive"] = True
        if tools.described:
            self._body["tools"] = tools.described
        self._ask = ask
        self._calls = Calls(tools, gateway.transport, self._post_answer)
        self._outputs = Outputs()
        #: id of the execution, once it is known
        self._id: str | None = None
        #: number of the last event; None: no answer has begun, so the request may never have arrived
        self._seen: int | None = None
        self._over = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the cell and yield its events. A caller that leaves before the end interrupts the cell, and no other.

        Raises:
            GatewayError: when the cell was refused, or its end is not known.
            Unreachable: when no gateway answers.
        """
        try:
            patience = self._gateway.patience()
            while not self._over:
                try:
                    async for event in self._once():
                        patience = self._gateway.patience()
                        yield event
                except httpx.TransportError as error:
                    if not patience.repeats(error, safe=True):  # the key makes it safe
                        raise self._gateway.unreachable(error) from error
                    await self._gateway.transport.sleep(patience.pause())
        except (GatewayError, ClientError):
            self._over = True
            raise
        finally:
            self._calls.cancel()
            if not self._over:
                await self._interrupt()

    async def _once(self) -> AsyncGenerator[Event, None]:
        """Yield the events that one connection brings."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self._seen is not None:  # the run is there: without it, the gateway must refuse and not begin a second one
            headers["Last-Event-ID"] = str(self._seen)
        body = encoded(self._body)
        async with self._gateway.answer("POST", f"{self._path}/execute", body, headers, SILENCE) as response:
            self._id, self._seen = response.headers.get("X-Execution-Id"), self._seen or 0
            number = 0
            async for line in lines_of(self._gateway.transport.pieces(response)):
                self._calls.check()
                name, _, value = line.partition(b": ")
                if name == b"id":
                    number = int(value)
                elif name == b"data":
                    event = await self._take(self._gateway.object_of(value), number)
                    if event is not None:
                        yield event
            if not self._over:
                raise httpx.RemoteProtocolError("the stream ended before the cell did")

    async def _take(self, event: dict[str, Any], number: int) -> Event | None:
        """Return the event for the caller; None: a question, which is answered here."""
        kind = str(event["type"])
        if kind == "error":
            raise GatewayError(event["error"])
        if kind == "input_request":
            await self._answer(event, number)
        if kind == "tool_call":
            self._calls.begin(event)
        self._seen = number
        self._outputs.take(event)
        if kind == "result":
            self._over = True
            return Event(kind, event, Result.of(event, self._outputs.all))
        return None if kind in {"input_request", "tool_call"} else Event(kind, event)

    async def _answer(self, question: dict[str, Any], number: int) -> None:
        """Ask the caller. A question that was answered meanwhile, or whose cell has ended, needs no answer."""
        text = None if self._ask is None else self._ask(question["prompt"], question["password"])
        if inspect.isawaitable(text):
            text = await text
        try:
            await self._post_answer("input", {"input": text, "question": number})
        except GatewayError as error:
            if error.details.get("field") != "question":
                raise

    async def _post_answer(self, what: str, answer: dict[str, Any]) -> None:
        """Send an answer. The gateway takes one to each question, so it may be sent again."""
        await self._gateway.json("POST", f"{self._path}/executions/{self._id}/{what}", answer, repeatable=True)

    async def _interrupt(self) -> None:
        """Interrupt this run, if it can be reached. If its turn has not come, it never runs."""
        with suppress(ClientError, httpx.TransportError):
            if self._id is None:  # it waits for its turn, and nothing came yet: the key tells its id
                body = {name: value for name, value in self._body.items() if name not in ANSWERED} | {"wait": False}
                self._id = str((await self._gateway.json("POST", f"{self._path}/execute", body))["id"])
            await self._gateway.json("DELETE", f"{self._path}/executions/{quoted(self._id)}")
