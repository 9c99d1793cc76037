"""Plots, tables and other rich outputs of a cell, written as files."""

from __future__ import annotations

import json
import tempfile
from base64 import b64decode, b64encode
from itertools import count
from pathlib import Path
from typing import Any, Literal

#: suffixes of the files, by media type; each other type is left out
SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "application/json": "json",
}
#: types whose data is base64, which may be broken into lines. Source: nbformat 4.5
BINARY = {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
#: characters of one piece of a picture for kitty
_KITTY_PIECE = 4096


class Pictures:
    """The files of one run: `output-1.png` and `output-1.html` of the first rich output, and so on."""

    def __init__(self, directory: Path) -> None:
        """Make the directory.

        Raises:
            OSError: when it cannot be made.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._numbers = count(1)
        #: number of each display that later outputs may change
        self._displays: dict[str, int] = {}

    def save(self, data: dict[str, Any], display_id: str | None) -> list[Path]:
        """Write one output, a file for each of its media types that has a suffix.

        Args:
            data: the output's data by media type, as the kernel sent it.
            display_id: an output with the id of an earlier one replaces its files; None: there is no earlier one.

        Returns:
            the files. Those of earlier runs are kept.

        Raises:
            OSError: when a file cannot be written.
        """
        contents = {mime: content for mime in SUFFIXES if (content := _content(mime, data.get(mime))) is not None}
        if not contents:
            return []
        number = self._displays.get(display_id or "") or self._free_number()
        if display_id:
            self._displays[display_id] = number
        paths = []
        for mime, content in contents.items():
            paths.append(self._directory / f"output-{number}.{SUFFIXES[mime]}")
            paths[-1].write_bytes(content)
        return paths

    def _free_number(self) -> int:
        return next(number for number in self._numbers if not any(self._directory.glob(f"output-{number}.*")))


class TerminalPictures:
    """The pictures of cells on a terminal: shown in it, or written as files into a temporary directory."""

    def __init__(self, protocol: Literal["kitty", "iterm"] | None) -> None:
        """Take the terminal's way of showing pictures; None: it has none."""
        self._protocol = protocol
        self._files: Pictures | None = None

    def save(self, data: dict[str, Any], display_id: str | None) -> list[Path]:
        """Show the picture of an output, if it has one, or write it as a file.

        Returns:
            the files.

        Raises:
            OSError: when a file cannot be written.
        """
        png = _content("image/png", data.get("image/png"))
        if png is not None and self._protocol is not None:
            print(shown_inline(png, self._protocol), flush=True)
            return []
        pictures = {mime: content for mime, content in data.items() if mime.startswith("image/")}
        if not pictures:
            return []
        if self._files is None:
            self._files = Pictures(Path(tempfile.mkdtemp(prefix="kernel-gateway-")))
        return self._files.save(pictures, display_id)


def shown_inline(png: bytes, protocol: Literal["kitty", "iterm"]) -> str:
    """Return the sequence with which a terminal shows a picture. It is encoded anew: the kernel writes no part of it.

    Sources: kitty's Terminal graphics protocol; iTerm2's Inline Images Protocol.
    """
    text = b64encode(png).decode()
    if protocol == "iterm":
        return f"\x1b]1337;File=inline=1;size={len(png)}:{text}\x07"
    pieces = [text[start : start + _KITTY_PIECE] for start in range(0, len(text), _KITTY_PIECE)] or [""]
    first = "a=T,f=100,"
    parts = []
    for number, piece in enumerate(pieces, 1):
        parts.append(f"\x1b_G{first}m={int(number < len(pieces))};{piece}\x1b\\")
        first = ""
    return "".join(parts)


def _content(mime: str, value: object) -> bytes | None:
    """Return the bytes of one media type; None: there is none, or the kernel sent something else under its name."""
    if mime == "application/json" and value is not None:
        return json.dumps(value, indent=1).encode()
    if not isinstance(value, str):
        return None
    try:
        return b64decode("".join(value.split()), validate=True) if mime in BINARY else value.encode()
    except ValueError:
        return None
