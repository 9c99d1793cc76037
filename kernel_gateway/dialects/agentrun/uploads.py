"""Uploads as multipart forms: the field `path` comes first, then the file."""

from __future__ import annotations

import hashlib

from kernel_gateway.dialects.agentrun.base import AgentRunBaseHandler
from kernel_gateway.errors import Unauthorized
from kernel_gateway.http.multipart import Form
from kernel_gateway.http.uploads import UploadHandler
from sessions.model.errors import InvalidRequest

#: names that clients use for the field with the file's path
PATHS = ("path", "current_path")


class FormHandler(AgentRunBaseHandler, UploadHandler):
    """`/sandboxes/{id}/filesystem/upload`."""

    _form: Form

    def prepare(self) -> None:
        """Check the request and prepare the form, before the body is read."""
        self._digest = hashlib.sha256()
        super().prepare()
        if self.request.method != "POST":
            return
        self._form = self.expect_form(self._path)
        self.receiver = self.sandbox(self.path_args[0])

    def _path(self, _name: str) -> str:
        """Return the path from the form's field. The file's name in the form is ignored."""
        fields = self._form.fields
        path = next((fields[name] for name in PATHS if name in fields), "")
        if not path:
            raise InvalidRequest("the field `path` must come before the file", field="path")
        return path

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
