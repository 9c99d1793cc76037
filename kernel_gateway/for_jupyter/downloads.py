"""Sends files to a browser as they arrive from the gateway. Jupyter Server's own handler keeps each file in memory."""

from __future__ import annotations

from mimetypes import guess_type

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from tornado.web import HTTPError, authenticated

from kernel_gateway.for_jupyter.requests import TRANSFER, ask, file_place


class DownloadHandler(JupyterHandler):
    """`/files/{path}`."""

    auth_resource = "contents"

    @property
    def content_security_policy(self) -> str:
        """The header for files that a browser shows: their scripts must not reach the Jupyter server."""
        return f"{super().content_security_policy}; sandbox allow-scripts"

    @authenticated
    @authorized
    async def get(self, path: str) -> None:
        """Send a file. With `?download`, the browser stores it.

        Raises:
            HTTPError: when there is no such file.
        """
        self.check_xsrf_cookie()
        path = path.strip("/")
        if await self.contents_manager.is_hidden(path) or not await self.contents_manager.file_exists(path):
            raise HTTPError(404)
        name = path.rpartition("/")[2]
        if self.get_argument("download", None):
            self.set_attachment_header(name)
        self.set_header("Content-Type", _media_type(name))
        await ask("GET", *file_place(path), streaming_callback=self._send, request_timeout=TRANSFER)

    async def _send(self, piece: bytes) -> None:
        self.write(piece)
        await self.flush()


def _media_type(name: str) -> str:
    if name.lower().endswith(".ipynb"):
        return "application/x-ipynb+json"
    guessed, encoding = guess_type(name)
    if encoding is not None or guessed is None:
        return "application/octet-stream"
    return f"{guessed}; charset=UTF-8" if guessed.startswith("text/") else guessed
