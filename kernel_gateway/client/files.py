"""The files of a session."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from kernel_gateway.client.blocking import blocking, iterating
from kernel_gateway.client.gateway import Gateway

#: bytes that are read at a time
PIECE = 64 * 1024


class AsyncFiles:
    """The files of a session, by their path in its workspace."""

    def __init__(self, gateway: Gateway, session: str) -> None:
        """Take the path of the session."""
        self._gateway = gateway
        self._session = session

    async def list(self, path: str = "") -> list[dict[str, Any]]:
        """List a directory: `name`, `type`, `size` and `modified` of each entry."""
        entries: list[dict[str, Any]] = (await self._gateway.json("GET", f"{self._path(path)}?list"))["entries"]
        return entries

    async def read(self, path: str) -> bytes:
        """Return a file's content."""
        return b"".join([piece async for piece in self.pieces(path)])

    async def pieces(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces, whatever its size."""
        async for piece in self._gateway.content("GET", self._path(path)):
            yield piece

    async def write(self, path: str, content: str | bytes | Iterable[bytes]) -> None:
        """Write a file; text as UTF-8. The session is made on first use."""
        body = content.encode() if isinstance(content, str) else content
        async for _ in self._gateway.content("PUT", self._path(path), body):
            pass

    async def upload(self, local: str | os.PathLike[str], path: str | None = None) -> None:
        """Send a local file; without a path, under its own name."""
        source = Path(local)
        with source.open("rb") as file:  # noqa: ASYNC230 - opening is quick; it is read piece by piece in a thread
            await self.write(source.name if path is None else path, _pieces(file))

    async def download(self, path: str, local: str | os.PathLike[str]) -> None:
        """Write a file of the session into a local file, which stays as it is when there is no such file."""
        file: BinaryIO | None = None
        try:
            async for piece in self.pieces(path):
                file = file or Path(local).open("wb")  # noqa: ASYNC230, SIM115 - as above; closed below
                file.write(piece)
            file = file or Path(local).open("wb")  # noqa: ASYNC230, SIM115 - an empty file
        finally:
            if file is not None:
                file.close()

    async def remove(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it."""
        await self._gateway.json("DELETE", self._path(path))

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory; something at the new path is an error, unless it is a file to `overwrite`."""
        body = {"from": source, "to": target, "overwrite": overwrite}
        await self._gateway.json("POST", f"{self._session}/move", body)

    async def make_directory(self, path: str) -> None:
        """Make a directory, if there is none."""
        await self._gateway.json("POST", f"{self._session}/mkdir", {"path": path})

    def _path(self, path: str) -> str:
        return f"{self._session}/files/{quote(path.encode(errors='surrogateescape'))}"


class Files:
    """The files of a session, without an event loop."""

    def __init__(self, calls: AsyncFiles) -> None:
        """Take the calls over a blocking transport."""
        self.calls = calls

    list = blocking(AsyncFiles.list)
    read = blocking(AsyncFiles.read)
    pieces = iterating(AsyncFiles.pieces)
    write = blocking(AsyncFiles.write)
    upload = blocking(AsyncFiles.upload)
    download = blocking(AsyncFiles.download)
    remove = blocking(AsyncFiles.remove)
    move = blocking(AsyncFiles.move)
    make_directory = blocking(AsyncFiles.make_directory)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
