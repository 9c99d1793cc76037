"""What `!command` reads from the terminal on which its command runs: whole characters, where IPython cuts them.

IPython prints twenty times a second what has been read by then, each piece decoded by itself. `use` gives it a terminal
whose pieces end with a character. Imported with the first command, because it needs pexpect.
"""

from __future__ import annotations

import codecs

import pexpect


class Terminal(pexpect.spawn):  # type: ignore[misc]  # pexpect has no types
    """A process at a terminal of its own."""

    #: beginning of a character
    _half = b""

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> bytes:
        """Read what is there, except the beginning of a character that is not complete yet.

        Raises:
            pexpect.TIMEOUT: when there is nothing in time.
            pexpect.EOF: at the end.
        """
        try:
            data: bytes = self._half + super().read_nonblocking(size, timeout)
        except pexpect.EOF:
            if not self._half:
                raise
            rest, self._half = self._half, b""
            return rest
        _, whole = codecs.utf_8_decode(data, "replace", False)  # noqa: FBT003 - the function has no names
        self._half = data[whole:]
        return data[:whole]


def use() -> None:
    """Let IPython run its commands so. It looks for a class of this name first."""
    pexpect.spawnb = Terminal
