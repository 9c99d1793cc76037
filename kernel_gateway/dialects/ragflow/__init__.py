"""The API of RAGFlow's executor: it runs each program in a fresh kernel, and answers with the program's outcome.

`POST /run` is the API of RAGFlow's `executor_manager`, for the Python and the Go client of its self-managed provider.
`POST /execute` is an older form of the same API. The clients also call `/` and, twice for each program, `/healthz`,
which the dialect `ops` serves.
Source: RAGFlow's `agent/sandbox` (the executor's models and the providers' requests), read in August 2026.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar

from kernel_gateway.dialects.ragflow.answers import Answer, answer_of_refusal, answer_of_run, older_form
from kernel_gateway.dialects.ragflow.models import Body, Execute, Run, problem, read
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.identity.auth import Caller
from sessions.model.errors import InvalidRequest, SessionError
from sessions.programs.program import Program
from sessions.providers.forwarding import FORWARDED


class RunHandler(JsonHandler):
    """`/run`."""

    model: ClassVar[type[Body]] = Run
    #: True after the program was accepted: from then on a failure is sent as an outcome, not as a failed request
    accepted = False

    def authenticate(self) -> Caller:
        """Return the caller by a key, which may be a password in the endpoint's URL. A local client may need no key."""
        keys = self.gateway.keys
        return keys.local_caller(self.request) or keys.caller(self.request, as_password=True)

    async def post(self) -> None:
        """Run a program."""
        program = read(self.model, bytes(self._received)).program(self.tenant_settings)
        self.accepted = True
        await self.run_until_client_leaves(self._run(program))

    async def _run(self, program: Program) -> None:
        # A program from another gateway runs here: if it were forwarded again, it could circulate for ever.
        runner = self.gateway.runner if FORWARDED in self.request.headers else self.gateway.providers
        outcome = await runner.run(self.tenant, program)
        self.finish_json(self.shown(answer_of_run(outcome)))

    def shown(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in the form that these clients read."""
        return answer

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 200 for a failure of an accepted program: after a 5xx, RAGFlow's Go client would send it again."""
        if isinstance(failure, InvalidRequest):
            return HTTPStatus.UNPROCESSABLE_ENTITY
        return HTTPStatus.OK if self.accepted else super().status_of(failure)

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return an error of the body in FastAPI's format, and a failure of an accepted program as an outcome."""
        if isinstance(failure, InvalidRequest):
            return {"detail": failure.details.get("problems") or [problem(failure)]}
        if self.accepted:
            return self.shown(answer_of_refusal(failure))
        return super().render_failure(failure) | {"detail": failure.message}


class ExecuteHandler(RunHandler):
    """`/execute`."""

    model = Execute

    def shown(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in the older form."""
        return older_form(answer)


def routes(gateway: Gateway) -> list[Route]:
    """Return the executor's routes. A path may begin with two slashes, if the client's endpoint ends with one."""
    return [("//?run", RunHandler, {"gateway": gateway}), ("//?execute", ExecuteHandler, {"gateway": gateway})]


DIALECT = Dialect("ragflow", routes)
