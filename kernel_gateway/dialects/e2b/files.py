"""Downloads and uploads of a sandbox's files, `/files`, with a token or a signed URL."""

from __future__ import annotations

import re
import time
from functools import partial

from kernel_gateway.dialects.e2b.base import NOT_FOUND, EnvdHandler
from kernel_gateway.dialects.e2b.tokens import SignedUrl
from kernel_gateway.dialects.e2b.uploads import Inflated
from kernel_gateway.errors import NotSupported, Unauthorized
from kernel_gateway.http.multipart import FORM_MAX, Form, boundary_of
from kernel_gateway.http.transfers import send_file, wanted_part
from kernel_gateway.http.uploads import UploadHandler
from kernel_gateway.identity.auth import Caller
from sessions.guest.paths import entry_path, seen_path
from sessions.guest.reading import read_file
from sessions.model.errors import InvalidRequest, NoSpace, SandboxNotFound
from sessions.sandbox.sandbox import Sandbox

#: operation in the signature of a URL, by HTTP method
OPERATIONS = {"GET": "read", "POST": "write"}
#: maximum characters of a signed URL's path and user. They are limited, because a signature of them is computed for
#: each sandbox
SIGNED_MAX = 2048


class FilesHandler(EnvdHandler, UploadHandler):
    """`/files`."""

    #: bytes of the current file that have arrived
    _size = 0

    async def prepare(self) -> None:
        """Check the request, and prepare an upload. Its body arrives afterwards."""
        await super().prepare()
        if hasattr(self, "sandbox"):  # not so for a preflight
            self.check_user()
            if self.request.method == "POST":
                self._prepare_upload()

    def _prepare_upload(self) -> None:
        headers = self.request.headers
        self.expect(FORM_MAX)
        if any(name.lower().startswith("x-metadata-") for name in headers):
            raise NotSupported("files have no metadata of their own here")
        if (encoding := headers.get("Content-Encoding", "identity").lower()) not in {"identity", "gzip"}:
            raise InvalidRequest(f"Content-Encoding {encoding[:64]!r} is not known", field="Content-Encoding")
        path = self.raw_argument("path")
        self.receiver = self.sandbox
        if boundary := boundary_of(headers.get("Content-Type", "")):
            if encoding == "gzip":
                raise InvalidRequest("a form cannot be compressed", field="Content-Encoding")
            self.reader = Form(boundary, partial(_path_of, path), None if path is None else 1)
        elif path is None:
            raise InvalidRequest("the query has no path", field="path")
        else:
            self.reader = Inflated() if encoding == "gzip" else None
            self.begin(path)

    # -- signed URLs ----------------------------------------------------------------------------------------

    def find_sandbox(self) -> tuple[Sandbox, Caller]:
        """Return the sandbox and its owner. A signed URL need not name the sandbox: its signature identifies it.

        Raises:
            SandboxNotFound: when the request has neither a token nor a signature of an existing sandbox.
            Unauthorized: when the time of a signed URL is over.
        """
        signature = self.raw_argument("signature")
        if signature is None or "X-Access-Token" in self.request.headers:
            return super().find_sandbox()
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
                return self.admit(sandbox)
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

    def begin(self, path: str, size: int | None = None) -> None:
        """Start to write a file.

        Raises:
            InvalidRequest: when the path cannot be that of a file.
        """
        entry_path(path)
        super().begin(path, size)
        self._size = 0

    async def send(self, piece: bytes) -> None:
        """Pass a piece of the file to the sandbox.

        Raises:
            NoSpace: when the file becomes larger than the workspace.
        """
        self._size += len(piece)
        if self._size > self.sandbox.limits.disk:
            raise NoSpace(f"the file is larger than the workspace ({self.sandbox.limits.disk} bytes)")
        await super().send(piece)

    async def post(self) -> None:
        """Finish the upload and describe the files."""
        self.check_upload()
        await self.file_ends()
        seen = [seen_path(entry_path(path), path) for path in self.paths]
        self.finish_json([{"name": path.rsplit("/", 1)[-1], "path": path, "type": "file"} for path in seen])


def _path_of(asked: str | None, name: str) -> str:
    """Return the path of a file of a form: that in the query, or without one the file's name."""
    path = name if asked is None else asked
    if not path:
        raise InvalidRequest("the file has no path", field="path")
    return path
