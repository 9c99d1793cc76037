"""`/files/upload`: a multipart form with one file."""

from __future__ import annotations

from kernel_gateway.dialects.open_terminal.base import TerminalBaseHandler
from kernel_gateway.dialects.open_terminal.models import UploadQuery
from kernel_gateway.http.multipart import FILE, FORM_MAX, Form, boundary_of
from kernel_gateway.http.uploads import UploadHandler as BodyHandler
from sessions.guest.paths import entry_path
from sessions.model.errors import InvalidRequest


class FileForm(Form):
    """A form with one file. Only the last part of its name counts."""

    def __init__(self, boundary: bytes, directory: str) -> None:
        super().__init__(boundary)
        self._directory = directory

    def path_of(self, name: str) -> str:
        """Return the path of the file in the wanted directory."""
        if self.files > 1:
            raise InvalidRequest("a form may hold only one file", field=FILE)
        path = f"{self._directory}/{name.replace(chr(92), '/').rpartition('/')[2] or 'upload'}"
        entry_path(path)
        return path


class UploadHandler(TerminalBaseHandler, BodyHandler):
    """`/files/upload`."""

    async def prepare(self) -> None:
        """Find the sandbox and prepare the form, before the body is read."""
        super().prepare()
        if self.request.method != "POST":
            return
        self.expect(FORM_MAX)
        directory = self.query(UploadQuery).directory
        if (boundary := boundary_of(self.request.headers.get("Content-Type", ""))) is None:
            raise InvalidRequest("an upload must be a multipart form", field="Content-Type")
        sandbox = await self.sandbox()
        self.receiver = sandbox
        self.reader = FileForm(boundary, self.absolute(sandbox, directory))

    async def post(self) -> None:
        """Finish the upload."""
        size = await self.finish_upload()
        self.finish_json({"path": self.paths[0], "size": size})

    async def file_ends(self) -> None:
        """Leave the file open: `post` waits for its end, and knows its size then."""
