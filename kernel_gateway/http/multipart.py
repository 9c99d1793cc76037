"""Multipart forms that are read as they arrive: only what is beside the files' content is kept, and that is bounded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sessions.model.errors import InvalidRequest
from sessions.model.units import FORM_FIELDS, FORM_PARTS

#: maximum bytes of a form besides the content of its files
FORM_MAX = 64 * 1024
#: name of the part that holds a file
FILE = "file"

#: what a body has for files: the path of a file that begins, a piece of the file, or None at its end
Item = str | bytes | None


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary of a form, or None if the body is no form."""
    kind, options = parse_options_header(content_type)
    return options.get(b"boundary") or None if kind == b"multipart/form-data" else None


class Form(ABC):
    """Reads a form, and hands its files' content on in pieces. Source: RFC 7578."""

    INCOMPLETE: ClassVar[str] = "the form has no closing boundary"

    def __init__(self, boundary: bytes) -> None:
        """Begin a form.

        Raises:
            InvalidRequest: when the boundary is too long.
        """
        #: True: the closing boundary has arrived
        self.complete = False
        #: the fields that are no files
        self.fields: dict[str, str] = {}
        #: number of the files that have begun
        self.files = 0
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

    @abstractmethod
    def path_of(self, name: str) -> str:
        """Return the path of the file that begins; `name` is its name in the form, or empty.

        Raises:
            InvalidRequest: when the form may not have this file, or the file has no path.
        """

    def read(self, chunk: bytes) -> list[Item]:
        """Return what is in a chunk, in order.

        Raises:
            InvalidRequest: when the body is not such a form.
        """
        self.write(chunk)
        items, self._items = self._items, []
        return items

    def write(self, chunk: bytes) -> None:
        """Parse the next chunk.

        Raises:
            InvalidRequest: when the body is not such a form.
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
            self.files += 1
            self._items.append(self.path_of(options.get(b"filename", b"").decode("utf-8", "replace")))

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
