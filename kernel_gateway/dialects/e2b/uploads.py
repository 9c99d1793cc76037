"""Bodies of uploads, read as they arrive: forms with any number of files, and compressed files. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from kernel_gateway.http.multipart import FILE, Form
from sessions.model.errors import InvalidRequest

#: bytes of a piece of a file
PIECE = 64 * 1024
#: window of zlib that means gzip. Source: zlib's manual, inflateInit2
_GZIP = 31


class PathForm(Form):
    """A form whose files have their paths as their names, or one file whose path the query has."""

    def __init__(self, boundary: bytes, path: str | None) -> None:
        super().__init__(boundary)
        self._path = path
        self._items: list[str | bytes | None] = []
        self._files = 0

    def read(self, chunk: bytes) -> list[str | bytes | None]:
        """Return what is in a chunk, in order: the path of a file that begins, pieces of it, and None at its end.

        Raises:
            InvalidRequest: when the body is not such a form.
        """
        self.write(chunk)
        items, self._items = self._items, []
        return items

    def file_begins(self, name: str) -> None:
        """Note the path of the next file."""
        self._files += 1
        if self._path is not None and self._files > 1:
            raise InvalidRequest("a form for one path may hold only one file", field=FILE)
        path = name if self._path is None else self._path
        if not path:
            raise InvalidRequest("the file has no path", field="path")
        self._items.append(path)

    def file_continues(self, piece: bytes) -> None:
        """Note a piece of the file."""
        self._items.append(piece)

    def file_ends(self) -> None:
        """Note the end of the file."""
        self._items.append(None)


class Inflated:
    """A body that is compressed with gzip."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    @property
    def complete(self) -> bool:
        """Whether the end of the compressed file has arrived."""
        return self._stream.eof

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what is in a chunk in pieces of a bounded size, however much it is in all.

        Raises:
            InvalidRequest: when the body is not compressed with gzip, or goes on behind its end.
        """
        while chunk and not self._stream.eof:
            try:
                piece = self._stream.decompress(chunk, PIECE)
            except zlib.error:
                raise InvalidRequest("the body is no valid gzip", field="body") from None
            chunk = self._stream.unconsumed_tail
            if piece:
                yield piece
        if chunk or self._stream.unused_data:
            raise InvalidRequest("there is more behind the end of the compressed body", field="body")
