"""Executions by id: lists and describes them, and interrupts one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from itertools import islice
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.models import Ended, ErrorDetail, result_json
from kernel_gateway.dialects.native.sessions import ExistingHandler
from kernel_gateway.dialects.native.tools import ToolAnswer
from kernel_gateway.http.plain_text import PlainText
from kernel_gateway.http.request_body import Body
from kernel_gateway.http.transfers import send_pieces
from kernel_gateway.times import moment
from sessions.cells.execution import END_OF_INPUT
from sessions.cells.idempotency import Run
from sessions.cells.notebook import in_pieces, with_list
from sessions.cells.packed import Output
from sessions.cells.past_run import PastRun
from sessions.model import exact_json
from sessions.model.errors import InvalidRequest
from sessions.session.session import Session

#: maximum executions in a list. Each is still found by its id when later ones have pushed it out of the list.
LISTED_MAX = 100


class ExecutionSummary(BaseModel):
    """An execution, without its outputs."""

    id: str
    session_id: str = Field(description="id of the session")
    status: Literal["queued", "running", "done", "not_run", "unknown"] = Field(
        description="not_run: it was cancelled or refused before its code ran; unknown: it was asked for before the "
        "gateway was restarted, and nothing else is known of it"
    )
    created_at: datetime | None = Field(description="null if the status is unknown")
    result: Ended | None = Field(description="set when the status is done; the fields of a result without its outputs")
    error: ErrorDetail | None = Field(description="set when the status is not_run or unknown")

    @classmethod
    def of(cls, session: Session, run: Run | PastRun) -> Self:
        """Describe an execution of a session."""
        result = None if run.end is None else run.end.result
        return cls.model_validate(
            {
                "id": run.id,
                "session_id": session.id,
                "status": run.progress.value,
                "created_at": None if run.asked_at is None else moment(run.asked_at),
                "result": None if result is None else result_json(session, result, outputs=False),
                "error": None if run.error is None else run.error.as_dict(),
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values. Errors of executions have no id of a request."""
        return self.model_dump(mode="json", exclude_unset=True)


class ExecutionDetail(ExecutionSummary):
    """An execution with its outputs until now."""

    outputs: list[dict[str, Any]] = Field(description="nbformat 4.5 outputs until now; all of them when it is done")
    outputs_kept: bool = Field(
        description="false: it is done, but its outputs are gone: the gateway was restarted, or later outputs took "
        "their room"
    )


class ExecutionList(BaseModel):
    """The session's executions with an id, newest first."""

    executions: list[ExecutionSummary]
    truncated: bool = Field(description=f"there are more than the {LISTED_MAX} that are listed")

    @classmethod
    def of(cls, session: Session) -> Self:
        """List the executions of a session."""
        runs = list(islice(session.runs.newest_first(), LISTED_MAX + 1))
        listed = [ExecutionSummary.of(session, run) for run in runs[:LISTED_MAX]]
        return cls(executions=listed, truncated=len(runs) > LISTED_MAX)


class Answer(Body):
    """An answer to the `input()` of a cell."""

    input: str | None = Field(description="null: end of the input, as Ctrl-D")
    question: int = Field(
        ge=1, description="`id` of the event that asks; so a repeated request answers no later question"
    )


class InputHandler(ExistingHandler):
    """`/v1/sessions/{name}/executions/{execution}/input`."""

    urgent = frozenset({"POST"})

    def post(self, name: str, execution: str) -> None:
        """Answer the cell's question."""
        answer = self.body(Answer)
        text = END_OF_INPUT if answer.input is None else answer.input
        if not self.session(name).runs.answer(execution, answer.question, text):
            raise InvalidRequest("the cell does not wait for the answer to this question", field="question")
        self.set_status(HTTPStatus.NO_CONTENT)


class ToolsHandler(ExistingHandler):
    """`/v1/sessions/{name}/executions/{execution}/tools`."""

    urgent = frozenset({"POST"})

    def post(self, name: str, execution: str) -> None:
        """Answer a call of a tool."""
        self.body(ToolAnswer).give(self.session(name).runs.tools(execution))
        self.set_status(HTTPStatus.NO_CONTENT)


class ExecutionsHandler(ExistingHandler):
    """`/v1/sessions/{name}/executions`."""

    def get(self, name: str) -> None:
        """List the session's executions, newest first."""
        self.finish_json(ExecutionList.of(self.session(name)).model_dump(mode="json", exclude_unset=True))


class ExecutionHandler(ExistingHandler):
    """`/v1/sessions/{name}/executions/{execution}`."""

    urgent = frozenset({"DELETE"})

    async def get(self, name: str, execution: str) -> None:
        """Describe the execution, with its outputs until now."""
        session = self.session(name)
        session.touch()
        run = session.runs.find(execution)
        told = ExecutionSummary.of(session, run).as_dict() | {"outputs_kept": run.outputs_kept}
        detail = _detail if self.raw_argument("plain") is None else _plain_detail
        body = in_pieces(detail(told, run.outputs_so_far()))
        self.set_header("Content-Type", "application/json")
        await send_pieces(self, self.gateway.fair_loop.iterate(self.tenant, body))

    def delete(self, name: str, execution: str) -> None:
        """Interrupt this execution and no other. If its turn has not come, it never runs."""
        self.session(name).runs.interrupt(execution)
        self.set_status(HTTPStatus.NO_CONTENT)


def _detail(told: dict[str, Any], outputs: Iterable[Output]) -> Iterator[bytes]:
    """Yield the JSON of an execution with its outputs."""
    return with_list(told, "outputs", ([exact_json.dumps(output)] for output in outputs))


def _plain_detail(told: dict[str, Any], outputs: Iterable[Output]) -> Iterator[bytes]:
    """Yield the JSON of an execution with plain outputs. Its result comes last: it says how much was cut off."""
    plain, result = PlainText(), told.pop("result")
    items = ([exact_json.dumps(plain.output(output))] for output in outputs)
    return with_list(told, "outputs", items, lambda: {"result": result and plain.counted(result)})
