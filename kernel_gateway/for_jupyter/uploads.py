"""Files that a browser uploads in parts. They are collected on the Jupyter server's disk and then sent in one piece."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from typing import IO

from tornado.web import HTTPError

#: uploads that may be under way at the same time; the oldest was given up by its browser
UPLOADS_MAX = 16
FIRST, LAST = 1, -1


class Uploads:
    """The uploads of all browsers that are not complete, by path."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, IO[bytes]] = OrderedDict()

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def add(self, path: str, number: int, part: bytes) -> IO[bytes] | None:
        """Add a part of a file.

        Args:
            path: path of the file.
            number: 1 for the first part, -1 for the last part; any other number means the next part.
            part: content of the part.

        Returns:
            the complete file, which the caller closes. None means that more parts will follow.

        Raises:
            HTTPError: when the parts before are not there.
        """
        if number == FIRST:
            self._begin(path)
        if path not in self._files:
            raise HTTPError(400, "the upload must begin again: its first parts are not there")
        self._files[path].write(part)
        return self._files.pop(path) if number == LAST else None

    def _begin(self, path: str) -> None:
        if path in self._files:
            self._files.pop(path).close()
        elif len(self._files) >= UPLOADS_MAX:
            self._files.popitem(last=False)[1].close()
        self._files[path] = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open until its last part arrives
