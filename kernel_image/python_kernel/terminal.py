"""A terminal for `!command` that returns only complete characters.

Twenty times a second, IPython prints the output that it has read from the terminal of the command, and decodes each
piece separately, so it may cut a character. `use` gives IPython a terminal whose pieces end with a complete character.
This module is imported by the first command, because it needs pexpect.
"""

from __future__ import annotations

import codecs

import pexpect


class Terminal(pexpect.spawn):  # type: ignore[misc]  # pexpect has no types
    """A process on its own terminal."""

    #: beginning of an incomplete character
    _half = b""

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> bytes:
        """Read the output so far, except the beginning of an incomplete character.

        Raises:
            pexpect.TIMEOUT: when there is no output before the timeout.
            pexpect.EOF: at the end of the output.
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
    """Let IPython run commands on such a terminal. IPython prefers the class `spawnb` if pexpect has it."""
    pexpect.spawnb = Terminal
