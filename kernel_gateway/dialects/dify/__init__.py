"""The API of Dify's sandbox, for Dify's code nodes and template nodes: each program runs in a fresh kernel.

Source: langgenius/dify-sandbox @a94a466, and the client in Dify's `code_executor`, read in August 2026.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kernel_gateway.dialects.dify.models import (
    LANGUAGES,
    Packages,
    Run,
    answer_of_failure,
    answer_of_run,
    succeeded,
)
from kernel_gateway.gateway import Dialect, Gateway, Route
from kernel_gateway.http.handlers import BaseHandler, JsonHandler
from sessions.model import errors
from sessions.model.errors import InvalidRequest, SessionError
from sessions.programs.program import Program

#: seconds that a program may run: Dify waits for 60 s, and a program may first wait for its kernel
TIMEOUT = 30.0
#: errors that mean that there is no room now, but perhaps soon
BUSY = (
    errors.QuotaExceeded,
    errors.StartFailed,
    errors.NotInitialized,
    errors.BackendUnavailable,
    errors.ShuttingDown,
)
INVALID, BUSY_CODE, FAILED = -400, -503, -500
#: name of the field whose value is refused with the status 400
LANGUAGE = "language"


class DifyHandler(JsonHandler):
    """A request of Dify."""

    def check_language(self, language: str) -> None:
        """Check the name of a language.

        Raises:
            InvalidRequest: when no language has this name.
        """
        if language not in LANGUAGES:
            raise InvalidRequest("unsupported language", field=LANGUAGE)

    def status_of(self, failure: SessionError) -> HTTPStatus:
        """Return 200 for most failures, because Dify shows the message only of such answers."""
        if isinstance(failure, BUSY):
            return HTTPStatus.SERVICE_UNAVAILABLE
        status = super().status_of(failure)
        told = not hasattr(self, "caller") or failure.details.get("field") == LANGUAGE
        if told or status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
            return status
        return HTTPStatus.OK

    def render_failure(self, failure: SessionError) -> dict[str, Any]:
        """Return a failure in the form of Dify's sandbox."""
        if isinstance(failure, BUSY):
            return answer_of_failure(BUSY_CODE, failure)
        return answer_of_failure(
            INVALID if super().status_of(failure) < HTTPStatus.INTERNAL_SERVER_ERROR else FAILED, failure
        )


class RunHandler(DifyHandler):
    """`/v1/sandbox/run`."""

    async def post(self) -> None:
        """Run a program."""
        body = self.body(Run)
        self.check_language(body.language)
        program = body.program(min(TIMEOUT, self.tenant_settings.max_execute_timeout))
        await self.run_until_client_leaves(self._run(program))

    async def _run(self, program: Program) -> None:
        self.finish_json(answer_of_run(await self.gateway.runner.run(self.tenant, program)))


class PackagesHandler(DifyHandler):
    """`/v1/sandbox/dependencies` and `/v1/sandbox/dependencies/refresh`."""

    def get(self) -> None:
        """List the packages that Python programs can import. The language is in the query, or in the body."""
        language = self.get_query_argument("language", "") or self.body(Packages).language
        if language != "python3":
            raise InvalidRequest("unsupported language", field=LANGUAGE)
        inventory = self.gateway.inventory()
        found = {"jinja2": ""} | (dict(inventory.packages) if inventory else {})
        listed = [{"name": name, "version": version} for name, version in sorted(found.items())]
        self.finish_json(succeeded({"dependencies": listed}))


class UpdateHandler(DifyHandler):
    """`/v1/sandbox/dependencies/update`."""

    def post(self) -> None:
        """Answer that nothing is to be updated: the packages are those of the kernels' image."""
        self.check_language(self.body(Packages).language)
        self.finish_json(succeeded({}))


class HealthHandler(BaseHandler):
    """`/health`."""

    public = True

    def get(self) -> None:
        """Answer that the process is alive."""
        self.finish_json("ok")


def routes(gateway: Gateway) -> list[Route]:
    """Return the sandbox's routes, which also exist below `/dify`."""
    table = (
        ("/v1/sandbox/run", RunHandler),
        ("/v1/sandbox/dependencies", PackagesHandler),
        ("/v1/sandbox/dependencies/refresh", PackagesHandler),
        ("/v1/sandbox/dependencies/update", UpdateHandler),
        ("/health", HealthHandler),
    )
    return [(f"(?:/dify)?{path}", handler, {"gateway": gateway}) for path, handler in table]


DIALECT = Dialect("dify", routes)
