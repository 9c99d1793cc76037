"""RAGFlow's executor: a program comes, runs in a fresh kernel that is thrown away, and what came of it is told.

`POST /run` as `executor_manager` serves it, for RAGFlow's self-managed provider (its Python and its Go client), and
`POST /execute`, an older form of the same. Their two `/healthz` per run, and `/`, are served by `ops`.
Source: RAGFlow's `agent/sandbox` (the executor's models and the providers' requests), read in August 2026.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar

from kernel_gateway.auth import Caller
from kernel_gateway.dialects.ragflow.answers import Answer, older, ran, refused
from kernel_gateway.dialects.ragflow.models import Body, Execute, Run, problem, read
from kernel_gateway.handlers import Dialect, Gateway, JsonHandler, Route
from sessions.errors import InvalidRequest, SessionError
from sessions.oneshot import Program
from sessions.providers.forwarding import FORWARDED


class RunHandler(JsonHandler):
    """`/run`."""

    model: ClassVar[type[Body]] = Run
    #: the program was taken, and whatever comes of it is no failure of the request
    taken = False

    def authenticate(self) -> Caller:
        """By a key, also as a password in the endpoint's URL; a neighbour may need none."""
        keys = self.gateway.keys
        return keys.neighbour(self.request) or keys.caller(self.request, as_password=True)

    async def post(self) -> None:
        """Run a program."""
        program = read(self.model, bytes(self._received)).program(self.gateway.settings)
        self.taken = True
        await self.while_client_stays(self._run(program))

    async def _run(self, program: Program) -> None:
        # What another gateway has passed on runs here: passed on once more, it could come round for ever.
        runner = self.gateway.runner if FORWARDED in self.request.headers else self.gateway.providers
        outcome = await runner.run(self.tenant, program)
        self.finish_json(self.shown(ran(outcome)))

    def shown(self, answer: Answer) -> dict[str, Any]:
        """An answer as these clients read it."""
        return answer

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Never 5xx for a program that was taken: RAGFlow's Go client would send it again."""
        if isinstance(failure, InvalidRequest):
            return HTTPStatus.UNPROCESSABLE_ENTITY
        return HTTPStatus.OK if self.taken else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """As FastAPI does for what cannot be read, and as an outcome what became of a program that was taken."""
        if isinstance(failure, InvalidRequest):
            return {"detail": failure.details.get("problems") or [problem(failure)]}
        if self.taken:
            return self.shown(refused(failure))
        return super().render_failure(failure) | {"detail": failure.message}


class ExecuteHandler(RunHandler):
    """`/execute`."""

    model = Execute

    def shown(self, answer: Answer) -> dict[str, Any]:
        """In the older form."""
        return older(answer)


def routes(gateway: Gateway) -> list[Route]:
    """The executor's paths, also behind an endpoint with a slash at its end."""
    return [("//?run", RunHandler, {"gateway": gateway}), ("//?execute", ExecuteHandler, {"gateway": gateway})]


DIALECT = Dialect("ragflow", routes)
