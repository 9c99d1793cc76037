"""Files of a sandbox as they are: `/files`, with a token or as a signed URL."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

from kernel_gateway.dialects.e2b.base import NOT_FOUND, EnvdHandler
from kernel_gateway.dialects.e2b.tokens import SignedUrl
from kernel_gateway.dialects.e2b.uploads import PIECE, Inflated, PathForm
from kernel_gateway.errors import NotSupported, Unauthorized
from kernel_gateway.http.multipart import FORM_MAX, boundary_of
from kernel_gateway.http.transfers import Upload, send_file, wanted_part
from kernel_gateway.identity.auth import Caller
from sessions.guest import workspace
from sessions.guest.paths import entry_path, seen_path
from sessions.guest.reading import read_file
from sessions.model.errors import InvalidRequest, NoSpace, SandboxNotFound, SessionError
from sessions.sandbox.sandbox import Sandbox

#: operation that a URL is signed for, by method
OPERATIONS = {"GET": "read", "POST": "write"}
#: characters of a signed URL's path and user: its signature is compared with those of all sandboxes
SIGNED_MAX = 2048


class FilesHandler(EnvdHandler):
    """`/files`."""

    _upload: Upload | None = None
    #: why the upload is refused; sent after the whole body was read, or tornado would only close the connection
    _refusal: SessionError | None = None
    #: None: the body is the file itself
    _form: PathForm | None = None
    _inflated: Inflated | None = None
    _size = 0

    def prepare(self) -> None:
        """Check the request, and prepare an upload before its body is read."""
        #: files that are complete, as clients see them
        self._written: list[dict[str, Any]] = []
        super().prepare()
        if hasattr(self, "sandbox"):  # not so for a preflight
            self.check_user()
            if self.request.method == "POST":
                self._prepare_upload()

    def _prepare_upload(self) -> None:
        disk = self.gateway.settings.disk
        headers = self.request.headers
        if (self.announced_length or 0) > disk + FORM_MAX:
            raise NoSpace(f"the file is larger than any workspace ({disk} bytes)", size=self.announced_length)
        if any(name.lower().startswith("x-metadata-") for name in headers):
            raise NotSupported("files have no metadata of their own here")
        if (encoding := headers.get("Content-Encoding", "identity").lower()) not in {"identity", "gzip"}:
            raise InvalidRequest(f"Content-Encoding {encoding[:64]!r} is not known", field="Content-Encoding")
        path = self.raw_argument("path")
        if boundary := boundary_of(headers.get("Content-Type", "")):
            if encoding == "gzip":
                raise InvalidRequest("a form cannot be compressed", field="Content-Encoding")
            self._form = PathForm(boundary, path)
        elif path is None:
            raise InvalidRequest("the query has no path", field="path")
        else:
            self._inflated = Inflated() if encoding == "gzip" else None
            self._begin(path)
        self.http.set_max_body_size(disk + FORM_MAX)
        if self.announced_length is None:
            self.limit_body_time(disk + FORM_MAX)

    # -- signed URLs ----------------------------------------------------------------------------------------

    def found(self) -> tuple[Sandbox, Caller]:
        """Return the sandbox, which a signed URL need not name: then it is the one with this signature.

        Raises:
            SandboxNotFound: when the request has neither a token nor a signature of a sandbox that is there.
            Unauthorized: when the time of a signed URL is over.
        """
        signature = self.raw_argument("signature")
        if signature is None or "X-Access-Token" in self.request.headers:
            return super().found()
        path, user = self.raw_argument("path") or "", self.raw_argument("username") or ""
        if len(path) + len(user) > SIGNED_MAX:
            raise SandboxNotFound(NOT_FOUND)
        end = self.raw_argument("signature_expiration")
        operation = OPERATIONS.get(self.request.method or "", "")
        signed = SignedUrl(path, operation, user, end, signature)
        name = self.target.sandbox if self.target is not None else None
        for sandbox in self.gateway.sandboxes.all():
            if sandbox.spec.secret and name in {None, sandbox.key.name} and signed.is_of(sandbox.spec.secret):
                if end is not None and not (re.fullmatch("[0-9]{1,15}", end) and time.time() < int(end)):
                    raise Unauthorized("the time of this URL is over")
                return self.admitted(sandbox)
        raise SandboxNotFound(NOT_FOUND)

    # -- download -------------------------------------------------------------------------------------------

    async def get(self) -> None:
        """Send a file."""
        path = self.raw_argument("path")
        if path is None:
            raise InvalidRequest("the query has no path", field="path")
        async with read_file(self.sandbox, path, wanted_part(self.request.headers)) as file:
            await send_file(self, file, path)

    # -- upload ---------------------------------------------------------------------------------------------

    async def data_received(self, chunk: bytes) -> None:
        """Pass on the next chunk, and drop it if the upload is already refused."""
        if self.request.method != "POST" or self._refusal is not None:
            return
        try:
            if self._form is not None:
                await self._take(self._form.read(chunk))
            elif self._inflated is not None:
                for piece in self._inflated.pieces(chunk):
                    await self._send(piece)
            else:
                await self._send(chunk)
        except SessionError as refusal:
            self._refuse(refusal)

    async def _take(self, items: list[str | bytes | None]) -> None:
        for item in items:
            if item is None:
                await self._finish()
            elif isinstance(item, str):
                self._begin(item)
            else:
                await self._send(item)

    def _begin(self, path: str) -> None:
        seen = seen_path(entry_path(path))
        write: Any = partial(workspace.write_file, self.sandbox, path, None, new_mode=0o644)
        self._upload, self._size = Upload(write), 0
        self._written.append({"name": seen.rsplit("/", 1)[-1], "path": seen, "type": "file"})

    async def _send(self, piece: bytes) -> None:
        """Pass a piece of the file on; the client waits while the sandbox is busy."""
        self._size += len(piece)
        if self._size > self.sandbox.limits.disk:
            raise NoSpace(f"the file is larger than the workspace ({self.sandbox.limits.disk} bytes)")
        if self._upload is not None:
            for start in range(0, len(piece), PIECE):
                await self._upload.send(piece[start : start + PIECE])

    async def _finish(self) -> None:
        if self._upload is not None:
            upload, self._upload = self._upload, None
            await upload.finish()

    def _refuse(self, refusal: SessionError) -> None:
        self._refusal = refusal
        if self._upload is not None:
            self._upload.abandon()

    def on_connection_close(self) -> None:
        """Drop the partial file of a client that has left."""
        super().on_connection_close()
        if self._upload is not None:
            self._upload.abandon()

    async def post(self) -> None:
        """Finish the upload and describe the files."""
        if self._refusal is None and self._form is not None and not self._form.complete:
            self._refuse(InvalidRequest("the form has no closing boundary", field="body"))
        if self._refusal is None and self._inflated is not None and not self._inflated.complete:
            self._refuse(InvalidRequest("the compressed body is not complete", field="body"))
        if self._refusal is not None:
            raise self._refusal
        await self._finish()
        if not self._written:
            raise InvalidRequest("the form has no file", field="file")
        self.finish_json(self._written)
