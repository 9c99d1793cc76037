"""Uploads as multipart forms: the field `path`, then the file."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from kernel_gateway.dialects.agentrun.base import AgentRunBaseHandler
from kernel_gateway.errors import Unauthorized
from kernel_gateway.http.multipart import FILE, FORM_MAX, Form, boundary_of
from kernel_gateway.http.transfers import Upload
from sessions.guest import workspace
from sessions.model.errors import InvalidRequest, NoSpace, SessionError
from sessions.sandbox.sandbox import Sandbox

#: names that clients use for the field with the file's path
PATHS = ("path", "current_path")


class UploadForm(Form):
    """A form with one file, whose path comes before it."""

    def __init__(self, boundary: bytes) -> None:
        super().__init__(boundary)
        #: pieces of the file that have arrived and were not passed on yet
        self.pieces: list[bytes] = []
        self.has_file = False

    @property
    def path(self) -> str:
        """The path for the file; empty until its field has arrived."""
        return next((self.fields[name] for name in PATHS if name in self.fields), "")

    def file_begins(self, _name: str) -> None:
        """Check that it is the only file and that its path is known."""
        if self.has_file:
            raise InvalidRequest("a form may hold only one file", field=FILE)
        if not self.path:
            raise InvalidRequest("the field `path` must come before the file", field="path")
        self.has_file = True

    def file_continues(self, piece: bytes) -> None:
        """Keep a piece until it is passed on."""
        self.pieces.append(piece)

    def file_ends(self) -> None:
        """Do nothing: the file ends with the form."""


class UploadHandler(AgentRunBaseHandler):
    """`/sandboxes/{id}/filesystem/upload`."""

    _upload: Upload | None = None
    #: why the upload is refused; sent after the whole body was read, or tornado would only close the connection
    _refusal: SessionError | None = None
    #: of the whole body, in hashlib's type, which has no public name
    _digest: Any = None
    _form: UploadForm
    _sandbox: Sandbox
    _path = ""

    def prepare(self) -> None:
        """Check the request and prepare the form, before the body is read."""
        super().prepare()
        if self.request.method != "POST":
            return
        disk = self.gateway.settings.disk
        if (self.announced_length or 0) > disk + FORM_MAX:
            raise NoSpace(f"the file is larger than any workspace ({disk} bytes)", size=self.announced_length)
        if (boundary := boundary_of(self.request.headers.get("Content-Type", ""))) is None:
            raise InvalidRequest("an upload must be a multipart form", field="Content-Type")
        self._sandbox = self.sandbox(self.path_args[0])
        self._digest = hashlib.sha256()
        self._form = UploadForm(boundary)
        self.http.set_max_body_size(disk + FORM_MAX)
        if self.announced_length is None:
            self.limit_body_time(disk + FORM_MAX)

    async def data_received(self, chunk: bytes) -> None:
        """Read the next chunk, and drop it if the upload is already refused."""
        if self._digest is None:
            return  # the body of another method
        self._digest.update(chunk)
        if self._refusal is None:
            try:
                await self._take(chunk)
            except SessionError as refusal:
                self._refuse(refusal)

    def _refuse(self, refusal: SessionError) -> None:
        self._refusal = refusal
        if self._upload is not None:
            self._upload.abandon()

    async def _take(self, chunk: bytes) -> None:
        """Pass the new pieces of the file on; the client waits while the sandbox is busy."""
        self._form.write(chunk)
        pieces, self._form.pieces = self._form.pieces, []
        if self._form.has_file and self._upload is None:
            self._path = self._form.path
            write: Any = partial(workspace.write_file, self._sandbox, self._path, None, new_mode=0o644)
            self._upload = Upload(write)
        for piece in pieces:
            if self._upload is not None:
                await self._upload.send(piece)

    def on_connection_close(self) -> None:
        """Drop the partial file of a client that has left."""
        super().on_connection_close()
        if self._upload is not None:
            self._upload.abandon()

    async def post(self, _sandbox_id: str) -> None:
        """Finish the upload and return the file's size."""
        if self._refusal is None and not self._form.complete:
            self._refuse(InvalidRequest("the form has no closing boundary", field="body"))
        try:
            self.check_digest(self._digest.hexdigest())
        except Unauthorized as refusal:
            self._refuse(refusal)
        if self._refusal is not None:
            raise self._refusal
        if self._upload is None:
            raise InvalidRequest("the form has no file", field=FILE)
        self.finish_json({"path": self._path, "size": await self._upload.finish()})
