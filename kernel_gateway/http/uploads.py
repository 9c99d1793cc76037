"""Writes files of a request's body into a sandbox while the body arrives, so the memory use does not depend on size."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol

from kernel_gateway.http.handlers import BaseHandler
from kernel_gateway.http.multipart import FILE, FORM_MAX, NO_FORM, Form, Item, boundary_of
from sessions.guest import workspace
from sessions.guest.tools import WorkspaceOwner
from sessions.model.errors import InvalidRequest, NoSpace, SessionError
from sessions.model.tasks import spawn

#: pieces of an upload that may wait for the sandbox
QUEUE = 4
#: A refused body is read up to so many times the allowed size, because some clients read no answer before they have
#: sent all. Then the answer is sent, and the connection closed.
ENDURED = 2


class Upload:
    """An upload of a file into a sandbox. The client can send only as fast as the sandbox writes."""

    def __init__(self, write: Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, int]]) -> None:
        """Start the upload.

        Args:
            write: writes the pieces into the file, and returns its size in bytes.
        """
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE)
        self._writing = spawn(write(self._content()), "upload")

    async def _content(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def send(self, piece: bytes | None) -> None:
        """Pass a piece to the sandbox as soon as the queue has room. None ends the file.

        If the upload has failed already, the piece is dropped.
        """
        if self._writing.done():
            return
        put = spawn(self._pieces.put(piece), "upload piece")
        await asyncio.wait({put, self._writing}, return_when=asyncio.FIRST_COMPLETED)
        put.cancel()

    async def finish(self) -> int:
        """Wait until the file is written.

        Returns:
            the size of the file in bytes.

        Raises:
            SessionError: when the file could not be written.
        """
        await self.send(None)
        return await self._writing

    def abandon(self) -> None:
        """Cancel the upload and drop the incomplete file, because the client has left or the upload is refused."""
        self._writing.cancel()


class BodyReader(Protocol):
    """Finds the files in a body, which is a form or a compressed file."""

    #: message of the error for a body that ends too early
    INCOMPLETE: ClassVar[str]

    @property
    def complete(self) -> bool:
        """Whether the end of the body has arrived."""

    def read(self, chunk: bytes) -> Iterable[Item]:
        """Return the items that a chunk of the body contains, in order.

        Raises:
            InvalidRequest: when the body does not have the expected format.
        """


class UploadHandler(BaseHandler):
    """Base of the handlers that write the files of a body into a sandbox.

    In `prepare`, a dialect's handler sets `receiver`, and calls `expect_form` if the body is a form. Otherwise it calls
    `expect`, and then `begin` if the body is the file itself, or else it sets `reader`.
    """

    #: permissions of a new file; a file that replaces another one keeps the permissions
    new_mode: ClassVar[int] = 0o644
    #: session or sandbox that receives the files
    receiver: WorkspaceOwner
    #: finds the files in the body; None means that the body is the file itself
    reader: BodyReader | None = None
    #: paths of all files so far, as the client wrote them
    paths: tuple[str, ...] = ()
    #: False if the request is not an upload; its body is dropped then
    _expected = False
    #: maximum bytes of the body, and the bytes that have arrived
    _most = 0
    _arrived = 0
    _upload: Upload | None = None
    #: the reason if the upload is refused. It is sent after the whole body was read: if it were sent earlier, tornado
    #: would close the connection before the client has read it
    _refusal: SessionError | None = None

    def expect(self, besides_files: int = 0) -> None:
        """Allow a body as large as a workspace.

        Args:
            besides_files: maximum bytes of the body besides the content of its files.

        Raises:
            NoSpace: when the announced length of the body is larger. A body without a length is counted as it arrives.
        """
        self._most, size = self.gateway.settings.disk + besides_files, self.announced_length
        if (size or 0) > self._most:
            raise self._too_large(size)
        self._expected = True
        # Tornado would cut off a body that is too large with an answer that has no content, so this class does it.
        self.http.set_max_body_size(self._most if size is not None else sys.maxsize)
        if size is None:
            self.limit_body_time(self._most)

    def expect_form(self, path_of: Callable[[str], str], most: int | None = 1) -> Form:
        """Expect a form, and return it. The arguments are those of `Form`.

        Raises:
            InvalidRequest: when the body is no form.
            NoSpace: as in `expect`.
        """
        self.expect(FORM_MAX)
        if (boundary := boundary_of(self.request.headers.get("Content-Type", ""))) is None:
            raise InvalidRequest(NO_FORM, field="Content-Type")
        form = Form(boundary, path_of, most)
        self.reader = form
        return form

    def _too_large(self, size: int | None) -> NoSpace:
        return NoSpace(f"the file is larger than any workspace ({self.gateway.settings.disk} bytes)", size=size)

    async def data_received(self, chunk: bytes) -> None:
        """Write the items of a chunk, or drop the chunk if the upload is already refused."""
        self._arrived += len(chunk)
        if not self._expected or self._finished:
            return
        if self._refusal is None and self._arrived > self._most:
            self.refuse(self._too_large(None))
        if self._refusal is not None:
            if self._arrived > ENDURED * self._most:
                self.send_error(exc_info=(type(self._refusal), self._refusal, None))  # and close the connection
            return
        try:
            for item in (chunk,) if self.reader is None else self.reader.read(chunk):
                if item is None:
                    await self.file_ends()
                elif isinstance(item, str):
                    self.begin(item)
                else:
                    await self.send(item)
        except SessionError as refusal:
            self.refuse(refusal)

    def begin(self, path: str, size: int | None = None) -> None:
        """Start to write a file.

        Args:
            path: path of the file.
            size: size of the file in bytes. None means that the size is not known beforehand.
        """
        self.paths += (path,)
        self._upload = Upload(self.writer(path, size))

    def writer(self, path: str, size: int | None) -> Callable[[AsyncIterator[bytes]], Coroutine[Any, Any, int]]:
        """Return what writes the pieces of a file. A dialect overrides this if it stores files elsewhere."""
        return partial(workspace.write_file, self.receiver, path, size, new_mode=self.new_mode)

    async def send(self, piece: bytes) -> None:
        """Pass a piece of the file to the sandbox. The client waits while the sandbox is busy."""
        if self._upload is not None:
            await self._upload.send(piece)

    async def file_ends(self) -> None:
        """Wait until the file is written, even if the client leaves meanwhile.

        Raises:
            SessionError: when the file could not be written.
        """
        upload, self._upload = self._upload, None
        if upload is not None:
            await upload.finish()

    def refuse(self, refusal: SessionError) -> None:
        """Stop writing. `check_upload` raises the refusal later."""
        self._refusal = refusal
        if self._upload is not None:
            self._upload.abandon()

    def on_connection_close(self) -> None:
        """Drop the partial file of a client that has left."""
        super().on_connection_close()
        if self._upload is not None:
            self._upload.abandon()

    def check_upload(self) -> None:
        """Check the upload when the whole body has arrived.

        Raises:
            InvalidRequest: when the body is incomplete, or contains no file.
            SessionError: when the upload was refused.
        """
        if self._refusal is None and self.reader is not None and not self.reader.complete:
            self.refuse(InvalidRequest(self.reader.INCOMPLETE, field="body"))
        if self._refusal is not None:
            raise self._refusal
        if not self.paths:
            raise InvalidRequest("the form has no file", field=FILE)

    async def finish_upload(self) -> int:
        """Check the upload and wait until its only file is written. If the client leaves meanwhile, drop the file.

        Returns:
            the size of the file in bytes.

        Raises:
            SessionError: when `check_upload` raises it, or the file could not be written.
        """
        self.check_upload()
        return await self._upload.finish() if self._upload is not None else 0
