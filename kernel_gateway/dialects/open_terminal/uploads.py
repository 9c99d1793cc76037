"""`/files/upload`: a multipart form with one file."""

from __future__ import annotations

from kernel_gateway.dialects.open_terminal.base import TerminalBaseHandler
from kernel_gateway.dialects.open_terminal.models import UploadQuery
from kernel_gateway.http.uploads import UploadHandler as BodyHandler
from sessions.guest.paths import entry_path


class UploadHandler(TerminalBaseHandler, BodyHandler):
    """`/files/upload`."""

    async def prepare(self) -> None:
        """Find the sandbox and prepare the form, before the body is read."""
        super().prepare()
        if self.request.method != "POST":
            return
        self.expect_form(self._path)
        directory = self.query(UploadQuery).directory
        sandbox = await self.sandbox()
        self.receiver = sandbox
        self._directory = self.absolute(sandbox, directory)

    def _path(self, name: str) -> str:
        """Return the path of the file in the wanted directory. Only the last part of its name counts."""
        path = f"{self._directory}/{name.replace(chr(92), '/').rpartition('/')[2] or 'upload'}"
        entry_path(path)
        return path

    async def post(self) -> None:
        """Finish the upload."""
        size = await self.finish_upload()
        self.finish_json({"path": self.paths[0], "size": size})

    async def file_ends(self) -> None:
        """Leave the file open: `post` waits for its end, and knows its size then."""
