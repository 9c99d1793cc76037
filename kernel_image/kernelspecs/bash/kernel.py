# noqa: INP001 - a program
"""The Bash kernel: it has the Python kernel's channels and messages, but runs its cells in one Bash process.

It is started as `python kernel.py -f CONNECTION_FILE`; with `-f -` it waits for its connection. The first cell starts
Bash, so Bash gets the environment and the working directory that the kernel got when it was leased. Variables,
functions and the working directory are kept from cell to cell.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bash import Bash, BashEnded, Publish  # in this program's directory, which Python searches first

if __name__ == "__main__":  # no cell imports Python modules in this kernel
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from python_kernel import bundle

    bundle.use(bundle.FILE)
    from python_kernel import imports

    imports.lean()
from python_kernel.interpreter import InterpreterKernel, Tell, start, version


class BashKernel(InterpreterKernel):  # type: ignore[misc]  # imported through `sys.path` at run time
    """A kernel whose cells are Bash code."""

    implementation = "bash"
    banner = "Bash"
    _bash: Bash | None = None

    @property
    def language(self) -> dict[str, str]:
        """The language, with its version."""
        return {
            "name": "bash",
            "version": version(__file__),
            "mimetype": "text/x-sh",
            "file_extension": ".sh",
            "codemirror_mode": "shell",
            "pygments_lexer": "bash",
        }

    def _send_interrupt_children(self) -> None:
        """Send SIGINT to the kernel's process group, which includes Bash, if a cell runs."""
        if self._bash is not None:
            self._bash.interrupt(super()._send_interrupt_children)

    def run_code(self, code: str, tell: Tell, env: Mapping[str, str]) -> dict[str, Any] | None:
        """Run the code of a cell."""
        status = self._run(code, lambda name, text: tell("stream", {"name": name, "text": text}), env)
        # The name and the value are those of the package `bash_kernel`, which clients know. Clients show the traceback.
        return {"ename": "", "evalue": str(status), "traceback": [f"exit status {status}"]} if status else None

    def _run(
        self, code: str, publish: Publish, env: Mapping[str, str] = MappingProxyType({}), *, keep: bool = True
    ) -> int:
        if self._bash is None:
            self._bash = Bash(lambda status: self.io_loop.add_callback(self.end, status))
        bash = self._bash
        # Bash gets the same signal, because it is in the kernel's process group.
        signal.signal(signal.SIGINT, lambda _number, _frame: bash.ask_status())
        try:
            status: int = bash.run(code, publish, env, keep=keep)
        except BashEnded as ended:
            self.end(int(str(ended)))
        return status

    async def do_complete(self, code: str, cursor_pos: int) -> dict[str, Any]:
        """Complete the last word, which may be a variable, a command or a file."""
        word = re.split(r"[\s;|&()<>=\"'`]", code[:cursor_pos])[-1]
        kinds = "compgen -v -P '$' --" if word.startswith("$") else "compgen -c --", "compgen -f --"
        asked = "; ".join(f"{kind} {shlex.quote(word.removeprefix('$'))}" for kind in kinds)
        found: list[str] = []
        # The commands run in a subshell, so they change nothing, and in a condition, so that no option of the session
        # ends Bash and no trap runs.
        self._run(f"if ({asked}) 2>/dev/null; then :; fi", lambda _name, text: found.append(text), keep=False)
        matches = sorted(set("".join(found).splitlines()))
        start = cursor_pos - len(word)
        return {"status": "ok", "matches": matches, "cursor_start": start, "cursor_end": cursor_pos, "metadata": {}}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Return whether the code is complete, incomplete or invalid."""
        command = ["bash", "-n", "-c", code]
        checked = subprocess.run(command, capture_output=True, text=True, check=False).stderr  # noqa: ASYNC221, S603 - the kernel has nothing else to do meanwhile
        if any(words in checked for words in ("unexpected end of file", "unexpected EOF", "here-document")):
            return {"status": "incomplete", "indent": ""}
        return {"status": "invalid" if checked else "complete"}


if __name__ == "__main__":
    start(BashKernel, sys.argv[1:])
