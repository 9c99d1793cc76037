"""Runs the cells of a session or a notebook again in a fresh session. The answer is a report, or a stream of cells."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel
from tornado.iostream import StreamClosedError

from kernel_gateway.dialects.native.execute import SESSION_ID
from kernel_gateway.dialects.native.models import CODE_MAX, ErrorDetail
from kernel_gateway.dialects.native.sessions import ExistingHandler
from kernel_gateway.dialects.native.stream_formats import PAUSE, SSE_COMMENT, STREAMS, Render, sse, wanted_stream
from kernel_gateway.http.keepalive import with_keepalive
from kernel_gateway.http.request_body import Body
from sessions.cells.notebook import UNDONE
from sessions.cells.transcript import MAX_CELLS
from sessions.model.errors import InvalidRequest, SessionError
from sessions.model.values import SessionKey
from sessions.replay.comparison import DIFFERENCES_MAX
from sessions.replay.replay import Past, PastCell, Replay, Replayed, past_of

#: maximum lines of a cell's source, and outputs of a cell in a notebook
LINES_MAX, OUTPUTS_MAX = 100_000, 10_000


class NotebookCellBody(BaseModel):
    """A cell of a notebook. Other fields are allowed and not looked at."""

    cell_type: Annotated[str, Field(max_length=32)]
    source: Annotated[str, Field(max_length=CODE_MAX)] | Annotated[list[str], Field(max_length=LINES_MAX)] = ""
    outputs: list[dict[str, Any]] = Field(default_factory=list, max_length=OUTPUTS_MAX)
    metadata: dict[str, Any] = Field(default_factory=dict, max_length=1000)

    def past(self, number: int) -> PastCell:
        """Return the cell for the replay."""
        code = self.source if isinstance(self.source, str) else "".join(self.source)
        return PastCell(number, code, self.outputs, self._why_skipped())

    def _why_skipped(self) -> str:
        match self.metadata:
            case {"tags": [*tags]} if UNDONE[1] in tags:
                return f"the notebook has tagged it `{UNDONE[1]}`"
            case {"kernel_gateway": {"error": {"message": str(message)}}}:
                return f"it did not end by itself: {message[:1000]}"
        return ""


class NotebookBody(BaseModel):
    """A notebook in nbformat 4. Other fields are allowed and not looked at."""

    cells: list[NotebookCellBody] = Field(max_length=2 * MAX_CELLS)
    metadata: dict[str, Any] = Field(default_factory=dict, max_length=1000)

    @property
    def language(self) -> str | None:
        """The name of its kernelspec, or None."""
        match self.metadata:
            case {"kernelspec": {"name": str(name)}}:
                return name
        return None


class AskReplay(Body):
    """What to replay, and where."""

    from_: str | NotebookBody = Field(alias="from", description="name of a session, or a notebook (nbformat 4)")
    as_: str = Field(alias="as", description="name of the fresh session", max_length=64)
    timeout: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="seconds that each cell may run; as long as is allowed when absent"
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**31,
        description="seeds the random numbers before each cell: of Python those of `random`, and of NumPy once a cell "
        "has loaded it; two replays with one seed can be compared",
    )


class DifferenceInfo(BaseModel):
    """A part of a cell's output that is another one now."""

    where: str = Field(description="stdout, stderr, error, or `display` with its number and media type")
    before: str | None = Field(description="text from the first line that differs, cut; null: there was none")
    after: str | None


