"""Uploads as multipart forms: the field `path` comes first, then the file."""

from __future__ import annotations

import hashlib

from kernel_gateway.dialects.agentrun.base import AgentRunBaseHandler
from kernel_gateway.errors import Unauthorized
from kernel_gateway.http.multipart import FILE, FORM_MAX, Form, boundary_of
from kernel_gateway.http.uploads import UploadHandler
from sessions.model.errors import InvalidRequest

#: names that clients use for the field with the file's path
PATHS = ("path", "current_path")


class FileForm(Form):
    """A form with one file, whose path comes before it."""

    def path_of(self, _name: str) -> str:
        """Return the path from the form's field. The file's name in the form is ignored."""
        if self.files > 1:
            raise InvalidRequest("a form may hold only one file", field=FILE)
        path = next((self.fields[name] for name in PATHS if name in self.fields), "")
        if not path:
            raise InvalidRequest("the field `path` must come before the file", field="path")
        return path


class FormHandler(AgentRunBaseHandler, UploadHandler):
    """`/sandboxes/{id}/filesystem/upload`."""

    def prepare(self) -> None:
        """Check the request and prepare the form, before the body is read."""
        self._digest = hashlib.sha256()
        super().prepare()
        if self.request.method != "POST":
            return
        self.expect(FORM_MAX)
        if (boundary := boundary_of(self.request.headers.get("Content-Type", ""))) is None:
            raise InvalidRequest("an upload must be a multipart form", field="Content-Type")
        self.receiver = self.sandbox(self.path_args[0])
        self.reader = FileForm(boundary)

    async def data_received(self, chunk: bytes) -> None:
        """Add the chunk to the digest, and write its items."""
        self._digest.update(chunk)
        await super().data_received(chunk)

    async def file_ends(self) -> None:
        """Leave the file open, because only the end of the body shows whether it is the signed body."""

    async def post(self, _sandbox_id: str) -> None:
        """Finish the upload and return the file's size."""
        try:
            self.check_digest(self._digest.hexdigest())
        except Unauthorized as refusal:
            self.refuse(refusal)
        size = await self.finish_upload()
        self.finish_json({"path": self.paths[0], "size": size})
