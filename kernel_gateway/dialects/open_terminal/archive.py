"""`/files/archive`: files and directories as one ZIP file, which is made while it is sent."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import Any

from kernel_gateway.dialects.open_terminal.files import FileHandler
from kernel_gateway.dialects.open_terminal.models import Archive
from kernel_gateway.errors import TooLarge
from kernel_gateway.http.transfers import send_pieces
from sessions.guest import workspace
from sessions.guest.paths import sandbox_path, seen_path
from sessions.guest.reading import read_file
from sessions.model.errors import ConnectionFailed, InvalidRequest
from sessions.sandbox.sandbox import Sandbox

#: levels of directories below a packed one
DEPTH = 32
#: the first and last time that a ZIP file can hold, in seconds since 1970
TIMES = (315_532_800, 4_354_819_198)


class ArchiveHandler(FileHandler):
    """`/files/archive`."""

    async def post(self) -> None:
        """Send the entries. A failure after the first byte closes the connection early."""
        await self.run_until_client_leaves(self._send(self.body(Archive)))

    async def _send(self, body: Archive) -> None:
        sandbox = await self.sandbox()
        files = await packed(sandbox, [self.absolute(sandbox, path) for path in body.paths])
        self.set_header("Content-Type", "application/zip")
        self.set_header("Content-Disposition", 'attachment; filename="archive.zip"')
        async with aclosing(zipped(sandbox, files)) as pieces:
            await send_pieces(self, pieces)


async def packed(sandbox: Sandbox, paths: list[str]) -> dict[str, tuple[str, float]]:
    """Return the files of an archive: by the name that each has in it, its path, and the time of its last change.

    Raises:
        FileNotFound: when there is nothing at a path.
        InvalidRequest: when there are no paths, or two of them have the same name.
        TooLarge: when a directory has more files or levels than can be listed.
    """
    if not paths:
        raise InvalidRequest("paths must name a file or directory", field="paths")
    files: dict[str, tuple[str, float]] = {}
    for path in paths:
        found = [await workspace.stat_file(sandbox, path)]
        if found[0]["type"] == "directory":
            listing = await workspace.list_files(sandbox, path, DEPTH)
            if listing.truncated:
                raise TooLarge(f"{path[:200]!r} has too many files for an archive")
            found = [each for each in listing.entries if each["type"] == "file"]
        for each in found:
            place = PurePosixPath(seen_path(sandbox_path(each["path"])))
            if not place.is_relative_to(path):
                raise ConnectionFailed("the sandbox gave no valid answer")
            inside = str(PurePosixPath(path).name / place.relative_to(path))
            if inside in files:
                raise InvalidRequest(f"two files would be called {inside[:200]!r}", field="paths")
            files[inside] = each["path"], each["modified"]
    return files


class _Sent(io.RawIOBase):
    """Collects what is written, until it is taken. Nothing goes back in it, as on a connection."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, piece: Any) -> int:
        """Collect a piece."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        taken, self._pieces = b"".join(self._pieces), []
        return taken


async def zipped(sandbox: Sandbox, files: dict[str, tuple[str, float]]) -> AsyncGenerator[bytes, None]:
    """Yield a ZIP file in pieces. Its files are not compressed, which would take time from other requests."""
    sent = _Sent()
    with zipfile.ZipFile(sent, "w") as archive:
        for name, (path, modified) in files.items():
            moment = time.gmtime(min(max(modified, TIMES[0]), TIMES[1]))[:6]
            member = zipfile.ZipInfo(name, moment)
            async with read_file(sandbox, path) as file:
                with archive.open(member, "w", force_zip64=True) as target:
                    async for piece in file.content:
                        target.write(piece)
                        yield sent.taken()
            yield sent.taken()
    yield sent.taken()
