"""Checkpoints of files: one for each, beside it in `.ipynb_checkpoints`, as Jupyter Server keeps them."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from kernel_gateway.dialects.jupyter.contents_base import FilesHandler
from kernel_gateway.dialects.jupyter.contents_models import checkpoint_path, entry_model
from sessions.guest import workspace
from sessions.guest.workspace import Entry

#: the id of a file's only checkpoint, as in Jupyter Server
CHECKPOINT = "checkpoint"


def checkpoint_model(entry: Entry) -> dict[str, str]:
    """Return the model of a checkpoint."""
    return {"id": CHECKPOINT, "last_modified": entry_model("", entry)["last_modified"]}


class CheckpointsHandler(FilesHandler):
    """`/api/contents/{path}/checkpoints`."""

    async def get(self, path: str) -> None:
        """List the file's checkpoint."""
        session, inner = self.entry_place(path.strip("/"), "list checkpoints of")
        entry = await self.found(session, checkpoint_path(inner))
        self.finish_json([checkpoint_model(entry)] if entry else [])

    async def post(self, path: str) -> None:
        """Keep the file as it is now; an earlier checkpoint is replaced."""
        session, inner = self.entry_place(path.strip("/"), "checkpoint")
        kept = checkpoint_path(inner)
        await self.put_content(session, kept, await self.content_at(session, inner), parents=True)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/api/contents{quote(path)}/checkpoints/{CHECKPOINT}")
        self.finish_json(checkpoint_model(await workspace.stat_file(session, kept)))


class CheckpointHandler(FilesHandler):
    """`/api/contents/{path}/checkpoints/{id}`."""

    async def post(self, path: str, _checkpoint: str) -> None:
        """Make the file what it was at the checkpoint."""
        session, inner = self.entry_place(path.strip("/"), "restore")
        await self.put_content(session, inner, await self.content_at(session, checkpoint_path(inner)))
        self.set_status(HTTPStatus.NO_CONTENT)

    async def delete(self, path: str, _checkpoint: str) -> None:
        """Forget the checkpoint."""
        session, inner = self.entry_place(path.strip("/"), "forget a checkpoint of")
        await workspace.delete_file(session, checkpoint_path(inner))
        self.set_status(HTTPStatus.NO_CONTENT)
