"""A session, as a program uses it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from kernel_gateway.client.blocking import blocking, finished, iterating
from kernel_gateway.client.files import AsyncFiles, Files
from kernel_gateway.client.gateway import Gateway, quoted
from kernel_gateway.client.results import Event, Result
from kernel_gateway.client.stream import Ask, Cell
from kernel_gateway.client.tools import Tool, Tools
from kernel_gateway.client.transport import BlockingTransport, LoopTransport, Verify

#: seconds during which a connection that broke off is made again: a gateway that is upgraded is back by then
RETRY_FOR = 30.0


class AsyncSession:
    """A session of a gateway. It is made on first use; leaving the `async with` block keeps it, and `end` ends it."""

    _transport: ClassVar[type[LoopTransport | BlockingTransport]] = LoopTransport

    def __init__(
        self,
        url: str,
        key: str,
        name: str,
        *,
        input: Ask | None = None,  # noqa: A002 - it answers the function of this name
        tools: Sequence[Tool] = (),
        verify: Verify = True,
        retry_for: float = RETRY_FOR,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: the gateway's address, for example `http://127.0.0.1:8888`.
            key: a tenant's key.
            name: the session's name: 1 to 64 of A-Z a-z 0-9 . _ -
            input: answers `input()` of cells: gets the prompt, and True if the answer shall not be shown; None as its
                answer ends the input. It may be a coroutine function, here but not in `Session`.
            tools: functions of this program that cells of Python call: `from tools import …`. They may be coroutine
                functions; others run in threads, many at a time.
            verify: which certificates to trust: a file with them, or a context; False: all. Otherwise those of this
                machine or of `SSL_CERT_FILE`.
            retry_for: seconds during which a connection that broke off is made again. A cell never runs twice by that.
        """
        self.name = name
        self._another = partial(type(self), url, key, input=input, tools=tools, verify=verify, retry_for=retry_for)
        self._gateway = Gateway(url, self._transport(url, key, verify), retry_for)
        self._path = f"/v1/sessions/{quoted(name)}"
        self._ask = input
        self._tools = Tools(tools)
        self.files = AsyncFiles(self._gateway, self._path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the session stays as it is."""
        await self._gateway.transport.close()

    # -- cells ----------------------------------------------------------------------------------------------

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the gateway keeps this time, not the client
        stdin: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        plain: bool = False,
        store_history: bool = True,
        key: str | None = None,
    ) -> Result:
        """Run a cell and return its result. An exception of the code is in the result (`Result.check` raises it).

        Args:
            code: the cell.
            timeout: seconds that it may run.
            stdin: answers to `input()`, in order; then its end.
            arguments: arguments of `main`, which the code defines; `Result.value` is what it returns.
            plain: outputs for a language model: short texts, no colours, no HTML.
            store_history: False: the cell is not counted, and is not in the notebook.
            key: idempotency key: a cell with the same key and code has run already, and this is its result. Each call
                without one has a key of its own.

        Raises:
            GatewayError: when the cell was refused, or its end is not known.
            Unreachable: when no gateway answers.
        """
        result: Result | None = None
        async for event in self.stream(
            code,
            timeout=timeout,
            stdin=stdin,
            arguments=arguments,
            plain=plain,
            store_history=store_history,
            key=key,
        ):
            result = event.result
        if result is None:
            raise RuntimeError("a stream has ended without a result")
        return result

    async def stream(
        self,
        code: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `run`
        stdin: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        plain: bool = False,
        store_history: bool = True,
        key: str | None = None,
        debug: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a cell and yield what it shows as it comes; the last event has the result.

        Whoever leaves before that - a break, Ctrl-C, a cancelled task - interrupts the cell, and its variables stay.
        The arguments and errors are those of `run`. With `debug`, which has `breakpoints` and `exceptions`, the cell
        runs under the debugger: the events `stopped` and `continued` say where it stands, and the call `debug` goes on.
        """
        body: dict[str, Any] = {"code": code, "plain": plain, "store_history": store_history}
        asked = {
            "timeout": timeout,
            "arguments": arguments,
            "idempotency_key": key,
            "debug": debug,
            "stdin": None if stdin is None else list(stdin),
        }
        body |= {name: value for name, value in asked.items() if value is not None}
        cell = Cell(self._gateway, self._path, body, self._ask if stdin is None else None, self._tools)
        events = cell.events()
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def interrupt(self) -> bool:
        """Interrupt the running cell, whoever runs it; the variables stay. Return whether one was running."""
        return bool((await self._gateway.json("POST", f"{self._path}/interrupt"))["interrupted"])

    # -- the session ----------------------------------------------------------------------------------------

    async def create(self, /, **settings: Any) -> dict[str, Any]:
        """Make the session with other settings than the usual ones, such as `language="bash"`, and describe it.

        Args:
            **settings: the fields of `POST /v1/sessions`: language, limits, env, idle_timeout, on_idle, checkpoints,
                image, cwd, network.

        Raises:
            GatewayError: when there is such a session already, or a setting is not allowed.
        """
        return await self._gateway.json("POST", "/v1/sessions", {"name": self.name} | settings)

    async def info(self) -> dict[str, Any]:
        """Describe the session."""
        return await self._gateway.json("GET", self._path)

    async def variables(self) -> list[dict[str, Any]]:
        """List the variables, also while a cell runs: `name`, `type`, `preview` and the sizes of each."""
        found: list[dict[str, Any]] = (await self._gateway.json("GET", f"{self._path}/variables"))["variables"]
        return found

    async def variable(self, name: str) -> dict[str, Any]:
        """Describe a variable with the beginning of its content: `columns` and `rows` of a table, or `entries`.

        Raises:
            GatewayError: when there is no such variable.
        """
        return await self._gateway.json("GET", f"{self._path}/variables/{quoted(name)}")

    async def restart(self) -> None:
        """Start a fresh kernel; the files stay."""
        await self._gateway.json("POST", f"{self._path}/restart")

    async def end(self) -> None:
        """End the session, with its variables and files."""
        await self._gateway.json("DELETE", self._path)

    async def notebook(self) -> bytes:
        """Return all cells that were run, with their outputs, as `.ipynb`."""
        return b"".join([piece async for piece in self._gateway.content("GET", f"{self._path}/notebook")])

    async def debug(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        """Debug a cell, and return what there is to see: `state`, `frames`, `variables`, `value`.

        Args:
            command: launch (with `code` and `breakpoints`), next, stepIn, stepOut, continue, pause, wait, stackTrace,
                variables, evaluate, setBreakpoints or terminate.
            **arguments: the other fields of `POST …/debug`.

        Raises:
            GatewayError: when the debugger refuses.
        """
        return await self._gateway.json("POST", f"{self._path}/debug", {"command": command} | arguments)

    async def replay(
        self,
        name: str,
        *,
        notebook: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `run`
        seed: int | None = None,
    ) -> dict[str, Any]:
        """Run all cells of this session again in a fresh one, and return the report: `cells`, `same`, `different`.

        Args:
            name: name of the fresh session.
            notebook: run the cells of this `.ipynb` instead, for example after this session has ended.
            timeout: seconds that each cell may run.
            seed: seeds the random numbers before each cell.

        Raises:
            GatewayError: when the fresh session cannot be made, or cannot go on.
        """
        body: dict[str, Any] = {"from": self.name if notebook is None else json.loads(notebook), "as": name}
        body |= {} if timeout is None else {"timeout": timeout}
        body |= {} if seed is None else {"seed": seed}
        return await self._gateway.json("POST", "/v1/replay", body)

    # -- checkpoints ----------------------------------------------------------------------------------------

    async def checkpoint(self, name: str | None = None) -> str:
        """Take a checkpoint of variables, processes and files; return its name, which the gateway makes if need be."""
        body = {} if name is None else {"name": name}
        return str((await self._gateway.json("POST", f"{self._path}/checkpoints", body))["name"])

    async def checkpoints(self) -> list[dict[str, Any]]:
        """List the checkpoints, oldest first: `name`, `created_at` and `bytes` of each."""
        found: list[dict[str, Any]] = (await self._gateway.json("GET", f"{self._path}/checkpoints"))["checkpoints"]
        return found

    async def rollback(self, to: str | None = None) -> None:
        """Return to a checkpoint; without a name to the last one."""
        await self._gateway.json("POST", f"{self._path}/rollback", {} if to is None else {"to": to})

    async def branch(self, name: str, *, checkpoint: str | None = None) -> AsyncSession:
        """Make another session, which begins as this one is, or as it was at a checkpoint, and return it."""
        body = {"as": name} | ({} if checkpoint is None else {"from": checkpoint})
        await self._gateway.json("POST", f"{self._path}/branch", body)
        return self._another(name)


class _InPlace(AsyncSession):
    """The calls of a session, waiting in place."""

    _transport = BlockingTransport


class Session:
    """A session of a gateway, without an event loop: the calls are those of `AsyncSession`, and wait for their end.

    It is made on first use; leaving the `with` block keeps it, and `end` ends it. It may be used within a running event
    loop, as in a notebook, and by one thread at a time.
    """

    def __init__(
        self,
        url: str,
        key: str,
        name: str,
        *,
        input: Ask | None = None,  # noqa: A002 - as in AsyncSession
        tools: Sequence[Tool] = (),
        verify: Verify = True,
        retry_for: float = RETRY_FOR,
    ) -> None:
        """Connect to nothing yet; the arguments are those of `AsyncSession`."""
        self.name = name
        self._another = partial(Session, url, key, input=input, tools=tools, verify=verify, retry_for=retry_for)
        self.calls = _InPlace(url, key, name, input=input, tools=tools, verify=verify, retry_for=retry_for)
        self.files = Files(self.calls.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def branch(self, name: str, *, checkpoint: str | None = None) -> Session:
        """Make another session, which begins as this one is, or as it was at a checkpoint, and return it."""
        finished(self.calls.branch(name, checkpoint=checkpoint))
        return self._another(name)

    close = blocking(AsyncSession.close)
    run = blocking(AsyncSession.run)
    stream = iterating(AsyncSession.stream)
    interrupt = blocking(AsyncSession.interrupt)
    create = blocking(AsyncSession.create)
    info = blocking(AsyncSession.info)
    variables = blocking(AsyncSession.variables)
    variable = blocking(AsyncSession.variable)
    restart = blocking(AsyncSession.restart)
    end = blocking(AsyncSession.end)
    notebook = blocking(AsyncSession.notebook)
    debug = blocking(AsyncSession.debug)
    replay = blocking(AsyncSession.replay)
    checkpoint = blocking(AsyncSession.checkpoint)
    checkpoints = blocking(AsyncSession.checkpoints)
    rollback = blocking(AsyncSession.rollback)
