"""Checkpoints of sessions: take, list, delete; return to one, branch from one."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Self

from pydantic import BaseModel, Field

from kernel_gateway.dialects.native.sessions import ExistingHandler
from kernel_gateway.http.request_body import Body
from kernel_gateway.times import moment
from sessions.model.checkpoint import Checkpoint
from sessions.model.values import SessionKey
from sessions.session.session import Session

_Name = Annotated[str | None, Field(max_length=64)]


class TakeCheckpoint(Body):
    """A new checkpoint."""

    name: _Name = Field(None, description="1 to 64 of A-Z a-z 0-9 . _ -; generated when absent")


class RollBack(Body):
    """A return to a checkpoint."""

    to: _Name = Field(None, description="name of the checkpoint; the last one when absent")


class Branch(Body):
    """A session that begins with the variables and files of another one."""

    as_: str = Field(alias="as", description="name of the new session", max_length=64)
    from_: _Name = Field(None, alias="from", description="name of the checkpoint; the session's present when absent")


class CheckpointInfo(BaseModel):
    """A checkpoint."""

    name: str
    created_at: datetime
    bytes: int = Field(description="its size on disk")
    automatic: bool = Field(description="taken before the last cell, because the session's `checkpoints` are `auto`")
    after_cell: int | None = Field(
        None,
        description="number of the last cell whose effects it has; null if none had run, or an earlier gateway took it",
    )

    @classmethod
    def of(cls, session: Session, checkpoint: Checkpoint) -> Self:
        """Describe a checkpoint of a session."""
        return cls(
            name=checkpoint.name,
            created_at=moment(checkpoint.image.since),
            bytes=checkpoint.image.size,
            automatic=checkpoint.automatic,
            after_cell=session.checkpoints.last_cell(checkpoint),
        )


class CheckpointList(BaseModel):
    """The checkpoints of a session, oldest first."""

    checkpoints: list[CheckpointInfo]


class CheckpointsHandler(ExistingHandler):
    """`/v1/sessions/{name}/checkpoints`."""

    def get(self, name: str) -> None:
        """List the session's checkpoints."""
        session = self.session(name)
        checkpoints = [CheckpointInfo.of(session, checkpoint) for checkpoint in session.checkpoints.all]
        self.finish_json(CheckpointList(checkpoints=checkpoints).model_dump(mode="json"))

    async def post(self, name: str) -> None:
        """Take a checkpoint when no cell runs."""
        session = self.session(name)
        checkpoint = await session.checkpoints.take(self.body(TakeCheckpoint).name)
        self.set_status(HTTPStatus.CREATED)
        self.finish_json(CheckpointInfo.of(session, checkpoint).model_dump(mode="json"))


class CheckpointHandler(ExistingHandler):
    """`/v1/sessions/{name}/checkpoints/{checkpoint}`."""

    async def delete(self, name: str, checkpoint: str) -> None:
        """Delete a checkpoint."""
        await self.session(name).checkpoints.delete(checkpoint)
        self.set_status(HTTPStatus.NO_CONTENT)


class RollBackHandler(ExistingHandler):
    """`/v1/sessions/{name}/rollback`."""

    async def post(self, name: str) -> None:
        """Return to a checkpoint."""
        session = self.session(name)
        await session.checkpoints.roll_back(self.body(RollBack).to)
        self.describe(session)


class BranchHandler(ExistingHandler):
    """`/v1/sessions/{name}/branch`."""

    async def post(self, name: str) -> None:
        """Make a session from a checkpoint, or from the session's present state."""
        body = self.body(Branch)
        key = SessionKey(self.tenant, body.as_)
        branch = await self.gateway.sandboxes.branch(self.session(name), key, body.from_)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/v1/sessions/{body.as_}")
        self.describe(branch)
