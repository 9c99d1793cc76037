# noqa: INP001 - a program
"""The Bash kernel: it has the Python kernel's channels and messages, but runs its cells in one Bash process.

It is started as `python kernel.py -f CONNECTION_FILE`; with `-f -` it waits for its connection. The first cell starts
Bash, so Bash gets the environment and the working directory that the kernel got when it was leased. Variables,
functions and the working directory are kept from cell to cell.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NoReturn

from bash import Bash, BashEnded, Publish  # in this program's directory, which Python searches first

if __name__ == "__main__":  # no cell imports Python modules in this kernel
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from python_kernel import bundle

    bundle.use(bundle.FILE)
    from python_kernel import imports

    imports.lean()
from python_kernel.app import KernelApp, config
from python_kernel.extras import extras_of
from python_kernel.kernel import PythonKernel

#: maximum seconds to send the last messages
CLOSE = 2.0


class BashKernel(PythonKernel):  # type: ignore[misc]  # imported through `sys.path` at run time
    """A kernel whose cells are Bash code."""

    implementation = "bash"
    implementation_version = "1"
    banner = "Bash"
    help_links: Any = ()
    _bash: Bash | None = None

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The kernel's description. It has no debugger and no subshells, because one Bash runs one cell at a time."""
        language = {
            "name": "bash",
            "version": _version(),
            "mimetype": "text/x-sh",
            "file_extension": ".sh",
            "codemirror_mode": "shell",
            "pygments_lexer": "bash",
        }
        info: dict[str, Any] = super().kernel_info
        return info | {"language_info": language, "supported_features": []}

    def _send_interrupt_children(self) -> None:
        """Send SIGINT to the kernel's process group, which includes Bash, if a cell runs."""
        if self._bash is not None:
            self._bash.interrupt(super()._send_interrupt_children)

    async def create_subshell_request(self, stream: Any, ident: list[bytes], parent: dict[str, Any]) -> None:
        """Refuse a subshell."""
        refusal = {"status": "error", "ename": "NotSupported", "evalue": "there are no subshells", "traceback": []}
        self.session.send(stream, "create_subshell_reply", refusal, parent, ident)

    async def run_cell(self, code: str, silent: bool, store_history: bool = True, **_: Any) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as in ipykernel
        """Run a cell."""
        reply: dict[str, Any] = {"execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        error: dict[str, Any] | None = None
        env = extras_of(self.get_parent("shell")).get("env", {})
        if status := self._run(code, _nowhere if silent else self._print, env):
            # the format of the package `bash_kernel`, which clients know
            error = {"ename": "", "evalue": str(status), "traceback": []}
        if store_history and not silent:
            self.shell.history_manager.store_inputs(self.execution_count, code)
            self.shell.execution_count += 1
        if error is None:
            return reply | {"status": "ok"}
        if not silent:
            self._tell("error", error)
        return reply | error | {"status": "error"}

    def _print(self, name: str, text: str) -> None:
        self._tell("stream", {"name": name, "text": text})

    def _tell(self, kind: str, content: dict[str, Any]) -> None:
        self.send_response(self.iopub_socket, kind, content, ident=self._topic(kind))

    def _run(
        self, code: str, publish: Publish, env: Mapping[str, str] = MappingProxyType({}), *, keep: bool = True
    ) -> int:
        if self._bash is None:
            self._bash = Bash(lambda status: self.io_loop.add_callback(self._end, status))
        bash = self._bash
        # Bash gets the same signal, because it is in the kernel's process group.
        signal.signal(signal.SIGINT, lambda _number, _frame: bash.ask_status())
        try:
            status: int = bash.run(code, publish, env, keep=keep)
        except BashEnded as ended:
            self._end(int(str(ended)))
        return status

    def _end(self, status: int) -> NoReturn:
        """End the kernel with the exit status of Bash, because the state of the session is lost."""
        # All output is sent first. A client that does not read must not prevent the end.
        closing = threading.Thread(target=self.parent.close, name="close", daemon=True)
        closing.start()
        closing.join(CLOSE)
        os._exit(status)

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

    async def do_inspect(self, *_args: Any, **_options: Any) -> dict[str, Any]:
        """Answer that there is no information."""
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}


@cache
def _version() -> str:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.json")) as file:
        asked = json.load(file)["metadata"]["kernel_gateway"]["version"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - the image's own


def _nowhere(_name: str, _text: str) -> None:
    """Publish nothing."""


if __name__ == "__main__":
    kind = KernelApp
    if sys.argv[1:] == ["-f", "-"]:
        from python_kernel.waiting import WaitingApp

        kind = WaitingApp
    app = kind.instance(config=config(BashKernel))
    app.initialize()
    bundle.release()
    app.wait()
    app.start()
