"""Reads multipart forms while they arrive. Everything besides the files' content is kept, up to a maximum size."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sessions.model.errors import InvalidRequest
from sessions.model.units import FORM_FIELDS, FORM_PARTS

#: maximum bytes of a form besides the content of its files
FORM_MAX = 64 * 1024
#: name of the part that holds a file
FILE = "file"
#: what a client is told whose upload is no form
NO_FORM = "an upload must be a multipart form"

#: an item found in a body: the path of a new file, a piece of its content, or None at its end
Item = str | bytes | None


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary of a multipart form, or None if the content type is another one."""
    kind, options = parse_options_header(content_type)
    return options.get(b"boundary") or None if kind == b"multipart/form-data" else None


class Form:
    """Reads a multipart form, and returns its files' content in pieces. Source: RFC 7578."""

    INCOMPLETE: ClassVar[str] = "the form has no closing boundary"

    def __init__(self, boundary: bytes, path_of: Callable[[str], str], most: int | None = 1) -> None:
        """Prepare to read a form.

        Args:
            boundary: text between the parts, from the content type.
            path_of: returns the path for a new file, by the file's name in the form, which is empty if it has none. It
                raises InvalidRequest when the form may not have this file, or the file has no path.
            most: maximum number of files. None means that only the number of parts is limited.

        Raises:
            InvalidRequest: when the boundary is too long.
        """
        #: True after the closing boundary has arrived
        self.complete = False
        #: values of the fields that are no files, by name
        self.fields: dict[str, str] = {}
        self._path_of = path_of
        self._most = most
        #: number of the files that have begun
        self._files = 0
        self._items: list[Item] = []
        self._name = ""
        self._value = bytearray()
        self._header = bytearray()
        self._disposition = bytearray()
        self._bytes_besides_files = 0
        self._parts = self._header_fields = 0
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_began,
                    "on_header_begin": self._header_began,
                    "on_header_field": self._header_named,
                    "on_header_value": self._header_value_received,
                    "on_headers_finished": self._part_headers_finished,
                    "on_part_data": self._data,
                    "on_part_end": self._part_ended,
                    "on_end": self._ended,
                },
            )
        except FormParserError:
            raise InvalidRequest("the boundary is too long", field="Content-Type") from None

    def read(self, chunk: bytes) -> list[Item]:
        """Return the items that a chunk of the body contains, in order.

        Raises:
            InvalidRequest: when the body is not a valid form.
        """
        self.write(chunk)
        items, self._items = self._items, []
        return items

    def write(self, chunk: bytes) -> None:
        """Parse the next chunk of the body.

        Raises:
            InvalidRequest: when the body is not a valid form.
        """
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise InvalidRequest("the body is no valid multipart form", field="body") from None

    def _part_began(self) -> None:
        self._parts += 1
        if self._parts > FORM_PARTS:
            raise InvalidRequest(f"the form has more than {FORM_PARTS} parts", field="body")
        self._name = ""
        self._value.clear()
        self._disposition.clear()

    def _header_began(self) -> None:
        self._header_fields += 1
        if self._header_fields > FORM_FIELDS:
            raise InvalidRequest(f"the parts of the form have more than {FORM_FIELDS} header fields", field="body")
        self._header.clear()

    def _header_named(self, data: bytes, start: int, end: int) -> None:
        self._keep(self._header, data[start:end])

    def _header_value_received(self, data: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._keep(self._disposition, data[start:end])

    def _part_headers_finished(self) -> None:
        _, options = parse_options_header(bytes(self._disposition))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE:
            self._files += 1
            if self._most is not None and self._files > self._most:
                allowed = "one file" if self._most == 1 else f"{self._most} files"
                raise InvalidRequest(f"a form may hold only {allowed}", field=FILE)
            self._items.append(self._path_of(options.get(b"filename", b"").decode("utf-8", "replace")))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._items.append(data[start:end])
        else:
            self._keep(self._value, data[start:end])

    def _keep(self, kept: bytearray, more: bytes) -> None:
        self._bytes_besides_files += len(more)
        if self._bytes_besides_files > FORM_MAX:
            raise InvalidRequest("the form has too many bytes besides its file", field="body")
        kept += more

    def _part_ended(self) -> None:
        if self._name == FILE:
            self._items.append(None)
        else:
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _ended(self) -> None:
        self.complete = True