class CellReplayed(BaseModel):
    """How one cell has ended now."""

    type: Literal["cell"]
    number: int = Field(description="number among the cells of the session or the notebook, from 1")
    status: Literal["ok", "error", "timeout", "interrupted", "died"] | None = Field(description="null: it was not run")
    state: Literal["new", "preserved", "restarted", "rolled_back", "lost"] | None
    skipped: str | None = Field(description="why it was not run")
    error: ErrorDetail | None = Field(description="set when status is timeout or died")
    same: bool = Field(description="its outputs are those that it had; true for a cell that was not run")
    differences: list[DifferenceInfo] = Field(max_length=DIFFERENCES_MAX)

    @classmethod
    def fields_of(cls, cell: Replayed) -> dict[str, Any]:
        """Describe a cell."""
        result = cell.result
        return {
            "type": "cell",
            "number": cell.number,
            "status": None if result is None else result.status.value,
            "state": None if result is None else result.state.value,
            "skipped": cell.skipped or None,
            "error": None if result is None or result.error is None else result.error.as_dict(),
            "same": not cell.differences,
            "differences": [asdict(difference) for difference in cell.differences],
        }


class ReplayEnded(BaseModel):
    """How many cells are the same: the last event of a stream."""

    type: Literal["end"]
    session: str
    session_id: str
    same: int
    different: int
    skipped: int
    missing: int = Field(description="cells that ran before and are not kept any more; they were not run")


class ReplayReport(ReplayEnded):
    """A whole replay."""

    cells: list[CellReplayed]


class ReplayFailed(BaseModel):
    """The fresh session cannot go on; the last event of a stream."""

    type: Literal["error"]
    error: ErrorDetail


class ReplayEvent(RootModel[Annotated[CellReplayed | ReplayEnded | ReplayFailed, Field(discriminator="type")]]):
    """One event of a streamed replay."""


class ReplayHandler(ExistingHandler):
    """`/v1/replay`."""

    async def post(self) -> None:
        """Run the cells again; the replay ends when its client leaves, and the fresh session stays."""
        await self.run_until_client_leaves(self._replay(self.body(AskReplay)))

    async def _replay(self, body: AskReplay) -> None:
        timeout = None if body.timeout is None else self.tenant_settings.valid_timeout(body.timeout)
        key, past = SessionKey(self.tenant, body.as_), self._past(body.from_)
        media_type = wanted_stream(self.request.headers.get("Accept", ""))
        async with self.gateway.replays.begin(key, past, timeout, body.seed) as replay:
            self.set_header(SESSION_ID, replay.session.id)
            counts = dict.fromkeys(("same", "different", "skipped"), 0)
            end = {"type": "end", "session": key.name, "session_id": replay.session.id, "missing": past.missing}
            if media_type is None:
                cells = [_counted(cell, counts) async for cell in replay]
                self.finish_json(end | counts | {"cells": cells})
                return
            self.set_header("Content-Type", media_type)
            try:
                await self._stream(replay, counts, end, STREAMS[media_type])
            except StreamClosedError:
                return  # the client has left
            except SessionError as error:  # the status has been sent
                self.finish(STREAMS[media_type]({"type": "error", "error": error.as_dict()}, sum(counts.values()) + 1))

    async def _stream(self, replay: Replay, counts: dict[str, int], end: dict[str, Any], render: Render) -> None:
        number = 0
        async for cell in with_keepalive(replay, PAUSE) if render is sse else replay:
            if cell is None:
                self.write(SSE_COMMENT)
            else:
                number += 1
                self.write(render(_counted(cell, counts), number))
            await self.flush()
        self.finish(render(end | counts, number + 1))

    def _past(self, source: str | NotebookBody) -> Past:
        if isinstance(source, str):
            session = self.session(source)
            session.touch()
            return past_of(session)
        spec = self.gateway.registry.defaults_of(self.tenant)
        if source.language is not None:
            spec = replace(spec, language=self.gateway.registry.language(source.language))
        code = [cell for cell in source.cells if cell.cell_type == "code"]
        if not code:
            raise InvalidRequest("the notebook has no cell of code", field="from")
        return Past(spec, deque(cell.past(number) for number, cell in enumerate(code, 1)))


def _counted(cell: Replayed, counts: dict[str, int]) -> dict[str, Any]:
    """Describe a cell, and count it."""
    counts["skipped" if cell.skipped else "different" if cell.differences else "same"] += 1
    return CellReplayed.fields_of(cell)
