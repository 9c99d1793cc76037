"""The sessions that prove the promises, and the code that they run."""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from sessions.backends.base import Backend, KernelHandle
from sessions.kernels.readiness import Readiness
from sessions.model.errors import SessionNotFound
from sessions.model.values import ExecuteRequest, ExecutionResult, SessionKey, SessionSpec, Status
from sessions.proving import probes
from sessions.session.registry import Registry
from sessions.session.session import Session

#: tenant of all these sessions
TENANT = "prove"
#: seconds for one cell
CELL = 60.0


class Refused(Exception):
    """A promise is not kept; the reason is for the operator."""


class NothingToTry(Exception):
    """A promise cannot be tried on this machine; the reason is for the operator."""


class Ground:
    """The sessions and the backend of the gateway under proof, and the removal of containers from outside."""

    def __init__(
        self, backend: Backend, readiness: Readiness, registry: Registry, remove: Callable[[str], Awaitable[None]]
    ) -> None:
        """Make no session yet.

        Args:
            backend: where kernels run.
            readiness: proves the backend's isolation.
            registry: registry that has no other client.
            remove: removes the container with an id without the gateway. It raises a SessionError if that fails.
        """
        self.backend = backend
        self.readiness = readiness
        self.registry = registry
        self.remove = remove
        #: outcomes of the restores of new kernels
        self.restored: list[bool] = []
        self._run = secrets.token_hex(4)
        backend.report_restores(self.restored.append)

    def key(self, name: str) -> SessionKey:
        """Return the key of a session of this run. An earlier run that was killed may have left sessions, too."""
        return SessionKey(TENANT, f"{name}-{self._run}")

    async def session(self, name: str, spec: SessionSpec | None = None) -> Session:
        """Return a session, made on first use."""
        return await self.registry.get_or_create(self.key(name), spec)

    async def container(self, name: str) -> KernelHandle:
        """Return the container of a session."""
        return await (await self.session(name)).ensure_container()

    async def run(self, name: str, code: str) -> ExecutionResult:
        """Run a cell in a session, and require that the cell succeeds.

        Raises:
            Refused: when the cell fails.
        """
        session = await self.session(name)
        async with session.execute(ExecuteRequest(code, timeout=CELL)) as running:
            result = await running.result()
        if result.status is not Status.OK:
            raise Refused(f"a cell ended with {result.status}: {why(result)}")
        return result

    async def ask(self, name: str, expression: str) -> Any:
        """Return the value of an expression in a session, a JSON value."""
        result = await self.run(name, f"import json; print(json.dumps({expression}))")
        return _value(result)

    async def probe(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of `probes` in a session, and return its answer."""
        call = f"{function.__name__}(*json.loads({json.dumps(arguments)!r}))"
        return _value(await self.run(name, f"{inspect.getsource(probes)}\nimport json\nprint(json.dumps({call}))"))

    def end(self, name: str) -> None:
        """End a session, if there is one. Nobody waits until it is freed."""
        try:
            self.registry.end(self.key(name))
        except SessionNotFound:
            return


def _value(result: ExecutionResult) -> Any:
    printed = "".join(str(output.get("text", "")) for output in result.outputs)
    try:
        return json.loads(printed)
    except ValueError:
        raise Refused(f"a cell printed something else than it was told to: {printed[:100]!r}") from None


def why(result: ExecutionResult) -> str:
    """Return why a cell has failed."""
    if result.error is not None:
        return result.error.message
    errors = [output for output in result.outputs if output["output_type"] == "error"]
    return f"{errors[-1]['ename']}: {errors[-1]['evalue']}"[:300] if errors else "no reason was given"
