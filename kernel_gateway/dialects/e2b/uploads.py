"""Finds the file in a compressed body of an upload while the body arrives. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import ClassVar

from sessions.model.errors import InvalidRequest

#: maximum bytes of a piece of a file
PIECE = 64 * 1024
#: zlib's `wbits` for gzip. Source: zlib's manual, inflateInit2
_GZIP = 31


class Inflated:
    """Decompresses a body of one file that is compressed with gzip."""

    INCOMPLETE: ClassVar[str] = "the compressed body is not complete"

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    @property
    def complete(self) -> bool:
        """True if the end of the compressed file has arrived."""
        return self._stream.eof

    def read(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decompressed content of a chunk, in pieces of at most `PIECE` bytes.

        Raises:
            InvalidRequest: when the body is not compressed with gzip, or has bytes after the end of the gzip stream.
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
