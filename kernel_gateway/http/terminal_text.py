"""Converts terminal text to plain text: removes escape sequences such as colours, and applies cursor movements."""

from __future__ import annotations

import re

#: control sequences, operating system commands, and other escape sequences. Source: ECMA-48
_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])"
#: sequences that move the cursor up, down, right, left or to a column, erase to the end, or erase a whole line
_MOVE = r"\x1b\[(?:([0-9]{0,3})([ABCDG])|0?([JK])|2(K))"
_ESCAPE = re.compile(_SEQUENCE)
_OTHER_ESCAPE = re.compile(f"(?!{_MOVE}){_SEQUENCE}")
_TOKEN = re.compile(f"{_MOVE}|[^\\r\\n\\b\\x1b]+|.", re.DOTALL)
#: a sequence moves the cursor at most to this column, and erasing a line moves a cursor behind it to column 0
_COLUMNS = 1000


def without_escapes(text: str) -> str:
    """Return a text without its escape sequences."""
    return _ESCAPE.sub("", text)


def on_terminal(text: str) -> str:
    """Return what a terminal shows at the end of a text, without colours.

    The time is linear in the length of the text, but large for each character that moves the cursor.
    """
    text = _OTHER_ESCAPE.sub("", text.replace("\r\n", "\n"))
    if not any(control in text for control in "\r\b\x1b"):
        return text
    screen = _Screen()
    for token in _TOKEN.finditer(text):
        screen.take(token)
    return "\n".join("".join(line) for line in screen.lines)


class _Screen:
    """The lines and the cursor of a terminal that never scrolls."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    def take(self, token: re.Match[str]) -> None:
        """Write a piece of text at the cursor, or apply a control character or sequence."""
        count, move, erased, whole = token.groups()
        if move:
            self._move(move, max(int(count or 1), 1))
        elif erased or whole:
            self._erase(erased or "", whole=bool(whole))
        elif token[0] == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self.lines):
                self.lines.append([])
        elif token[0] == "\r":
            self._column = 0
        elif token[0] == "\b":
            self._column = max(self._column - 1, 0)
        elif token[0] != "\x1b":
            self._write(token[0])

    def _write(self, text: str) -> None:
        line, end = self.lines[self._row], self._column + len(text)
        line.extend(" " * (self._column - len(line)))
        line[self._column : end] = text
        self._column = end

    def _move(self, move: str, count: int) -> None:
        match move:
            case "A":
                self._row = max(self._row - count, 0)
            case "B":
                self._row = min(self._row + count, len(self.lines) - 1)
            case "C":
                self._column = max(self._column, min(self._column + count, _COLUMNS))
            case "D":
                self._column = max(self._column - count, 0)
            case "G":
                self._column = count - 1

    def _erase(self, what: str, *, whole: bool) -> None:
        line = self.lines[self._row]
        if whole:
            line.clear()
            # Otherwise each later character would be padded with as many spaces.
            self._column = self._column if self._column <= _COLUMNS else 0
        del line[self._column :]
        if what == "J":
            del self.lines[self._row + 1 :]
