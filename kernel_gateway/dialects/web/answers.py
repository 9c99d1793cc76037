"""`/ui/sessions/NAME/input`: answers of the session page to what cells ask with `input()`.

A cell of any client can be answered here, because its number names it. The API has the same for its own clients, by the
id of an execution.
"""

from __future__ import annotations

from http import HTTPStatus

from pydantic import Field

from kernel_gateway.gateway import Gateway, Route
from kernel_gateway.http.handlers import JsonHandler
from kernel_gateway.http.request_body import Body
from sessions.cells.execution import END_OF_INPUT
from sessions.model.errors import InvalidRequest
from sessions.model.values import SessionKey


class CellAnswer(Body):
    """An answer to a question of a cell."""

    session: str = Field(max_length=64, description="id of the session that the page shows")
    cell: int = Field(ge=1, description="number of the cell")
    question: int = Field(ge=1, description="number of the question, so that no later question is answered")
    input: str | None = Field(description="null: end of the input, as Ctrl-D")


class AnswerHandler(JsonHandler):
    """`/ui/sessions/NAME/input`."""

    urgent = frozenset({"POST"})

    def post(self, name: str) -> None:
        """Answer a question."""
        answer = self.body(CellAnswer)
        session = self.gateway.registry.get(SessionKey(self.tenant, name))
        text = END_OF_INPUT if answer.input is None else answer.input
        if session.id != answer.session or not session.answer(answer.cell, answer.question, text):
            raise InvalidRequest("the cell does not wait for the answer to this question", field="question")
        self.set_status(HTTPStatus.NO_CONTENT)


def routes(gateway: Gateway) -> list[Route]:
    """Return the route of the answers."""
    return [("/ui/sessions/([^/]+)/input", AnswerHandler, {"gateway": gateway})]
