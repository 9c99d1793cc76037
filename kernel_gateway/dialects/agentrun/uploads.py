"""Uploads as multipart forms: the field `path`, then the file."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kernel_gateway.dialects.agentrun.base import AgentRunBaseHandler
from kernel_gateway.errors import Unauthorized
from kernel_gateway.transfers import Upload
from sessions.errors import InvalidRequest, NoSpace, SessionError
from sessions.guest import workspace
from sessions.sandbox import Sandbox

#: maximum bytes of a form besides its file
FORM_MAX = 64 * 1024
#: names that clients use for the field with the file's path
PATHS = ("path", "current_path")
FILE = "file"


class Form:
    """A form that is read as it arrives: fields are kept, the file's content is passed on in pieces."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        #: pieces of the file that have arrived and were not passed on yet
        self.pieces: list[bytes] = []
        self.has_file = False
        self.complete = False
        self._name = ""
        self._value = bytearray()
        self._header = bytearray()
        self._disposition = bytearray()
        #: bytes of the form so far, besides the file's content
        self._bytes_besides_file = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_began,
                "on_header_begin": self._header_began,
                "on_header_field": self._header_named,
                "on_header_value": self._header_value_received,
                "on_headers_finished": self._part_headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._part_ended,
                "on_end": self._ended,
            },
        )

    @property
    def path(self) -> str:
        """The path for the file; empty until its field has arrived."""
        return next((self.fields[name] for name in PATHS if name in self.fields), "")

    def write(self, chunk: bytes) -> None:
        """Parse the next chunk.

        Raises:
            InvalidRequest: when the body is not such a form.
        """
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise InvalidRequest("the body is no valid multipart form", field="body") from None

    def _part_began(self) -> None:
        self._name = ""
        self._value.clear()
        self._disposition.clear()

    def _header_began(self) -> None:
        self._header.clear()

    def _header_named(self, data: bytes, start: int, end: int) -> None:
        self._keep(self._header, data[start:end])

    def _header_value_received(self, data: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._keep(self._disposition, data[start:end])

    def _part_headers_finished(self) -> None:
        _, options = parse_options_header(bytes(self._disposition))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE:
            if self.has_file:
                raise InvalidRequest("a form may hold only one file", field=FILE)
            if not self.path:
                raise InvalidRequest("the field `path` must come before the file", field="path")
            self.has_file = True

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.pieces.append(data[start:end])
        else:
            self._keep(self._value, data[start:end])

    def _keep(self, kept: bytearray, more: bytes) -> None:
        self._bytes_besides_file += len(more)
        if self._bytes_besides_file > FORM_MAX:
            raise InvalidRequest("the form has too many bytes besides its file", field="body")
        kept += more

    def _part_ended(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _ended(self) -> None:
        self.complete = True


class UploadHandler(AgentRunBaseHandler):
    """`/sandboxes/{id}/filesystem/upload`."""

    _upload: Upload | None = None
    #: why the upload is refused; sent after the whole body was read, or tornado would only close the connection
    _refusal: SessionError | None = None
    #: of the whole body, in hashlib's type, which has no public name
    _digest: Any = None
    _form: Form
    _sandbox: Sandbox
    _path = ""
    _size = 0

    def prepare(self) -> None:
        """Check the request and prepare the form, before the body is read."""
        super().prepare()
        if self.request.method != "POST":
            return
        disk = self.gateway.settings.disk
        if (self.announced_length or 0) > disk + FORM_MAX:
            raise NoSpace(f"the file is larger than any workspace ({disk} bytes)", size=self.announced_length)
        kind, options = parse_options_header(self.request.headers.get("Content-Type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequest("an upload must be a multipart form", field="Content-Type")
        self._sandbox = self.sandbox(self.path_args[0])
        self._digest = hashlib.sha256()
        try:
            self._form = Form(options[b"boundary"])
        except FormParserError:
            raise InvalidRequest("the boundary is too long", field="Content-Type") from None
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
            write: Any = partial(workspace.write_file, self._sandbox, self._path, None, mode=0o644)
            self._upload = Upload(write)
        for piece in pieces:
            self._size += len(piece)
            if self._size > self._sandbox.limits.disk:
                raise NoSpace(f"the file is larger than the workspace ({self._sandbox.limits.disk} bytes)")
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
