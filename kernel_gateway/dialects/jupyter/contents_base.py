"""Base of the handlers of Jupyter's contents API: finds the session of a path, and reads and writes files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from kernel_gateway.dialects.jupyter.base import RestHandler
from kernel_gateway.dialects.jupyter.contents_models import is_hidden
from kernel_gateway.errors import TooLarge
from sessions.guest import workspace
from sessions.guest.paths import valid_path
from sessions.guest.reading import read_file
from sessions.guest.workspace import Entry
from sessions.model.errors import FileNotFound, InvalidRequest
from sessions.session.session import Session

#: maximum bytes of a file that is read as JSON
READ_MAX = 8 * 1024**2


def below(directory: str, name: str) -> str:
    """Return the path of an entry of a directory. The workspace itself is the empty path."""
    return f"{directory}/{name}" if directory else name


class FilesHandler(RestHandler):
    """Base of the handlers of the contents API."""

    def place(self, path: str) -> tuple[Session, str]:
        """Return the session of a path, and the path in its workspace.

        Raises:
            FileNotFound: when the tenant has no such session.
            InvalidRequest: when the path leads out of the workspace.
        """
        name, _, inner = valid_path(f"./{path}").partition("/")
        for session in self.gateway.registry.of(self.tenant):
            if session.key.name == name:
                return session, valid_path(f"./{inner}")  # `./` because `~` is an ordinary name in this API
        raise FileNotFound(f"No such file or directory: {path[:64]}")

    def entry_place(self, path: str, action: str) -> tuple[Session, str]:
        """Return the same as `place`, for a path that must name an entry of a session.

        Args:
            path: path in the API.
            action: verb for the message of an error.

        Raises:
            FileNotFound: when the tenant has no such session.
            InvalidRequest: when the path is hidden, or names a session or the root.
        """
        if is_hidden(path):
            raise InvalidRequest(f"Cannot {action} file or directory {path!r}", field="path")
        session, inner = self.place(path)
        if not inner:
            raise InvalidRequest(f"Cannot {action} {path!r}: sessions are made and ended as kernels", field="path")
        return session, inner

    async def found(self, session: Session, inner: str) -> Entry | None:
        """Return the entry at a path, or None."""
        try:
            return await workspace.stat_file(session, inner)
        except FileNotFound:
            return None

    async def content_at(self, session: Session, inner: str) -> bytes:
        """Return a file's content.

        Raises:
            TooLarge: when the file has more than `READ_MAX` bytes.
            SessionError: when there is no such file.
        """
        async with read_file(session, inner) as file:
            if file.size > READ_MAX:
                raise TooLarge(
                    f"the file has {file.size} bytes: use /v1/sessions/{session.key.name}/files", size=file.size
                )
            return b"".join([piece async for piece in file.content])

    async def put_content(self, session: Session, inner: str, content: bytes, *, parents: bool = False) -> None:
        """Write a file."""

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        await workspace.write_file(session, inner, len(content), pieces(), parents=parents)

    def finish_model(self, model: dict[str, Any], status: HTTPStatus) -> None:
        """Send the model of an entry that was made or changed."""
        self.set_status(status)
        self.set_header("Location", "/api/contents/" + quote(model["path"]))
        self.finish_json(model)
