"""Earlier versions of files, which Jupyter calls checkpoints. They have nothing to do with a session's checkpoints.

Each file has at most one, beside it in `.ipynb_checkpoints`. Jupyter Server uses the same path.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import quote

from kernel_gateway.dialects.jupyter.contents_base import FilesHandler
from kernel_gateway.dialects.jupyter.contents_models import entry_model, version_path
from sessions.guest import workspace
from sessions.guest.workspace import Entry

#: id of a file's only earlier version, as in Jupyter Server
ID = "checkpoint"


def version_model(entry: Entry) -> dict[str, str]:
    """Return the JSON model of an earlier version."""
    return {"id": ID, "last_modified": entry_model("", entry)["last_modified"]}


class FileVersionsHandler(FilesHandler):
    """`/api/contents/{path}/checkpoints`."""

    async def get(self, path: str) -> None:
        """List the file's earlier version, if there is one."""
        session, inner = self.entry_place(path.strip("/"), "list checkpoints of")
        entry = await self.found(session, version_path(inner))
        self.finish_json([version_model(entry)] if entry else [])

    async def post(self, path: str) -> None:
        """Keep the file as it is now, in place of the earlier version."""
        session, inner = self.entry_place(path.strip("/"), "checkpoint")
        kept = version_path(inner)
        await self.put_content(session, kept, await self.content_at(session, inner), parents=True)
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", f"/api/contents{quote(path)}/checkpoints/{ID}")
        self.finish_json(version_model(await workspace.stat_file(session, kept)))


class FileVersionHandler(FilesHandler):
    """`/api/contents/{path}/checkpoints/{id}`."""

    async def post(self, path: str, _version: str) -> None:
        """Replace the file with its earlier version."""
        session, inner = self.entry_place(path.strip("/"), "restore")
        await self.put_content(session, inner, await self.content_at(session, version_path(inner)))
        self.set_status(HTTPStatus.NO_CONTENT)

    async def delete(self, path: str, _version: str) -> None:
        """Delete the earlier version."""
        session, inner = self.entry_place(path.strip("/"), "forget a checkpoint of")
        await workspace.delete_file(session, version_path(inner))
        self.set_status(HTTPStatus.NO_CONTENT)
